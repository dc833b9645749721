# SPDX-License-Identifier: Apache-2.0
"""The driver's files that are no libraries: programs, firmware, sockets, configuration."""

import json
import os
import re
import stat
from collections.abc import Iterator

from . import catalog, libraries, proc
from .model import DriverFile, FileKind
from .root import Root

_FIRMWARE = "/lib/firmware/nvidia/{}"
LOADER_FILES = (".json", ".icd")
_GSP = re.compile(r"gsp[^/]*\.bin")


def binaries(root: Root, version: str, library_directory: str) -> Iterator[DriverFile]:
    """Give the driver's programs; the flavour that the libraries come from goes first."""
    flavour = library_directory.rpartition("/")[2]
    places = [f"/usr/lib/nvidia/{flavour}"]
    places += [p.format(version=version) for p in catalog.VERSIONED_BINARY_DIRECTORIES]
    places += [*catalog.BINARY_DIRECTORIES, "/usr/lib/nvidia/current"]
    for name, capability in sorted(catalog.BINARIES.items()):
        real = next((r for p in places if (r := _program(root, f"{p}/{name}"))), None)
        if real is not None:
            yield DriverFile(
                kind=FileKind.BINARY,
                source=root.reported(real),
                names=(name,),
                capabilities=frozenset({capability}),
            )


def firmware(driver: Root, system: Root, version: str) -> Iterator[DriverFile]:
    """Give the firmware of the GPUs' system processor; it is needed whatever is asked for.

    The kernel's own search order counts, `drivers/base/firmware_loader`. A place that this host's
    kernel alone is told of (NixOS, Container-Optimized OS) means nothing in a container.
    """
    configured = (system.text("/sys/module/firmware_class/parameters/path") or "").strip()
    release = proc.kernel_release(system)
    tops = [configured] if configured.startswith("/") else []
    for top in ("/lib/firmware/updates", "/lib/firmware"):
        tops += [f"{top}/{release}"] if release and "/" not in release else []
        tops.append(top)
    seen: set[str] = set()
    for top in tops:
        directory = os.path.normpath(f"{top}/nvidia/{version}")
        for name in driver.entries(directory):
            real = _regular(driver, f"{directory}/{name}")
            if _GSP.fullmatch(name) and name not in seen and real is not None:
                seen.add(name)
                place = _FIRMWARE.format(version) if top == configured else directory
                yield DriverFile(
                    kind=FileKind.FIRMWARE,
                    source=driver.reported(real),
                    destination=f"{place}/{name}",
                )


def sockets(root: Root) -> Iterator[DriverFile]:
    """Give the sockets of the driver's daemons and the directory of its MPS control."""
    for name, capability in sorted(catalog.SOCKETS.items()):
        for top in ("/run", "/var/run"):
            if _socket(root, f"{top}/{name}"):
                yield DriverFile(
                    kind=FileKind.SOCKET,
                    source=root.reported(root.resolve(f"{top}/{name}") or ""),
                    destination=f"/run/{name}",
                    capabilities=frozenset({capability}),
                )
                break
    status = root.stat(catalog.MPS_DIRECTORY)
    if status is not None and stat.S_ISDIR(status.st_mode):
        yield DriverFile(
            kind=FileKind.SOCKET,
            source=root.reported(root.resolve(catalog.MPS_DIRECTORY) or ""),
            destination=catalog.MPS_DIRECTORY,
            capabilities=frozenset({"compute"}),
            directory=True,
        )


def xorg(root: Root, version: str, found: libraries.Found) -> Iterator[DriverFile]:
    """Give the driver's modules for the X server; Debian keeps a flavour's beside its programs."""
    flavour = found.directory.rpartition("/")[2]
    places = [f"/usr/lib/nvidia/{flavour}"]
    for directory in dict.fromkeys((found.directory, *found.directories)):
        places.append(f"{directory}/nvidia/xorg")
        places += [f"{directory}/xorg/{below}" for below in catalog.XORG_PLACES]
    places += [f"{top}/{below}" for top in catalog.XORG_TOPS for below in catalog.XORG_PLACES]
    places = [place for place in dict.fromkeys(places) if root.stat(place) is not None]
    for name, place in catalog.XORG_MODULES.items():
        file = name if name == "nvidia_drv.so" else f"{name}.{version}"
        real = next((r for p in places if (r := _regular(root, f"{p}/{file}"))), None)
        if real is not None:
            yield DriverFile(
                kind=FileKind.XORG,
                source=root.reported(real),
                names=(name,),
                links=(f"{place}/{name}",),
                capabilities=frozenset({"graphics"}),
            )


def configs(root: Root, library_directory: str) -> Iterator[DriverFile]:
    """Give the files by which loaders (OpenCL, Vulkan, EGL, X) find the driver, and their data.

    They go where a container's loaders look, wherever the host's distribution keeps them. Debian
    keeps some with the flavour; where the usual name is a link to there, that need not be made.
    Of Vulkan's files, which have one of two names, one is given: two would show each GPU twice.
    """
    manifest = False
    flavour = library_directory.rpartition("/")[2]
    flavours = (f"/etc/nvidia/{flavour}", library_directory) if library_directory else ()
    for name, (top, capability) in sorted(catalog.CONFIGS.items()):
        if manifest and name in catalog.VULKAN_MANIFESTS:
            continue
        usual = [f"{place}/{name}" for place in (*catalog.CONFIG_DIRECTORIES, "")]
        own = [f"{place}/{name.rpartition('/')[2]}" for place in flavours]
        for path in (*usual, *own):
            real = _regular(root, path)
            if real is not None:
                yield DriverFile(
                    kind=FileKind.CONFIG,
                    source=root.reported(real),
                    destination=f"{top}/{name}",
                    capabilities=frozenset({capability}),
                )
                manifest = manifest or name in catalog.VULKAN_MANIFESTS
                if path.endswith(LOADER_FILES):
                    yield from _named(root, path, capability)
                break


def _named(root: Root, path: str, capability: str) -> Iterator[DriverFile]:
    """Give the library of the driver that a loader's file names by a whole path, at that path.

    NixOS writes such files: a container that has them needs what they name, and nothing else.
    """
    place = library_named(root.data(path) or b"")
    stem = place.rpartition("/")[2].partition(".so")[0]
    real = _regular(root, place) if place.startswith("/") else None
    if real is not None and stem in catalog.LIBRARIES:
        yield DriverFile(
            kind=FileKind.LISTED,
            source=root.reported(real),
            destination=os.path.normpath(place),
            capabilities=frozenset({capability}),
        )


def library_named(data: bytes) -> str:
    """Give the library that a loader's file names, empty if it names none.

    For OpenCL that is a line; for Vulkan and EGL it is in an object `ICD` or `layer` of JSON.
    """
    text = data.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        return text if "\n" not in text and ".so" in text else ""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    for key in ("ICD", "layer"):
        part = document.get(key) if isinstance(document, dict) else None
        if isinstance(part, dict) and isinstance(part.get("library_path"), str):
            return str(part["library_path"])
    return ""


def _regular(root: Root, path: str) -> str | None:
    status = root.stat(path)
    return root.resolve(path) if status is not None and stat.S_ISREG(status.st_mode) else None


def _program(root: Root, path: str) -> str | None:
    status = root.stat(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return root.resolve(path) if status.st_mode & 0o111 and status.st_size else None


def _socket(root: Root, path: str) -> bool:
    status = root.stat(path)
    # An archive or a repository cannot hold a socket: there a file stands for it.
    kinds = (stat.S_ISSOCK, stat.S_ISREG) if root.recorded else (stat.S_ISSOCK,)
    return status is not None and any(kind(status.st_mode) for kind in kinds)
