# SPDX-License-Identifier: Apache-2.0
"""Both directions of ttRPC over one multiplexed connection, without IO.

Theory of operation. A stream is one unary call. The side that calls gives it an odd id, higher
than all before, and opens it with a request; the side that serves closes it with a response.
Calls travel on one mux id, those of the peer on another. Bytes go into `receive()` and come out
as events; `call()`, `answer()` and `refuse()` change the state and give the bytes to send.

| serving side | request                   | data, other |
|--------------|---------------------------|-------------|
| id is new    | open, Request             | ignored     |
| id not odd, or not above the last | Refused | ignored  |

| calling side | response         | data, request      | other   |
|--------------|------------------|--------------------|---------|
| open         | closed, Response | RemoteProtocolError | ignored |
| not open     | ignored (late)   | ignored            | ignored |

What belongs to one call alone (an undecodable envelope, a bad id) is answered on its stream, as
containerd/ttrpc's server does, so that it fails and the connection lives on.
"""

from collections.abc import Callable, Iterator

import attrs
from grpclib import const

from nri_nvidia import errors as base_errors
from nri_nvidia._api import ttrpc
from nri_nvidia._api.google import rpc

from . import envelope, errors, frames, mux, wire

_MESSAGE_LIMIT = 4000
_OF_STREAMS = int(frames.Flags.REMOTE_CLOSED | frames.Flags.REMOTE_OPEN)
_LAST_STREAM = (1 << 32) - 1


Request = envelope.Request


@attrs.frozen(kw_only=True)
class Refused:
    """A call of the peer that cannot be one; `reply` is to be sent as it is."""

    stream: int
    status: const.Status
    message: str
    reply: bytes


@attrs.frozen(kw_only=True)
class Response:
    """The answer to a call of ours; `code` 0 is success."""

    stream: int
    code: int
    message: str
    payload: bytes


Event = Request | Refused | Response


class Connection:
    """The state of one connection which serves on mux id `serves` and calls on `calls`.

    `max_open` bounds the calls of the peer that may be open at a time, `limit` what a message of
    it may have, `max_sent` what one of ours may. `framing` puts header and data on the mux.
    """

    def __init__(
        self,
        *,
        serves: int,
        calls: int,
        limit: int = frames.MAX_RECEIVED,
        max_sent: int = frames.MAX_SENT,
        max_open: int = 256,
        reader: mux.Reader | None = None,
        framing: Callable[[int, bytes, bytes], bytes] = mux.encode,
    ) -> None:
        self._serves, self._calls = serves, calls
        self._max_open, self._max_sent = max_open, max_sent
        self._framing = framing
        self._mux = reader or mux.Reader(limit=limit)
        self._frames = {serves: frames.Reader(limit=limit), calls: frames.Reader(limit=limit)}
        self._last_served = 0
        self._last_called = -1
        self._served: set[int] = set()
        self._called: set[int] = set()
        self._error: errors.RemoteProtocolError | None = None

    @property
    def buffered(self) -> int:
        """How many bytes of incomplete messages are held."""
        return sum([reader.buffered for reader in self._frames.values()])

    @property
    def incomplete(self) -> bool:
        """Whether the peer has begun something that it has not finished."""
        return self.buffered > 0 or not self._mux.between_frames

    def receive(self, data: bytes) -> Iterator[Event]:
        """Give the events that `data` completes; exhaust it before the next call.

        Raises RemoteProtocolError when the peer broke the framing, and from then on always.
        """
        if self._error is not None:
            raise self._error
        call = self._call_alone(data)
        if call is not None:
            yield call
            return
        try:
            for connection, piece in self._mux.receive(data):
                reader = self._frames.get(connection)
                if reader is None:
                    continue
                for frame in reader.receive(piece):
                    event = self._event(connection, frame)
                    if event is not None:
                        yield event
        except errors.RemoteProtocolError as error:
            self._error = error
            raise

    def _call_alone(self, data: bytes) -> Request | Refused | None:
        """Read what is one whole call of the peer and no more, as nearly all data are.

        Nothing of it is copied but its payload. None for anything else, which is left as it is.
        """
        if self._mux.alone(data) != self._serves:
            return None
        found = self._frames[self._serves].alone(data, mux.HEADER_SIZE)
        if found is None or found[1] != frames.Type.REQUEST:
            return None
        stream, _, flags = found
        return self._request(stream, flags, data, mux.HEADER_SIZE + frames.HEADER_SIZE)

    def receive_eof(self) -> None:
        """Note the end of the peer's bytes; raises RemoteProtocolError inside a message."""
        if self.incomplete:
            raise errors.RemoteProtocolError("the peer closed in the middle of a message")

    def call(
        self, service: str, method: str, payload: bytes, timeout: float | None = None
    ) -> tuple[int, bytes]:
        """Open a call; gives its stream and the bytes to send. `timeout` is in seconds."""
        stream = self._last_called + 2
        if stream > _LAST_STREAM:
            raise errors.LocalProtocolError("all stream ids of this connection are used up")
        nanoseconds = 0 if timeout is None else max(1, int(timeout * 1e9))
        request = ttrpc.Request(
            service=service, method=method, payload=payload, timeout_nano=nanoseconds
        )
        data = self._encode(self._calls, stream, frames.Type.REQUEST, bytes(request))
        self._last_called = stream
        self._called.add(stream)
        return stream, data

    def forget(self, stream: int) -> None:
        """Give up a call of ours; a late answer is ignored then."""
        self._called.discard(stream)

    def answer(self, stream: int, payload: bytes) -> bytes:
        """Close a call of the peer with a result; gives the bytes to send.

        Raises LocalProtocolError, and leaves it open, when the result is too long to be sent.
        """
        self._must_be_open(stream)
        if not payload:
            # Nearly all containers ask for nothing: a header is the whole answer.
            self._served.discard(stream)
            return self._framing(self._serves, frames.empty(stream, frames.Type.RESPONSE), b"")
        response = envelope.response(payload)
        data = self._encode(self._serves, stream, frames.Type.RESPONSE, response)
        self._served.discard(stream)
        return data

    def refuse(self, stream: int, code: int, message: str) -> bytes:
        """Close a call of the peer with an error; gives the bytes to send."""
        self._must_be_open(stream)
        self._served.discard(stream)
        return self._refusal(stream, code, message)

    def _must_be_open(self, stream: int) -> None:
        if stream not in self._served:
            raise errors.LocalProtocolError(f"stream {stream} is not open")

    def _event(self, connection: int, frame: frames.Frame) -> Event | None:
        if connection == self._serves:
            if frame.type != frames.Type.REQUEST:
                return None
            return self._request(frame.stream, frame.flags, frame.data)
        if frame.stream not in self._called:
            return None
        if frame.type in {frames.Type.REQUEST, frames.Type.DATA}:
            raise errors.RemoteProtocolError(
                f"the peer answers stream {frame.stream} with a frame of type {frame.type}"
            )
        return self._response(frame) if frame.type == frames.Type.RESPONSE else None

    def _request(self, stream: int, flags: int, data: bytes, begin: int = 0) -> Request | Refused:
        """Open a call, whose envelope is what there is of `data` from `begin` on."""
        invalid = const.Status.INVALID_ARGUMENT
        if stream % 2 == 0:
            return self._refused(stream, invalid, f"stream id {stream} is not odd")
        if stream <= self._last_served:
            return self._refused(
                stream, invalid, f"stream id {stream} is not above the last, {self._last_served}"
            )
        self._last_served = stream
        if flags & _OF_STREAMS:
            return self._refused(stream, const.Status.UNIMPLEMENTED, "streams are not served")
        if len(self._served) >= self._max_open:
            return self._refused(
                stream,
                const.Status.RESOURCE_EXHAUSTED,
                f"{len(self._served)} calls are open, no more are taken",
            )
        try:
            request = envelope.request(stream, data, begin)
        except errors.RemoteProtocolError as error:
            return self._refused(stream, invalid, f"undecodable request: {error}")
        self._served.add(stream)
        return request

    def _response(self, frame: frames.Frame) -> Response:
        self._called.discard(frame.stream)
        try:
            wire.check(ttrpc.Response, frame.data)
        except errors.RemoteProtocolError as error:
            code, message = const.Status.INTERNAL.value, f"undecodable response: {error}"
            return Response(stream=frame.stream, code=code, message=message, payload=b"")
        response = ttrpc.Response().parse(frame.data)
        return Response(
            stream=frame.stream,
            code=response.status.code,
            message=response.status.message,
            payload=response.payload,
        )

    def _refused(self, stream: int, status: const.Status, message: str) -> Refused:
        reply = self._refusal(stream, status.value, message)
        return Refused(stream=stream, status=status, message=message, reply=reply)

    def _refusal(self, stream: int, code: int, message: str) -> bytes:
        # Messages quote names and variables of containers: one line, and UTF-8 for a Go peer.
        message = base_errors.printable(message, _MESSAGE_LIMIT)
        status = rpc.Status(code=code, message=message)
        response = bytes(ttrpc.Response(status=status))
        return self._encode(self._serves, stream, frames.Type.RESPONSE, response)

    def _encode(self, connection: int, stream: int, kind: frames.Type, data: bytes) -> bytes:
        header = frames.header(stream, kind, data, limit=self._max_sent)
        return self._framing(connection, header, data)
