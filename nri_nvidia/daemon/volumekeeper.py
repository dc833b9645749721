# SPDX-License-Identifier: Apache-2.0
"""Has directories of driver files prepared beside the event loop, ahead of need where it can.

Nothing waits for one that is being built, and nothing fails because one cannot be: containers get
the files one by one meanwhile. Before one is given to a container it is looked at: whether
something was added, removed or replaced. What was written over in place, which only the host's own
root can do, is looked for behind an answer. One that somebody has changed is made anew.
"""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Mapping

from nri_nvidia import errors
from nri_nvidia.daemon import worker
from nri_nvidia.edits import volume
from nri_nvidia.host import model as host
from nri_nvidia.host import placing, volumes

logger = logging.getLogger(__name__)

_KEPT_SECONDS = 3600.0
"""A directory named in an answer is mounted a moment later; nobody tells when."""
_RETRY_SECONDS = 60.0
_LIMIT = 0.5
_BEHIND = 0.1
"""Seconds after an answer at which each file is looked at, when nobody waits for it."""
_BEHIND_PACE = 1.0
_TOUCH_SECONDS = 600.0
_SWEEP_SECONDS = 600.0
_KNOWN = 16
"""Directories that are looked at before each container; each set of capabilities has one."""

_FIRST_NAMESPACE = "pid:[4026531836]"
"""Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO."""

Stamps = dict[str, placing.Stamp]
Look = tuple[Stamps, dict[str, str]]
"""What was looked for, and what of that is as it was built."""


class VolumeKeeper:
    """Knows which directories are ready, and has wanted ones built.

    While it is `blind`, mounts of containers cannot be seen, so nothing that is whole is removed.
    Who is registered with a runtime knows; before that only a process of the host's own does.
    """

    def __init__(self) -> None:
        self.problem: host.Problem | None = None
        self.blind = not _sees_all()
        self._volumes: volumes.Volumes | None = None
        self._place = "", ""
        self._looker = worker.Worker("volumes")
        self._builder = worker.Worker("volume builder")
        self._look: asyncio.Future[Look] | None = None
        self._stamps: Stamps = {}
        self._building: set[str] = set()
        self._used: dict[str, float] = {}
        self._touched: dict[str, float] = {}
        self._retry_at = 0.0
        self._behind: asyncio.TimerHandle | None = None
        self._behind_at = 0.0
        self._sweep_at = time.monotonic() + _SWEEP_SECONDS

    def use(self, directory: str, root: str = "/") -> None:
        """Keep the directories below this one from now on, empty for none."""
        if (directory, root) != self._place:
            self._place = directory, root
            self._volumes = volumes.Volumes(directory, root) if directory else None
            self._look, self._stamps, self._building, self.problem = None, {}, set(), None
            self._retry_at = 0.0

    def begin(self, batch: worker.Batch | None = None) -> "asyncio.Future[Look] | None":
        """Start to look, unless that is under way; raises RuntimeError where no thread is free."""
        if self._volumes is not None and (self._look is None or self._look.done()):
            look = functools.partial(_look, self._volumes, self._stamps)
            self._look = batch.add(look, self._looker) if batch else self._looker.run(look)
        return self._look

    async def ready(self, begun: "asyncio.Future[Look] | None" = None) -> Mapping[str, str]:
        """Give the directories that are there and whole now, or were when `begun` was.

        None where the disk does not answer at once.
        """
        try:
            look = begun or self.begin()
            if look is None:
                return {}
            wanted, found = await worker.within(_LIMIT, look)
        except (TimeoutError, OSError, RuntimeError):
            return {}
        self._forget_changed(wanted, found)
        if found and self._behind is None and time.monotonic() >= self._behind_at:
            self._behind = asyncio.get_running_loop().call_later(_BEHIND, self._look_behind)
        return found

    def _forget_changed(self, wanted: Stamps, found: Mapping[str, str]) -> None:
        """Give a directory to no container any more that was looked for and is not as built."""
        for name in wanted.keys() - found.keys():
            if self._stamps.get(name) is wanted[name]:
                logger.warning("%s in %s was changed or removed by somebody", name, self._place[0])
                # A new mapping, since a thread may be reading this one.
                self._stamps = {n: stamp for n, stamp in self._stamps.items() if n != name}

    def _look_behind(self) -> None:
        """Look at each file of what is given to containers, beside the event loop."""
        self._behind = None
        self._behind_at = time.monotonic() + _BEHIND_PACE
        kept = self._volumes
        if kept is None:
            return
        with contextlib.suppress(RuntimeError):  # no thread is free; the next answer brings it up
            looking = self._looker.run(functools.partial(_look, kept, self._stamps, glance=False))
            looking.add_done_callback(functools.partial(self._looked_behind, kept))

    def _looked_behind(self, kept: volumes.Volumes, looked: "asyncio.Future[Look]") -> None:
        if kept is self._volumes and not looked.cancelled() and looked.exception() is None:
            self._forget_changed(*looked.result())

    def note_use(self, source: str) -> None:
        """Keep a directory for a while: it is in an answer to the runtime."""
        name, now = source.rpartition("/")[2], time.monotonic()
        self._used[name] = now
        if self._volumes is None:
            return
        with contextlib.suppress(RuntimeError):
            if now >= self._touched.get(name, now - _TOUCH_SECONDS) + _TOUCH_SECONDS:
                self._touched[name] = now
                _ = self._looker.run(functools.partial(self._volumes.touch, name))
            if now >= self._sweep_at:
                self._sweep_at = now + _SWEEP_SECONDS
                sweep = functools.partial(
                    self._volumes.remove_unused, self._kept(), blind=self.blind
                )
                _ = self._builder.run(sweep)

    def want(self, wanted: volume.Volume | None) -> None:
        """Have a directory built, unless it is known, being built, or has just failed."""
        kept = self._volumes
        if (
            wanted is None
            or kept is None
            or wanted.name in self._building
            or wanted.name in self._stamps
            or time.monotonic() < self._retry_at
        ):
            return
        self._building.add(wanted.name)
        self._used[wanted.name] = time.monotonic()
        try:
            future = self._builder.run(
                functools.partial(_build, kept, wanted, self._kept(), blind=self.blind)
            )
        except RuntimeError as error:
            logger.warning("no thread to prepare %s: %s", wanted.name, error)
            self._building.discard(wanted.name)
            return
        future.add_done_callback(functools.partial(self._built, kept, wanted.name))

    def close(self) -> None:
        """Let the threads go."""
        if self._behind is not None:
            self._behind.cancel()
        self._looker.close()
        self._builder.close()

    def _kept(self) -> frozenset[str]:
        since = time.monotonic() - _KEPT_SECONDS
        self._used = {name: at for name, at in self._used.items() if at >= since}
        self._touched = {n: at for n, at in self._touched.items() if n in self._used}
        return frozenset(self._used)

    def _built(
        self, kept: volumes.Volumes, name: str, future: "asyncio.Future[volumes.Built]"
    ) -> None:
        if kept is not self._volumes or future.cancelled():
            return
        self._building.discard(name)
        error = future.exception()
        if error is None:
            self.problem = None
            built = future.result()
            by_use = sorted(self._stamps, key=lambda each: self._used.get(each, 0.0))
            known = by_use[-_KNOWN + 1 :]
            self._stamps = {**{each: self._stamps[each] for each in known}, name: built.stamp}
            ways = ", ".join(sorted(built.ways)) or "there already"
            again = " again, since somebody had changed it" if built.replaced else ""
            logger.info("driver files are prepared in %s%s (%s)", built.path, again, ways)
            return
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        told = error if isinstance(error, errors.Error) else errors.HostError(str(error))
        problem = host.Problem(code=told.code, message=told.message, hint=told.hint)
        if problem != self.problem:
            logger.warning("containers get the driver's files one by one: %s", told)
        self.problem = problem


def _sees_all() -> bool:
    """Whether this process sees every other: it is in the kernel's first namespace of them."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE  # noqa: PTH115 - no path
    return False


def _look(kept: volumes.Volumes, stamps: Stamps, *, glance: bool = True) -> Look:
    return stamps, kept.intact(stamps, glance=glance)


def _build(
    kept: volumes.Volumes, wanted: volume.Volume, used: frozenset[str], *, blind: bool
) -> volumes.Built:
    built = kept.build(wanted.name, wanted.files, wanted.links)
    kept.remove_unused(used | {wanted.name}, blind=blind)
    return built
