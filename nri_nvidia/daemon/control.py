# SPDX-License-Identifier: Apache-2.0
"""The control socket: gRPC on a unix socket for root, and for the members of one group if wanted.

The file's mode keeps others away, and the kernel's word on who calls is looked at as well: a
mode can be changed, and a descriptor handed on. What a caller can make us hold is bounded.
"""

import asyncio
import contextlib
import functools
import grp
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import attrs
import grpclib
import h2.config
from grpclib import const, protocol, server
from grpclib.encoding import proto

from nri_nvidia import errors
from nri_nvidia._api.control import v1
from nri_nvidia.daemon import records, statedir, statusview
from nri_nvidia.ttrpc import errors as ttrpc_errors
from nri_nvidia.ttrpc import wire

logger = logging.getLogger(__name__)

_GOODBYE = 1.0
"""Seconds that a caller has to take its answer when the daemon ends."""
_MOST_CALLERS = 64
_MOST_BYTES = 1 << 20
"""From one caller: a question has some hundred, and each comes on a connection of its own."""
_CREDENTIALS = struct.Struct("3i")
_PEER_GROUPS = 59
"""SO_PEERGROUPS of Linux 4.13, include/uapi/asm-generic/socket.h."""
_GROUPS = 256
"""Of a caller, as many as Python's getsockopt() can take; of one with more the first counts."""


@attrs.frozen(kw_only=True)
class Peer:
    """Who calls, as the kernel tells (unix(7), SO_PEERCRED, and SO_PEERGROUPS)."""

    pid: int
    uid: int
    gids: frozenset[int]


class Control(v1.ControlBase):
    """Answers questions about the daemon's state."""

    def __init__(
        self,
        status: Callable[[], Awaitable[dict[str, Any]]],
        explain: Callable[[str], Awaitable[dict[str, Any]]],
    ) -> None:
        self._status = status
        self._explain = explain

    async def status(self, status_request: v1.StatusRequest) -> v1.StatusResponse:  # noqa: ARG002
        """Give the state as JSON."""
        document = await self._status()
        return v1.StatusResponse(json=_encoded(document), schema=statusview.SCHEMA)

    async def explain(self, explain_request: v1.ExplainRequest) -> v1.ExplainResponse:
        """Give the decision over a container as JSON, or the containers that may be meant."""
        document = await self._explain(explain_request.container)
        return v1.ExplainResponse(json=_encoded(document), schema=records.SCHEMA)

    def __mapping__(self) -> dict[str, const.Handler]:
        """Give the methods, each behind a look at what it is asked."""
        return {
            route: handler._replace(func=functools.partial(_served, handler))
            for route, handler in super().__mapping__().items()
        }


def _encoded(document: dict[str, Any]) -> str:
    """Give a document as JSON, quickly: containers wait meanwhile, and it may name a thousand."""
    return json.dumps(document, separators=(",", ":"), check_circular=False)


async def _served(handler: const.Handler, stream: Any) -> None:
    """Serve a call. What is no question is the caller's fault, and no defect to be logged."""
    try:
        question = await stream.recv_message()
    except (AssertionError, RuntimeError, ttrpc_errors.RemoteProtocolError) as error:
        # Shorter than it says, compressed, or no message of this kind.
        raise grpclib.GRPCError(
            const.Status.INVALID_ARGUMENT, f"the question cannot be read: {error}"
        ) from None
    if question is None:
        raise grpclib.GRPCError(const.Status.INVALID_ARGUMENT, "nothing was asked")
    try:
        await handler.func(_Heard(stream, question))
    except errors.Error as error:
        raise grpclib.GRPCError(const.Status.UNAVAILABLE, errors.printable(str(error))) from None


class _Heard:
    """A call whose question has been read."""

    def __init__(self, stream: Any, question: Any) -> None:
        self._question = question
        self.send_message = stream.send_message

    async def recv_message(self) -> Any:
        return self._question


class _Codec(proto.ProtoCodec):
    """Decodes strictly: the message library takes half a message for a whole one."""

    def decode(self, data: bytes, message_type: Any) -> Any:
        wire.check(message_type, data)
        return super().decode(data, message_type)


class Listener(server.Server):
    """A gRPC server that looks at who connects: `group`, if not None, may besides root."""

    def __init__(self, control: Control, group: int | None) -> None:
        super().__init__([control], codec=_Codec())
        self.group = group
        self._callers = 0

    def admit(self, channel: socket.socket) -> bool:
        """Count a caller in, or tell that it is to be let go; see `leave`."""
        if self._callers >= _MOST_CALLERS or not is_allowed(peer(channel), self.group):
            return False
        self._callers += 1
        return True

    def leave(self) -> None:
        """Count a caller out that was admitted."""
        self._callers -= 1

    def _protocol_factory(self) -> protocol.H2Protocol:
        given = super()._protocol_factory()
        return _Guarded(self, given)


class _Guarded(protocol.H2Protocol):
    """One caller: the protocol of grpclib behind a look at who it is and how much it sends."""

    def __init__(self, listener: Listener, given: protocol.H2Protocol) -> None:
        # The library's own settings leave out the look at a request's headers.
        checked = h2.config.H2Configuration(client_side=False, header_encoding="ascii")
        super().__init__(given.handler, given.config, checked)
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or let the caller go."""
        if self._listener.admit(transport.get_extra_info("socket")):
            self._transport = cast(asyncio.Transport, transport)
            super().connection_made(transport)
        else:
            cast(asyncio.Transport, transport).abort()

    def data_received(self, data: bytes) -> None:
        """Hand on what a caller sends, up to a length."""
        self._received += len(data)
        if self._transport is None:
            return
        if self._received > _MOST_BYTES:
            self._transport.abort()
            return
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - by its bytes no caller is to cause a traceback
            logger.debug("a caller of the control socket is let go: %r", error)
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count an admitted caller out."""
        if self._transport is not None:
            self._transport = None
            self._listener.leave()
            super().connection_lost(exc)


def peer(channel: socket.socket) -> Peer:
    """Give who is at the other end of a unix socket."""
    data = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    further: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        data = channel.getsockopt(socket.SOL_SOCKET, _PEER_GROUPS, 4 * _GROUPS)
        further = struct.unpack(f"{len(data) // 4}I", data)
    return Peer(pid=pid, uid=uid, gids=frozenset((gid, *further)))


def is_allowed(caller: Peer, group: int | None) -> bool:
    """Whether someone may ask: root, this process's own user, and the group's members."""
    return caller.uid in {0, os.geteuid()} or group in caller.gids


def group_of(name: str) -> int | None:
    """Give a group's number, None for an empty name; raises HostError where there is none."""
    if not name:
        return None
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise errors.HostError(
            f"there is no group {name!r} on this node",
            hint="make it, or leave control.group empty; root alone may ask meanwhile",
            code="no-such-group",
        ) from None


async def serve(path: str, control: Control, group: int | None = None) -> "Listener":
    """Listen on a socket; raises HostError where that cannot be, TakenError where another does."""
    statedir.free(path)
    listening = Listener(control, group)
    # The socket is made by bind(): a umask is the only way to have no moment of wider rights.
    before = os.umask(0o177)
    try:
        await listening.start(path=path)
        if group is not None:
            open_to(path, listening, group)
    except OSError as error:
        with contextlib.suppress(RuntimeError):  # where it has not begun to listen
            listening.close()
        raise statedir.unusable(path, error) from error
    finally:
        os.umask(before)
    return listening


def open_to(path: str, listening: Listener, group: int) -> None:
    """Let a group's members ask, too; raises OSError."""
    os.chown(path, -1, group)
    os.chmod(path, 0o660)  # noqa: PTH101 - a name, not a Path
    listening.group = group


async def end(path: str, listening: server.Server) -> None:
    """Listen no more. A caller that stays connected and mute is not waited for."""
    listening.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(listening.wait_closed(), _GOODBYE)
    statedir.remove(path)
