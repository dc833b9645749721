# SPDX-License-Identifier: Apache-2.0
"""The socket that nri-nvidia-runtime asks: who is told what, and when a container has ended."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nri_nvidia import errors, pipeline
from nri_nvidia.config import model as model_config
from nri_nvidia.daemon import (
    cgroups,
    hookplace,
    ledger,
    recorder,
    records,
    runtimedoor,
    runtimeholders,
)
from nri_nvidia.edits import model

EDITS = model.ContainerEdits(
    devices=(model.DeviceEdit(path="/dev/nvidia0", host_path="/dev/nvidia0", major=195, minor=0),)
)
SPEC = {
    "mounts": [
        {"destination": "/data", "source": "/x"},
        {"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"},
        {"destination": "/var/run//nvidia-container-devices", "source": "/dev/null"},
    ],
    "process": {
        "env": ["NVIDIA_VISIBLE_DEVICES=0"],
        "capabilities": {"bounding": ["CAP_SYS_ADMIN"]},
    },
    "annotations": {
        "io.kubernetes.cri.container-name": "main",
        "io.kubernetes.cri.sandbox-name": "pod",
        "io.kubernetes.cri.sandbox-namespace": "team",
        "io.kubernetes.cri.sandbox-uid": "u",
        "io.kubernetes.cri.sandbox-id": "s",
    },
}
QUESTION = {"protocol": 1, "id": "x", "spec": SPEC, "nested": False, "stays": False}
ASKER = """
import os, socket, sys, time
uid, path, stay = sys.argv[1:]
question = sys.stdin.buffer.readline()
os.setgroups([]); os.setgid(int(uid)); os.setuid(int(uid))
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect(path)
    channel.sendall(question)
    channel.shutdown(socket.SHUT_WR)
    sys.stdout.write(b"".join(iter(lambda: channel.recv(65536), b"")).decode())
    sys.stdout.flush()
    os.close(1)
if stay == "stay":
    sys.stdin.read()
"""


class Decider:
    """Gives the same edits to all, and notes what it hears."""

    def __init__(self, directory):
        self.asked = []
        self.ledger = ledger.Ledger()
        self.records = recorder.Recorder()
        self.records.open(directory / records.DIRECTORY)
        self.stopped = asyncio.Queue()
        self.refusal = None

    async def create_container(self, container, deadline):
        self.asked.append(container)
        if self.refusal:
            raise self.refusal
        plan = pipeline.Plan(decision=pipeline.Decision.INJECT, driver_version="1")
        decided = ledger.Decided(time=1.0, container=container, plan=plan, duration_ms=0)
        self.ledger.record(decided)
        self.records.decided(decided)
        return EDITS

    async def stop_container(self, container_id):
        self.ledger.drop(container_id)
        self.records.ended(container_id, 2.0)
        self.stopped.put_nowait(container_id)

    @property
    def held(self):
        return [key for key, entry in self.ledger.entries.items() if entry.door == "runtime"]


@contextlib.asynccontextmanager
async def opened():
    """Yield a door with its decider."""
    with tempfile.TemporaryDirectory(prefix="nnr-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        decider = Decider(Path(name))
        holders = runtimeholders.Holders(decider.ledger, decider.records, decider.stop_container)
        door = runtimedoor.RuntimeDoor(decider, holders)
        await door.open(f"{name}/runtime.sock")
        try:
            yield door, decider
        finally:
            await door.close()
            holders.close()
            await decider.records.close()
        assert not Path(f"{name}/runtime.sock").exists()


@contextlib.asynccontextmanager
async def asking(door, question=QUESTION, *, uid=0, stay=False, shell=False):
    """Yield another process's answer, and the process, while that is there."""
    words = [
        sys.executable,
        "-c",
        ASKER,
        str(uid),
        door.path,
        "stay" if stay else "",
    ]
    if shell:
        # One that starts the asker and lives on, as a shim does.
        words = ["sh", "-c", '"$@"; exec >&-; read -r line', "sh", *words]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdin.write(json.dumps(question).encode() + b"\n")
    try:
        yield json.loads(await process.stdout.read()), process
    finally:
        process.stdin.close()
        await process.wait()


async def test_root_is_told_what_its_container_gets():
    """The edits as the patch that the client applies; the container is what its spec says."""
    async with opened() as (door, decider), asking(door) as (answer, _):
        assert answer["patch"]["devices"][0]["path"] == "/dev/nvidia0"
        (container,) = decider.asked
        shown = (container.id, container.namespace, container.pod, container.name)
        assert shown == ("x/runtime", "team", "pod", "main")
        assert (container.privileged, container.user_namespace) == (True, False)
        assert decider.held == ["x/runtime"]


async def test_a_users_word_counts_as_much_as_his_rights():
    """Never privileged, in no pod, in a user namespace, told apart from root's of the same id."""
    async with opened() as (door, decider), asking(door, uid=1234) as (answer, _):
        assert answer["patch"]
        (container,) = decider.asked
        assert (container.id, container.name, container.pod) == ("x/1234", "x", "")
        assert (container.namespace, container.pod_uid) == ("", "")
        assert (container.privileged, container.user_namespace) == (False, True)
        assert (container.annotations, container.pod_annotations) == ({}, {})
        assert [mount.destination for mount in container.mounts] == ["/data"]


async def test_no_spec_says_whose_gpus_a_container_may_share():
    """A pod's author may have written such annotations (CRI-O copies them): NRI alone tells."""
    async with opened() as (door, decider), asking(door):
        assert decider.asked[0].sandbox == ""


async def test_a_nested_roots_container_is_in_a_user_namespace():
    """A rootless engine's own root."""
    question = {**QUESTION, "nested": True}
    async with opened() as (door, decider), asking(door, question):
        assert decider.asked[0].user_namespace


async def test_a_refusal_is_told_with_its_hint():
    """The caller shows it to whoever asked."""
    async with opened() as (door, decider):
        decider.refusal = errors.RequestError("no such GPU", hint="look")
        async with asking(door) as (answer, _):
            assert answer == {"message": "no such GPU (look)"}
            assert decider.held == []


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ([], "not the question"),
        ({}, "not the question"),
        ({**QUESTION, "spec": []}, "not the question"),
        ({**QUESTION, "id": 1}, "not the question"),
        ({**QUESTION, "protocol": 2}, "speaks version 2, this daemon 1"),
        ({**QUESTION, "spec": {"mounts": [1]}}, "not an OCI config.json"),
    ],
)
async def test_what_is_no_question_is_refused(question, told):
    """Nothing is decided on it."""
    async with opened() as (door, decider), asking(door, question) as (answer, _):
        assert told in answer["message"]
        assert decider.asked == []


async def ask(door, data):
    """Send bytes from this process; give the answer."""
    reader, writer = await asyncio.open_unix_connection(door.path)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        writer.write_eof()
        await writer.drain()
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100000])
async def test_garbage_is_refused(data):
    """Bytes that are no JSON."""
    async with opened() as (door, _):
        assert "not the question" in json.loads(await ask(door, data))["message"]


async def test_a_question_that_is_too_long_is_refused():
    """More than a configuration can be is refused with a sentence."""
    async with opened() as (door, decider):
        told = await ask(door, b" " * (5 << 20))
        assert b"is 5242880 bytes, more than 4194304 (shorten its environment)" in told
        assert decider.asked == []


async def test_the_end_of_who_started_the_caller_ends_the_container():
    """As containerd's shim and conmon do; the caller itself has become the runtime and is gone."""
    async with opened() as (door, decider):
        async with asking(door, shell=True):
            assert decider.held == ["x/runtime"]
            assert decider.stopped.empty()
        assert await asyncio.wait_for(decider.stopped.get(), 10) == "x/runtime"


async def test_the_end_of_a_caller_that_stays_ends_the_container():
    """`run` in the foreground."""
    question = {**QUESTION, "stays": True}
    async with opened() as (door, decider):
        async with asking(door, question, stay=True):
            assert decider.stopped.empty()
        assert await asyncio.wait_for(decider.stopped.get(), 10) == "x/runtime"


async def test_a_container_started_again_is_watched_anew():
    """The end of the first try's process is not the end of the second."""
    async with opened() as (door, decider):
        async with asking(door, {**QUESTION, "stays": True}, stay=True):
            async with asking(door, shell=True):
                pass
            await asyncio.wait_for(decider.stopped.get(), 10)
        assert decider.stopped.empty()


async def test_a_new_daemon_knows_who_holds_what():
    """By the records of the one before, of those whose process is still that one."""
    question = {**QUESTION, "stays": True}
    async with opened() as (door, decider):
        directory = Path(door.path).parent
        async with asking(door, question, stay=True), asking(door, {**question, "id": "gone"}):
            pass
        async with asking(door, question, stay=True):
            await decider.records.ask(lambda _: None)
            later = Decider(directory)
            kept = later.records
            holders = runtimeholders.Holders(later.ledger, kept, later.stop_container)
            await holders.adopt()
            assert later.held == ["x/runtime"]
            assert later.ledger.entries["x/runtime"].container.name == "main"
        assert await asyncio.wait_for(later.stopped.get(), 10) == "x/runtime"
        holders.close()
        await kept.close()


async def test_another_process_of_the_same_number_is_not_taken_for_it():
    """Numbers come again; the time of its start tells it."""
    question = {**QUESTION, "stays": True}
    async with (
        opened() as (door, decider),
        asking(door, question, stay=True) as (_, process),
    ):
        await decider.records.ask(lambda _: None)
        watched = {"watched": {"pid": process.pid, "start": 1}}
        await decider.records.ask(lambda store: store.change("x/runtime", watched))
        later = Decider(Path(door.path).parent)
        holders = runtimeholders.Holders(later.ledger, later.records, later.stop_container)
        await holders.adopt()
        assert later.held == []
        assert later.stopped.get_nowait() == "x/runtime"
        await later.records.close()


async def test_users_wait_for_each_other_and_root_for_none_of_them():
    """A user who asks a lot at once does not keep root's containers, or NRI's, waiting."""
    async with opened() as (door, decider):
        decided, going = decider.create_container, asyncio.Event()
        at_once, most = 0, 0

        async def slowly(container, deadline):
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            if not container.id.endswith("/runtime"):
                await going.wait()
            at_once -= 1
            return await decided(container, deadline)

        decider.create_container = slowly
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(_asked(door, {**QUESTION, "id": f"u{number}"}, 1234))
            while not at_once:
                await asyncio.sleep(0.01)
            await _asked(door, QUESTION, 0)
            going.set()
        assert most == 2  # one user's, and root's
        assert len(decider.asked) == 5


async def _asked(door, question, uid):
    async with asking(door, question, uid=uid) as (answer, _):
        assert answer["patch"]


async def test_what_users_hold_is_bounded(monkeypatch):
    """A user may name any number of containers: the oldest are forgotten, root's never."""
    monkeypatch.setattr(runtimeholders, "_MOST_OF_USERS", 3)
    question = {**QUESTION, "stays": True}
    async with opened() as (door, decider), contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(asking(door, question, stay=True))
        for number in range(5):
            named = {**question, "id": f"u{number}"}
            await stack.enter_async_context(asking(door, named, uid=1234, stay=True))
        assert [await decider.stopped.get() for _ in range(2)] == ["u0/1234", "u1/1234"]
        assert decider.held == ["x/runtime", "u2/1234", "u3/1234", "u4/1234"]


async def test_a_users_question_is_to_be_short():
    """What takes long to read is not taken from everybody."""
    long = {**QUESTION, "spec": {"process": {"env": ["A=" + "x" * (1 << 18)]}}}
    async with opened() as (door, _):
        async with asking(door, long, uid=1234) as (answer, _):
            assert "more than 262144" in answer["message"]
        async with asking(door, {**long, "id": "y"}) as (answer, _):
            assert answer["patch"]


async def test_the_end_of_a_cgroup_is_seen_when_somebody_asks(monkeypatch):
    """A pod's shim outlives the pod's containers; what was never seen from here says nothing."""
    there = {"/pods/a"}
    monkeypatch.setattr(cgroups, "exists", lambda path: path in there)
    monkeypatch.setattr(runtimeholders, "_MADE", (0,))
    async with opened() as (door, decider):
        for name, uid in (("a", 0), ("b", 0), ("c", 1234)):
            spec = {**SPEC, "linux": {"cgroupsPath": "/pods/a" if uid else f"/pods/{name}"}}
            async with asking(door, {**QUESTION, "id": name, "spec": spec}, uid=uid):
                pass
        door._holders.look()
        await asyncio.sleep(0)
        assert decider.held == ["a/runtime", "b/runtime", "c/1234"]
        there.clear()
        door._holders.look()
        assert await decider.stopped.get() == "a/runtime"
        assert decider.held == ["b/runtime", "c/1234"]


@pytest.mark.parametrize(
    ("identifier", "annotations", "name"),
    [
        ("ab" * 32, {}, "ab" * 6),
        ("ab" * 32, {"nerdctl/name": "web"}, "web"),
        ("my-container", {}, "my-container"),
    ],
)
async def test_a_container_is_shown_by_a_name_that_people_know(identifier, annotations, name):
    """config.json seldom has the engine's own."""
    question = {**QUESTION, "id": identifier, "spec": {**SPEC, "annotations": annotations}}
    async with opened() as (door, decider), asking(door, question):
        assert (decider.asked[0].name, decider.asked[0].id) == (name, f"{identifier}/runtime")


async def test_the_program_that_asks_follows_the_settings(caplog):
    """The texts to look for are the settings'; what keeps it from its place is said."""
    async with opened() as (door, _):
        folder = Path(door.path).parent / "runtime"
        keeping = asyncio.create_task(door.keep_client(hookplace.HookPlace()))
        hook = model_config.Hook(enabled=False)

        async def until(condition):
            async with asyncio.timeout(30):
                while not condition():
                    await asyncio.sleep(0.02)

        def looked_for(text):
            path = folder / "nri-nvidia-client"
            return path.exists() and text in (folder / "markers").read_bytes().split(b"\n")

        door.use(hook, (b"FIRST=",))
        await until(lambda: looked_for(b"FIRST="))
        door.use(hook, (b"SECOND=",))
        await until(lambda: looked_for(b"SECOND=") and not looked_for(b"FIRST="))
        folder.chmod(0o777)
        door.use(hook, (b"THIRD=",))
        await until(lambda: "can be written by others" in caplog.text)
        assert looked_for(b"SECOND=")
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
