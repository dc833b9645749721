# SPDX-License-Identifier: Apache-2.0
"""The daemon's own sockets: who may ask, how much, and what happens while they cannot be had."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys

import grpclib.client
import pytest
from grpclib import const, exceptions

from nri_nvidia import errors
from nri_nvidia._api.control import v1
from nri_nvidia.config import model
from nri_nvidia.daemon import control, hookreports, recorder, sockets, statedir

GROUP = 54321
ASK = """
import os, socket, sys
os.setgroups([int(sys.argv[2])] if sys.argv[2] else [])
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as caller:
    try:
        caller.connect(sys.argv[1])
        caller.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
        print("answered" if caller.recv(64) else "let go")
    except PermissionError:
        print("closed")
    except ConnectionError:
        print("let go")
"""


async def state():
    return {"it": "works"}


async def nothing(query):
    return {"asked": query}


@contextlib.asynccontextmanager
async def served(path, group=None):
    listening = await control.serve(str(path), control.Control(state, nothing), group)
    try:
        yield listening
    finally:
        await control.end(str(path), listening)


async def ask_as_nobody(path, group):
    command = [sys.executable, "-I", "-S", "-c", ASK, str(path), group]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()


async def ask(path):
    channel = grpclib.client.Channel(path=str(path))
    try:
        return (await v1.ControlStub(channel).status(v1.StatusRequest(), timeout=10)).json
    finally:
        channel.close()


@pytest.fixture
def place(short_directory):
    return short_directory / "control.sock"


@pytest.fixture
def short_directory(tmp_path_factory):
    """A directory that other users reach."""
    top = tmp_path_factory.mktemp("sockets")
    for each in (top, *top.parents):
        if str(each).startswith("/tmp/"):
            each.chmod(each.stat().st_mode | 0o055)
    return top


async def test_root_alone_by_default(place):
    """Others cannot connect; with a mode that lets them, they are let go unheard."""
    async with served(place):
        assert await ask(place) == '{"it":"works"}'
        assert await ask_as_nobody(place, "") == "closed"
        place.chmod(0o666)
        assert await ask_as_nobody(place, str(GROUP)) == "let go"


async def test_a_group_may_be_let_in(place):
    """Its members may ask, by their supplementary groups too, and nobody else."""
    async with served(place, GROUP):
        assert place.stat().st_mode & 0o777 == 0o660
        assert await ask_as_nobody(place, str(GROUP)) == "answered"
        assert await ask_as_nobody(place, "") == "closed"
        assert await ask(place) == '{"it":"works"}'


def test_groups_are_found_by_name_or_number():
    """One that is not there is an error that says what to do."""
    assert control.group_of("") is None
    assert control.group_of("54321") == GROUP
    assert control.group_of("root") == 0
    with pytest.raises(errors.HostError, match=r"no group 'nobody-has-this'.*control\.group"):
        control.group_of("nobody-has-this")


async def test_what_a_caller_sends_is_bounded(place):
    """One that sends on and on is let go, and others are answered meanwhile and afterwards."""
    async with served(place):
        reader, writer = await asyncio.open_unix_connection(str(place))
        # A frame of a kind that nobody knows is read over, however long (RFC 9113, 5.5).
        frame = b"\x00\x40\x00\xfa\x00\x00\x00\x00\x00" + b"x" * 16384
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(frame)
                await writer.drain()
            while await reader.read(1 << 16):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        assert await ask(place) == '{"it":"works"}'


@pytest.mark.parametrize("compressed", [0, 1])
@pytest.mark.parametrize("payload", [b"\n", b"\n\x05ab", b"\n\x02\xff\xfe", b"\xff" * 11, b""])
async def test_what_is_no_question(place, caplog, payload, compressed):
    """Its sender is told so, and the log holds no traceback for it."""
    async with served(place):
        channel = grpclib.client.Channel(path=str(place))
        route = "/control.v1.Control/Explain"
        try:
            asked = channel.request(
                route, const.Cardinality.UNARY_UNARY, v1.ExplainRequest, v1.ExplainResponse
            )
            async with asked as stream:
                await stream.send_request()
                framed = bytes([compressed]) + len(payload).to_bytes(4, "big") + payload
                await stream._stream.send_data(framed if payload else b"", end_stream=True)
                stream._end_done = True
                with pytest.raises(grpclib.GRPCError) as failure:
                    await stream.recv_message()
            assert failure.value.status is const.Status.INVALID_ARGUMENT
        finally:
            channel.close()
        assert await ask(place) == '{"it":"works"}'
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]


async def test_an_answer_that_cannot_be_given(place):
    """What is wrong on the node is told to whoever asks, with what to do."""

    async def late(query):
        raise errors.HostError(f"{query} could not be read", hint="a disk may hang", code="late")

    listening = await control.serve(str(place), control.Control(state, late), None)
    channel = grpclib.client.Channel(path=str(place))
    try:
        with pytest.raises(grpclib.GRPCError, match=r"c1 could not be read.*a disk may hang"):
            await v1.ControlStub(channel).explain(v1.ExplainRequest(container="c1"), timeout=10)
    finally:
        channel.close()
        await control.end(str(place), listening)


async def test_a_frame_of_no_known_kind(place, caplog):
    """Whoever sends what the library cannot take is let go; nothing is logged as a defect."""
    async with served(place):
        reader, writer = await asyncio.open_unix_connection(str(place))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + bytes(5))
        writer.write(b"\x00\x00\x01\xfa" + bytes(5) + b"x")
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        writer.close()
        assert await ask(place) == '{"it":"works"}'
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]


async def test_the_number_of_callers_is_bounded(place):
    """Beyond it they are let go at once; when one leaves there is room again."""
    async with served(place):
        callers = [await asyncio.open_unix_connection(str(place)) for _ in range(64)]
        for reader, _ in callers:
            await reader.readexactly(9)
        with pytest.raises((exceptions.StreamTerminatedError, ConnectionError)):
            await ask(place)
        for _, writer in callers:
            writer.close()
            await writer.wait_closed()
        while True:
            with contextlib.suppress(exceptions.StreamTerminatedError, ConnectionError):
                assert await ask(place) == '{"it":"works"}'
                break


class Door:
    """The runtimes' door, which opens."""

    async def open(self, path):
        self.path = path

    async def close(self):
        pass


@pytest.mark.parametrize("what", ["file", "directory", "listener"])
async def test_a_socket_that_can_be_had_later(short_directory, what):
    """While something stands in its place the others are open; when it goes, so is this one."""
    path = short_directory / "state/control.sock"
    path.parent.mkdir()
    heard = []
    reports = hookreports.Receiver()
    opening = sockets.Sockets(
        control.Control(state, nothing),
        records=recorder.Recorder(),
        reports=reports,
        door=Door(),
        changed=heard.append,
    )
    with contextlib.ExitStack() as stack:
        if what == "file":
            path.write_text("mine")
        elif what == "directory":
            path.mkdir()
        else:
            other = stack.enter_context(socket.socket(socket.AF_UNIX))
            other.bind(str(path))
            other.listen()
        pauses = asyncio.Queue()
        keeping = asyncio.ensure_future(opening.keep(lambda _: pauses.get()))
        try:
            if what == "listener":
                with pytest.raises(statedir.TakenError):
                    await opening.open(model.Control(socket=str(path)))
            else:
                await opening.open(model.Control(socket=str(path)))
            assert reports.token("container")
            pauses.put_nowait(None)
            stack.close()
            if what == "directory":
                path.rmdir()
            elif what == "file":
                path.unlink()
            while not path.is_socket() or heard[-1]:
                pauses.put_nowait(None)
                await asyncio.sleep(0)
            assert await ask(path) == '{"it":"works"}'
            assert str(path) in str(heard[0])
        finally:
            keeping.cancel()
            await opening.close()
    assert not os.path.lexists(path)
