# SPDX-License-Identifier: Apache-2.0
"""Keeps the CDI specifications of this host as the host is, since engines read them unasked."""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from nri_nvidia import errors, pipeline
from nri_nvidia.config import model
from nri_nvidia.daemon import hookplace, hostwatch, worker
from nri_nvidia.host import model as host
from nri_nvidia.oci import cdifiles
from nri_nvidia.render import cdispec

logger = logging.getLogger(__name__)

_PERIOD = 10.0
"""Seconds between looks: nobody asks, and a container may be created at any time."""
_LIMIT = 10.0
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Wanted:
    """What is to be kept: the settings, and the rules by which containers are given things."""

    cdi: model.Cdi
    hook: model.Hook
    rules: pipeline.Policy


class CdiKeeper:
    """Writes a file a kind when the host changes, and removes it when the driver goes.

    `problem` is why one cannot be kept. A file is left in place when the daemon ends: what it
    names is still there.
    """

    def __init__(
        self,
        watch: hostwatch.HostWatch,
        place: hookplace.HookPlace,
        wanted: Callable[[], Wanted],
    ) -> None:
        self.problem: host.Problem | None = None
        self._watch = watch
        self._place = place
        self._wanted = wanted
        self._changed = asyncio.Event()
        self._writer = worker.Worker("CDI specifications")
        self._running: asyncio.Future[Any] | None = None
        self._done: tuple[Wanted, host.Inventory] | None = None
        self._written: set[str] = set()

    def use(self) -> None:
        """Look at the settings again, now."""
        self._changed.set()

    async def keep(self) -> None:
        """Keep the files; for ever, as a task."""
        while True:
            wanted = self._wanted()
            try:
                await self._keep(wanted)
            except (errors.Error, OSError, RuntimeError) as error:
                self._note(error)
            else:
                self.problem = None
            try:
                period = _PERIOD if wanted.cdi.keep else None
                async with asyncio.timeout(period):
                    await self._changed.wait()
            except TimeoutError:
                continue
            self._changed.clear()

    def close(self) -> None:
        """Let the thread go."""
        self._writer.close()

    async def _keep(self, wanted: Wanted) -> None:
        if not wanted.cdi.keep:
            await self._leave(frozenset())
            return
        inventory = await self._watch.inventory(_LIMIT)
        if self._done == (wanted, inventory) and await self._run(self._all_there):
            return
        rules = wanted.rules
        if rules.inject.hook is not None:
            interpreter = await self._place.ready(wanted.hook, _LIMIT)
            hook = attrs.evolve(rules.inject.hook, interpreter=interpreter)
            rules = attrs.evolve(rules, inject=attrs.evolve(rules.inject, hook=hook))
        work = functools.partial(_write, wanted.cdi, inventory, rules)
        written = await self._run(work)
        await self._leave(frozenset(written))
        self._written = set(written)
        self._done = (wanted, inventory)

    async def _run(self, call: Callable[[], T]) -> T:
        """Use the directory in a thread; raises HostError where it does not answer.

        While a call hangs no other is begun: each would wait behind it.
        """
        if self._running is None or self._running.done():
            self._running = running = self._writer.run(call)
            done, _ = await asyncio.wait((running,), timeout=_LIMIT)
            if done:
                return running.result()
        directory = self._wanted().cdi.directory
        raise errors.HostError(
            f"{directory} did not answer within {_LIMIT:g} s",
            hint="its disk may hang: dmesg; it is tried again",
        )

    def _all_there(self) -> bool:
        return all(cdifiles.read(path).document for path in self._written)

    async def _leave(self, kept: frozenset[str]) -> None:
        """Remove what was written before and is not to be there any more."""
        for path in sorted(self._written - kept):
            await self._run(functools.partial(cdifiles.remove, path))
            self._written.discard(path)
            logger.info("the CDI specification %s is removed", path)
        self._done = None

    def _note(self, error: Exception) -> None:
        told = error if isinstance(error, errors.Error) else errors.HostError(str(error))
        problem = host.Problem(code="cdi-not-kept", message=told.message, hint=told.hint)
        if problem != self.problem:
            logger.warning("the CDI specification is not kept as the host is: %s", told)
        self.problem = problem


def _write(settings: model.Cdi, inventory: host.Inventory, rules: pipeline.Policy) -> list[str]:
    """Write what the host has, remove what an earlier daemon has left of what it has not."""
    written = []
    for kind in settings.kinds:
        path = f"{settings.directory.rstrip('/')}/{cdifiles.name_of(kind)}"
        try:
            made = cdispec.make(kind, inventory, rules)
        except errors.HostError as error:
            if error.code != "no-cdi-device":
                raise
            if cdifiles.remove(path):
                logger.info("the CDI specification %s is removed: %s", path, error.message)
            continue
        written.append(path)
        if cdifiles.write(path, made.document):
            logger.info("the CDI specification %s is written: %s", path, ", ".join(made.names))
            for reason in made.left_out:
                logger.info("%s leaves out %s", path, reason)
    return written
