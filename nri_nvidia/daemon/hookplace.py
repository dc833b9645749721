# SPDX-License-Identifier: Apache-2.0
"""The hook's script and the Python that runs it: put in place, and looked after.

A runtime fails every container whose hook is not there. So it is looked for before each one, and
put in place again where a cleaner of /run took it, or where it could not be written before.
"""

import asyncio
import functools
import logging
import os
import posixpath

import attrs

from nri_nvidia import errors
from nri_nvidia.config import model
from nri_nvidia.daemon import worker
from nri_nvidia.oci import install

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Installed:
    """What stands for some settings; `stamp` changes with what a runtime starts."""

    settings: model.Hook
    interpreter: str
    script: str
    stamp: tuple[int, ...]


class HookPlace:
    """Gives the hook's interpreter once the hook is in place; `fault` is why it is not."""

    def __init__(self) -> None:
        self.fault: errors.HostError | None = None
        self._known: Installed | None = None
        self._look: asyncio.Future[Installed] | None = None
        self._worker = worker.Worker("hook")

    def begin(self, settings: model.Hook, batch: worker.Batch) -> "asyncio.Future[Installed]":
        """Look in a batch, unless a look is under way."""
        if self._look is None or self._look.done():
            self._look = batch.add(functools.partial(_ensure, settings, self._known), self._worker)
        return self._look

    async def ready(
        self,
        settings: model.Hook,
        limit: float,
        begun: "asyncio.Future[Installed] | None" = None,
    ) -> str:
        """Give the interpreter; raises HostError where the hook is not there after `limit` s.

        `begun` is a look by `begin` that will do.
        """
        try:
            known = begun.result() if begun and begun.done() else None
            if known is None or known.settings != settings:
                async with asyncio.timeout(limit):
                    known = await self._looked(settings)
            self._known = known
        except TimeoutError:
            fault = errors.HostError(
                f"the hook was not in place below {settings.directory} within {limit:.1f} s",
                hint="try again; a disk may hang: dmesg",
                code="hook-late",
            )
        except errors.HostError as error:
            fault = error
        except Exception as error:  # noqa: BLE001 - its reason is what the container is refused for
            fault = errors.HostError(
                f"the hook cannot be put in place below {settings.directory}: "
                f"{type(error).__name__}: {error}",
                hint="name another place that only root can write to: hook.directory",
                code="hook-not-in-place",
            )
        else:
            self.fault = None
            return known.interpreter
        if str(fault) != str(self.fault):
            logger.error("no container can be given a GPU: %s", fault)
        self.fault = fault
        raise fault

    def close(self) -> None:
        """Let the thread go; one that hangs is left behind."""
        self._worker.close()

    async def _looked(self, settings: model.Hook) -> Installed:
        while True:
            if self._look is None or self._look.done():
                self._look = self._worker.run(functools.partial(_ensure, settings, self._known))
            found = await asyncio.shield(self._look)
            if found.settings == settings:
                return found


def _ensure(settings: model.Hook, known: Installed | None) -> Installed:
    if known and known.settings == settings and _stamp(known.script) == known.stamp:
        return known
    interpreter = settings.interpreter or install.interpreter()
    problem = install.unfit(settings.interpreter) if settings.interpreter else ""
    if problem:
        raise errors.HostError(
            f"hook.interpreter: {settings.interpreter} {problem}",
            hint="name a Python 3.9 or later that every user may run, or leave the key out",
            code="hook-interpreter-unfit",
        )
    script = install.install(settings.directory, interpreter)
    return Installed(
        settings=settings, interpreter=interpreter, script=script, stamp=_stamp(script)
    )


def _stamp(path: str) -> tuple[int, ...]:
    stamp: list[int] = []
    for each in (path, posixpath.join(posixpath.dirname(path), install.FRONT)):
        try:
            found = os.stat(each)  # noqa: PTH116 - a name, not a Path
        except OSError:
            return ()
        stamp += (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns, found.st_mode)
    return tuple(stamp)
