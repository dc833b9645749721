# SPDX-License-Identifier: Apache-2.0
"""Several byte streams over one connection, without IO (containerd/nri, pkg/net/multiplex).

A frame is a header of 8 bytes (u32 connection id, u32 length, big-endian) and the payload. There
is no opening or closing: both sides know the ids, and frames for others are dropped.
"""

import struct
from collections.abc import Iterator

from . import errors, frames

_HEADER = struct.Struct(">II")
HEADER_SIZE = _HEADER.size


def encode(connection: int, *parts: bytes) -> bytes:
    """Give a frame for each part that is not empty, in one piece for one write.

    A Go reader offers a buffer of 4096 bytes for a header, or one of the data's length for the
    data, and drops the connection when a frame is larger. So a ttRPC message is sent as two
    parts, header and data; smaller pieces could overflow its queue of 256 frames.
    """
    found = b""
    for part in parts:
        if part:
            found += _HEADER.pack(connection, len(part)) + part
    return found


class Reader:
    """Bytes in, (connection, bytes) out. Holds nothing but an incomplete header."""

    def __init__(self, *, limit: int = frames.MAX_RECEIVED) -> None:
        self._limit = limit + frames.HEADER_SIZE
        self._header = bytearray()
        self._connection = 0
        self._left = 0

    @property
    def between_frames(self) -> bool:
        """Whether everything received so far was whole frames."""
        return not self._header and not self._left

    def alone(self, data: bytes) -> int | None:
        """Give the connection of what is one frame and no more.

        None for anything else, and inside of a frame: then `receive` has to be given it.
        """
        if self._left or self._header or len(data) < HEADER_SIZE:
            return None
        connection: int
        connection, length = _HEADER.unpack_from(data)
        return connection if length == len(data) - HEADER_SIZE and length <= self._limit else None

    def receive(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Give the payload bytes in `data` as they come; exhaust it before the next call.

        Raises RemoteProtocolError when a header announces more than any message may have. A Go
        peer would wait for that for ever, so a lost byte must end the connection.
        """
        position = 0
        while position < len(data):
            if not self._left:
                if not self._header and len(data) - position >= HEADER_SIZE:
                    self._begin(*_HEADER.unpack_from(data, position))
                    position += HEADER_SIZE
                    continue
                missing = HEADER_SIZE - len(self._header)
                self._header += data[position : position + missing]
                position += missing
                if len(self._header) == HEADER_SIZE:
                    begun = _HEADER.unpack(self._header)
                    self._header.clear()
                    self._begin(*begun)
                continue
            piece = data[position : position + self._left]
            position += len(piece)
            self._left -= len(piece)
            yield self._connection, piece

    def _begin(self, connection: int, length: int) -> None:
        self._connection = connection
        self.announced(connection, length)
        self._left = length

    def announced(self, mux_id: int, length: int) -> None:
        """Judge a frame by its header; raises RemoteProtocolError to refuse it."""
        if length > self._limit:
            raise errors.RemoteProtocolError(
                f"the peer announces {length} bytes for connection {mux_id}, "
                f"the limit is {self._limit}"
            )
