# SPDX-License-Identifier: Apache-2.0
"""Serve generated service bases: every request gets an answer, and in time.

A runtime drops a plugin that stays silent and goes on without it. So whatever happens in a
handler (an error, a defect, no end), the caller is told before its own time is up.
"""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs
import grpclib
from grpclib import const

from nri_nvidia import errors as base_errors

from . import connection, errors, transport, wire

log = logging.getLogger(__name__)

MARGIN = 0.2
"""Seconds before the caller's own limit at which an unfinished request is answered."""

_deadline: contextvars.ContextVar[float | None] = contextvars.ContextVar("deadline", default=None)


def deadline() -> float | None:
    """Give the loop time by which the request being handled must be answered, if any."""
    return _deadline.get()


class Service(Protocol):
    """What the generated service bases are."""

    def __mapping__(self) -> Mapping[str, const.Handler]: ...


@attrs.frozen(kw_only=True)
class Raw:
    """Serves a method from the undecoded request to the encoded answer.

    `serve` raises RemoteProtocolError for what it cannot decode. `says_nothing` tells without
    decoding that the answer is the empty message: then it is given at once, without a task.
    """

    serve: Callable[[bytes], Awaitable[bytes]]
    says_nothing: Callable[[bytes], bool]


@runtime_checkable
class RawService(Protocol):
    """A service that serves some of its methods itself, by their routes."""

    def raw(self) -> Mapping[str, Raw]: ...


@attrs.frozen(kw_only=True)
class Outcome:
    """How a request ended, told when its answer has been handed to the transport.

    `late` is whether the caller's own limit had passed by then, `elapsed` in seconds.
    """

    route: str
    status: const.Status
    message: str
    elapsed: float
    late: bool


class Server:
    """The serving half of one link.

    At most `max_running` requests run at a time; beyond that the link is not read. `margin` is in
    seconds, half the caller's limit where that is shorter.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        margin: float = MARGIN,
        max_running: int = 64,
        observe: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._handlers = {
            route: handler
            for service in services
            for route, handler in service.__mapping__().items()
        }
        self._raw = {
            route: raw
            for service in services
            if isinstance(service, RawService)
            for route, raw in service.raw().items()
        }
        self._margin = margin
        self._max_running = max_running
        self._observe = observe
        self._calls: set[_Call] = set()
        self._stopping = ""

    def accept(self, link: transport.Link, request: connection.Request) -> None:
        """Answer a request at once where nothing is to be said, else in a task of its own."""
        raw = self._raw.get(request.route)
        if raw and not self._stopping and self._answered(link, request, raw):
            return
        now = asyncio.get_running_loop().time()
        by = None
        if request.timeout is not None:
            by = now + request.timeout - min(self._margin, request.timeout / 2)
        handler = raw or self._handlers.get(request.route)
        call = _Call(link, request, handler, by, self._observe)
        self._calls.add(call)
        call.task.add_done_callback(lambda _: self._finished(link, call))
        if self._stopping:
            call.stop(self._stopping)
        if len(self._calls) >= self._max_running:
            link.hold()

    def _answered(self, link: transport.Link, request: connection.Request, raw: Raw) -> bool:
        """Give the empty answer if that is all; in doubt it is left to a task."""
        try:
            # A peer that does not read its answers is to be waited for.
            if not (link.takes and raw.says_nothing(request.payload)):
                return False
        except Exception:
            log.exception("%s could not be judged by its bytes", request.route)
            return False
        link.send(link.state.answer(request.stream, b""))
        if self._observe is not None:
            self._observe(
                Outcome(
                    route=request.route, status=const.Status.OK, message="", elapsed=0, late=False
                )
            )
        return True

    async def stop(self, reason: str = "this side is stopping") -> None:
        """Refuse what still runs, so that nobody takes silence for consent, and end it."""
        self._stopping = reason
        calls = list(self._calls)
        for call in calls:
            call.stop(reason)
        await asyncio.gather(*(call.task for call in calls), return_exceptions=True)

    def _finished(self, link: transport.Link, call: "_Call") -> None:
        self._calls.discard(call)
        if len(self._calls) < self._max_running:
            link.release()


class _Call:
    """One request being handled; it is answered exactly once."""

    def __init__(
        self,
        link: transport.Link,
        request: connection.Request,
        handler: const.Handler | Raw | None,
        by: float | None,
        observe: Callable[[Outcome], None] | None,
    ) -> None:
        self._link, self._request, self._handler = link, request, handler
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._answered = False
        self._by = by
        self._alarm = None if by is None else self._loop.call_at(by, self._overrun)
        self.task = self._loop.create_task(self._run(), name=f"ttrpc {request.route}")

    def reply(self, status: const.Status, message: str = "", payload: bytes = b"") -> None:
        """Answer, unless that has been done or nobody is there any more."""
        if self._answered or not self._link.is_open:
            return
        self._answered = True
        if self._alarm is not None:
            self._alarm.cancel()
        state, stream = self._link.state, self._request.stream
        if status is const.Status.OK:
            try:
                data = state.answer(stream, payload)
            except errors.LocalProtocolError as error:
                status, message = const.Status.RESOURCE_EXHAUSTED, str(error)
                data = state.refuse(stream, status.value, message)
        else:
            data = state.refuse(stream, status.value, message)
        self._link.send(data)
        self._tell(status, message)

    def stop(self, reason: str) -> None:
        """Refuse the request and end its handler."""
        self.reply(const.Status.UNAVAILABLE, f"{reason}; try again")
        self.task.cancel()

    def _tell(self, status: const.Status, message: str) -> None:
        elapsed = self._loop.time() - self._began
        limit = self._request.timeout
        if self._observe is not None:
            self._observe(
                Outcome(
                    route=self._request.route,
                    status=status,
                    message=message,
                    elapsed=elapsed,
                    late=limit is not None and elapsed >= limit,
                )
            )

    def _overrun(self) -> None:
        taken = self._loop.time() - self._began
        log.error("%s was not finished after %.1f s", self._request.route, taken)
        self.reply(
            const.Status.DEADLINE_EXCEEDED,
            f"{self._request.method} was not finished after {taken:.1f} s",
        )
        self.task.cancel()

    async def _run(self) -> None:
        _deadline.set(self._by)
        try:
            status, message, payload = await self._outcome()
        except asyncio.CancelledError:
            # By us when overrun or stopping, and answered then; else by something that it awaited.
            self.reply(const.Status.CANCELLED, f"{self._request.method} was cancelled")
            raise
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
        self.reply(status, message, payload)
        await self._link.drained()

    async def _outcome(self) -> tuple[const.Status, str, bytes]:
        """Run the handler and turn however it ends into a status."""
        route = self._request.route
        if self._handler is None:
            return const.Status.UNIMPLEMENTED, f"{route} is not served here", b""
        try:
            return const.Status.OK, "", await self._result(self._handler)
        except errors.RemoteProtocolError as error:
            message = f"undecodable {self._request.method}: {error}"
            return const.Status.INVALID_ARGUMENT, message, b""
        except grpclib.GRPCError as error:
            if error.status is const.Status.OK:
                return const.Status.UNKNOWN, "a handler raised the status OK", b""
            return error.status, error.message or error.status.name, b""
        except base_errors.Error as error:
            # UNKNOWN is what an error returned by a Go handler becomes.
            return const.Status.UNKNOWN, str(error), b""
        except Exception as error:
            log.exception("%s failed", route)
            return const.Status.UNKNOWN, f"{type(error).__name__}: {error}", b""

    async def _result(self, handler: const.Handler | Raw) -> bytes:
        if isinstance(handler, Raw):
            return await handler.serve(self._request.payload)
        if handler.cardinality is not const.Cardinality.UNARY_UNARY:
            raise grpclib.GRPCError(const.Status.UNIMPLEMENTED, "only unary calls are served")
        wire.check(handler.request_type, self._request.payload)
        stream = _Stream(handler.request_type().parse(self._request.payload))
        await handler.func(stream)
        if stream.response is None:
            raise errors.LocalProtocolError("the handler gave no response")
        return bytes(stream.response)


class _Stream:
    """The part of grpclib's server stream that generated unary handlers use."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.response: Any = None

    async def recv_message(self) -> Any:
        return self._request

    async def send_message(self, message: Any) -> None:
        self.response = message
