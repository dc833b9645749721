# SPDX-License-Identifier: Apache-2.0
"""ttRPC messages as bytes, without IO (ttrpc PROTOCOL.md, "Message Frame").

A frame is a header of 10 bytes (u32 data length, u32 stream id, u8 type, u8 flags, big-endian)
and the data.
"""

import enum
import struct
from collections.abc import Iterator

import attrs

from . import errors

_HEADER = struct.Struct(">IIBB")
HEADER_SIZE = _HEADER.size
MAX_SENT = 4 << 20
"""A Go peer refuses longer data; it is the protocol's limit."""
MAX_RECEIVED = 64 << 20
"""ttRPC before 1.2.6 sends any length: 9 MB have been seen in one Synchronize."""


class Type(enum.IntEnum):
    """What a frame is; other numbers are reserved and ignored."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class Flags(enum.IntFlag):
    """Only streams use them; unary calls have none."""

    REMOTE_CLOSED = 1
    REMOTE_OPEN = 2
    NO_DATA = 4


@attrs.frozen
class Frame:
    """One ttRPC message; `type` and `flags` as received, known or not."""

    stream: int
    type: int
    flags: int = 0
    data: bytes = b""


def encode(frame: Frame, *, limit: int = MAX_SENT) -> tuple[bytes, bytes]:
    """Give header and data apart, since each has to travel in a mux frame of its own.

    Raises LocalProtocolError for data over the limit.
    """
    return header(frame.stream, frame.type, frame.data, frame.flags, limit=limit), frame.data


def header(stream: int, kind: int, data: bytes, flags: int = 0, *, limit: int = MAX_SENT) -> bytes:
    """Give the header of a frame with these data; raises LocalProtocolError over the limit."""
    if len(data) > limit:
        raise errors.LocalProtocolError(
            f"a message of {len(data)} bytes is over ttRPC's limit of {limit}"
        )
    return _HEADER.pack(len(data), stream, kind, flags)


def empty(stream: int, kind: int) -> bytes:
    """Give the frame without data, which is a header."""
    return _HEADER.pack(0, stream, kind, 0)


class Reader:
    """Bytes in, frames out. Holds what has arrived of one frame and never reserves more."""

    def __init__(self, *, limit: int = MAX_RECEIVED) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        """How many bytes of an incomplete frame are held; 0 between frames."""
        return len(self._buffer)

    def receive(self, data: bytes) -> Iterator[Frame]:
        """Give the frames that `data` completes; exhaust it before the next call.

        Raises RemoteProtocolError when a header announces more than the limit. The frames before
        it have been given then, and nothing after it can be read.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER_SIZE:
            length, stream, kind, flags = _HEADER.unpack_from(self._buffer)
            if length > self._limit:
                raise errors.RemoteProtocolError(
                    f"the peer announces a message of {length} bytes, the limit is {self._limit}"
                )
            end = HEADER_SIZE + length
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                payload = bytes(view[HEADER_SIZE:end])
            del self._buffer[:end]
            yield Frame(stream, kind, flags, payload)

    def alone(self, data: bytes, begin: int) -> tuple[int, int, int] | None:
        """Give stream, type and flags of what is one frame and no more from `begin` on.

        None for anything else, and inside of a frame: then `receive` has to be given it.
        """
        if self._buffer or len(data) < begin + HEADER_SIZE:
            return None
        length, stream, kind, flags = _HEADER.unpack_from(data, begin)
        if length > self._limit or length != len(data) - begin - HEADER_SIZE:
            return None
        return stream, kind, flags
