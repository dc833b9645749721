# SPDX-License-Identifier: Apache-2.0
"""The handlers that a runtime calls, for the length of one connection.

The first thing a handler does is convert, the last is render; what lies between is the Decider's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import attrs
from grpclib import const

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.edits import model
from nri_nvidia.render import nri as render
from nri_nvidia.request import container as request_model
from nri_nvidia.ttrpc import errors as ttrpc_errors
from nri_nvidia.ttrpc import server

from . import convert, validation, versions

_EMPTY = api.Empty()
_LAST_KNOWN_EVENTS = 0x7FF
"""The events of NRI 0.9 and older; a runtime that does not know a bit refuses the plugin."""
_SERVICE = "/nri.pkg.api.v1alpha1.Plugin"
_CONFIGURE, _SYNCHRONIZE = f"{_SERVICE}/Configure", f"{_SERVICE}/Synchronize"
H = TypeVar("H", bound=Callable[..., Awaitable[Any]])


class HandshakeFailed(errors.Error):
    """Raised when a connection was made but the plugin is not in service on it."""

    code = "handshake-failed"


@attrs.frozen(kw_only=True)
class RuntimeInfo:
    """What the runtime says of itself. Timeouts are in seconds; `nri_version` may be empty.

    `version` is decorated at will by distributions (`1.7.24~ds1`, `v2.2.1`). `visible` tells that
    its process, and so those of its containers, can be seen from here.
    """

    name: str = ""
    version: str = ""
    nri_version: str = ""
    request_timeout: float = 2.0
    registration_timeout: float = 5.0
    visible: bool = True

    @property
    def can_inject(self) -> bool:
        """Whether it takes devices and hooks: docker refuses a container for which we give any."""
        return self.name != "docker"

    @property
    def can_validate(self) -> bool:
        """Whether it shows what all plugins together change, and lets one refuse it."""
        return versions.can_validate(self.name, self.version, self.nri_version)


class Decider(Protocol):
    """What the plugin serves: it decides, and hears what happens."""

    @property
    def markers(self) -> tuple[bytes, ...]:
        """Give the texts without any of which a container asks for nothing."""

    async def configure(self, config: str, runtime: RuntimeInfo) -> None:
        """Take the configuration text that the runtime has for us; raise Error to be left out."""

    async def registered(self, runtime: RuntimeInfo) -> None:
        """Hear that the runtime has taken the plugin in."""

    async def synchronized(self, containers: Sequence[request_model.Container]) -> None:
        """Hear of the containers that were there before; new ones may have been created since.

        Cancelled when the connection ends meanwhile.
        """

    async def create_container(
        self, container: request_model.Container, deadline: float
    ) -> model.ContainerEdits:
        """Decide by `deadline` (loop time); raise Error to have the creation refused."""

    @property
    def validates(self) -> bool:
        """Whether to be shown what all plugins together change in a container."""

    def may_object(self, data: bytes) -> bool:
        """Tell by the bytes of such a change whether there may be anything against it."""

    async def validate(self, proposed: validation.Proposed, deadline: float) -> None:
        """Raise Error by `deadline` (loop time) to have the container refused."""

    async def stop_container(self, container_id: str) -> None:
        """Hear that a container stopped; it may be one that was refused."""

    async def remove_container(self, container_id: str) -> None:
        """Hear that a container is gone."""

    async def unreachable(self, reason: errors.Error) -> None:
        """Hear why there is no connection; it will be tried again."""

    async def disconnected(self) -> None:
        """Hear that the connection which was registered has ended."""


def _handles(event: int) -> Callable[[H], H]:
    def mark(handler: H) -> H:
        handler.event = event  # type: ignore[attr-defined]
        return handler

    return mark


class Plugin(api.PluginBase):
    """The plugin's side of one connection.

    `configured` and `acknowledged` are set when the runtime has our answer to Configure and to
    the last Synchronize; they raise when that answer was an error or came too late. `name` is that
    by which the runtime calls us, `10-nri-nvidia`.
    """

    def __init__(self, decider: Decider, name: str = "") -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.runtime = RuntimeInfo()
        self.configured: asyncio.Future[None] = loop.create_future()
        self.acknowledged: asyncio.Future[None] = loop.create_future()
        self.pods: list[bytes] = []
        self.containers: list[bytes] = []
        self._decider = decider
        self._more = True

    @staticmethod
    def events() -> int:
        """Give the mask of the events that are handled, bit `Event - 1` each."""
        marked = (getattr(member, "event", 0) for member in vars(Plugin).values())
        mask: int = sum(1 << (int(event) - 1) for event in marked if event)
        assert mask & ~_LAST_KNOWN_EVENTS == 0
        return mask

    def observe(self, outcome: server.Outcome) -> None:
        """Note how a request was answered (the server calls this)."""
        if outcome.route == _CONFIGURE:
            _settle(self.configured, outcome)
        elif outcome.route == _SYNCHRONIZE and (
            not self._more or outcome.late or outcome.status is not const.Status.OK
        ):
            _settle(self.acknowledged, outcome)

    async def configure(self, message: api.ConfigureRequest) -> api.ConfigureResponse:
        """Hand the configuration on and subscribe."""
        self.runtime = RuntimeInfo(
            name=message.runtime_name,
            version=message.runtime_version,
            nri_version=message.nri_version,
            request_timeout=message.request_timeout / 1000 or 2.0,
            registration_timeout=message.registration_timeout / 1000 or 5.0,
        )
        await self._decider.configure(message.config, self.runtime)
        events = self.events()
        if self._decider.validates and self.runtime.can_inject and self.runtime.can_validate:
            events |= 1 << (api.Event.VALIDATE_CONTAINER_ADJUSTMENT - 1)
        return api.ConfigureResponse(events=events)

    async def synchronize(self, message: api.SynchronizeRequest) -> api.SynchronizeResponse:
        """Put the lists aside undecoded, since the runtime stands still meanwhile."""
        self.pods += message.pods
        self.containers += message.containers
        self._more = message.more
        return api.SynchronizeResponse(more=message.more)

    def raw(self) -> Mapping[str, server.Raw]:
        """Give what is served undecoded, by its route: the creation of a container."""
        return {
            f"{_SERVICE}/CreateContainer": server.Raw(
                serve=self.create_container, says_nothing=self._asks_nothing
            ),
            f"{_SERVICE}/ValidateContainerAdjustment": server.Raw(
                serve=self.validate_container_adjustment,
                says_nothing=lambda data: not self._decider.may_object(data),
            ),
        }

    @_handles(api.Event.CREATE_CONTAINER)
    async def create_container(self, data: bytes) -> bytes:  # type: ignore[override]
        """Ask the Decider over an encoded request; an error refuses the creation."""
        shown = convert.created(data)
        if not self.runtime.can_inject:
            return b""
        return render.encoded(await self._decider.create_container(shown, self._deadline()))

    async def validate_container_adjustment(self, data: bytes) -> bytes:  # type: ignore[override]
        """Ask the Decider over what all plugins together change (NRI 0.10 and later)."""
        proposed = validation.read(data, self.name)
        try:
            await self._decider.validate(proposed, self._deadline())
        except errors.Error as error:
            answer = api.ValidateContainerAdjustmentResponse(reject=True, reason=str(error))
            return bytes(answer)
        return b""

    def _deadline(self) -> float:
        """Give the loop time by which the request being served is to be answered."""
        told = server.deadline()
        if told is not None:
            return told
        now = asyncio.get_running_loop().time()
        return now + self.runtime.request_timeout - server.MARGIN

    def _asks_nothing(self, data: bytes) -> bool:
        """Tell by one look at its bytes that a container asks for nothing.

        What cannot be read is left to be refused.
        """
        for marker in self._decider.markers:
            if marker in data:
                return False
        return convert.is_whole(data)

    @_handles(api.Event.STOP_CONTAINER)
    async def stop_container(self, message: api.StopContainerRequest) -> api.StopContainerResponse:
        """Pass it on."""
        await self._decider.stop_container(_id(message.container))
        return api.StopContainerResponse()

    @_handles(api.Event.REMOVE_CONTAINER)
    async def remove_container(self, message: api.RemoveContainerRequest) -> api.Empty:
        """Pass it on (NRI 0.12 and later)."""
        await self._decider.remove_container(_id(message.container))
        return _EMPTY

    async def state_change(self, message: api.StateChangeEvent) -> api.Empty:
        """Pass on what had no method of its own before NRI 0.12."""
        if message.event == api.Event.REMOVE_CONTAINER:
            await self._decider.remove_container(_id(message.container))
        return _EMPTY

    async def _nothing(self, empty: api.Empty) -> api.Empty:  # noqa: ARG002
        return _EMPTY

    # Not subscribed to; answered all the same, since UNIMPLEMENTED would fail a pod.
    shutdown = _nothing
    run_pod_sandbox = _nothing
    update_pod_sandbox = _nothing
    post_update_pod_sandbox = _nothing
    stop_pod_sandbox = _nothing
    remove_pod_sandbox = _nothing
    post_create_container = _nothing
    start_container = _nothing
    post_start_container = _nothing
    update_container = _nothing
    post_update_container = _nothing


def _id(container: api.ContainerReference) -> str:
    if not container.id:
        raise ttrpc_errors.RemoteProtocolError("the runtime names a container without an id")
    return container.id


def _settle(future: asyncio.Future[None], outcome: server.Outcome) -> None:
    if future.done():
        return
    method = outcome.route.rpartition("/")[2]
    if outcome.status is not const.Status.OK:
        message = f"{method} was answered with an error: {outcome.message}"
    elif outcome.late:
        message = f"{method} was answered after {outcome.elapsed:.1f} s, too late for the runtime"
    else:
        future.set_result(None)
        return
    future.set_exception(HandshakeFailed(message))
    future.exception()  # it is not a defect when nobody waits any more
