# SPDX-License-Identifier: Apache-2.0
"""Records a host: a small tree that a scan finds the same in as on the host itself.

What a scan looks at is noted while it does (`root.Trace`), and that is what is written: links as
they are, texts of the kernel and of the distribution, libraries without code, other files without
their content. Nothing else of the host is in it.
"""

import json
import os
import pathlib
import re
import stat
from collections.abc import Iterator

import attrs

from nri_nvidia.errors import ConfigError, HostError

from . import catalog, elf, files, ldcache, proc, stubs
from .options import Options
from .report import Report
from .root import TEXT_LIMIT, Root, Trace
from .scan import scan

_CACHE = "/etc/ld.so.cache"
_CACHE_LIMIT = 1 << 25
_MODULES = "/proc/modules"
_PCI_DEVICE = re.compile(r"/sys/bus/pci/devices/[^/]+")
_NVIDIA = "0x10de"
# Below these a directory's names are facts of their own, not only what else is looked at.
_NAMES_COUNT = ("/proc/driver/", "/sys/", "/dev/dri/")
_WRITTEN = frozenset({"/dev.nodes", "/nvml.json"})
_OS_RELEASE = ("ID=", "ID_LIKE=", "VERSION_ID=", "VARIANT_ID=", "NAME=", "PRETTY_NAME=")


@attrs.frozen(kw_only=True)
class Recording:
    """What was written: numbers of files, links and device nodes."""

    directory: str
    files: int
    links: int
    nodes: int


def record(options: Options, report: Report | None, directory: str) -> Recording:
    """Record a host in an empty or new directory; `report` is what NVML said of a live one.

    Raises ConfigError for a directory that is in use or cannot be made, HostError where the host
    has parts outside its root, or changes meanwhile.
    """
    top = _empty(directory)
    trace = Trace()
    scan(attrs.evolve(options, trace=trace), report)
    writer = _Writer(top, options)
    for root, path in trace.read:
        writer.content(root, path)
    for path in _also(writer.system):
        writer.content(writer.system, path)
    for root, path in trace.looked:
        writer.presence(root, path)
    writer.finish(report)
    return Recording(
        directory=str(top),
        files=len(writer.files),
        links=len(writer.links),
        nodes=len(writer.nodes),
    )


def _also(system: Root) -> Iterator[str]:
    """Give texts that no scan needs and a reader of a bug report does."""
    yield "/proc/driver/nvidia/version"
    for name in system.entries("/sys/bus/pci/devices"):
        for text in ("vendor", "class"):
            yield f"/sys/bus/pci/devices/{name}/{text}"


def _empty(directory: str) -> pathlib.Path:
    top = pathlib.Path(directory)
    try:
        top.mkdir(mode=0o755, exist_ok=True)
        names = os.listdir(top)  # noqa: PTH208 - names only
    except OSError as error:
        raise ConfigError(
            f"{directory}: cannot be made or read: {error.strerror}",
            hint="name a new directory in one that is there",
        ) from error
    if names:
        raise ConfigError(
            f"{directory}: is not empty; it holds {', '.join(sorted(names)[:3])}",
            hint="a host is recorded in an empty or new directory",
        )
    return pathlib.Path(os.path.realpath(top))


class _Writer:
    """Writes below `top` alone: no directory of the way to what it writes is a link."""

    def __init__(self, top: pathlib.Path, options: Options) -> None:
        self._top = top
        self._root = options.root.rstrip("/")
        self.system = attrs.evolve(options, trace=None).system
        self._recorded = options.recorded
        self._version = proc.module_version(self.system)
        self.files: set[str] = set()
        self.links: set[str] = set()
        self.nodes: dict[str, str] = {}

    def content(self, root: Root, path: str) -> None:
        """Record a file with its text, or a directory that was listed."""
        if self._foreign(path):
            return
        end = self._way(root, path)
        status = _status(end)
        if status is None or self._inner(end) in _WRITTEN:
            return
        if stat.S_ISREG(status.st_mode):
            self._file(end, self._text(end, path))
        elif stat.S_ISDIR(status.st_mode):
            self._directory(end)
            inner = f"{self._inner(end)}/"
            if inner.startswith(_NAMES_COUNT):
                for name in sorted(os.listdir(end)):  # noqa: PTH208 - names only
                    self.presence(root, f"{path}/{name}")

    def presence(self, root: Root, path: str) -> None:
        """Record that something is there, without what is in it."""
        if self._foreign(path):
            return
        end = self._way(root, path)
        status = _status(end)
        if status is None or self._inner(end) in self.files | _WRITTEN:
            return
        if stat.S_ISDIR(status.st_mode):
            self._directory(end)
        elif stat.S_ISCHR(status.st_mode):
            numbers = f"{os.major(status.st_rdev)} {os.minor(status.st_rdev)}"
            rights = f"{stat.S_IMODE(status.st_mode):04o} {status.st_uid} {status.st_gid}"
            self.nodes[self._inner(end)] = f"c {numbers} {rights} {self._inner(end)}"
        elif stat.S_ISREG(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            data = _stand_in(end, status, self._version)
            self._file(end, data, 0o755 if status.st_mode & 0o111 else 0o644)

    def finish(self, report: Report | None) -> None:
        """Write the nodes and what NVML said."""
        listed = (self.system.text("/dev.nodes") or "") if self._recorded else ""
        said = self.system.text("/nvml.json") if self._recorded else _document(report)
        lines = [*listed.splitlines(), *self.nodes.values()]
        for name, text in (("dev.nodes", "".join(f"{line}\n" for line in lines)),
                           ("nvml.json", said)):  # fmt: skip
            if text is not None:
                self._put(f"/{name}", text.encode())

    def _way(self, root: Root, path: str) -> str:
        """Record the links that lead to a path; give its end on this machine."""
        self._inner(root.directory)  # raises where that is elsewhere, whatever is there
        *links, end = root.trail(path)
        for link in links:
            inner = self._inner(link)
            if inner not in self.links:
                self._parent(inner)
                target = os.readlink(link)  # noqa: PTH115 - a name, not a Path
                try:
                    os.symlink(target, f"{self._top}{inner}")  # noqa: PTH211
                except FileExistsError:
                    raise _changed(inner) from None
                self.links.add(inner)
        return end

    def _inner(self, path: str) -> str:
        """Give a path of this machine as the recorded host names it."""
        if self._root and not f"{path}/".startswith(f"{self._root}/"):
            raise HostError(
                f"{path} is not below {self._root}, host.root, and cannot be recorded with it",
                hint="set host.root to a directory that holds host.driver_root and host.dev_root",
                code="host-not-recordable",
            )
        return path[len(self._root) :] or "/"

    def _foreign(self, path: str) -> bool:
        """Whether it is of a PCI device of another vendor."""
        match = _PCI_DEVICE.match(path)
        return match is not None and _NVIDIA not in (self.system.text(f"{match[0]}/vendor") or "")

    def _text(self, end: str, path: str) -> bytes:
        limit = _CACHE_LIMIT if path == _CACHE else TEXT_LIMIT
        data = Root("/").data(end, limit) or b""
        if path == _CACHE:
            return b"".join(_known(data))
        if path == _MODULES:
            return _lines(data, ("nvidia",))
        if path.endswith((".json", ".icd")):
            return _loader_file(data, path)
        return _lines(data, _OS_RELEASE) if path.endswith("/os-release") else data

    def _directory(self, end: str) -> None:
        inner = self._inner(end)
        if inner != "/":
            self._parent(inner)
            self._mkdir(inner)

    def _file(self, end: str, data: bytes, mode: int = 0o644) -> None:
        inner = self._inner(end)
        if inner not in self.files:
            self.files.add(inner)
            self._put(inner, data, mode)

    def _put(self, inner: str, data: bytes, mode: int = 0o644) -> None:
        self._parent(inner)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{self._top}{inner}", flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(descriptor, mode)

    def _parent(self, inner: str) -> None:
        parts = inner.split("/")[1:-1]
        for count in range(1, len(parts) + 1):
            self._mkdir("/" + "/".join(parts[:count]))

    def _mkdir(self, inner: str) -> None:
        place = pathlib.Path(f"{self._top}{inner}")
        if place.is_symlink():
            raise _changed(inner)
        place.mkdir(mode=0o755, exist_ok=True)


def _changed(inner: str) -> HostError:
    return HostError(
        f"{inner} changed while the host was recorded",
        hint="remove the directory and try again",
        code="host-not-recordable",
    )


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (OSError, ValueError):
        return None


def _stand_in(path: str, status: os.stat_result, version: str) -> bytes:
    """Give what stands for a file: for ELF its head alone, for an empty one nothing.

    Where the driver's version is told by the content alone, that stays.
    """
    if stat.S_ISSOCK(status.st_mode) or status.st_size == 0:
        return b""
    file = elf.read(path)
    if file is not None:
        head = stubs.shared_object(
            file.soname, needed=file.needed, bits=file.bits, machine=file.machine
        )
        leads = pathlib.Path(path).name.startswith(f"{catalog.TELLING}.so")
        return head + version.encode() if leads and elf.holds(path, version.encode()) else head
    return b"#!/bin/sh\n" if status.st_mode & 0o111 else b"a stand-in of the recorded file\n"


def _known(data: bytes) -> Iterator[bytes]:
    """Give a cache with the entries of driver libraries alone; nothing for what is no cache."""
    entries = [
        (entry.name, entry.path, entry.bits)
        for entry in ldcache.parse(data)
        if entry.bits and not entry.special and entry.name.partition(".so")[0] in catalog.LIBRARIES
    ]
    if entries:
        yield stubs.library_cache(entries)


def _loader_file(data: bytes, path: str) -> bytes:
    """Give what a scan reads of a loader's file: the library that it names."""
    named = files.library_named(data)
    if path.endswith(".icd"):
        return f"{named}\n".encode()
    return f"{json.dumps({'ICD': {'library_path': named}})}\n".encode()


def _lines(data: bytes, beginnings: tuple[str, ...]) -> bytes:
    wanted = tuple(beginning.encode() for beginning in beginnings)
    return b"".join(line for line in data.splitlines(keepends=True) if line.startswith(wanted))


def _document(report: Report | None) -> str | None:
    if report is None:
        return None
    return json.dumps(attrs.asdict(report), indent=1, sort_keys=True) + "\n"
