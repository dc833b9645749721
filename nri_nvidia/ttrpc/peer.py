# SPDX-License-Identifier: Apache-2.0
"""One end of a live connection: a link with a server and a channel on it."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from . import channel as channels
from . import connection, server, transport

Dial = Callable[[Callable[[], transport.Link]], Awaitable[transport.Link]]
"""Makes the connection, e.g. `functools.partial(transport.connect, path)`."""


class Peer:
    """What `opened()` gives: `channel` to call through, `link` to wait on and to close."""

    def __init__(
        self, link: transport.Link, channel: channels.Channel, served: server.Server
    ) -> None:
        self.link = link
        self.channel = channel
        self.server = served


@contextlib.asynccontextmanager
async def opened(
    dial: Dial,
    state: connection.Connection,
    *,
    services: Sequence[server.Service] = (),
    margin: float = server.MARGIN,
    stall_timeout: float = transport.STALL_TIMEOUT,
    observe: Callable[[server.Outcome], None] | None = None,
) -> AsyncIterator[Peer]:
    """Connect with a fresh `state` and serve `services` until the block ends.

    The services answer from the first byte on. When the link ends, calls raise and `link.closed()`
    returns; the block itself goes on. At its end the requests still running are refused, what was
    sent is written, and no task is left.
    """
    made: list[Peer] = []

    def make() -> transport.Link:
        link = transport.Link(state, handle, stall_timeout=stall_timeout)
        channel = channels.Channel(link)
        link.on_end(channel.fail)
        made.append(Peer(link, channel, server.Server(services, margin=margin, observe=observe)))
        return link

    def handle(event: connection.Event) -> None:
        peer = made[0]
        if isinstance(event, connection.Request):
            peer.server.accept(peer.link, event)
        elif isinstance(event, connection.Refused):
            peer.link.send(event.reply)
        else:
            peer.channel.deliver(event)

    await dial(make)
    peer = made[0]
    try:
        yield peer
    finally:
        try:
            await peer.server.stop()
        finally:
            peer.link.close()
