# SPDX-License-Identifier: Apache-2.0
"""The one call that a verb makes, against a real gRPC server and against what is none."""

import asyncio
import json
import socket
import threading

import grpclib
import pytest
from grpclib import const

from nri_nvidia._api.control import v1
from nri_nvidia.cli import daemon, shared, unary
from nri_nvidia.daemon import control
from nri_nvidia.ttrpc import wire

STATUS = "/control.v1.Control/Status"


def called(tmp_path, status, route=STATUS, message=b"", seconds=5.0):
    """Ask a daemon's control socket that answers with what a function gives."""

    async def explain(container):
        return {"asked": container}

    async def body():
        path = str(tmp_path / "control.sock")
        listening = await control.serve(path, control.Control(status, explain))
        try:
            return await asyncio.to_thread(unary.call, path, route, message, seconds)
        finally:
            await control.end(path, listening)

    return asyncio.run(body())


def document(answer):
    return json.loads(wire.text(dict(wire.fields(answer))[1]))


@pytest.mark.parametrize("length", [0, 1, 100_000, 20_000_000])
def test_answer_of_any_length(tmp_path, length):
    """It is what the service gave, also where that is longer than any window of the protocol."""

    async def status():
        return {"x": "y" * length}

    assert document(called(tmp_path, status)) == {"x": "y" * length}


@pytest.mark.parametrize("name", ["pod/c", "a" * 300, "käse", ""])
def test_question_is_understood(tmp_path, name):
    """The field that is written here is the one that the generated messages read."""
    message = wire.piece(1, name.encode())
    assert v1.ExplainRequest().parse(message).container == name
    answer = called(tmp_path, None, "/control.v1.Control/Explain", message)
    assert document(answer) == {"asked": name}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (grpclib.GRPCError(const.Status.INTERNAL, "the disk\nis full: 100 %"), "is full: 100 %"),
        (grpclib.GRPCError(const.Status.UNAVAILABLE), "gRPC status 14"),
    ],
)
def test_refusal_is_told_in_the_servers_words(tmp_path, error, said):
    """The message of a status is decoded; without one there is its number."""

    async def status():
        raise error

    with pytest.raises(unary.Unanswered, match=said):
        called(tmp_path, status)


def test_service_that_is_another(tmp_path):
    """Another program's gRPC socket is said to be none of a daemon's."""

    async def status():
        return {}

    with pytest.raises(unary.Unanswered, match="another program"):
        called(tmp_path, status, "/other.v1.Service/Status")


def test_daemon_that_hangs(tmp_path):
    """The time limit is one for the whole call."""
    never = threading.Event()

    async def status():
        await asyncio.to_thread(never.wait)

    try:
        with pytest.raises(TimeoutError):
            asyncio.run(_hung(tmp_path, status, never))
    finally:
        never.set()


async def _hung(tmp_path, status, never):
    path = str(tmp_path / "control.sock")
    listening = await control.serve(path, control.Control(status, status))
    try:
        return await asyncio.to_thread(unary.call, path, STATUS, b"", 0.2)
    finally:
        never.set()
        await control.end(path, listening)


def test_peer_that_breaks_off(tmp_path):
    """A connection that ends before the answer, and a reset stream, are said and no traceback."""
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve():
            caller, _ = listener.accept()
            with caller:
                caller.recv(1 << 16)
                # SETTINGS, then RST_STREAM of stream 1 with REFUSED_STREAM (RFC 9113).
                caller.sendall(bytes(3) + b"\4\0" + bytes(4))
                caller.sendall(b"\0\0\4\3\0\0\0\0\1\0\0\0\7")
                caller.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(unary.Unanswered, match="REFUSED_STREAM"):
                unary.call(path, STATUS, b"", 5.0)
        finally:
            thread.join()


def test_default_socket_is_that_of_the_settings(monkeypatch, tmp_path):
    """Without a file, and with one that does not name it, it is the model's default."""
    import argparse

    from nri_nvidia.config import model

    monkeypatch.setattr(shared.place, "FILE", str(tmp_path / "none"))
    options = argparse.Namespace(socket=None, config=None)
    assert daemon.socket(options) == model.Control().socket
    options.config = str(tmp_path / "config.toml")
    (tmp_path / "config.toml").write_text("[log]\nlevel = 'nonsense'\n")
    assert daemon.socket(options) == model.Control().socket
    (tmp_path / "config.toml").write_text("[control]\nsocket = 7\n")
    with pytest.raises(model.Invalid, match=r"2: control\.socket: 7 is not a string"):
        daemon.socket(options)
