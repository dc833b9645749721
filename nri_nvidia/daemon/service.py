# SPDX-License-Identifier: Apache-2.0
"""The daemon as a whole: one task group that owns every task; to end is to cancel it.

A runtime goes on without a daemon that ended, and containerd 1.7 ends together with a plugin that
it has started. So what is wrong with the daemon's own things (its directory, its settings) is said
and shown, and the containers are served as well as can be.
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import nri_nvidia
from nri_nvidia import errors, log
from nri_nvidia.config import model as config_model
from nri_nvidia.daemon import (
    cdikeeper,
    collector,
    control,
    explanation,
    guard,
    holdings,
    hookplace,
    hookreports,
    hostwatch,
    notify,
    observed,
    readiness,
    recorder,
    runtimedoor,
    runtimeholders,
    sockets,
    sources,
    standing,
    statedir,
    statusview,
    volumekeeper,
    watchdog,
    web,
    worker,
)
from nri_nvidia.nri import session

logger = logging.getLogger(__name__)

_FIRST_LOOK = 30.0
_FILE_LIMIT = 0.7
"""Seconds for files of our own while the runtime waits; it drops a plugin after two."""
T = TypeVar("T")


class Service:
    """Holds the parts together; `run` returns when the daemon is asked to end.

    With bad settings it raises ConfigError at once, but not where a runtime has started it: then
    GPU containers are refused for that reason until the settings are good.
    """

    def __init__(self, origin: sources.Sources) -> None:
        self._sources = origin
        self._runtime_text = ""
        self._launched = bool(os.environ.get("NRI_PLUGIN_SOCKET"))
        fault: errors.Error | None = None
        self._config = config_model.Config()
        try:
            self._config = origin.load()
        except errors.ConfigError as error:
            if not self._launched:
                raise
            fault = error
            _log_faults("no container can be given a GPU", error)
        self._started = time.time()
        self._watch = hostwatch.HostWatch(self._config.host_options())
        self._place = hookplace.HookPlace()
        self._keeper = volumekeeper.VolumeKeeper()
        self._reader = worker.Worker("settings")
        self._reports = hookreports.Receiver()
        self._records = recorder.Recorder()
        self._opened = False
        self._adoption: asyncio.Future[None] | None = None
        self._web: web.Web | None = None
        self._decider = guard.Decider(
            self._watch,
            self._config,
            place=self._place,
            keeper=self._keeper,
            reports=self._reports,
            records=self._records,
            on_config=self._from_runtime,
            on_registered=self._registered,
        )
        self._decider.fault = fault
        self._holders = runtimeholders.Holders(
            self._decider.ledger, self._records, self._decider.stop_container
        )
        self._door = runtimedoor.RuntimeDoor(self._decider, self._holders)
        self._cdi = cdikeeper.CdiKeeper(self._watch, self._place, self._cdi_wanted)
        self._sockets = sockets.Sockets(
            control.Control(
                self._status,
                lambda query: explanation.document(self._decider, self._watch, query),
            ),
            records=self._records,
            reports=self._reports,
            door=self._door,
            changed=self._sockets_changed,
        )
        self._socket_fault: errors.Error | None = None
        self._standing = standing.Standing(
            self._config.nri.socket,
            f"process {os.getpid()}, {self._config.control.socket}",
        )
        self._reports.on_report = self._decider.hook_reported
        self._ends = False

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; raises Error when the daemon cannot serve at all."""
        log.set_up(self._config.log.level, self._config.log.format)
        logger.info("nri-nvidia %s starts, process %d", nri_nvidia.__version__, os.getpid())
        failure: errors.Error | None = None
        wanted = self._session_settings()
        if wanted.descriptor is None:
            await self._open()
            self._use(self._config)
        owner = asyncio.current_task()
        assert owner is not None
        try:
            async with asyncio.TaskGroup() as tasks:
                self._heed_signals(owner, tasks)
                tasks.create_task(self._watch.keep_nvml_fresh(), name="nvml")
                tasks.create_task(self._watch.keep_modules_loaded(), name="modules")
                first = tasks.create_task(_surely(self._first_look(), "looking at the host"))
                first.add_done_callback(collector.resume)
                for duty, what in self._duties():
                    tasks.create_task(_surely(duty, what))
                try:
                    await self._serve_nri(wanted)
                except errors.Error as error:
                    failure = error
                owner.cancel()
        except asyncio.CancelledError:
            logger.info("nri-nvidia ends; containers keep what they have")
            while owner.uncancel():  # before Python 3.11.3 no time limit holds else
                pass
        finally:
            notify.notify("STOPPING=1")
            await self._close()
        if failure:
            raise failure

    def _duties(self) -> Iterator[tuple[Coroutine[None, None, None], str]]:
        """Give what else is done for ever, and what that is."""
        wrong = functools.partial(readiness.hung, self._decider)
        yield self._sockets.keep(), "opening the daemon's sockets"
        yield watchdog.keep(watchdog.interval(os.environ), wrong), "the watchdog"
        yield notify.ready_at_last(self._decider.connection), "telling systemd"
        yield self._cdi.keep(), "keeping CDI specifications"
        yield self._door.keep_client(self._place), "the door for runtimes"
        yield self._decider.warm.keep(self._place), "keeping a process that stands ready"
        yield self._decider.leftovers.keep(), "looking for containers that have ended"

    def _heed_signals(self, owner: "asyncio.Task[None]", tasks: asyncio.TaskGroup) -> None:
        def end() -> None:
            # Once: a second cancellation would break off the end itself.
            if not self._ends:
                self._ends = True
                owner.cancel()

        def reload() -> None:
            tasks.create_task(_surely(self._reload(), "reading the settings again"))

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        loop.add_signal_handler(signal.SIGHUP, reload)

    async def _status(self) -> dict[str, Any]:
        self._holders.look()
        problem = self._cdi.problem
        return await statusview.document(self._decider, self._watch, self._started, problem)

    async def _serve_nri(self, wanted: session.Settings) -> None:
        """Be the runtime's plugin for ever, or, with NRI switched off, just there."""
        if self._config.nri.enabled or wanted.descriptor is not None:
            if wanted.descriptor is not None:
                await self._note_other()
            await session.run_forever(wanted, self._decider, admit=self._admit)
        self._decider.connection.wanted = False
        notify.notify("READY=1\nSTATUS=NRI is switched off")
        await asyncio.get_running_loop().create_future()

    async def _admit(self) -> None:
        """Wait for our turn to serve the runtime; raises StandsBy while another serves it."""
        with contextlib.suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(_FILE_LIMIT):
                await asyncio.shield(self._reader.run(self._standing.take))

    async def _note_other(self) -> None:
        """Say that another serves the runtime which has started us: it may not be kept waiting."""
        try:
            await self._admit()
        except session.StandsBy as error:
            self._decider.troubles.append(error)
            logger.error("two nri-nvidia are on this node: %s", error)  # noqa: TRY400

    def _session_settings(self) -> session.Settings:
        nri = self._config.nri
        wanted = session.Settings(socket=nri.socket, name=nri.name, index=nri.index)
        return wanted.from_environment(os.environ)

    async def _open(self) -> None:
        """Open the daemon's sockets; raises TakenError unless a runtime has started us."""
        self._opened = True
        try:
            await self._sockets.open(self._config.control)
        except statedir.TakenError:
            if not self._launched:
                await self._close()
                raise
        self._begin_adoption()
        await self._serve_metrics(self._config.metrics.listen)

    def _begin_adoption(self) -> None:
        """Find who holds GPUs, beside all else: a disk that hangs must keep no runtime waiting."""
        self._decider.holdings.begin(holdings.DOOR)
        self._adoption = asyncio.ensure_future(self._adopt())

    async def _adopt(self) -> None:
        await _surely(self._holders.adopt(), "finding who holds GPUs")
        self._decider.holdings.end(holdings.DOOR)

    def _sockets_changed(self, fault: errors.HostError | None) -> None:
        """Show what is wrong with the sockets; hooks report to one that is there only now."""
        troubles = self._decider.troubles
        if self._socket_fault in troubles:
            troubles.remove(self._socket_fault)
        self._socket_fault = fault
        if fault:
            troubles.append(fault)
        else:
            self._use(self._config)
            if self._adoption is None or self._adoption.done():
                self._begin_adoption()

    async def _serve_metrics(self, listen: str) -> None:
        """Serve metrics and health, if that is wanted; what keeps us from it is only said."""
        if not listen:
            return
        served = web.Web(observed.routes(self._decider, self._watch))
        try:
            await served.open(listen)
        except errors.HostError as error:
            self._decider.troubles.append(error)
            logger.error("%s", error)  # noqa: TRY400
        else:
            self._web = served

    async def _close(self) -> None:
        if self._web is not None:
            await self._web.close()
        await self._sockets.close()
        self._holders.close()
        if self._adoption is not None:
            self._adoption.cancel()
        own = (self._keeper, self._reader, self._cdi, self._decider, self._standing)
        for part in (self._watch, self._place, *own):
            part.close()

    async def _in_time(self, call: Callable[[], T], what: str) -> T:
        """Read or write a file in a thread: it may be on a disk that hangs, or be a fifo."""
        try:
            async with asyncio.timeout(_FILE_LIMIT):
                return await asyncio.shield(self._reader.run(call))
        except TimeoutError:
            raise errors.HostError(
                f"{what} could not be used within {_FILE_LIMIT:g} s",
                hint="a disk may hang: dmesg",
                code="file-late",
            ) from None

    def _use(self, config: config_model.Config) -> None:
        """Take settings into use; the sockets stay as they were at the start."""
        if self._opened:
            config = sources.in_force(self._config, config)
        self._config = config
        self._watch.look_at(config.host_options())
        log.set_up(config.log.level, config.log.format)
        self._decider.use(config)
        self._door.use(config.hook, self._decider.markers)
        self._cdi.use()

    def _cdi_wanted(self) -> cdikeeper.Wanted:
        rules = self._config.rules(interpreter=self._config.hook.interpreter)
        return cdikeeper.Wanted(cdi=self._config.cdi, hook=self._config.hook, rules=rules)

    async def _load(self, runtime_text: str) -> config_model.Config:
        return await self._in_time(
            functools.partial(self._sources.load, runtime_text), self._sources.file or "a file"
        )

    async def _from_runtime(self, text: str) -> None:
        """Take the runtime's configuration string (TOML, may be empty) into account.

        A daemon that the runtime has started knows from it where its sockets belong.
        """
        config = self._config
        try:
            config = await self._load(text)
        except errors.Error as error:
            # Refusing would end containerd 1.7 when it has started us itself.
            _log_faults("the runtime's configuration for us is not used", error)
            if not self._runtime_text:
                # There are no settings of before to go on with, and the defaults may be wrong.
                self._decider.fault = error
        else:
            self._runtime_text = text
            self._decider.fault = None
        if not self._opened:
            self._config = config
            await self._open()
        self._use(config)

    async def _reload(self) -> None:
        """Read the settings again (SIGHUP); a bad file leaves the old ones in force."""
        try:
            config = await self._load(self._runtime_text)
        except errors.Error as error:
            _log_faults("the old settings stay in force", error)
        else:
            self._use(config)
            self._decider.fault = None
            logger.info("the settings were read again%s", sources.later(self._config, config))

    def _registered(self) -> None:
        runtime = self._decider.connection.runtime
        name = errors.printable(f"{runtime.name} {runtime.version}" if runtime else "the runtime")
        notify.notify(f"READY=1\nSTATUS=registered with {name}")

    async def _first_look(self) -> None:
        """Look at the host beside the registration, so that the first container finds it known."""
        hook, look = self._config.hook, None
        with contextlib.suppress(RuntimeError):  # no thread: whoever waits says so
            look = self._watch.begin()
        if hook.enabled:
            with contextlib.suppress(errors.Error):
                await self._place.ready(hook, _FIRST_LOOK)
        with contextlib.suppress(errors.Error):
            found = await self._watch.inventory(_FIRST_LOOK, look)
            self._decider.prepare(found)
            logger.info(
                "this node: driver %s, %d GPUs, %d driver files; taken for %s: %s",
                found.driver_version or ("of unknown version" if found.driven else "not loaded"),
                len(found.usable),
                len(found.files),
                found.preset,
                found.preset_reason,
            )


async def _surely(work: Awaitable[None], what: str) -> None:
    """Await what must not end the daemon: a defect in it is logged."""
    try:
        await work
    except Exception:
        logger.exception("%s failed", what)


def _log_faults(what: str, error: errors.Error) -> None:
    """Log a line a fault."""
    for fault in str(error).split("\n"):
        logger.error("%s: %s", what, fault)


def run(origin: sources.Sources) -> None:
    """Be the daemon until asked to end; raises Error when it cannot serve at all."""
    service = Service(origin)
    asyncio.run(service.run())
