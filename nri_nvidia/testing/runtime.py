# SPDX-License-Identifier: Apache-2.0
"""The runtime's side of NRI, as containerd's Go code behaves.

A `Runtime` listens on a unix socket (`listening()`) or starts a plugin itself (`launched()`),
registers, configures and synchronises what connects, one at a time, and then calls it:

    runtime = runtime.Runtime(nri_version="0.8.0")
    async with runtime.listening(path):
        await runtime.attached()                # until a plugin is in service
        adjustment = await runtime.create(api.Container(id="c1", env=[...]))

It is as unforgiving as the original: a plugin that is late, breaks framing or sends a frame that
a Go reader cannot take is dropped, and containers are created without it from then on. `log`
holds a sentence for everything that happened.
"""

import asyncio
import contextlib
import functools
import os
import pathlib
import re
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
import grpclib
from grpclib import const

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.ttrpc import connection, frames, peer, transport
from nri_nvidia.ttrpc import errors as ttrpc_errors

from . import framing, merging

_PLUGIN_SERVICE, _RUNTIME_SERVICE = 1, 2
_SMALLEST_SYNC = 8


CreationFailed = merging.CreationFailed


@attrs.define(eq=False)
class Attached:
    """A plugin that is connected. `synchronized` is how many messages its Synchronize took."""

    peer: peer.Peer
    name: str = ""
    index: str = ""
    events: int = 0
    synchronized: int = 0

    @property
    def stub(self) -> api.PluginStub:
        """The plugin's methods, to call one directly."""
        channel: Any = self.peer.channel
        return api.PluginStub(channel)

    @property
    def display(self) -> str:
        """The name in messages, `10-name`."""
        return f"{self.index}-{self.name}"


class Runtime:
    """One runtime; `pods` and `containers` are what Synchronize shows.

    `message_limit` is the size in bytes over which Synchronize is split, if `nri_version` can.
    `configure_first` lets Configure overtake the reply to RegisterPlugin, as often happens.
    `required_plugins` are names (`name` or `10-name`) without which no container is created, as
    the default validator of NRI 0.10 and later has it. It looks at who is there just before the
    plugins are called: one that is lost in that very creation counts as there.
    """

    def __init__(
        self,
        *,
        nri_version: str = "0.8.0",
        name: str = "containerd",
        version: str = "2.1.9",
        config: str = "",
        pods: Sequence[api.PodSandbox] = (),
        containers: Sequence[api.Container] = (),
        request_timeout: float = 2.0,
        registration_timeout: float = 5.0,
        message_limit: int = frames.MAX_SENT,
        configure_first: bool = True,
        required_plugins: Sequence[str] = (),
    ) -> None:
        self.nri_version = tuple(int(part) for part in nri_version.split("."))
        self.name, self.version, self.config = name, version, config
        self.pods, self.containers = list(pods), list(containers)
        self.request_timeout = request_timeout
        self.registration_timeout = registration_timeout
        self.message_limit = message_limit
        self.configure_first = configure_first
        self.required_plugins = tuple(required_plugins)
        self.plugins: list[Attached] = []
        self.log: list[str] = []
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def listening(self, path: str | os.PathLike[str]) -> AsyncIterator[None]:
        """Take plugins on a unix socket; at the end all are dropped and the socket file stays."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            _listen(listener, pathlib.Path(path))
            async with _tasks() as tasks:
                tasks.append(asyncio.ensure_future(self._accept(listener, tasks)))
                yield

    @contextlib.asynccontextmanager
    async def launched(self, *, name: str, index: str) -> AsyncIterator[dict[str, str]]:
        """Play a runtime that starts the plugin itself: gives the environment it would get.

        The descriptor named in it is inheritable, and the plugin's to close.
        """
        ours, theirs = socket.socketpair()
        descriptor = theirs.detach()
        os.set_inheritable(descriptor, True)
        async with _tasks() as tasks:
            tasks.append(asyncio.ensure_future(self._hold(ours.detach(), (name, index))))
            yield {
                "NRI_PLUGIN_SOCKET": str(descriptor),
                "NRI_PLUGIN_NAME": name,
                "NRI_PLUGIN_IDX": index,
            }

    def acceptable(self, name: str, index: str) -> bool:
        """Say whether a plugin may register under this name; a test may replace it."""
        names = r"[A-Za-z0-9_.+-]+" if self.nri_version >= (0, 12) else r".+"
        return bool(re.fullmatch(names, name) and re.fullmatch(r"[0-9]{2}", index))

    async def attached(self, count: int = 1) -> list[Attached]:
        """Wait until that many plugins are in service."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.plugins) >= count)
            return list(self.plugins)

    async def said(self, fragment: str) -> str:
        """Wait until `log` has an entry with `fragment`; gives the first."""
        async with self._changed:
            await self._changed.wait_for(lambda: any(fragment in entry for entry in self.log))
            return next(entry for entry in self.log if fragment in entry)

    async def create(
        self, container: api.Container, pod: api.PodSandbox | None = None
    ) -> api.ContainerAdjustment:
        """Create a container; gives what all plugins together changed, in order of index.

        Raises `CreationFailed` when one refuses or two (or one twice) claim the same key. A plugin
        that does not answer is dropped, and the others go on. Those that validate (NRI 0.10 and
        later) are asked last; one that rejects, or does not answer, has the creation fail.
        """
        request = api.CreateContainerRequest(pod=pod or api.PodSandbox(), container=container)
        merged = merging.Merged()
        asked = [api.PluginInstance(name=each.name, index=each.index) for each in self.plugins]
        there = {name for plugin in self.plugins for name in (plugin.name, plugin.display)}
        for plugin in list(self.plugins):
            if plugin.events & 1 << (api.Event.CREATE_CONTAINER - 1):
                reply = await self._ask(plugin, "create_container", request)
                if reply is not None:
                    merged.add(plugin.display, reply.adjust)
        lacking = [name for name in self.required_plugins if name not in there]
        if lacking:
            raise merging.CreationFailed(f"required plugins not present: {', '.join(lacking)}")
        await self._validate(request, merged, asked)
        return merged.adjustment

    async def _validate(
        self,
        request: api.CreateContainerRequest,
        merged: merging.Merged,
        asked: list[api.PluginInstance],
    ) -> None:
        proposed = api.ValidateContainerAdjustmentRequest(
            pod=bytes(request.pod),
            container=bytes(request.container),
            adjust=merged.adjustment,
            owners=api.OwningPlugins(owners={request.container.id: merged.owners()}),
            plugins=asked,
        )
        event = api.Event.VALIDATE_CONTAINER_ADJUSTMENT
        for plugin in list(self.plugins):
            if plugin.events & 1 << (event - 1):
                reply = await self._ask(plugin, "validate_container_adjustment", proposed)
                if reply is None or reply.reject:
                    why = reply.reason if reply else "it did not answer"
                    raise merging.CreationFailed(
                        f'validator "{plugin.display}" rejected container adjustment, reason: '
                        f"{why or 'unknown rejection reason'}"
                    )

    async def stop(self, container_id: str) -> None:
        """Tell that a container stopped; errors are logged only."""
        reference = api.ContainerReference(id=container_id)
        request = api.StopContainerRequest(container=reference)
        await self._announce(api.Event.STOP_CONTAINER, "stop_container", request)

    async def remove(self, container_id: str) -> None:
        """Tell that a container is gone: by a method of its own since 0.12, before by event."""
        reference = api.ContainerReference(id=container_id)
        event = api.Event(11)  # REMOVE_CONTAINER
        if self.nri_version >= (0, 12):
            request: Any = api.RemoveContainerRequest(container=reference)
            await self._announce(event, "remove_container", request)
        else:
            request = api.StateChangeEvent(event=event, container=reference)
            await self._announce(event, "state_change", request)

    async def _announce(self, event: int, method: str, request: Any) -> None:
        for plugin in list(self.plugins):
            if plugin.events & 1 << (event - 1):
                try:
                    await self._ask(plugin, method, request)
                except merging.CreationFailed as error:
                    await self._say(f"{method} of {plugin.display} failed: {error}")

    async def _ask(self, plugin: Attached, method: str, request: Any) -> Any:
        try:
            return await getattr(plugin.stub, method)(request, timeout=self.request_timeout)
        except grpclib.GRPCError as error:
            raise merging.CreationFailed(error.message or error.status.name) from None
        except TimeoutError:
            problem = "context deadline exceeded"
        except (ttrpc_errors.ConnectionLost, ttrpc_errors.RemoteProtocolError) as error:
            if plugin.peer.link.is_open:
                raise merging.CreationFailed(f"undecodable reply: {error}") from None
            problem = str(error)
        if plugin in self.plugins:
            self.plugins.remove(plugin)
        plugin.peer.link.close()
        await self._say(f"closing plugin {plugin.display}, failed to handle {method}: {problem}")
        return None

    async def _say(self, text: str) -> None:
        async with self._changed:
            self.log.append(text)
            self._changed.notify_all()

    async def _accept(self, listener: socket.socket, tasks: list[asyncio.Future[Any]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted, _ = await loop.sock_accept(listener)
            ready = loop.create_future()
            tasks.append(asyncio.ensure_future(self._hold(accepted.detach(), None, ready)))
            await ready  # one at a time: a mute peer holds up the others

    async def _hold(
        self,
        descriptor: int,
        identity: tuple[str, str] | None,
        ready: asyncio.Future[None] | None = None,
    ) -> None:
        """Have one plugin from registration to its end."""
        service = _Registry(self, identity)
        state = connection.Connection(
            serves=_RUNTIME_SERVICE,
            calls=_PLUGIN_SERVICE,
            reader=framing.GoReader(),
            framing=framing.go_framing,
            max_sent=frames.MAX_SENT if self.nri_version >= (0, 8) else 1 << 30,
        )
        dial = functools.partial(transport.adopt, descriptor)
        async with peer.opened(dial, state, services=[service]) as plugin:
            attached = Attached(plugin)
            try:
                try:
                    usable = await plugin.link.until(self._start(attached, service))
                except (errors.Error, TimeoutError) as error:
                    await self._say(f"plugin failed to start: {error!r}")
                    return
                finally:
                    if ready is not None and not ready.done():
                        ready.set_result(None)
                if usable:
                    self.plugins.append(attached)
                    self.plugins.sort(key=lambda known: known.index)
                    await self._say(f"plugin {attached.display} connected")
                reason = await plugin.link.closed()
                await self._say(f"plugin {attached.display} is gone: {reason}")
            finally:
                if attached in self.plugins:
                    self.plugins.remove(attached)

    async def _start(self, plugin: Attached, service: "_Registry") -> bool:
        """Register, configure and synchronise; gives whether it will ever be called."""
        async with asyncio.timeout(self.registration_timeout):
            plugin.name, plugin.index = await service.registered
        if not service.accepted:
            await self._say(f"plugin {plugin.display} refused: invalid name or index")
            return False
        try:
            await self._configure(plugin)
        finally:
            service.configured.set()
        try:
            if service.identity is None or self.nri_version >= (0, 8):
                await self._synchronize(plugin)
        except (grpclib.GRPCError, TimeoutError, errors.Error) as error:
            await self._say(f"failed to synchronize plugin {plugin.display}: {error!r}")
            if self.nri_version >= (0, 8):
                raise errors.Error("failed to synchronize") from None
            return False  # a zombie: it stays connected and is never called
        return True

    async def _configure(self, plugin: Attached) -> None:
        timeouts: dict[str, Any] = {}
        if self.nri_version >= (0, 8):
            timeouts = {
                "registration_timeout": int(self.registration_timeout * 1000),
                "request_timeout": int(self.request_timeout * 1000),
            }
        request = api.ConfigureRequest(
            config=self.config, runtime_name=self.name, runtime_version=self.version, **timeouts
        )
        try:
            reply = await plugin.stub.configure(request, timeout=self.request_timeout)
        except grpclib.GRPCError as error:
            raise errors.Error(f"failed to configure plugin: {error.message}") from None
        known = 0x3FFF if self.nri_version >= (0, 10) else 0x7FF
        if reply.events & ~known:
            raise errors.Error(f"invalid plugin events: 0x{reply.events & ~known:x}")
        plugin.events = reply.events or known

    async def _synchronize(self, plugin: Attached) -> None:
        """Send all, in one message or in as many as the size asks for; 2 s for the whole."""
        # A real runtime encodes these in milliseconds: here that may take the whole time.
        pods = [bytes(pod) for pod in self.pods]
        containers = [bytes(container) for container in self.containers]
        expires = asyncio.get_running_loop().time() + self.request_timeout
        at_once = len(pods) + len(containers)
        while True:
            first = pods[:at_once]
            second = containers[: at_once - len(first)]
            more = len(first) < len(pods) or len(second) < len(containers)
            request = api.SynchronizeRequest(pods=first, containers=second, more=more)
            size = len(bytes(request))
            if size > self.message_limit and self.nri_version >= (0, 8):
                if at_once <= _SMALLEST_SYNC:
                    raise errors.Error("failed to synchronize plugin with split messages")
                at_once = max(_SMALLEST_SYNC, int(at_once * min(0.9, self.message_limit / size)))
                continue
            left = expires - asyncio.get_running_loop().time()
            reply = await plugin.stub.synchronize(request, timeout=left)
            plugin.synchronized += 1
            if reply.more != more:
                raise errors.Error("plugin does not handle split sync requests")
            if not more:
                return
            pods, containers = pods[len(first) :], containers[len(second) :]


class _Registry(api.RuntimeBase):
    """The runtime's service, for one plugin."""

    def __init__(self, runtime: Runtime, identity: tuple[str, str] | None) -> None:
        loop = asyncio.get_running_loop()
        self.identity = identity
        self.accepted = True
        self.registered: asyncio.Future[tuple[str, str]] = loop.create_future()
        self.configured = asyncio.Event()
        self._runtime = runtime

    async def register_plugin(self, message: api.RegisterPluginRequest) -> api.Empty:
        """Take the plugin in; the identity of one that was launched is fixed."""
        name, index = self.identity or (message.plugin_name, message.plugin_idx)
        self.accepted = self._runtime.acceptable(name, index)
        if not self.registered.done():
            self.registered.set_result((name, index))
        if not self.accepted:
            raise grpclib.GRPCError(
                const.Status.UNKNOWN, f"invalid plugin name {name!r} or index {index!r}"
            )
        if self._runtime.configure_first:
            await self.configured.wait()
        return api.Empty()


def _listen(listener: socket.socket, path: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)


@contextlib.asynccontextmanager
async def _tasks() -> AsyncIterator[list[asyncio.Future[Any]]]:
    """Give a list of tasks; at the end all are cancelled, and what failed is raised."""
    tasks: list[asyncio.Future[Any]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
