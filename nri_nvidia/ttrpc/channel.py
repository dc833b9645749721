# SPDX-License-Identifier: Apache-2.0
"""Call the peer: a channel in the shape of grpclib's, so that generated stubs run on it."""

import asyncio
from types import TracebackType
from typing import Any, Self

import grpclib
from grpclib import const, metadata

from nri_nvidia import errors as base_errors

from . import connection, errors, transport, wire


class Channel:
    """The calling half of one link."""

    def __init__(self, link: transport.Link) -> None:
        self._link = link
        self._waiting: dict[int, asyncio.Future[connection.Response]] = {}

    def request(
        self,
        route: str,
        cardinality: const.Cardinality,
        request_type: type[Any],  # noqa: ARG002 - grpclib's shape
        reply_type: type[Any],
        *,
        timeout: float | None = None,
        deadline: metadata.Deadline | None = None,
        metadata: Any = None,  # noqa: ARG002
    ) -> "Call":
        """Give a context manager for one call, as grpclib's Channel does.

        `timeout` is in seconds; it is sent along, and when it is over here, TimeoutError is
        raised. An error status of the peer raises GRPCError, the end of the link its reason.
        """
        if cardinality is not const.Cardinality.UNARY_UNARY:
            raise errors.LocalProtocolError(f"{route} is not a unary call")
        if deadline is not None:
            remaining = deadline.time_remaining()
            timeout = remaining if timeout is None else min(timeout, remaining)
        return Call(self, route, reply_type, timeout)

    def start(
        self, route: str, payload: bytes, timeout: float | None
    ) -> tuple[int, asyncio.Future[connection.Response]]:
        """Send a request; gives its stream and the future answer."""
        service, _, method = route.lstrip("/").rpartition("/")
        self._link.must_be_open()
        stream, data = self._link.state.call(service, method, payload, timeout)
        future: asyncio.Future[connection.Response] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = future
        self._link.send(data)
        return stream, future

    def forget(self, stream: int) -> None:
        """Stop waiting for an answer."""
        if self._waiting.pop(stream, None) is not None:
            self._link.state.forget(stream)

    def deliver(self, response: connection.Response) -> None:
        """Take an answer from the link."""
        future = self._waiting.pop(response.stream, None)
        if future is not None and not future.done():
            future.set_result(response)

    def fail(self, reason: base_errors.Error) -> None:
        """Let every call that waits raise `reason`."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(reason)


class Call:
    """One unary call: send_message(), then recv_message()."""

    def __init__(
        self, channel: Channel, route: str, reply_type: type[Any], timeout: float | None
    ) -> None:
        self._channel = channel
        self._route = route
        self._reply_type = reply_type
        self._timeout = timeout
        self._expires: float | None = None
        self._stream = 0
        self._future: asyncio.Future[connection.Response] | None = None

    async def __aenter__(self) -> Self:
        if self._timeout is not None:
            self._expires = asyncio.get_running_loop().time() + self._timeout
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._channel.forget(self._stream)

    async def send_message(self, message: Any, *, end: bool = False) -> None:  # noqa: ARG002
        """Send the request, which always is the only one."""
        if self._future is not None:
            raise errors.LocalProtocolError("a unary call has one request")
        self._stream, self._future = self._channel.start(
            self._route, bytes(message), self._timeout
        )

    async def recv_message(self) -> Any:
        """Wait for the reply; raises GRPCError, TimeoutError or the reason of the link's end."""
        if self._future is None:
            raise errors.LocalProtocolError("nothing has been asked yet")
        async with asyncio.timeout_at(self._expires):
            response = await self._future
        if response.code:
            raise grpclib.GRPCError(_status(response.code), response.message)
        wire.check(self._reply_type, response.payload)
        return self._reply_type().parse(response.payload)


def _status(code: int) -> const.Status:
    try:
        return const.Status(code)
    except ValueError:
        return const.Status.UNKNOWN
