# SPDX-License-Identifier: Apache-2.0
"""Keeps the decisions on disk beside the event loop, a moment after they were answered."""

import asyncio
import collections
import functools
import logging
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

from nri_nvidia import errors
from nri_nvidia.daemon import ledger, records, worker
from nri_nvidia.host import model as host

logger = logging.getLogger(__name__)

_PAUSE = 0.05
"""Seconds until a decision is written: the container that waits for the next one comes first."""
_PENDING = 4096
_LIMIT = 5.0
_Job = Callable[[records.Store], None]
T = TypeVar("T")


class Recorder:
    """Writes records in a thread. Until `open` nothing is kept. `problem` is why none can be."""

    def __init__(self) -> None:
        self.problem: host.Problem | None = None
        self._store: records.Store | None = None
        self._worker = worker.Worker("records")
        self._pending: collections.deque[_Job] = collections.deque(maxlen=_PENDING)
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None

    def open(self, directory: pathlib.Path) -> None:
        """Keep records in this directory from now on, beside those that are there."""
        self._store = records.Store(directory)
        self._do(records.Store.load)

    def decided(self, decided: ledger.Decided, *, missed: bool = False) -> None:
        """Keep a decision."""
        self._do(lambda store: store.put(records.document(decided, missed=missed)))

    def hook_reported(self, container_id: str, report: dict[str, Any]) -> None:
        """Keep what a container's hook said of itself."""
        self._do(lambda store: store.change(container_id, {"hook": report}))

    def noted(self, container_id: str, changes: dict[str, Any]) -> None:
        """Keep further members of a container's record."""
        self._do(lambda store: store.change(container_id, changes))

    def ended(self, container_id: str, at: float) -> None:
        """Note that a container has ended."""
        self._do(lambda store: store.end(container_id, at))

    def keep_only(self, container_ids: frozenset[str]) -> None:
        """Note that no containers but these exist."""
        self._do(lambda store: store.keep_only(container_ids))

    async def ask(self, question: Callable[[records.Store], T]) -> T | None:
        """Ask the records of now; None where there are none. Raises HostError for a dead disk."""
        store = self._store
        if store is None:
            return None
        try:
            async with asyncio.timeout(_LIMIT):
                while self._pending or self._writing:
                    self._flush()
                    if self._writing:
                        await asyncio.shield(self._writing)
                return await self._worker.run(functools.partial(question, store))
        except TimeoutError:
            raise errors.HostError(
                f"the records of decisions could not be read within {_LIMIT:g} s",
                hint="a disk may hang: dmesg",
                code="records-late",
            ) from None

    async def close(self) -> None:
        """Write what is left, if the disk takes it, and let the thread go."""
        try:
            await self.ask(lambda _: None)
        except errors.HostError as error:
            logger.warning("the last decisions are not kept: %s", error)
        if self._timer is not None:
            self._timer.cancel()
        self._worker.close()

    def _do(self, job: _Job) -> None:
        if self._store is None:
            return
        self._pending.append(job)
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None or self._store is None or not self._pending:
            return
        jobs = list(self._pending)
        self._pending.clear()
        try:
            future = self._worker.run(functools.partial(_run, self._store, jobs))
        except RuntimeError as error:
            logger.warning("no thread to keep decisions: %s", error)
            return
        self._writing = asyncio.ensure_future(self._written(future))

    async def _written(self, future: "asyncio.Future[OSError | None]") -> None:
        try:
            error = await future
        except Exception as failure:
            logger.exception("decisions could not be kept")
            self._note(f"{type(failure).__name__}: {failure}")
        else:
            self._note(f"{error.filename or ''}: {error.strerror or error}" if error else "")
        self._writing = None
        if self._pending and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._flush)

    def _note(self, wrong: str) -> None:
        if not wrong:
            self.problem = None
            return
        problem = host.Problem(
            code="decisions-not-kept",
            message=f"decisions are not kept for nri-nvidia explain: {wrong}",
            hint="make room, or name another place: control.socket",
        )
        if problem != self.problem:
            logger.warning("%s", problem.message)
        self.problem = problem


def _run(store: records.Store, jobs: list[_Job]) -> OSError | None:
    """Do what is pending; give the first error, which keeps none of the rest from being done."""
    first: OSError | None = None
    try:
        with store.together():
            for job in jobs:
                try:
                    job(store)
                except OSError as error:
                    first = first or error
    except OSError as error:
        first = first or error
    return first
