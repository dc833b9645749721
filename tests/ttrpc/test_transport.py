# SPDX-License-Identifier: Apache-2.0
"""The live server on real sockets, with peers that misbehave."""

import asyncio
import contextlib
import functools
import os
import socket
import sys

import hypothesis
import pytest

from nri_nvidia._api import ttrpc
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.ttrpc import connection, errors, frames, mux, peer, transport

from . import strategies

LIMIT = 4096


class Service(api.PluginBase):
    async def configure(self, message):
        return api.ConfigureResponse(events=len(message.config))

    async def create_container(self, message):
        return api.CreateContainerResponse()


@contextlib.asynccontextmanager
async def served(service=None, **options):
    """Give a served peer, and the other end of its connection as a plain socket."""
    ours, theirs = socket.socketpair()
    state = connection.Connection(serves=1, calls=2, limit=LIMIT)
    dial = functools.partial(transport.adopt, ours.detach())
    theirs.setblocking(False)
    with theirs:
        async with peer.opened(dial, state, services=[service or Service()], **options) as live:
            yield live, theirs


def request(stream, method="Configure", payload=b""):
    message = ttrpc.Request(service="nri.pkg.api.v1alpha1.Plugin", method=method, payload=payload)
    frame = frames.Frame(stream=stream, type=frames.Type.REQUEST, data=bytes(message))
    return mux.encode(1, *frames.encode(frame))


async def read_until_end(sock):
    loop, data = asyncio.get_running_loop(), b""
    with contextlib.suppress(ConnectionResetError):
        while piece := await loop.sock_recv(sock, 65536):
            data += piece
    return data


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(strategies.streams(strategies.mux_frames()), strategies.points)
def test_any_bytes_end_in_an_orderly_way(data, points):
    """Whatever bytes come, in pieces or cut off, the live server answers or closes; no more.

    It ends with RemoteProtocolError or ConnectionLost, reports no defect and leaves no task.
    """

    async def scenario():
        defects = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: defects.append(what))
        async with served() as (live, theirs):
            loop = asyncio.get_running_loop()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for piece in strategies.split(data, points):
                    await loop.sock_sendall(theirs, piece)
                    await asyncio.sleep(0)
                theirs.shutdown(socket.SHUT_WR)
            reason = await live.link.closed()
            assert live.link.state.buffered <= 2 * (LIMIT + frames.HEADER_SIZE)
        assert isinstance(reason, errors.RemoteProtocolError | errors.ConnectionLost)
        assert defects == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(strategies.points)
def test_requests_in_any_split_are_answered(points):
    """Three requests get their three answers, however the bytes are cut."""

    async def scenario():
        async with served() as (_, theirs):
            loop = asyncio.get_running_loop()
            whole = b"".join(request(stream) for stream in (1, 3, 5))
            for piece in strategies.split(whole, points):
                await loop.sock_sendall(theirs, piece)
                await asyncio.sleep(0)
            seen, state = set(), connection.Connection(serves=2, calls=1)
            for _ in range(3):
                state.call("s", "m", b"")
            while len(seen) < 3:
                data = await loop.sock_recv(theirs, 65536)
                seen |= {event.stream for event in state.receive(data)}
            assert seen == {1, 3, 5}

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", [3, 8, 11, 18, 30])
async def test_a_peer_that_stops_inside_a_message_is_given_up(cut):
    """Half a header or half a message without the rest ends the link after a while."""
    async with served(stall_timeout=0.05) as (live, theirs):
        theirs.send(request(1)[:cut])
        reason = await live.link.closed()
        assert isinstance(reason, errors.RemoteProtocolError)
        assert "sent half a message" in str(reason)


async def test_an_idle_peer_is_not_given_up():
    """Between messages a peer may be silent for as long as it likes."""
    async with served() as (live, theirs):
        theirs.send(request(1))
        assert await asyncio.get_running_loop().sock_recv(theirs, 100)
        assert live.link._watch is None


async def test_a_peer_that_does_not_read_is_given_up():
    """When nothing of what is sent is taken, the link ends instead of filling memory."""

    class Talker(Service):
        async def configure(self, message):
            return api.ConfigureResponse(events=1)

        async def create_container(self, message):
            mount = api.Mount(source="x" * (1 << 20))
            return api.CreateContainerResponse(adjust=api.ContainerAdjustment(mounts=[mount]))

    async with served(Talker(), stall_timeout=0.1) as (live, theirs):
        theirs.send(b"".join(request(2 * n + 1, "CreateContainer") for n in range(8)))
        reason = await live.link.closed()
        assert "does not read" in str(reason)


async def test_a_bogus_length_ends_the_link():
    """A mux length of 4 GiB is an error of the peer, at once."""
    async with served() as (live, theirs):
        theirs.send(b"\0\0\0\1\xff\xff\xff\xff")
        assert isinstance(await live.link.closed(), errors.RemoteProtocolError)
        assert await read_until_end(theirs) == b""


async def test_an_answer_is_two_frames_of_one_write():
    """Header and data leave together, in frames that a Go peer takes."""
    async with served() as (_, theirs):
        theirs.send(request(1, payload=bytes(api.ConfigureRequest(config="abc"))))
        data = await asyncio.get_running_loop().sock_recv(theirs, 65536)
        [(first, header), (second, body)] = mux.Reader().receive(data)
        assert (first, second, len(header)) == (1, 1, frames.HEADER_SIZE)
        response = ttrpc.Response().parse(body)
        assert api.ConfigureResponse().parse(response.payload).events == 3


async def test_what_was_sent_is_written_before_the_end():
    """Closing in order delivers a large answer to a peer that reads slowly."""
    ours, theirs = socket.socketpair()
    state = connection.Connection(serves=1, calls=2)
    theirs.setblocking(False)
    with theirs:
        dial = functools.partial(transport.adopt, ours.detach())
        async with peer.opened(dial, state) as live:
            live.link.send(mux.encode(1, bytes(3 << 20)))
        assert len(await read_until_end(theirs)) == (3 << 20) + mux.HEADER_SIZE


async def test_a_closed_link_sends_nothing():
    """After the end `send()` raises the reason of the end."""
    async with served() as (live, _):
        live.link.close(errors.RemoteProtocolError("enough"))
        with pytest.raises(errors.RemoteProtocolError, match="enough"):
            live.link.send(b"x")
        live.link.close()
        assert str(await live.link.closed()) == "enough"


async def test_waiting_ends_with_the_link():
    """`until()` gives a result that is there, and raises when the link ends first."""
    async with served() as (live, theirs):
        assert await live.link.until(asyncio.sleep(0, "done")) == "done"
        theirs.close()
        with pytest.raises(errors.ConnectionLost, match="the peer closed"):
            await live.link.until(asyncio.Event().wait())


async def test_an_event_that_cannot_be_handled_ends_the_link(caplog):
    """A defect in the handling of events closes, since the stream cannot be followed any more."""

    def handle(_event):
        raise RuntimeError("defect")

    ours, theirs = socket.socketpair()
    with theirs:
        link = await transport.adopt(
            ours.detach(),
            lambda: transport.Link(connection.Connection(serves=1, calls=2), handle),
        )
        theirs.send(request(1))
        assert isinstance(await link.closed(), errors.LocalProtocolError)
        assert "defect" in caplog.text


async def test_an_inherited_descriptor_is_not_passed_on():
    """Programs that the daemon starts do not hold the runtime's socket open."""
    ours, theirs = socket.socketpair()
    descriptor = ours.detach()
    os.set_inheritable(descriptor, True)
    with theirs:
        link = await transport.adopt(
            descriptor,
            lambda: transport.Link(connection.Connection(serves=1, calls=2), print),
        )
        assert not os.get_inheritable(descriptor)
        link.close()
        theirs.setblocking(False)
        assert await read_until_end(theirs) == b""


@pytest.mark.parametrize("kind", ["file", "closed", "datagram"])
async def test_a_descriptor_that_is_no_stream_socket_is_refused(tmp_path, kind):
    """OSError says so before anything is sent."""
    if kind == "file":
        descriptor = os.open(tmp_path, os.O_RDONLY)
    elif kind == "datagram":
        descriptor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach()
    else:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        os.close(descriptor)
    try:
        with pytest.raises(OSError):
            await transport.adopt(
                descriptor,
                lambda: transport.Link(connection.Connection(serves=1, calls=2), print),
            )
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


async def test_connecting_raises_what_the_system_says(tmp_path):
    """A missing socket and one without listener are told apart."""

    def make():
        return transport.Link(connection.Connection(serves=1, calls=2), print)

    path = tmp_path / "s"
    with pytest.raises(FileNotFoundError):
        await transport.connect(str(path), make)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(ConnectionRefusedError):
        await transport.connect(str(path), make)


SEES = """
import asyncio, sys
from nri_nvidia.ttrpc import connection, transport
async def main():
    state = connection.Connection(serves=1, calls=2)
    link = await transport.connect(sys.argv[1], lambda: transport.Link(state, print))
    print(link.sees_peer())
    link.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("own_namespace", [False, True])
async def test_whether_the_peer_is_to_be_seen(tmp_path, own_namespace):
    """A peer outside of this process's namespace of processes has no number in it."""
    command = [sys.executable, "-c", SEES, str(tmp_path / "socket")]
    prefix = ["unshare", "--pid", "--fork"] if own_namespace else []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        process = await asyncio.create_subprocess_exec(
            *prefix, *command, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    assert output == (b"False\n" if own_namespace else b"True\n")
