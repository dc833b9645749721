# SPDX-License-Identifier: Apache-2.0
"""The daemon as a whole: one task group that owns every task; to end is to cancel it."""

import asyncio
import contextlib
import logging
import os
import pathlib
import signal
import time
from collections.abc import Sequence

import attrs
from grpclib import server

import nri_nvidia
from nri_nvidia import errors, log
from nri_nvidia.config import load
from nri_nvidia.config import model as config_model
from nri_nvidia.daemon import control, decider, hookreports, hostwatch, notify, statusview
from nri_nvidia.nri import session
from nri_nvidia.oci import install

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Sources:
    """Where settings come from besides the runtime, in rising order of precedence."""

    file: str | None = None
    options: str = ""

    def load(self, runtime: str = "") -> config_model.Config:
        """Read all sources again, the runtime's between file and options; raises ConfigError."""
        texts: Sequence[load.Text] = [
            *([load.read(self.file)] if self.file else []),
            load.Text(name="the runtime's configuration for this plugin", toml=runtime),
            load.Text(name="command line", toml=self.options),
        ]
        return load.load(texts)


class Service:
    """Holds the parts together; `run` returns when the daemon is asked to end."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._runtime_text = ""
        self._config = sources.load()
        self._started = time.time()
        self._watch = hostwatch.HostWatch(self._config.host_options())
        self._reports = hookreports.Receiver()
        self._control: server.Server | None = None
        self._decider = decider.Decider(
            self._watch,
            self._config.policy(interpreter=""),
            reports=self._reports,
            on_config=self._from_runtime,
            on_registered=self._registered,
        )
        self._reports.on_report = self._decider.hook_reported

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; raises Error when the daemon cannot start at all."""
        logger.info("nri-nvidia %s starts, process %d", nri_nvidia.__version__, os.getpid())
        loop = asyncio.get_running_loop()
        wanted = self._session_settings()
        if wanted.descriptor is None:
            await self._open()
            self._use(self._config)
        try:
            async with asyncio.TaskGroup() as tasks:
                owner = asyncio.current_task()
                assert owner is not None
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, owner.cancel)
                loop.add_signal_handler(signal.SIGHUP, self._reload)
                tasks.create_task(self._watch.keep_nvml_fresh(), name="nvml")
                tasks.create_task(self._first_look(), name="first look")
                await session.run_forever(wanted, self._decider)
                owner.cancel()
        except asyncio.CancelledError:
            logger.info("nri-nvidia ends; containers keep what they have")
        finally:
            notify.notify("STOPPING=1")
            await self._close()

    def _session_settings(self) -> session.Settings:
        nri = self._config.nri
        wanted = session.Settings(socket=nri.socket, name=nri.name, index=nri.index)
        return wanted.from_environment(os.environ)

    async def _open(self) -> None:
        """Make the daemon's directory, its control socket and the one for the hooks' reports."""
        path = pathlib.Path(self._config.control.socket)
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._control = await control.serve(
                str(path),
                control.Control(
                    lambda: statusview.document(self._decider, self._watch, self._started)
                ),
            )
            self._reports.open(str(path.parent / "hook.sock"))
        except OSError as error:
            raise errors.HostError(
                f"{error.filename or path}: {error.strerror}",
                hint="the daemon runs as root and keeps its sockets there: control.socket",
                code="no-state-directory",
            ) from error

    async def _close(self) -> None:
        if self._control is not None:
            self._control.close()
            await self._control.wait_closed()
            control.remove(self._config.control.socket)
        self._reports.close()
        self._watch.close()

    def _use(self, config: config_model.Config) -> None:
        """Take settings into use. A hook that cannot be had refuses GPU containers, not the rest.

        The sockets stay as they were at the start.
        """
        if self._control is not None:
            config = attrs.evolve(config, control=self._config.control)
        self._config = config
        self._watch.look_at(config.host_options())
        log.set_up(config.log.level, config.log.format)
        fault: errors.Error | None = None
        interpreter = config.hook.interpreter
        if config.hook.enabled:
            try:
                interpreter = interpreter or install.interpreter()
                install.install(config.hook.directory)
            except errors.Error as error:
                fault = error
                logger.error("no container can be given a GPU: %s", error)  # noqa: TRY400
        self._decider.rules = config.policy(
            interpreter=interpreter, report_socket=self._reports.path
        )
        self._decider.fault = fault

    async def _from_runtime(self, text: str) -> None:
        """Take the runtime's configuration string (TOML, may be empty) into account.

        A daemon that the runtime has started knows from it where its sockets belong.
        """
        try:
            config = self._sources.load(text)
        except errors.ConfigError as error:
            # Refusing would end containerd 1.7 when it has started us itself.
            logger.error("the runtime's configuration for us is not used: %s", error)  # noqa: TRY400
            config = self._config
        else:
            self._runtime_text = text
        if self._control is None:
            self._config = config
            try:
                await self._open()
            except errors.Error as error:
                logger.error("nobody can ask this daemon: %s", error)  # noqa: TRY400
        self._use(config)

    def _reload(self) -> None:
        """Read the settings again (SIGHUP); a bad file leaves the old ones in force."""
        try:
            self._use(self._sources.load(self._runtime_text))
            logger.info("the settings were read again")
        except errors.Error as error:
            logger.error("the old settings stay in force: %s", error)  # noqa: TRY400

    def _registered(self) -> None:
        runtime = self._decider.connection.runtime
        name = f"{runtime.name} {runtime.version}" if runtime else "the runtime"
        notify.notify(f"READY=1\nSTATUS=registered with {name}")

    async def _first_look(self) -> None:
        """Look at the host beside the registration, so that the first container finds it known."""
        with contextlib.suppress(errors.Error):
            found = await self._watch.inventory(30.0)
            logger.info(
                "this node: driver %s, %d GPUs, %d driver files",
                found.driver_version or "not loaded",
                len(found.usable),
                len(found.files),
            )


def run(sources: Sources) -> None:
    """Be the daemon until asked to end."""
    service = Service(sources)
    asyncio.run(service.run())
