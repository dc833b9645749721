# SPDX-License-Identifier: Apache-2.0
"""Keeps one Inventory for as long as a cheap fingerprint of the host holds."""

import stat
import threading
import time
from collections.abc import Callable, Iterator

from nri_nvidia.errors import HostError

from . import candidates, catalog, proc, query
from .model import DeviceNode, Inventory
from .options import Options
from .root import Root
from .scan import scan

# The kernel stamps files from a clock that moves in ticks of up to 10 ms: what changes within a
# tick of the scan may leave the stamp as it was, so a stamp that near proves nothing.
_TICK_NS = 20_000_000

_ATTEMPTS = 3

Fingerprint = tuple[object, ...]
_Stamp = tuple[str, int, int, int, int]


def fingerprint(options: Options, inventory: Inventory | None = None) -> Fingerprint:
    """Give what changes when the host's NVIDIA side does; costs some hundred `stat` calls.

    The nodes and files of `inventory` are looked at too, so that a replaced library or a node
    with new rights shows.
    """
    return *_texts(options), *_stamps(options, inventory)


def driver_state(options: Options) -> Fingerprint:
    """Give what changes when NVML's answer may: module, GPUs and MIG instances.

    Modification times in /proc mean nothing, so names and inode numbers are taken.
    """
    system = Root(options.root)
    names = system.entries("/proc/driver/nvidia")
    gpus = system.entries("/proc/driver/nvidia/gpus")
    return proc.module_version(system), names, gpus, tuple(_instances(system))


class Cache:
    """The current Inventory of a host. All methods may be called from any thread.

    `get` never runs NVML; `refresh_nvml` does, and blocks while it does.
    """

    def __init__(
        self,
        options: Options,
        *,
        ask: Callable[[Options, str], query.Answer] = query.query,
    ) -> None:
        self._options = options
        self._ask = ask
        self._lock = threading.Lock()
        self._inventory: Inventory | None = None
        self._fingerprint: Fingerprint | None = None
        self._answer = query.Answer(reason="NVML has not been asked yet")
        self._answered_for: Fingerprint | None = None
        self._scans = 0

    @property
    def scans(self) -> int:
        """How often the host was scanned."""
        return self._scans

    @property
    def nvml_stale(self) -> bool:
        """Whether NVML was not asked yet, or the driver's GPUs have changed since."""
        if self._options.recorded:
            return False
        return driver_state(self._options) != self._answered_for

    @property
    def nvml_reason(self) -> str:
        """Why there is no answer of NVML, empty if there is one."""
        return self._answer.reason

    def get(self) -> Inventory:
        """Give the kept Inventory if the host is as it was, else scan."""
        with self._lock:
            kept = self._inventory
            known = self._fingerprint
            if kept is not None and known and fingerprint(self._options, kept) == known:
                return kept
            return self._scan()

    def refresh_nvml(self) -> query.Answer:
        """Ask NVML and keep the answer for as long as the driver's GPUs stay as they are."""
        if self._options.recorded:
            return query.Answer(reason="a recorded host has no NVML to ask")
        library = library_of(self.get())
        # Taken before asking: what changes meanwhile makes the answer stale at once.
        state = driver_state(self._options)
        if library:
            answer = self._ask(self._options, library)
        else:
            answer = query.Answer(reason="there is no libnvidia-ml of the loaded driver to ask")
        with self._lock:
            self._answer, self._answered_for = answer, state
            self._fingerprint = None
        return answer

    def _scan(self) -> Inventory:
        """Scan, and again when the driver was changed meanwhile: half of each fits nobody."""
        for _ in range(_ATTEMPTS):
            started = time.time_ns()
            texts = _texts(self._options)
            state = driver_state(self._options)
            report = self._answer.report if state == self._answered_for else None
            inventory = scan(self._options, report)
            self._scans += 1
            if driver_state(self._options) == state:
                break
        else:
            raise HostError(
                "the NVIDIA driver of this host is being changed",
                hint="try again",
                code="driver-changing",
            )
        stamps = _stamps(self._options, inventory)
        # What changed while the scan looked (its own new nodes, too) is seen by the next one.
        sure = texts == _texts(self._options) and _settled(stamps, started)
        self._fingerprint = (*texts, *stamps) if sure else None
        self._inventory = inventory
        return inventory


def library_of(inventory: Inventory) -> str:
    """Give the path of the host's own libnvidia-ml, empty if there is none that fits."""
    for file in inventory.files:
        if file.kind == "library" and "libnvidia-ml.so.1" in file.names:
            return file.source
    return ""


def _settled(stamps: tuple[_Stamp, ...], started: int) -> bool:
    """Whether no stamp is from the time of the scan or just before."""
    since, until = started - _TICK_NS, time.time_ns() + _TICK_NS
    return not any(since <= changed <= until for _path, _rights, _size, changed, _inode in stamps)


def _texts(options: Options) -> Fingerprint:
    system = Root(options.root)
    # A GPU without a driver shows on the PCI bus alone.
    bus = system.entries("/sys/bus/pci/devices")
    return driver_state(options), tuple(sorted(proc.majors(system).items())), bus


def _stamps(options: Options, inventory: Inventory | None) -> tuple[_Stamp, ...]:
    dev, driver = Root(options.dev_root), Root(options.driver_root)
    version = proc.module_version(Root(options.root))
    libraries = options.library_search_paths or candidates.well_known(driver, version)
    stamps = {
        *(_stamp(dev, path) for path in _DEV_PATHS),
        *(_stamp(driver, path) for path in ("/etc/ld.so.cache", *libraries)),
        *(_stamp(driver, path) for path in _other_places(version)),
    }
    if options.dev_char_symlinks:
        stamps.add(_stamp(dev, "/dev/char"))
    if options.recorded:
        stamps.update(_stamp(dev, path) for path in ("/nvml.json", "/dev.nodes"))
    if inventory is not None:
        # A live host's Inventory holds paths of this machine, a recorded one's those of its tree.
        shown = driver if options.recorded else Root("/")
        stamps.update(_stamp(shown, path) for path in _inventory_paths(inventory))
    return tuple(sorted(stamps))


_DEV_PATHS = ("/dev", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels", "/dev/dri")


def _other_places(version: str) -> Iterator[str]:
    """Give where files that are no libraries appear late: a daemon's socket, a Vulkan ICD."""
    yield from (f"/run/{name}" for name in catalog.SOCKETS)
    yield catalog.MPS_DIRECTORY
    yield from catalog.BINARY_DIRECTORIES
    yield f"/lib/firmware/nvidia/{version}"
    folders = sorted({name.rpartition("/")[0] for name in catalog.CONFIGS})
    yield from (f"{top}/{folder}" for top in catalog.CONFIG_DIRECTORIES for folder in folders)


def _inventory_paths(inventory: Inventory) -> Iterator[str]:
    for file in inventory.files:
        yield file.source
        yield file.source.rpartition("/")[0]
    for node in _nodes(inventory):
        yield node.host_path


def _nodes(inventory: Inventory) -> Iterator[DeviceNode]:
    control = inventory.control
    for node in (control.ctl, control.uvm, control.uvm_tools, control.modeset):
        if node is not None:
            yield node
    yield from (gpu.node for gpu in inventory.gpus if gpu.node is not None)
    yield from (node for _name, node in inventory.caps_nodes)


def _stamp(root: Root, path: str) -> _Stamp:
    """Give what changes with the thing at a path: rights, size or numbers, time, inode.

    The time is that of the last change of the inode: it moves with a chmod and a rename, too.
    """
    found = root.stat(path)
    if found is None:
        return path, 0, 0, 0, 0
    size = found.st_rdev if stat.S_ISCHR(found.st_mode) else found.st_size
    rights = found.st_mode << 64 | found.st_uid << 32 | found.st_gid
    return path, rights, size, found.st_ctime_ns, found.st_ino


def _instances(system: Root) -> Iterator[tuple[str, int]]:
    top = "/proc/driver/nvidia/capabilities"
    for gpu in system.entries(top):
        for gi in system.entries(f"{top}/{gpu}/mig"):
            directory = f"{top}/{gpu}/mig/{gi}"
            for name in system.entries(directory) or ("",):
                found = system.stat(f"{directory}/{name}")
                yield f"{gpu}/{gi}/{name}", found.st_ino if found else 0
