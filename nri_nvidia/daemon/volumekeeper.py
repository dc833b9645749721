# SPDX-License-Identifier: Apache-2.0
"""Has directories of driver files prepared beside the event loop, ahead of need where it can.

Nothing waits for one that is being built, and nothing fails because one cannot be: containers get
the files one by one meanwhile.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Mapping

from nri_nvidia import errors
from nri_nvidia.daemon import worker
from nri_nvidia.edits import volume
from nri_nvidia.host import model as host
from nri_nvidia.host import volumes

logger = logging.getLogger(__name__)

_KEPT_SECONDS = 3600.0
"""A directory named in an answer is mounted a moment later; nobody tells when."""
_RETRY_SECONDS = 60.0
_LIMIT = 0.5


class VolumeKeeper:
    """Knows which directories are ready, and has wanted ones built."""

    def __init__(self) -> None:
        self.problem: host.Problem | None = None
        self._volumes: volumes.Volumes | None = None
        self._directory = ""
        self._looker = worker.Worker("volumes")
        self._builder = worker.Worker("volume builder")
        self._look: asyncio.Future[dict[str, str]] | None = None
        self._building: set[str] = set()
        self._used: dict[str, float] = {}
        self._retry_at = 0.0

    def use(self, directory: str) -> None:
        """Keep the directories below this one from now on, empty for none."""
        if directory != self._directory:
            self._directory = directory
            self._volumes = volumes.Volumes(directory) if directory else None
            self._look, self._building, self.problem = None, set(), None
            self._retry_at = 0.0

    def begin(self) -> "asyncio.Future[dict[str, str]] | None":
        """Start to look, unless that is under way; raises RuntimeError where no thread is free."""
        if self._volumes is not None and (self._look is None or self._look.done()):
            self._look = self._looker.run(self._volumes.ready)
        return self._look

    async def ready(
        self, begun: "asyncio.Future[dict[str, str]] | None" = None
    ) -> Mapping[str, str]:
        """Give the directories that are there now, or were when `begun` was.

        None where the disk does not answer at once.
        """
        try:
            look = begun or self.begin()
            if look is None:
                return {}
            if look.done():
                return look.result()
            return await asyncio.wait_for(asyncio.shield(look), _LIMIT)
        except (TimeoutError, OSError, RuntimeError):
            return {}

    def note_use(self, source: str) -> None:
        """Keep a directory for a while: it is in an answer to the runtime."""
        self._used[source.rpartition("/")[2]] = time.monotonic()

    def want(self, wanted: volume.Volume | None) -> None:
        """Have a directory built, unless that is being done or has just failed."""
        kept = self._volumes
        if (
            wanted is None
            or kept is None
            or wanted.name in self._building
            or time.monotonic() < self._retry_at
        ):
            return
        self._building.add(wanted.name)
        self._used[wanted.name] = time.monotonic()
        try:
            future = self._builder.run(functools.partial(_build, kept, wanted, self._kept()))
        except RuntimeError as error:
            logger.warning("no thread to prepare %s: %s", wanted.name, error)
            self._building.discard(wanted.name)
            return
        future.add_done_callback(functools.partial(self._built, kept, wanted.name))

    def close(self) -> None:
        """Let the threads go."""
        self._looker.close()
        self._builder.close()

    def _kept(self) -> frozenset[str]:
        since = time.monotonic() - _KEPT_SECONDS
        self._used = {name: at for name, at in self._used.items() if at >= since}
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
            ways = ", ".join(sorted(future.result().ways)) or "there already"
            logger.info("driver files are prepared in %s (%s)", future.result().path, ways)
            return
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        told = error if isinstance(error, errors.Error) else errors.HostError(str(error))
        problem = host.Problem(code=told.code, message=told.message, hint=told.hint)
        if problem != self.problem:
            logger.warning("containers get the driver's files one by one: %s", told)
        self.problem = problem


def _build(kept: volumes.Volumes, wanted: volume.Volume, used: frozenset[str]) -> volumes.Built:
    built = kept.build(wanted.name, wanted.files, wanted.links)
    kept.remove_unused(used | {wanted.name})
    return built
