# SPDX-License-Identifier: Apache-2.0
"""The process that stands ready for hooks and runtimes: started, and started again when it ends.

It is no part of any answer: who finds nobody ready starts Python, as without it. So what is wrong
with it is said once, and tried again ever more seldom. One that lives and does not answer keeps
its callers waiting; so it is asked now and then, and ended.
"""

import asyncio
import contextlib
import functools
import logging
import os
import posixpath
import select
import signal
import subprocess

import attrs

from nri_nvidia import errors
from nri_nvidia.config import model
from nri_nvidia.daemon import hookplace, worker
from nri_nvidia.edits import hooks
from nri_nvidia.oci import install

logger = logging.getLogger(__name__)

_LIMIT = 30.0
_PAUSES = (1.0, 5.0, 30.0, 300.0)
_LASTING = 60.0
"""Seconds after which one that ends was a good one."""
_EVERY = 3.0
"""Seconds until it is asked again, and that it has to answer: less than a runtime's patience."""
_CLIENT_LIMIT, _MARGIN = 13, 2
"""Seconds for which the program that asks the daemon waits, and beyond its or a hook's time."""
_READY = b"ready\n"


@attrs.frozen(kw_only=True)
class Wanted:
    """For which hook it is, and the directory of the daemon's sockets; empty for none at all."""

    hook: model.Hook
    run: str


class WarmKeeper:
    """Keeps it; `directory` is where it is asked, empty while it is not there."""

    def __init__(self) -> None:
        self.directory = ""
        self._wanted = Wanted(hook=model.Hook(), run="")
        self._changed = asyncio.Event()
        self._worker = worker.Worker("warm")
        self._process: subprocess.Popen[bytes] | None = None
        self._said = ""

    def use(self, settings: model.Hook, run: str) -> None:
        """Have one by these settings; see `keep`."""
        wanted = Wanted(hook=settings, run=run)
        if wanted != self._wanted:
            self._wanted = wanted
            self.directory = ""
            self._changed.set()

    async def keep(self, place: hookplace.HookPlace) -> None:
        """Keep it as it is wanted; for ever, as a task."""
        loop, pauses = asyncio.get_running_loop(), iter(_PAUSES)
        while True:
            self._changed.clear()
            wanted, began, pause = self._wanted, loop.time(), None
            if wanted.run and wanted.hook.enabled and wanted.hook.warm and os.geteuid() == 0:
                try:
                    await self._live(wanted, place)
                except (errors.Error, OSError, RuntimeError, TimeoutError) as error:
                    self._say(str(error) or f"it was not ready within {_LIMIT:g} s")
                if loop.time() - began > _LASTING:
                    pauses = iter(_PAUSES)
                pause = next(pauses, _PAUSES[-1])
            # Not `wait_for`: before Python 3.12 it may lose a cancellation, by which we end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                pauses = iter(_PAUSES)

    def close(self) -> None:
        """Let it end, and what it does with it."""
        self._end()
        self._worker.close()

    async def _live(self, wanted: Wanted, place: hookplace.HookPlace) -> None:
        """Start it, and wait until it has ended or is to; raises what stands in the way."""
        interpreter = await place.ready(wanted.hook, _LIMIT)
        folder, script = posixpath.join(wanted.run, "warm"), wanted.hook.script
        work = functools.partial(install.install_ask, folder)
        await self._worker.run(work)
        program = f"{posixpath.dirname(script)}/{install.WARM}.py"
        limit = str(max(wanted.hook.timeout, _CLIENT_LIMIT) + _MARGIN)
        command = [interpreter, "-I", "-S", program, folder, wanted.run, script, limit]
        self._process = await self._worker.run(functools.partial(_start, command))
        try:
            async with asyncio.timeout(_LIMIT):
                said = await _first_line(self._process)
            if said != _READY:
                raise errors.HostError(said.decode(errors="replace").strip() or "it has ended")
            if wanted == self._wanted:
                self.directory = folder
                await self._until_ended(self._process)
        finally:
            self.directory = ""
            self._end()

    async def _until_ended(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for its end, for other settings, or until it does not answer any more."""
        loop, watched = asyncio.get_running_loop(), os.pidfd_open(process.pid)
        ended = asyncio.Event()
        try:
            loop.add_reader(watched, ended.set)
            waiting = [asyncio.ensure_future(each.wait()) for each in (ended, self._changed)]
            answers = True
            try:
                while answers and not any(each.done() for each in waiting):
                    first = asyncio.FIRST_COMPLETED
                    done, _ = await asyncio.wait(waiting, timeout=_EVERY, return_when=first)
                    answers = bool(done) or await _answers(process)
            finally:
                for each in waiting:
                    each.cancel()
        finally:
            loop.remove_reader(watched)
            os.close(watched)
        if ended.is_set() or not answers:
            gone = ended.is_set() or process.poll() is not None
            what = "has ended" if gone else f"did not answer for {_EVERY:g} s"
            logger.warning("the process that stands ready for hooks %s; it is started anew", what)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.send_signal(signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold it on a disk
            process.wait(1)

    def _say(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            logger.warning(
                "each hook starts a Python of its own, which takes longer: "
                "no process can stand ready: %s",
                problem,
            )


def _start(command: list[str]) -> "subprocess.Popen[bytes]":
    if not os.access(hooks.SHELL, os.X_OK):
        raise errors.HostError(f"{hooks.SHELL} is not there")
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        cwd="/",
        umask=0o022,
        start_new_session=True,
    )


async def _answers(process: "subprocess.Popen[bytes]") -> bool:
    """Ask whether it is ready still."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        os.write(process.stdin.fileno(), b"\n")
        async with asyncio.timeout(_EVERY):
            return await _first_line(process) == _READY
    except OSError:  # TimeoutError, too: the loop may have been late, and not the answer
        if select.select([process.stdout], [], [], 0)[0]:
            return os.read(process.stdout.fileno(), 4096) == _READY
        return False


async def _first_line(process: "subprocess.Popen[bytes]") -> bytes:
    """Give what it says once it is ready, or why it is not."""
    assert process.stdout is not None
    loop, said = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.stdout, said.set)
    try:
        await said.wait()
    finally:
        loop.remove_reader(process.stdout)
    return os.read(process.stdout.fileno(), 4096)
