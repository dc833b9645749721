# SPDX-License-Identifier: Apache-2.0
"""The only IO of this package: bytes between a `connection.Connection` and a unix socket."""

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from nri_nvidia import errors as base_errors

from . import connection, errors

log = logging.getLogger(__name__)
T = TypeVar("T")

STALL_TIMEOUT = 10.0
"""Seconds without progress, in a message or a blocked write, after which a peer is given up."""


class Link(asyncio.Protocol):
    """One live connection; it hands events to `on_event` and says why it ended.

    Whatever `send()` is given are whole frames, and they are written in one piece. So nothing can
    be interrupted inside a frame but the socket itself, and when that fails the link is closed.
    """

    def __init__(
        self,
        state: connection.Connection,
        on_event: Callable[[connection.Event], None],
        *,
        stall_timeout: float = STALL_TIMEOUT,
    ) -> None:
        self.state = state
        self._on_event = on_event
        self._stall_timeout = stall_timeout
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[base_errors.Error] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._held = False
        self._watch: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[base_errors.Error], None]] = []

    def on_end(self, listener: Callable[[base_errors.Error], None]) -> None:
        """Call `listener` with the reason, at once when the link ends."""
        self._listeners.append(listener)

    @property
    def is_open(self) -> bool:
        """Whether `send()` may be called."""
        return self._transport is not None and not self._ended.done()

    @property
    def takes(self) -> bool:
        """Whether `send()` may be called and the peer takes what is sent."""
        opened = self._transport is not None and not self._ended.done()
        return opened and self._writable.is_set()

    @property
    def is_held(self) -> bool:
        """Whether reading is stopped by us."""
        return self._held

    def sees_peer(self) -> bool:
        """Whether the peer's process is in our namespace of processes or below (unix(7))."""
        if self._transport is None:
            return False
        own: socket.socket = self._transport.get_extra_info("socket")
        found = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process: int = struct.unpack("3i", found)[0]
        return process != 0

    def must_be_open(self) -> None:
        """Raise the reason when the link has ended, ConnectionLost when it has not begun."""
        if self._ended.done():
            raise self._ended.result()
        if self._transport is None:
            raise errors.ConnectionLost("not connected yet")

    def send(self, data: bytes) -> None:
        """Write whole frames in one piece; raises as `must_be_open()` does."""
        self.must_be_open()
        assert self._transport is not None
        self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the peer has taken most of what was sent, or the link has ended."""
        await self._writable.wait()

    async def closed(self) -> base_errors.Error:
        """Wait for the end and give its reason: a ProtocolError or ConnectionLost."""
        return await asyncio.shield(self._ended)

    async def until(self, awaitable: Awaitable[T]) -> T:
        """Await something for as long as the link lives; raises the reason when it ends first."""
        task = asyncio.ensure_future(awaitable)
        either: set[asyncio.Future[Any]] = {task, self._ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._ended.result()
        finally:
            task.cancel()

    def hold(self) -> None:
        """Read nothing more for now, so that the peer feels the back-pressure."""
        if self._transport is not None and not self._held:
            self._held = True
            self._transport.pause_reading()

    def release(self) -> None:
        """Read again."""
        if self._transport is not None and self._held:
            self._held = False
            self._transport.resume_reading()

    def close(self, reason: base_errors.Error | None = None) -> None:
        """End the link: at once with a `reason`, else after what was sent has been written."""
        orderly = reason is None
        self._end(reason or errors.ConnectionLost("this side closed the connection"))
        if self._transport is not None:
            if orderly:
                self._transport.close()
                # What is still to be written is written, unless the peer does not take it.
                self._watch = self._loop.call_later(self._stall_timeout, self._transport.abort)
            else:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin (asyncio.BaseProtocol)."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on and give the events out (asyncio.Protocol)."""
        if self._ended.done():
            return
        try:
            for event in self.state.receive(data):
                self._on_event(event)
        except errors.RemoteProtocolError as error:
            self.close(error)
            return
        except Exception as error:
            log.exception("an event could not be handled; closing the connection")
            self.close(errors.LocalProtocolError(f"an event could not be handled: {error}"))
            return
        self._rewatch()

    def eof_received(self) -> None:
        """Note the peer's end (asyncio.Protocol); the transport closes itself."""
        try:
            self.state.receive_eof()
        except errors.RemoteProtocolError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """End (asyncio.BaseProtocol)."""
        reason = f"the connection broke: {exc}" if exc else "the peer closed the connection"
        self._end(errors.ConnectionLost(reason))
        self._unwatch()

    def pause_writing(self) -> None:
        """Let `drained()` wait (asyncio.BaseProtocol)."""
        self._writable.clear()
        self._rewatch()

    def resume_writing(self) -> None:
        """Let `drained()` go (asyncio.BaseProtocol)."""
        self._writable.set()
        self._rewatch()

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _rewatch(self) -> None:
        if self._ended.done():
            return
        self._unwatch()
        if self.state.incomplete or not self._writable.is_set():
            self._watch = self._loop.call_later(self._stall_timeout, self._stalled)

    def _stalled(self) -> None:
        self._watch = None
        if self._writable.is_set() and self._held:
            self._rewatch()  # it is we who do not read
            return
        what = "sent half a message" if self._writable.is_set() else "does not read"
        self.close(
            errors.RemoteProtocolError(
                f"the peer {what} and then {self._stall_timeout:g} s passed"
            )
        )

    def _end(self, reason: base_errors.Error) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)
            for listener in self._listeners:
                listener(reason)
        self._writable.set()
        self._unwatch()


async def connect(path: str, make: Callable[[], Link]) -> Link:
    """Connect to a unix socket; raises what the system call raises, an OSError."""
    _, link = await asyncio.get_running_loop().create_unix_connection(make, path)
    return link


async def adopt(descriptor: int, make: Callable[[], Link]) -> Link:
    """Use an inherited socket; raises OSError when the descriptor is not an open socket.

    It is closed with the link, and not passed on to programs that this process starts.
    """
    inherited = socket.socket(fileno=descriptor)
    try:
        _require_unix_stream(inherited)
        inherited.set_inheritable(False)
        inherited.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(make, sock=inherited)
    except BaseException:
        inherited.close()
        raise
    return link


def _require_unix_stream(found: socket.socket) -> None:
    if (found.family, found.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
        raise OSError(errno.EPROTOTYPE, "it is not a unix stream socket")
