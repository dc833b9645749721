# SPDX-License-Identifier: Apache-2.0
"""For tests: a real channel and a real server joined in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from . import connection, peer, server, transport


class _Pipe(asyncio.Transport):
    """One end of a connection in memory; `cut` splits what is written into pieces."""

    def __init__(self, cut: Callable[[bytes], Iterable[bytes]]) -> None:
        super().__init__()
        self._cut = cut
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self.other: _Pipe
        self.protocol: asyncio.Protocol

    def write(self, data: Any) -> None:
        if not self._closing:
            for piece in self._cut(bytes(data)):
                self._loop.call_soon(self.other.take, piece)

    def take(self, data: bytes) -> None:
        if not self._closing:
            self.protocol.data_received(data)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)
            self._loop.call_soon(self.other.end)

    def end(self) -> None:
        if not self._closing:
            self.protocol.eof_received()
            self.close()

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        """Do nothing: memory takes all."""

    def resume_reading(self) -> None:
        """Do nothing."""


def _whole(data: bytes) -> Iterable[bytes]:
    return (data,)


@contextlib.asynccontextmanager
async def joined(
    services: Sequence[server.Service],
    *,
    back: Sequence[server.Service] = (),
    cut: Callable[[bytes], Iterable[bytes]] = _whole,
    **options: Any,
) -> AsyncIterator[tuple[peer.Peer, peer.Peer]]:
    """Give (caller, callee): the callee serves `services`, the caller serves `back`.

    `cut` splits every write into the pieces in which it arrives; `options` go to both sides'
    `peer.opened()`.
    """
    ours, theirs = _Pipe(cut), _Pipe(cut)
    ours.other, theirs.other = theirs, ours

    async def dial(end: _Pipe, make: Callable[[], transport.Link]) -> transport.Link:
        link = make()
        end.protocol = link
        link.connection_made(end)
        return link

    async with (
        peer.opened(
            lambda make: dial(theirs, make),
            connection.Connection(serves=1, calls=2),
            services=services,
            **options,
        ) as callee,
        peer.opened(
            lambda make: dial(ours, make),
            connection.Connection(serves=2, calls=1),
            services=back,
            **options,
        ) as caller,
    ):
        yield caller, callee
