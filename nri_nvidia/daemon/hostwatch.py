# SPDX-License-Identifier: Apache-2.0
"""The host's inventory for the event loop: looked at in threads, with a limit on the wait."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Collection

from nri_nvidia import errors
from nri_nvidia.daemon import worker
from nri_nvidia.host import cache, model, modules
from nri_nvidia.host import options as host_options

logger = logging.getLogger(__name__)

_NVML_RETRY = 30.0
"""Seconds until NVML is asked again after it gave no answer: each time is a process."""
_MODULES_RETRY = 60.0
"""Seconds until modules are loaded again that could not be."""
_BEHIND = 0.05
"""Seconds after an answer at which each driver file is looked at, when nobody waits for it."""
_BEHIND_PACE = 1.0

Seen = tuple[model.Inventory, bool]
"""An inventory, and whether NVML should be asked again."""


class HostWatch:
    """Answers "what does this host have now" without ever blocking the loop.

    One look at the host is under way at a time and everybody waits for the same one: a disk or a
    driver that hangs holds one thread. NVML is asked in a thread of its own, and never waited for.
    """

    def __init__(self, options: host_options.Options) -> None:
        self._options = options
        self._cache = cache.Cache(options)
        self._look: asyncio.Future[Seen] | None = None
        self._making: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._nvml_retry_at = 0.0
        self._nvml_failed = False
        self._nvml_at = time.monotonic()
        self._behind: asyncio.TimerHandle | None = None
        self._behind_at = 0.0
        self._looker = worker.Worker("host")
        self._nvml = worker.Worker("nvml")
        self._loader = worker.Worker("modules")
        self._load = asyncio.Event()
        self._load_at = 0.0
        self.module_problems: tuple[model.Problem, ...] = ()
        self.last: model.Inventory | None = None
        self._scanned = 0, 0.0

    @property
    def scans(self) -> int:
        """How often the host was scanned."""
        return self._scanned[0] + self._cache.scans

    @property
    def scan_seconds(self) -> float:
        """How long that took."""
        return self._scanned[1] + self._cache.scan_seconds

    def look_at(self, options: host_options.Options) -> None:
        """Look at another host, or at this one by other settings, from now on."""
        if options != self._options:
            self._options = options
            self._scanned = self.scans, self.scan_seconds
            self._cache = cache.Cache(options)
            self._look = self.last = None
            self._nvml_retry_at = 0.0
            self._nvml_failed = False
            self._load_at = 0.0
            self.module_problems = ()

    def begin(self, batch: worker.Batch | None = None) -> "asyncio.Future[Seen]":
        """Start to look, unless that is under way; raises RuntimeError where no thread is free."""
        if self._look is None or self._look.done():
            self._look = (
                batch.add(self._see, self._looker) if batch else self._looker.run(self._see)
            )
        return self._look

    async def inventory(
        self, limit: float, begun: "asyncio.Future[Seen] | None" = None
    ) -> model.Inventory:
        """Give the inventory of now, or of when `begun` was; raises HostError after `limit` s."""
        found, stale = await self._seen(limit, begun)
        self.last = found
        unanswered = self._nvml_failed or (found.driven and found.nvml_state == "absent")
        retry = unanswered and time.monotonic() >= self._nvml_retry_at
        aged = found.driven and time.monotonic() - self._nvml_at >= self._options.nvml_refresh
        if retry or ((stale or aged) and not self._nvml_failed):
            self._wake.set()
        self._note_modules(found)
        if self._behind is None and time.monotonic() >= self._behind_at:
            self._behind = asyncio.get_running_loop().call_later(_BEHIND, self._look_behind)
        return found

    async def have_channels(self, numbers: Collection[int], limit: float) -> None:
        """Have the nodes of IMEX channels made; what hinders it shows at the look that follows."""
        if not numbers:
            return
        with contextlib.suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(limit):
                while self._making is not None and not self._making.done():
                    await asyncio.wait([self._making])
                make = functools.partial(self._cache.make_channels, numbers)
                self._making = self._looker.run(make)
                await asyncio.wait([self._making])

    async def keep_nvml_fresh(self) -> None:
        """Ask NVML whenever the host has changed; for ever, as a task."""
        reason = ""
        while True:
            await self._wake.wait()
            try:
                answer = await self._nvml.run(self._cache.refresh_nvml)
            except Exception:
                self._nvml_failed = True
                logger.exception("NVML could not be asked")
            else:
                self._nvml_failed = False
                if answer.report is None and answer.reason != reason and self._has_driver():
                    logger.warning("NVML gives no answer: %s", answer.reason)
                reason = answer.reason
            self._nvml_at = time.monotonic()
            self._nvml_retry_at = self._nvml_at + _NVML_RETRY
            self._wake.clear()

    async def keep_modules_loaded(self) -> None:
        """Load the kernel modules that are missing, where that is allowed; for ever, as a task."""
        while True:
            await self._load.wait()
            self._load.clear()
            names = modules.missing(self.last) if self.last else ()
            try:
                load = functools.partial(modules.load, self._options, names)
                self.module_problems = await self._loader.run(load)
            except Exception:
                logger.exception("the kernel modules %s could not be loaded", ", ".join(names))
            failed = {problem.message for problem in self.module_problems}
            for message in failed:
                logger.warning("%s", message)
            if not failed:
                logger.info("loaded the kernel modules %s", ", ".join(names))

    def _note_modules(self, found: model.Inventory) -> None:
        """Have modules loaded that are missing; what could not be is tried again after a while."""
        if not self._options.load_modules:
            return
        if not modules.missing(found):
            self.module_problems = ()
        elif time.monotonic() >= self._load_at:
            self._load_at = time.monotonic() + _MODULES_RETRY + self._options.modules_timeout
            self._load.set()

    def close(self) -> None:
        """Let the threads go; one that hangs is left behind."""
        if self._behind is not None:
            self._behind.cancel()
        self._looker.close()
        self._nvml.close()
        self._loader.close()

    async def _seen(self, limit: float, begun: "asyncio.Future[Seen] | None") -> Seen:
        try:
            look = begun or self.begin()
            return await worker.within(limit, look)
        except TimeoutError:
            raise errors.HostError(
                f"this host's NVIDIA files could not be read within {limit:.1f} s",
                hint="a disk or the driver hangs: dmesg; try again",
                code="host-scan-late",
            ) from None
        except errors.Error:
            raise
        except Exception as error:
            logger.exception("the look at this host failed")
            raise errors.HostError(
                f"this host's NVIDIA files could not be read: {type(error).__name__}: {error}",
                hint="the daemon's log has more",
                code="host-scan-failed",
            ) from error

    def _see(self) -> Seen:
        return self._cache.look()

    def _look_behind(self) -> None:
        self._behind = None
        self._behind_at = time.monotonic() + _BEHIND_PACE
        if self._look is not None and self._look.done():
            # What it finds is in the cache; nobody waits for it.
            _ = self._looker.run(self._cache.look_behind)

    def _has_driver(self) -> bool:
        return bool(self.last and self.last.driven)
