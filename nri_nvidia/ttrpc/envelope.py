# SPDX-License-Identifier: Apache-2.0
"""The messages around each call, read and written by field number (`protos/ttrpc.proto`).

They surround every request, most of which ask for nothing: the message library would take longer
for them than everything else does.
"""

import functools

import attrs

from . import errors, wire

_SERVICE, _METHOD, _PAYLOAD = (number << 3 | wire.LENGTH for number in (1, 2, 3))
_TIMEOUT = 4 << 3 | wire.VARINT
"""The keys of a request's fields, as they are sent."""
_KEPT, _LONGEST = 64, 256


@attrs.frozen(kw_only=True)
class Request:
    """A call of the peer. `timeout` is in seconds, None when the peer set no limit."""

    stream: int
    service: str
    method: str
    payload: bytes
    timeout: float | None = None

    @property
    def route(self) -> str:
        """The name under which generated code files its handlers."""
        return f"/{self.service}/{self.method}"


def request(stream: int, data: bytes, begin: int = 0) -> Request:
    """Read a request, from `begin` on; unknown fields pass. Raises RemoteProtocolError."""
    return _as_usual(stream, data, begin) or _request(stream, data[begin:])


def _as_usual(stream: int, data: bytes, begin: int = 0) -> Request | None:
    """Read one as Go writes it: service, method, payload and time limit, each once, in order.

    What stands before and behind the payload is the same in nearly all of a runtime's calls. None
    for any other, also one with a fault: that is found by reading all of it.
    """
    try:
        method = begin + 3 + data[begin + 1]
        key = method + 1 + data[method]
        if data[key] != _PAYLOAD:
            return None
        size, start = wire.read_varint(data, key + 1)
        end = start + size
        if end > len(data) or key - begin > _LONGEST or len(data) - end > _LONGEST:
            return None
        service, method_name = _called(data[begin:key])
        return Request(
            stream=stream,
            service=service,
            method=method_name,
            payload=data[start:end],
            timeout=_limit(data[end:]),
        )
    except (IndexError, errors.RemoteProtocolError):
        return None


@functools.lru_cache(maxsize=_KEPT)
def _called(head: bytes) -> tuple[str, str]:
    """Read service and method; raises RemoteProtocolError where there is anything else."""
    (first, service), (second, method) = _fields(head, 2)
    if (first, second) != (_SERVICE, _METHOD):
        raise errors.RemoteProtocolError("service and method do not come first")
    return wire.text(service), wire.text(method)


@functools.lru_cache(maxsize=_KEPT)
def _limit(tail: bytes) -> float | None:
    """Read the time limit, if there is one; raises as `_called` does."""
    if not tail:
        return None
    ((key, value),) = _fields(tail, 1)
    if key != _TIMEOUT or not isinstance(value, int):
        raise errors.RemoteProtocolError("something else than a time limit comes last")
    return _seconds(value)


def _seconds(nanoseconds: int) -> float | None:
    return wire.signed(nanoseconds) / 1e9 if nanoseconds else None


def _fields(data: bytes, count: int) -> list[tuple[int, int | bytes]]:
    """Give each field's whole key and its value; raises unless there are `count`."""
    found = [(number << 3 | kind, value) for number, kind, value in wire.walk(data)]
    if len(found) != count:
        raise errors.RemoteProtocolError(f"{len(found)} fields, not {count}")
    return found


def _request(stream: int, data: bytes) -> Request:
    service = method = ""
    payload, timeout = b"", 0
    for number, wire_type, value in wire.walk(data):
        if not 0 < number <= 5:
            continue
        expected = wire.VARINT if number == 4 else wire.LENGTH
        if wire_type != expected:
            raise errors.RemoteProtocolError(
                f"field {number} of a request has wire type {wire_type}, not {expected}"
            )
        if isinstance(value, int):
            timeout = value
        elif number == 1:
            service = wire.text(value)
        elif number == 2:
            method = wire.text(value)
        elif number == 3:
            payload = value
    return Request(
        stream=stream,
        service=service,
        method=method,
        payload=payload,
        timeout=_seconds(timeout),
    )


def response(payload: bytes) -> bytes:
    """Write the response that carries a result."""
    return wire.piece(2, payload) if payload else b""
