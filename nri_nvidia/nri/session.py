# SPDX-License-Identifier: Apache-2.0
"""Sessions with the runtime: connect, register, be configured and synchronised, and again.

How often it is tried again depends on what an attempt costs the node. A connect that nobody
accepts costs nothing. A registration makes the runtime stop all container work for its
Synchronize. One that was refused will be refused again until somebody changes something.
"""

import asyncio
import functools
import logging
import pathlib
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import grpclib

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.request import container as request_model
from nri_nvidia.ttrpc import connection, peer, transport
from nri_nvidia.ttrpc import errors as ttrpc_errors

from . import convert, plugin, warmup

log = logging.getLogger(__name__)

PLUGIN_SERVICE, RUNTIME_SERVICE = 1, 2
"""The mux ids that NRI gives to the plugin's and the runtime's service."""
DEFAULT_SOCKET = "/var/run/nri/nri.sock"
_NRI_VERSION = "v0.12.2"
_BATCH = 4
"""Containers decoded in one go: a few milliseconds, by which a request may be delayed."""
_ABSENT_DELAY = 1.0
_REFUSED_DELAY = 60.0
_STANDBY_DELAY = 1.0
_FIRST_DELAY, _LOST_DELAY, _LONGEST_DELAY = 0.2, 1.0, 30.0
_BLOCKED = (
    "if crictl cannot create or remove containers either, the runtime blocks itself: restart it"
)
"""containerd 2.1.9 does, seen: a plugin that registers while a pod with containers is removed.

The removal takes its lock for reading twice, and in between a registration waits to write.
"""
_SETTLED = 60.0
"""Seconds after which a session counts as having worked, so that back-off begins anew."""


class Rejected(errors.Error):
    """Raised when the runtime refuses the plugin, which it will do again."""

    code = "registration-refused"


class StandsBy(errors.Error):
    """Raised when another nri-nvidia serves the runtime; it is tried again soon."""

    code = "stands-by"


@attrs.frozen(kw_only=True)
class Settings:
    """Where and as whom to register.

    `descriptor` is an inherited socket, for a plugin that the runtime started; then `socket` is
    not used. Timeouts are in seconds: for the reply to RegisterPlugin, which a busy runtime gives
    late (it takes one plugin at a time, for up to 5 s each), and for the last Synchronize.
    """

    socket: str = DEFAULT_SOCKET
    name: str = "nri-nvidia"
    index: str = "10"
    descriptor: int | None = None
    registration_timeout: float = 30.0
    synchronize_timeout: float = 60.0
    stall_timeout: float = transport.STALL_TIMEOUT

    def __attrs_post_init__(self) -> None:
        """Refuse what the runtime would refuse; one that starts us has named us itself."""
        if self.descriptor is not None:
            return
        if not re.fullmatch(r"[A-Za-z0-9_.+-]+", self.name):
            raise errors.ConfigError(
                f"the plugin name {self.name!r} is not one that runtimes accept",
                hint="use letters, digits and _ . + - only",
            )
        if not re.fullmatch(r"[0-9]{2}", self.index):
            raise errors.ConfigError(
                f"the plugin index {self.index!r} is not one that runtimes accept",
                hint="give two digits, 00 to 99; plugins are called in this order",
            )

    def from_environment(self, environ: Mapping[str, str]) -> "Settings":
        """Give these settings with what a runtime tells a plugin that it starts itself."""
        found: dict[str, Any] = {}
        for key, variable in (("name", "NRI_PLUGIN_NAME"), ("index", "NRI_PLUGIN_IDX")):
            if environ.get(variable):
                found[key] = environ[variable]
        descriptor = environ.get("NRI_PLUGIN_SOCKET", "")
        if descriptor:
            if not re.fullmatch(r"[0-9]{1,9}", descriptor):
                raise errors.ConfigError(
                    f"NRI_PLUGIN_SOCKET is {descriptor!r}, not the number of a file descriptor",
                    hint="the runtime sets it; unset it to connect to a socket instead",
                )
            found["descriptor"] = int(descriptor)
        return attrs.evolve(self, **found)


async def run_forever(
    settings: Settings,
    decider: plugin.Decider,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    jitter: Callable[[], float] = random.random,
    admit: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve the runtime until cancelled, through its restarts.

    Each connection waits for `admit`, which raises StandsBy while another copy serves it.

    With an inherited descriptor there is no second connection: returns when the runtime closes
    it, and raises Error when the session failed. Never raises otherwise.
    """
    warmup.warm_up()
    if settings.descriptor is not None:
        end = await _attempt(settings, decider, clock)
        if not isinstance(end.reason, ttrpc_errors.ConnectionLost):
            raise end.reason
        log.info("the runtime closed the connection")
        return
    pace = _Pace(jitter)
    while True:
        end = await _admitted(admit) or await _attempt(settings, decider, clock)
        pace.report(end)
        await _tell(decider.unreachable(end.reason))
        await sleep(pace.delay(end))


@attrs.frozen(kw_only=True)
class _End:
    """How an attempt ended; `lasted` seconds synchronised.

    `state` is absent, refused, lost, or standby, which is no attempt.
    """

    state: str
    reason: errors.Error
    lasted: float = 0.0


class _Pace:
    """When to try again, and what to say of it: one line when something changes."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._losses = self._misses = 0
        self._said = ""

    def delay(self, end: _End) -> float:
        """Give the seconds to wait, between half and all of the step that is due."""
        if end.state != "absent":
            self._misses = 0
        if end.lasted >= _SETTLED:
            self._losses = 0
        if end.state == "absent":
            step = min(_FIRST_DELAY * 2.0**self._misses, _ABSENT_DELAY)
            self._misses = min(self._misses + 1, 8)
        elif end.state == "refused":
            step = _REFUSED_DELAY
        elif end.state == "standby":
            step = _STANDBY_DELAY
        else:
            step = min(_LOST_DELAY * 2.0 ** (self._losses - 1), _LONGEST_DELAY)
            step = step if self._losses else _FIRST_DELAY
            self._losses = min(self._losses + 1, 8)
        return step * (0.5 + self._jitter() / 2)

    def report(self, end: _End) -> None:
        """Log why, once for as long as it stays the same."""
        text = str(end.reason)
        if end.lasted == 0 and text == self._said:
            log.debug("%s", text)
            return
        self._said = text
        log.log(
            logging.ERROR if end.state == "refused" else logging.WARNING,
            "not connected to the runtime: %s; trying again",
            text,
        )


async def _admitted(admit: Callable[[], Awaitable[None]] | None) -> _End | None:
    """Give why no connection is to be made now, if that is so."""
    try:
        if admit is not None:
            await admit()
    except StandsBy as error:
        return _End(state="standby", reason=error)
    return None


async def _attempt(
    settings: Settings, decider: plugin.Decider, clock: Callable[[], float]
) -> _End:
    """Hold one session; gives its end, whatever that was."""
    session = _Session(settings, decider, clock)
    try:
        reason = await session.run()
    except Rejected as error:
        return _End(state="refused", reason=error)
    except OSError as error:
        return _unreachable(settings, error)
    except errors.Error as error:
        return _End(state="lost", reason=error, lasted=session.lasted())
    except Exception as error:
        log.exception("the session with the runtime failed")
        defect = errors.Error(f"the session failed: {type(error).__name__}: {error}")
        return _End(state="lost", reason=defect, lasted=session.lasted())
    return _End(state="lost", reason=reason, lasted=session.lasted())


def _unreachable(settings: Settings, error: OSError) -> _End:
    where = settings.socket
    if settings.descriptor is not None:
        reason: errors.Error = errors.ConfigError(
            f"descriptor {settings.descriptor} from the runtime is not a socket: {error}",
            hint="unset NRI_PLUGIN_SOCKET to connect to a socket instead",
        )
        return _End(state="refused", reason=reason)
    if isinstance(error, ConnectionRefusedError) and pathlib.Path(where).is_dir():
        reason = ttrpc_errors.ConnectionLost(
            f"{where} is a directory, not the runtime's socket",
            hint="name the socket in it; a pod has to mount the socket's directory, since a mount "
            "of a socket that is not there yet makes a directory of that name",
        )
        return _End(state="absent", reason=reason)
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        what = "does not exist" if isinstance(error, FileNotFoundError) else "has no listener"
        reason = ttrpc_errors.ConnectionLost(
            f"{where} {what}",
            hint="is the runtime running, and NRI enabled in it? containerd before 2.0 needs "
            "disable = false in its table io.containerd.nri.v1.nri; docker, podman and ctr need "
            "none: nri.enabled = false",
        )
        return _End(state="absent", reason=reason)
    if isinstance(error, PermissionError):
        reason = ttrpc_errors.ConnectionLost(
            f"no permission to connect to {where}",
            hint="run as root; in a pod, mount the socket's directory and check SELinux",
        )
        return _End(state="lost", reason=reason)
    reason = ttrpc_errors.ConnectionLost(f"cannot connect to {where}: {error}")
    return _End(state="lost", reason=reason)


class _Session:
    """One connection from dial to end."""

    def __init__(
        self, settings: Settings, decider: plugin.Decider, clock: Callable[[], float]
    ) -> None:
        self._settings, self._decider, self._clock = settings, decider, clock
        self._plugin = plugin.Plugin(decider, f"{settings.index}-{settings.name}")
        self._since: float | None = None

    def lasted(self) -> float:
        """Give the seconds since it was synchronised, 0 when it never was."""
        return 0.0 if self._since is None else self._clock() - self._since

    async def run(self) -> errors.Error:
        """Serve until the connection ends; gives the reason, raises when it was we who ended it.

        Raises OSError when there is no connection, Rejected when the runtime does not want us,
        Error when the handshake failed.
        """
        settings = self._settings
        dial: peer.Dial = functools.partial(transport.connect, settings.socket)
        if settings.descriptor is not None:
            dial = functools.partial(transport.adopt, settings.descriptor)
        registered = False
        try:
            async with peer.opened(
                dial,
                connection.Connection(serves=PLUGIN_SERVICE, calls=RUNTIME_SERVICE),
                services=[self._plugin],
                stall_timeout=settings.stall_timeout,
                observe=self._plugin.observe,
            ) as runtime:
                await self._register(runtime)
                registered = True
                info = attrs.evolve(self._plugin.runtime, visible=runtime.link.sees_peer())
                await _tell(runtime.link.until(self._decider.registered(info)))
                await self._synchronize(runtime.link)
                return await runtime.link.closed()
        finally:
            if registered:
                await _tell(self._decider.disconnected())

    async def _register(self, runtime: peer.Peer) -> None:
        """Register, and wait until Configure is answered; it may come before the reply."""
        settings = self._settings
        limit = settings.registration_timeout
        request = api.RegisterPluginRequest(
            plugin_name=settings.name, plugin_idx=settings.index, nri_version=_NRI_VERSION
        )
        channel: Any = runtime.channel  # in the shape of grpclib's, but not of its type
        try:
            await api.RuntimeStub(channel).register_plugin(request, timeout=limit)
        except grpclib.GRPCError as error:
            raise Rejected(
                f"the runtime refuses plugin {settings.index}-{settings.name}: {error.message}",
                hint="see its log",
            ) from None
        except TimeoutError:
            raise plugin.HandshakeFailed(
                f"the runtime did not answer RegisterPlugin within {limit:g} s", hint=_BLOCKED
            ) from None
        except ttrpc_errors.ConnectionLost:
            # When Configure is refused, the runtime may close before it answers this.
            self._check_configured()
            raise
        try:
            await self._step(runtime.link, self._plugin.configured, limit, "Configure")
        except plugin.HandshakeFailed:
            self._check_configured()
            raise
        info = self._plugin.runtime
        log.info(
            "registered as %s-%s with %s %s",
            settings.index,
            settings.name,
            info.name,
            info.version,
        )

    async def _synchronize(self, link: transport.Link) -> None:
        # A runtime before NRI 0.8 sends no Synchronize to a plugin that it started itself, and
        # keeps one whose Synchronize failed connected without ever calling it again.
        limit = self._settings.synchronize_timeout if self._settings.descriptor is None else None
        await self._step(link, self._plugin.acknowledged, limit, "Synchronize")
        self._since = self._clock()
        containers = await link.until(self._listed())
        log.info("synchronised, %d containers were there before", len(containers))
        await _tell(link.until(self._decider.synchronized(containers)))

    async def _step(
        self, link: transport.Link, done: asyncio.Future[None], limit: float | None, what: str
    ) -> None:
        try:
            await link.until(asyncio.wait_for(asyncio.shield(done), limit))
        except TimeoutError:
            raise plugin.HandshakeFailed(
                f"no {what} came from the runtime within {limit:g} s", hint=_BLOCKED
            ) from None

    def _check_configured(self) -> None:
        configured = self._plugin.configured
        if configured.done() and configured.exception() is not None:
            raise Rejected(str(configured.exception()))

    async def _listed(self) -> list[request_model.Container]:
        """Decode what Synchronize brought, giving way to requests between batches."""
        given, self._plugin.containers = self._plugin.containers, []
        listed_pods, self._plugin.pods = self._plugin.pods, []
        pods: dict[str, convert.Pod] = {}
        for number, data in enumerate(listed_pods):
            try:
                pods |= convert.listed_pods([data])
            except Exception as error:  # noqa: BLE001 - whatever it is, the others count
                log.warning("a pod of the runtime's list is left out: %s", error)
            if number % _BATCH == 0:
                await asyncio.sleep(0)
        containers = []
        for number, data in enumerate(given):
            try:
                containers.append(convert.listed_container(data, pods))
            except Exception as error:  # noqa: BLE001 - whatever it is, the others count
                log.warning("a container of the runtime's list is left out: %s", error)
            if number % _BATCH == 0:
                await asyncio.sleep(0)
        return containers


async def _tell(news: Awaitable[None]) -> None:
    """Await what only informs the Decider: its failure is logged and ends nothing."""
    try:
        await news
    except (ttrpc_errors.ConnectionLost, ttrpc_errors.ProtocolError):
        raise
    except Exception:
        log.exception("the daemon could not take note of a change of the connection")
