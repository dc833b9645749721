# SPDX-License-Identifier: Apache-2.0
"""Keeps one Inventory for as long as a cheap fingerprint of the host holds."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable

import attrs

from nri_nvidia.errors import HostError

from . import devices, presets, query, watch
from .model import Inventory
from .options import Options
from .scan import scan

Fingerprint = tuple[object, ...]

# The kernel stamps files from a clock that moves in ticks of up to 10 ms: what changes within a
# tick of the scan may leave the stamp as it was, so a stamp that near proves nothing.
_TICK_NS = 20_000_000

_ATTEMPTS = 3


@attrs.frozen(kw_only=True)
class Known:
    """What a host looked like when it was scanned; `files` are looked at behind the answer."""

    inventory: Inventory
    watched: watch.Watch
    mark: Fingerprint
    files: tuple[watch.Stamp, ...]


def fingerprint(
    options: Options, watched: watch.Watch, state: watch.State | None = None
) -> Fingerprint:
    """Give what changes when the host's NVIDIA side does (`watch` says what is seen by what).

    Some seventy system calls, two more for each GPU and three for each MIG device. `state` is
    the driver's, where that was taken just now.
    """
    return (
        state or watch.driver_state(options),
        watch.kernel_state(options),
        watch.stamps(watched.paths),
        watch.file_stamps(watched.leading),
    )


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
        self._scanning = threading.Lock()
        self._inventory: Inventory | None = None
        self._known: Known | None = None
        self._answer = query.Answer(reason="NVML has not been asked yet")
        self._answered_for: watch.State | None = None
        self._scans = 0
        self._scan_seconds = 0.0

    @property
    def scans(self) -> int:
        """How often the host was scanned."""
        return self._scans

    @property
    def scan_seconds(self) -> float:
        """How long that took."""
        return self._scan_seconds

    @property
    def options(self) -> Options:
        """Where it looks."""
        return self._options

    @property
    def last(self) -> Inventory | None:
        """What the last look gave, None before the first."""
        return self._inventory

    @property
    def nvml_stale(self) -> bool:
        """Whether NVML was not asked yet, or the driver's GPUs have changed since."""
        return self._is_stale(watch.driver_state(self._options))

    @property
    def nvml_reason(self) -> str:
        """Why there is no answer of NVML, empty if there is one."""
        return self._answer.reason

    def get(self) -> Inventory:
        """Give the kept Inventory if the host is as it was, else scan."""
        return self.look()[0]

    def look(self) -> tuple[Inventory, bool]:
        """Give the Inventory as `get` does, and whether NVML should be asked again."""
        found = self._looked_at()
        if found is None:
            with self._scanning:
                # Another may have scanned meanwhile what is found changed here.
                found = self._looked_at() or self._scan()
        inventory, state = found
        return inventory, self._is_stale(state)

    def make_channels(self, numbers: Iterable[int]) -> None:
        """Make the nodes of IMEX channels that are asked for, where they are missing and may be.

        A driver serves thousands of channels, so a scan makes none of them. One that cannot be
        made is still not there when the host is looked at next.
        """
        inventory = self.get()
        there = {node.minor for node in inventory.imex_channels}
        missing = [n for n in numbers if n < inventory.imex_count and n not in there]
        if missing and not self._options.recorded:
            known = devices.tables(presets.settle(self._options)[0])
            for number in missing:
                devices.imex_channel(known, number)

    def look_behind(self) -> bool:
        """Look at each driver file, too; if one is another now, the next `get` scans.

        Gives whether all are as they were. Where the last scan could not be sure of what it saw,
        as where it made nodes itself, there is another one here, when nobody waits for it.
        """
        known = self._known
        if known is None:
            with contextlib.suppress(HostError):  # whoever asks is told
                self.get()
            return True
        if watch.file_stamps(known.watched.files) == known.files:
            return True
        with self._scanning:
            if self._known is known:
                self._known = None
        return False

    def refresh_nvml(self) -> query.Answer:
        """Ask NVML and keep the answer for as long as the driver's GPUs stay as they are.

        Where it gave one for these GPUs before and gives none now, that one is kept: what it says
        of MIG is as true as it was, and whole GPUs need no answer. The scan that an answer makes
        necessary is made here: until its end `get` gives what was known before.
        """
        if self._options.recorded:
            return query.Answer(reason="a recorded host has no NVML to ask")
        library = library_of(self.get())
        # Taken before asking: what changes meanwhile makes the answer stale at once.
        state = watch.driver_state(self._options)
        if library:
            answer = self._ask(self._options, library)
        else:
            answer = query.Answer(reason="there is no libnvidia-ml of the loaded driver to ask")
        with self._scanning:
            same = state == self._answered_for
            kept = same and self._answer.report is not None and answer.report is None
            if not kept and (not same or answer != self._answer):
                self._answer, self._answered_for = answer, state
                self._scan_again()
        return answer

    def _looked_at(self) -> tuple[Inventory, watch.State] | None:
        """Give what is known if the host is as it was, with the driver's state; else None."""
        known = self._known
        if known is None:
            return None
        state = watch.driver_state(self._options)
        if fingerprint(self._options, known.watched, state) != known.mark:
            return None
        return known.inventory, state

    def _scan_again(self) -> None:
        """Scan while others are given what is known; whoever asks next is told what goes wrong."""
        try:
            self._scan()
        except Exception:  # noqa: BLE001 - the next scan raises it again
            self._known = None

    def _is_stale(self, state: watch.State) -> bool:
        return not self._options.recorded and state != self._answered_for

    def _scan(self) -> tuple[Inventory, watch.State]:
        """Scan, and again when the driver was changed meanwhile: half of each fits nobody."""
        for _ in range(_ATTEMPTS):
            started = time.time_ns()
            before = watch.kernel_state(self._options)
            state = watch.driver_state(self._options)
            report = self._answer.report if state == self._answered_for else None
            begun = time.monotonic()
            inventory = scan(self._options, report)
            self._scans += 1
            self._scan_seconds += time.monotonic() - begun
            if watch.driver_state(self._options) == state:
                break
        else:
            raise HostError(
                "the NVIDIA driver of this host is being changed",
                hint="try again",
                code="driver-changing",
            )
        watched = watch.of(self._options, inventory)
        stamps, leading = watch.stamps(watched.paths), watch.file_stamps(watched.leading)
        files = watch.file_stamps(watched.files)
        # What changed while the scan looked (its own new nodes, too) is seen by the next one.
        sure = before == watch.kernel_state(self._options) and _settled((*stamps, *files), started)
        mark = (state, before, stamps, leading)
        known = Known(inventory=inventory, watched=watched, mark=mark, files=files)
        self._known = known if sure else None
        self._inventory = inventory
        return inventory, state


def library_of(inventory: Inventory) -> str:
    """Give the path of the host's own libnvidia-ml, empty if there is none that fits."""
    for file in inventory.files:
        if file.kind == "library" and "libnvidia-ml.so.1" in file.names:
            return file.source
    return ""


def _settled(stamps: Iterable[watch.Stamp], started: int) -> bool:
    """Whether no stamp is from the time of the scan or just before."""
    since, until = started - _TICK_NS, time.time_ns() + _TICK_NS
    return not any(stamp and since <= stamp[2] <= until for stamp in stamps)
