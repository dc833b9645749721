# SPDX-License-Identifier: Apache-2.0
"""A Jetson: the GPU is a part of the processor, and the board's lists say what belongs to it.

The lists are NVIDIA's own, a line for each node, directory, file and link that a container is to
have, each at the path that it has on the host (container toolkit
`internal/platform-support/tegra/csv`). Images for Jetson count on these paths: some hold empty
files there, to be mounted over. A library is besides given by its SONAME like those of any other
host, since the loader of a container finds none by a path.
"""

import fnmatch
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator

import attrs

from . import catalog, elf, proc
from .model import DeviceNode, DriverFile, FileKind
from .nodes import Directory
from .root import Root

DIRECTORY = "/etc/nvidia-container-runtime/host-files-for-container.d"
RELEASE = "/etc/nv_tegra_release"
_FAMILY = "/sys/devices/soc0/family"
_MODEL = "/proc/device-tree/model"
# Nodes and a module that only a GPU in the processor has.
_INTEGRATED = ("/dev/nvhost-gpu", "/dev/nvgpu/igpu0/ctrl")
_MODULE = "/sys/module/nvgpu"
_OWN_NAME = re.compile(r"\(nvgpu\)|\bThor\b", re.IGNORECASE)
# The lists that count without being asked for; what else lies there is on request.
_BASE = frozenset({"devices.csv", "drivers.csv", "l4t.csv"})
_KINDS = frozenset({"dev", "dir", "lib", "sym"})
# Directories in which a loader looks, or that these boards name in ld.so.conf.d.
_LOADED = re.compile(
    r"/(?:usr/)?lib(?:/[a-z0-9_]+-linux-gnu[a-z]*)?(?:/(?:tegra|tegra-egl|nvidia))?"
)
_LIBRARY = re.compile(r"lib[^/]*\.so(?:\.[0-9.]+)?")
# "# R35 (release), REVISION: 4.1, GCID: …"
_L4T = re.compile(r"R(\d{1,4}) \(release\), REVISION: (\d{1,4}(?:\.\d{1,4}){0,2})")


@attrs.frozen(kw_only=True)
class Entry:
    """A line of a list: `dev`, `dir`, `lib` or `sym`, and a path, for `dev` maybe a pattern."""

    kind: str
    path: str


@attrs.frozen(kw_only=True)
class Lists:
    """The entries of the base lists, and of all."""

    base: tuple[Entry, ...] = ()
    everything: tuple[Entry, ...] = ()


def is_tegra(*, tegra: bool, nvml: bool, integrated: bool) -> bool:
    """Tell whether the lists are what counts, as the toolkit does (`internal/info/auto.go`).

    `tegra`: the processor is one; `nvml`: there are GPUs that NVML knows; `integrated`: one of
    them, or the only one, is a part of the processor.
    """
    return integrated or (tegra and not nvml)


def signs(root: Root, dev: Directory) -> tuple[str, str]:
    """Give what shows a Tegra processor and what shows its GPU, each empty if nothing does."""
    family = (root.text(_FAMILY) or "").strip()
    processor = RELEASE if root.stat(RELEASE) is not None else ""
    if not processor and family.lower().startswith("tegra"):
        processor = f"{_FAMILY} ({family})"
    found = [path for path in _INTEGRATED if dev.status(path) is not None]
    found += [_MODULE] if root.stat(_MODULE) is not None else []
    found += [gpu.name for gpu in proc.gpus(root) if is_own(gpu)]
    return processor, next(iter(found), "")


def is_own(gpu: proc.ProcGpu) -> bool:
    """Whether a GPU that the nvidia module knows is the processor's own, as a Thor's is."""
    return _OWN_NAME.search(gpu.name) is not None


def watched(root: Root) -> Iterator[str]:
    """Give what a scan depends on: the lists and all that they name."""
    yield DIRECTORY
    for name in root.entries(DIRECTORY):
        yield f"{DIRECTORY}/{name}"
    for entry in read(root).everything:
        yield posixpath.dirname(entry.path) if entry.kind == "dev" else entry.path


def release(root: Root) -> str:
    """Give the version of the board's software (L4T), `35.4.1`; empty if it is not told."""
    match = _L4T.search(root.text(RELEASE) or "")
    return f"{match[1]}.{match[2]}" if match else ""


def model(root: Root) -> str:
    """Give what the board is called."""
    return (root.text(_MODEL) or "").strip("\0 \n") or "NVIDIA Tegra"


def read(root: Root) -> Lists:
    """Read the lists below a root, by name; a line that is none is passed over."""
    names = [n for n in root.entries(DIRECTORY) if n.lower().endswith(".csv")]
    found = {name: parse(root.text(f"{DIRECTORY}/{name}") or "") for name in names}
    base = (entry for name, entries in found.items() if name in _BASE for entry in entries)
    everything = (entry for entries in found.values() for entry in entries)
    return Lists(base=_once(base), everything=_once(everything))


def parse(text: str) -> tuple[Entry, ...]:
    """Read a list: lines `lib, /usr/lib/…`."""
    found = []
    for line in text.splitlines():
        kind, _comma, path = (part.strip() for part in line.partition(","))
        if kind in _KINDS and path.startswith("/"):
            found.append(Entry(kind=kind, path=posixpath.normpath(f"/{path.lstrip('/')}")))
    return tuple(found)


def nodes(entries: Iterable[Entry], dev: Directory) -> tuple[DeviceNode, ...]:
    """Give the nodes of the lists that exist: they name those of every board."""
    found: dict[str, DeviceNode] = {}
    for entry in entries:
        if entry.kind != "dev":
            continue
        parent, name = posixpath.split(entry.path)
        names = dev.names(parent) if any(c in name for c in "*?[") else (name,)
        for each in names:
            if fnmatch.fnmatchcase(each, name):
                node = dev.existing(f"{parent}/{each}")
                if node is not None:
                    found[node.path] = node
    return tuple(found.values())


def files(entries: Iterable[Entry], root: Root) -> tuple[DriverFile, ...]:
    """Give the files and directories of the lists that exist, and the libraries by SONAME."""
    entries = (*entries, Entry(kind="lib", path=RELEASE))
    listed: dict[str, DriverFile] = {}
    names: dict[str, list[str]] = {}
    for entry in entries:
        real = root.resolve(entry.path) if entry.kind != "dev" else None
        status = root.stat(entry.path) if real else None
        if real is None or status is None:
            continue
        directory = stat.S_ISDIR(status.st_mode)
        if not directory and not stat.S_ISREG(status.st_mode):
            continue
        for place in _places(root, entry.path, real):
            listed[place] = DriverFile(
                kind=FileKind.LISTED,
                source=root.reported(real),
                destination=place,
                directory=directory,
            )
        if not directory and _is_loaded(root, entry.path):
            names.setdefault(real, []).append(posixpath.basename(entry.path))
    return (*_libraries(root, names), *listed.values())


def _places(root: Root, path: str, real: str) -> tuple[str, ...]:
    """Give where a container has it: at its path, and behind a link also where that leads."""
    parent, name = posixpath.split(path)
    above = root.resolve(parent) or parent
    return (path,) if real == posixpath.join(above, name) else (real, path)


def _is_loaded(root: Root, path: str) -> bool:
    parent, name = posixpath.split(path)
    above = root.resolve(parent) or parent
    return _LIBRARY.fullmatch(name) is not None and _LOADED.fullmatch(above) is not None


def _libraries(root: Root, names: dict[str, list[str]]) -> Iterator[DriverFile]:
    taken: set[str] = set()
    for real, known in names.items():
        file = elf.read(root.on_disk(real))
        if file is None or not file.soname or file.soname in taken:
            continue
        taken.add(file.soname)
        stem = file.soname.partition(".so")[0]
        further = (*known, *catalog.EXTRA_NAMES.get(stem, ()))
        yield DriverFile(
            kind=FileKind.LIBRARY if file.bits == 64 else FileKind.LIBRARY32,
            source=root.reported(real),
            names=tuple(dict.fromkeys((file.soname, *further))),
        )


def _once(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(dict.fromkeys(entries))
