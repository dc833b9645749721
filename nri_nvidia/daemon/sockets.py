# SPDX-License-Identifier: Apache-2.0
"""The daemon's own sockets and directory: had at the start, or as soon as they can be had.

A full disk, a read-only `/run` or something that stands in a socket's place keeps no container
from its GPU. What could not be had is said, and tried again until it is there.
"""

import asyncio
import functools
import logging
import os
import pathlib
from collections.abc import Awaitable, Callable

from nri_nvidia import errors
from nri_nvidia.config import model
from nri_nvidia.daemon import (
    control,
    hookreports,
    recorder,
    records,
    runtimedoor,
    statedir,
    worker,
)

logger = logging.getLogger(__name__)

_CLAIM_LIMIT = 0.7
"""Seconds for the directory while the runtime waits; it drops a plugin after two."""
_PAUSE = 5.0


class Sockets:
    """Opens what others ask and report by; for the event loop alone.

    `changed` is called with what is wrong, and with None when nothing is any more.
    """

    def __init__(
        self,
        answers: control.Control,
        *,
        records: recorder.Recorder,
        reports: hookreports.Receiver,
        door: runtimedoor.RuntimeDoor,
        changed: Callable[[errors.HostError | None], None],
    ) -> None:
        self._answers = answers
        self._records, self._reports, self._door = records, reports, door
        self._changed = changed
        self._worker = worker.Worker("daemon's directory")
        self._settings: model.Control | None = None
        self._claiming: asyncio.Future[int] | None = None
        self._held: int | None = None
        self._control: control.Listener | None = None
        self._done: set[str] = set()
        self._wrong: asyncio.Event = asyncio.Event()

    async def open(self, settings: model.Control) -> None:
        """Open what can be opened; raises TakenError where another daemon is in its place."""
        self._settings = settings
        taken = await self._attempt()
        if taken:
            raise taken

    async def keep(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Try again whatever is missing; for ever, as a task."""
        while True:
            await self._wrong.wait()
            await sleep(_PAUSE)
            await self._attempt()

    async def _attempt(self) -> statedir.TakenError | None:
        """Open what is not open; gives what tells that another daemon is there."""
        assert self._settings is not None
        path = pathlib.Path(self._settings.socket)
        first = taken = None
        for name, work in (
            ("directory", functools.partial(self._claim, path.parent)),
            ("control", self._listen),
            ("reports", functools.partial(self._hear, str(path.parent / "hook.sock"))),
            ("door", functools.partial(self._door.open, str(path.parent / "runtime.sock"))),
        ):
            if name in self._done:
                continue
            try:
                await work()
            except errors.HostError as error:
                first = first or error
                if isinstance(error, statedir.TakenError):
                    taken = taken or error
                if name == "directory":
                    break  # nothing else is ours without it
            else:
                self._done.add(name)
        again = self._wrong.is_set()
        if first:
            if not again:
                logger.error(
                    "what this daemon knows cannot be asked, or hooks not report: %s; "
                    "it is tried again",
                    first,
                )
            self._wrong.set()
        elif again:
            logger.info("the daemon's sockets are there now")
            self._wrong.clear()
        if first or again:
            self._changed(first)
        return taken

    async def _claim(self, directory: pathlib.Path) -> None:
        """Have the directory; one attempt at a time, since the second would find the first."""
        try:
            if self._claiming is None:
                self._claiming = self._worker.run(functools.partial(statedir.claim, directory))
            async with asyncio.timeout(_CLAIM_LIMIT):
                self._held = await asyncio.shield(self._claiming)
        except TimeoutError:
            raise errors.HostError(
                f"{directory} could not be used within {_CLAIM_LIMIT:g} s",
                hint="a disk may hang: dmesg",
                code="file-late",
            ) from None
        except (errors.HostError, RuntimeError) as error:
            self._claiming = None
            if isinstance(error, errors.HostError):
                raise
            raise errors.HostError(f"{directory}: {error}", code="no-state-directory") from error
        self._claiming = None
        self._records.open(directory / records.DIRECTORY)

    async def _listen(self) -> None:
        assert self._settings is not None
        fault, group = None, None
        try:
            group = control.group_of(self._settings.group)
        except errors.HostError as error:
            fault = error
        if self._control is None:
            self._control = await control.serve(self._settings.socket, self._answers, group)
        elif group is not None:
            try:
                control.open_to(self._settings.socket, self._control, group)
            except OSError as error:
                raise statedir.unusable(self._settings.socket, error) from error
        if fault:
            raise fault

    async def _hear(self, path: str) -> None:
        self._reports.open(path)

    async def close(self) -> None:
        """Close all of them and let the directory go."""
        if self._control is not None and self._settings is not None:
            await control.end(self._settings.socket, self._control)
        self._reports.close()
        await self._records.close()
        await self._door.close()
        self._worker.close()
        if self._held is not None:
            os.close(self._held)
            self._held = None
