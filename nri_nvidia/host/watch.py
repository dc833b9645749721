# SPDX-License-Identifier: Apache-2.0
"""What is looked at to tell that a host is as it was when it was scanned.

What is seen by what:

- A file or node that appears, goes, or is replaced by another one (packages, installers and driver
  containers write a new file and rename it) changes its directory, whose own status is looked at.
  For a directory that is not there, the first missing part of its path is.
- A link that leads elsewhere is another link: each on the way to what is watched is looked at.
- A node whose rights or owner change has a changed status of its own: each node is looked at.
- Driver, GPUs, MIG instances and device numbers are read, from /proc and /sys. Time stamps there
  mean nothing; names, inode numbers and texts do.
- A file that is written over in place changes nothing but itself. libcuda and libnvidia-ml, which
  no installation leaves out, are looked at each time. All others are behind the answer, at most
  once a second (`Watch.files`): what a container is given of such a file is its path, which is
  right in any case.

Of directories, links and nodes the kernel's time of a change of the inode is taken: it moves with
rights and owner, and cannot be set back. Of files it is that of the last writing, with the size:
the other one moves with every hard link, as the prepared directories have them.
"""

import operator
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator

import attrs

from . import candidates, catalog, devices, presets, proc, tegra, wsl
from .model import DriverFile, Inventory, Platform
from .options import Options
from .root import TEXT_LIMIT, Root, must_be_absence

Stamp = tuple[int, int, int] | None
"""Device, inode number and time of the last change of the inode (ns); None where nothing is.

Of a file, inode number, size and time of the last writing (ns).
"""
State = tuple[object, ...]
_DEVICES = (
    "/dev",
    "/dev/nvidia-caps",
    "/dev/nvidia-caps-imex-channels",
    "/dev/dri",
    "/dev/dri/by-path",
    "/dev/infiniband",
)
_PIECE = 1 << 16


@attrs.frozen(kw_only=True)
class Watch:
    """Paths on this machine, none of which is to be followed.

    `leading` are files to look at each time, `files` those to look at behind an answer.
    """

    paths: tuple[str, ...] = ()
    leading: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def of(options: Options, inventory: Inventory) -> Watch:
    """Give what to look at after a scan that gave this inventory."""
    options, choice = presets.settle(options)
    dev, driver, system = options.dev, options.driver, options.system
    # A live host's Inventory holds paths of this machine, a recorded one's those of its tree.
    shown = system if options.recorded else Root("/")
    trails: set[str] = set()
    for path in (*_DEVICES, *(("/dev/char",) if options.dev_char_symlinks else ())):
        trails.update(dev.trail(path))
    if options.recorded:
        trails.update(system.trail("/nvml.json"), system.trail("/dev.nodes"))
    for path in presets.EVIDENCE:
        trails.update(system.trail(path))
    trails.update(system.trail("/dev/nvidiactl"), driver.trail("/dev/nvidiactl"))
    looks = {Platform.WSL: wsl.watched, Platform.TEGRA: tegra.watched}
    look = looks.get(choice.preset.platform)
    places = look(driver) if look else _places(driver, options)
    for path in places:
        trails.update(driver.trail(path))
    for file in inventory.files:
        trails.update(shown.trail(posixpath.dirname(file.source)))
        if file.directory:
            trails.update(shown.trail(file.source))
        if _leads(file):  # Debian keeps some files with the flavour that the libraries are of
            flavour = posixpath.basename(posixpath.dirname(file.source))
            trails.update(driver.trail(f"/etc/nvidia/{flavour}"))
    if any(group == "gds" for group, _node in inventory.extra_nodes):
        for path in devices.GDS_FILES:
            trails.update(driver.trail(path), system.trail(path))
    # Of IMEX channels there may be thousands: their directory tells which there are.
    channels = frozenset(inventory.imex_channels)
    for node in inventory.nodes:
        if node not in channels:
            trails.update(shown.trail(node.host_path))
    # A source has its links resolved already.
    files = {shown.trail(file.source)[-1]: file for file in inventory.files if not file.directory}
    return Watch(
        paths=_needed(trails),
        leading=tuple(path for path, file in files.items() if _leads(file)),
        files=tuple(path for path, file in files.items() if not _leads(file)),
    )


def stamps(paths: Iterable[str]) -> tuple[Stamp, ...]:
    """Look at paths; raises HostError where it is this process that cannot."""
    return _stamps(paths, _OF_INODE)


def file_stamps(paths: Iterable[str]) -> tuple[Stamp, ...]:
    """Look at files; raises HostError where it is this process that cannot."""
    return _stamps(paths, _OF_FILE)


_OF_INODE = operator.attrgetter("st_dev", "st_ino", "st_ctime_ns")
_OF_FILE = operator.attrgetter("st_ino", "st_size", "st_mtime_ns")


def _stamps(paths: Iterable[str], chosen: Callable[[os.stat_result], Stamp]) -> tuple[Stamp, ...]:
    found: list[Stamp] = []
    look = os.lstat
    for path in paths:
        try:
            status = look(path)
        except (OSError, ValueError) as error:
            must_be_absence(path, error)
            found.append(None)
        else:
            found.append(chosen(status))
    return tuple(found)


def driver_state(options: Options) -> State:
    """Give what changes when NVML's answer may: module, GPUs and MIG instances."""
    top = options.root.rstrip("/")
    driver = f"{top}/proc/driver/nvidia"
    version = _text(f"{top}/sys/module/nvidia/version") or _text(f"{driver}/version")
    return version, _names(driver), _names(f"{driver}/gpus"), _instances(f"{driver}/capabilities")


def kernel_state(options: Options) -> State:
    """Give what else of the kernel a scan depends on: device numbers, modules, the PCI bus."""
    top = options.root.rstrip("/")
    return (
        _text(f"{top}/proc/devices"),
        os.access(f"{top}/sys/module/nvidia_modeset", os.F_OK),
        # A GPU without a driver shows on the PCI bus alone.
        _names(f"{top}/sys/bus/pci/devices"),
    )


def _places(driver: Root, options: Options) -> Iterator[str]:
    """Give the directories and files below the driver root where something may appear."""
    version = proc.module_version(options.system)
    yield "/etc/ld.so.cache"
    if options.library_search_paths:
        yield from options.library_search_paths
    else:
        yield from candidates.well_known(driver, version)
        yield from ("/usr/lib", "/opt/nvidia", "/etc/alternatives")
    yield from candidates.directories(driver, options.library_search_paths, version)
    # What is no library may come late: a daemon's socket, a Vulkan ICD.
    yield from (f"/run/{name}" for name in catalog.SOCKETS)
    yield catalog.MPS_DIRECTORY
    yield from catalog.BINARY_DIRECTORIES
    yield from (place.format(version=version) for place in catalog.VERSIONED_BINARY_DIRECTORIES)
    yield f"/lib/firmware/nvidia/{version}"
    yield from (f"{top}/{place}" for top in catalog.XORG_TOPS for place in catalog.XORG_PLACES)
    folders = sorted({name.rpartition("/")[0] for name in catalog.CONFIGS})
    yield from (f"{top}/{folder}" for top in catalog.CONFIG_DIRECTORIES for folder in folders)


def _leads(file: DriverFile) -> bool:
    return file.names[:1] != () and file.names[0].partition(".so")[0] in catalog.LEADING


def _needed(paths: Iterable[str]) -> tuple[str, ...]:
    """Leave out what is missing in a directory that is looked at itself: it would show there."""
    found = {path: _mode(path) for path in paths}
    return tuple(
        path
        for path, mode in sorted(found.items())
        if mode or not stat.S_ISDIR(found.get(posixpath.dirname(path), 0))
    )


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError) as error:
        must_be_absence(path, error)
        return 0


def _text(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        must_be_absence(path, error)
        return b""
    found = b""
    try:
        # Files in proc answer in pieces.
        while piece := os.read(descriptor, _PIECE):
            found += piece
            if len(found) > TEXT_LIMIT:
                break
    except OSError:
        return b""
    else:
        return found
    finally:
        os.close(descriptor)


def _names(path: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(path)))  # noqa: PTH208 - names only
    except (OSError, ValueError) as error:
        must_be_absence(path, error)
        return ()


def _instances(top: str) -> tuple[object, ...]:
    """Give the MIG instances: a compute instance that was made anew has another inode."""
    found: list[object] = []
    for gpu in _names(top):
        if not gpu.startswith("gpu"):
            continue
        for gi in _names(f"{top}/{gpu}/mig"):
            found += (gpu, gi, *_entries(f"{top}/{gpu}/mig/{gi}"))
    return tuple(found)


def _entries(path: str) -> list[tuple[str, int]]:
    try:
        with os.scandir(path) as entries:
            return sorted((entry.name, entry.inode()) for entry in entries)
    except (OSError, ValueError) as error:
        must_be_absence(path, error)
        return []
