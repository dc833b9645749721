# SPDX-License-Identifier: Apache-2.0
"""How containerd's Go code writes and reads frames, and what it cannot take."""

from collections.abc import Iterator

from nri_nvidia.ttrpc import errors, frames, mux

_GO_BUFFER = 4096


def go_framing(mux_id: int, header: bytes, data: bytes) -> bytes:
    """Frame a message as Go's buffered writer does: up to 4096 bytes, then the rest."""
    whole = header + data
    return mux.encode(mux_id, whole[:_GO_BUFFER], whole[_GO_BUFFER:])


class GoReader(mux.Reader):
    """Refuse what kills a Go peer: a frame larger than the buffer that its reader offers.

    Go's ttRPC reads through a buffer of 4096 bytes, past it when it wants at least as many bytes
    and the buffer is empty; its mux gives ENOMEM when a frame does not fit into what is offered.
    """

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[int, _GoStream] = {}

    def announced(self, mux_id: int, length: int) -> None:
        """Refuse a frame that does not fit."""
        super().announced(mux_id, length)
        stream = self._streams.setdefault(mux_id, _GoStream())
        if length > stream.offered():
            raise errors.RemoteProtocolError(
                f"a frame of {length} bytes, but the Go reader offers {stream.offered()}: ENOMEM"
            )

    def alone(self, data: bytes) -> None:
        """Leave all to `receive`, which follows the stream."""

    def receive(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Follow the stream, so as to know what the reader wants next."""
        for mux_id, piece in super().receive(data):
            self._streams[mux_id].feed(piece)
            yield mux_id, piece


class _GoStream:
    """How far a Go ttRPC reader is in one stream."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = 0
        self._discards = False

    def offered(self) -> int:
        """Give the size of the buffer that the next frame has to fit into."""
        return _GO_BUFFER if self._discards else max(self._left, _GO_BUFFER)

    def feed(self, piece: bytes) -> None:
        while piece:
            if self._left:
                taken = min(self._left, len(piece))
                self._left -= taken
                piece = piece[taken:]
                continue
            missing = frames.HEADER_SIZE - len(self._header)
            self._header += piece[:missing]
            piece = piece[missing:]
            if len(self._header) == frames.HEADER_SIZE:
                self._left = int.from_bytes(self._header[:4])
                self._discards = self._left > frames.MAX_SENT
                self._header.clear()
