# SPDX-License-Identifier: Apache-2.0
"""The messages around each call, read and written by field number (`protos/ttrpc.proto`).

They surround every request, most of which ask for nothing: the message library would take longer
for them than everything else does.
"""

import attrs

from . import errors, wire


@attrs.frozen
class Request:
    """A request's envelope; `timeout_nano` is 0 where the caller set no limit."""

    service: str
    method: str
    payload: bytes
    timeout_nano: int


def request(data: bytes) -> Request:
    """Read a request; unknown fields pass. Raises RemoteProtocolError."""
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
            timeout = wire.signed(value)
        elif number == 1:
            service = wire.text(value)
        elif number == 2:
            method = wire.text(value)
        elif number == 3:
            payload = value
    return Request(service, method, payload, timeout)


def response(payload: bytes) -> bytes:
    """Write the response that carries a result."""
    return wire.piece(2, payload) if payload else b""
