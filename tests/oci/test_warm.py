# SPDX-License-Identifier: Apache-2.0
"""A process that stands ready does what a hook would, or nothing at all."""

import contextlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from nri_nvidia.oci import install, slots, unread, view

from . import bundles, standing


@pytest.fixture
def running(place, python_hook):
    """A process that stands ready for the hook, and that a test may end."""
    found = standing.start(python_hook, place)
    yield found
    standing.end(found)


@pytest.fixture
def ready(case, running, python_hook):
    """A Debian image, and a hook that the process does, or Python where that does not."""
    case.hook = command(python_hook, running)
    return case.make("debian").put_driver_in_root()


def command(python_hook, running, *shell):
    """Give the hook's command with an interpreter that is there."""
    return [*(shell or ["/bin/sh"]), f"{python_hook[-1]}.sh", str(running.folder), *python_hook]


def content(root):
    """Give what a root holds: of each file its mode, owner, and content or target."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        what = os.readlink(path) if path.is_symlink() else b""
        what = path.read_bytes() if stat.S_ISREG(status.st_mode) else what
        found[str(path.relative_to(root))] = status.st_mode, status.st_uid, what
    return found


def children(process):
    """Give the pids of those that wait or work."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split()]


def until(condition, what):
    """Wait until something is so."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def taken(running):
    """Give the slots that somebody has."""
    return sorted(path.name for path in running.folder.glob("*.taken"))


def is_asked(running):
    """Whether there is a request that nobody has read."""
    with (running.folder / "requests").open("r+b", buffering=0) as requests:
        return bool(select.select([requests], [], [], 0)[0])


def begin(ready):
    """Start a hook whose runtime has not told yet what the container is."""
    (ready.bundle / "config.json").write_text('{"root": {"path": "rootfs"}}')
    pipe = subprocess.PIPE
    return subprocess.Popen(ready.command(), stdin=pipe, stderr=pipe, env={"LC_ALL": "C"})


def finish(ready, hook):
    """Tell it; give exit status and errors."""
    with contextlib.suppress(BrokenPipeError):
        hook.stdin.write(json.dumps({"id": "late", "bundle": str(ready.bundle)}).encode())
    with contextlib.suppress(BrokenPipeError):
        hook.stdin.close()
    hook.stdin = None
    errors = hook.communicate(timeout=60)[1].decode()
    return hook.returncode, errors


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_it_does_what_python_does(case, python_hook, running, shell):
    """What it leaves in a root and reports is what Python would; no Python is started."""
    absent = ["/nowhere/python3", *python_hook[1:]]
    left = {}
    for each in (python_hook, command(absent, running, shutil.which(shell))):
        shutil.rmtree(case.root, ignore_errors=True)
        case.hook = each
        result = case.make("debian").put_driver_in_root().direct()
        assert (result.status, result.errors) == (0, "")
        steps = [(step["name"], step["ok"], step["message"]) for step in result.report["steps"]]
        left[each[0]] = content(case.root), steps, result.report["token"], result.report["id"]
    one, other = left.values()
    assert one == other
    assert "etc/ld.so.conf.d/00-nri-nvidia.conf" in one[0]


def test_where_nobody_stands_ready_python_does_it(ready, running):
    """After its end, and before any was there, each hook is a Python of its own."""
    standing.end(running)
    assert ready.direct().report["ok"]
    assert taken(running) == ["1.taken"]
    shutil.rmtree(running.folder)
    assert ready.direct().report["ok"]
    assert not running.folder.exists()


def test_one_that_dies_before_anything_is_done(ready, running):
    """A hook that waits for a process which is killed goes on as Python at once."""
    for child in children(running.process):
        os.kill(child, signal.SIGSTOP)
    hook = begin(ready)
    until(lambda: taken(running), "a slot is taken")
    running.process.kill()
    with ready.listen() as receive:
        assert finish(ready, hook) == (0, "")
        assert receive()["ok"]


@pytest.mark.parametrize("who", ["child", "all"])
def test_a_child_that_is_killed_at_work(case, python_hook, who):
    """The hook goes on as Python, and is told what the container is: that was left to be read."""
    once = case.place / "once"
    once.touch()
    path = Path(install.install(str(case.place / "hook")))
    main = path.with_name(f"{path.name}.py")
    killed = f"posix.kill(posix.getp{'' if who == 'child' else 'p'}id(), {signal.SIGKILL})"
    dying = f"if kind_of({str(once)!r}) == REGULAR:\n        posix.unlink({str(once)!r})\n"
    dying += f"        {killed}\n        _signal.pause()\n"
    text = main.read_text()
    behind = "root = find_root(state, config)\n"
    assert text.count(behind) == 1
    main.write_text(text.replace(behind, f"{behind}    {dying}"))
    python = [*python_hook[:-1], str(path)]
    running = standing.start(python, case.place)
    try:
        case.hook = command(python, running)
        result = case.make("debian").put_driver_in_root().direct()
        assert (result.status, result.errors, result.report["ok"]) == (0, "", True)
        assert not once.exists()
        if who == "child":
            until(lambda: not taken(running), "the slot is free")
    finally:
        standing.end(running)


def reads_state(pid, hook):
    """Whether a process has a hook's standard input open."""
    known = os.fstat(hook.stdin.fileno()).st_ino
    with contextlib.suppress(OSError):
        own = os.listdir(f"/proc/{pid}/fd")
        return any(os.stat(f"/proc/{pid}/fd/{fd}").st_ino == known for fd in own)
    return False


def test_a_runtime_that_loses_its_patience(ready, running):
    """With the hook its work ends: nothing is done in a root that is being removed."""
    hook = begin(ready)
    until(lambda: any(reads_state(pid, hook) for pid in children(running.process)), "it works")
    hook.kill()
    until(
        lambda: not any(reads_state(pid, hook) for pid in children(running.process)),
        "it has ended",
    )
    assert finish(ready, hook)[0] == -signal.SIGKILL
    until(lambda: not taken(running), "the slot is free")
    assert ready.direct().report["ok"]


def test_a_request_for_another_process(ready, running):
    """The number of a process that has not taken the slot has nothing done to that."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        (running.folder / "1.taken").write_text(f"{other.pid}\nhook\n\n")
        with (running.folder / "requests").open("wb", buffering=0) as requests:
            requests.write(b"%-31s\n" % (b"1 %d" % other.pid))
        until(lambda: not taken(running), "the slot is free")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert ready.direct().report["ok"]


def test_children_that_are_stopped(ready, running):
    """Where none reads a request from one question to the next, others take their place."""
    for child in children(running.process):
        os.kill(child, signal.SIGSTOP)
    ready.hook[3] = "/nowhere/python3"
    hook = begin(ready)
    until(lambda: is_asked(running), "it has asked")
    for _ in range(2):
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        assert running.process.stdout.readline() == b"ready\n"
    until(lambda: any(reads_state(pid, hook) for pid in children(running.process)), "one works")
    assert finish(ready, hook) == (0, "")


def test_a_request_by_another_than_has_the_slot(ready, running):
    """One that was stopped for so long that another has its slot takes nothing from that one."""
    before = set(children(running.process))
    (running.folder / "1.taken").write_text("1\nhook\n\n")
    with (running.folder / "requests").open("wb", buffering=0) as requests:
        requests.write(b"%-31s\n" % (b"1 %d" % os.getpid()))
    until(
        lambda: (
            not before <= set(children(running.process))
            and len(children(running.process)) == len(before)
        ),
        "it was read",
    )
    assert taken(running) == ["1.taken"]
    assert ready.direct().report["ok"]


@pytest.mark.parametrize(
    "junk",
    [b"\n", b"x" * 31 + b"\n", b"99 1\n", b"1 1 1\n", b"-1 7\n", b"\0" * 45 + b"\n", b"1 7\n"],
)
def test_what_is_no_request(ready, running, junk):
    """Bytes that are no request cost one of those that wait, and the next request is read."""
    with (running.folder / "requests").open("wb", buffering=0) as requests:
        requests.write(junk)
    until(lambda: not is_asked(running), "it was read")
    ready.hook[3] = "/nowhere/python3"
    until(lambda: ready.direct().status == 0, "it is done again")
    assert running.process.poll() is None


def test_a_caller_in_a_user_namespace(ready, running):
    """It may write to the pipe as root of its namespace, and has Python do it with its own rights."""
    result = ready.direct(prefix=["unshare", "--user", "--map-root-user", "--mount"])
    assert result.status == 0
    assert result.report["ok"] or "view" in bundles.failing(result)
    until(lambda: not taken(running), "the slot is free")
    ready.hook[3] = "/nowhere/python3"
    assert ready.direct(prefix=["unshare", "--user", "--map-root-user"]).status == 127
    assert ready.direct().status == 0


def test_one_that_counts_processes_otherwise(ready, running, python_hook, place):
    """In a pod with processes of its own it does nothing for those of the host by their numbers."""
    standing.end(running)
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *python_hook]
    other = standing.start(alone, place)
    try:
        for _ in range(3):
            assert ready.direct().report["ok"]
        until(lambda: not taken(other), "the slots are free")
        ready.hook[3] = "/nowhere/python3"
        assert ready.direct().status == 127
    finally:
        standing.end(other)


def test_another_hook(ready, running, python_hook):
    """One that was installed elsewhere is not done by this one's code."""
    ready.hook = command([*python_hook[:-1], "/nowhere/nri-nvidia-hook"], running)
    ready.hook[1] = f"{python_hook[-1]}.sh"
    ready.hook[3] = "/nowhere/python3"
    assert ready.direct().status == 127
    until(lambda: not taken(running), "the slot is free")


def test_as_many_at_once_as_may_come(ready, running):
    """Of 40 hooks at once all are done, by whom ever, and all slots are free afterwards."""
    state = json.dumps({"id": "many", "bundle": str(ready.bundle)})
    (ready.bundle / "config.json").write_text('{"root": {"path": "rootfs"}}')
    assert bundles.start_many(40, ready.command(), state) == [(0, "")] * 40
    until(lambda: not taken(running), "all are free")
    assert running.process.poll() is None


def test_nothing_is_left_of_many(ready, running):
    """After 60 hooks it has the descriptors and the children that it had."""

    def has():
        return len(os.listdir(f"/proc/{running.process.pid}/fd")), len(children(running.process))

    ready.hook[3] = "/nowhere/python3"
    ready.direct()
    until(lambda: has()[1] == 3 and not taken(running), "it is as at the start")
    before = has()
    for _ in range(60):
        assert ready.direct().status == 0
    until(lambda: has() == before and not taken(running), f"{before}, not {has()}")


def test_it_ends_with_its_standard_input(running):
    """Whoever started it has ended: so do it and those that wait, and no file is read any more."""
    waiting = children(running.process)
    assert len(waiting) == 3  # two that wait, and one that looks
    standing.end(running)
    assert running.process.returncode == 0
    until(lambda: not any(Path(f"/proc/{pid}/fd").exists() for pid in waiting), "they have ended")


@pytest.mark.parametrize("missing", ["sys_admin", "sys_chroot"])
def test_without_the_rights_it_needs(place, python_hook, missing):
    """Where it could enter no namespace it says so and ends, and no hook waits for it."""
    limited = ["setpriv", f"--bounding-set=-{missing}", f"--inh-caps=-{missing}", *python_hook]
    with pytest.raises(AssertionError, match="no other namespace may be entered: Operation not"):
        standing.start(limited, place)
    assert not (place / "warm/requests").exists()


def test_only_root_may_ask(running):
    """The directory, and each pipe in it, is root's alone."""
    for path in (running.folder, *running.folder.iterdir()):
        status = path.stat()
        assert (status.st_uid, status.st_mode & 0o077) == (0, 0) or path.name == "ask"


def test_a_slot_that_nobody_asks_by(place):
    """One that was taken and never asked by is free again after a while, not before."""
    slot = slots.Slot(str(place), "1")
    assert not slot.is_forgotten(100.0)
    (place / "1.taken").write_text("")
    assert not slot.is_forgotten(1000.0)
    assert not slot.is_forgotten(1000.0 + slots.FORGOTTEN)
    assert slot.is_forgotten(1001.0 + slots.FORGOTTEN)
    slot.renew()
    assert not (place / "1.taken").exists()
    os.close(slot.pipe)


def test_a_child_that_does_not_end_in_time(ready, running, python_hook, place):
    """It is killed after the time that it has, and who waits is told."""
    standing.end(running)
    text = Path(python_hook[-1]).with_name(f"{install.WARM}.py").read_text()
    assert text.count("LOOK = 15.0") == 1
    (place / "impatient.py").write_text(text.replace("LOOK = 15.0", "LOOK = 0.2"))
    impatient = standing.start(python_hook, place, place / "impatient.py", "0.2")
    try:
        hook = begin(ready)
        assert hook.wait(30) == 1
        assert hook.communicate()[1] == b"nri-nvidia: not done after 0.2 s\n"
        shutil.rmtree(impatient.folder)
        impatient.process.wait(30)  # nobody can ask it any more
    finally:
        standing.end(impatient)


def test_a_state_is_left_to_be_read():
    """A copy of what a pipe holds is whole, however long, and the pipe holds it still."""
    reading, writing = os.pipe()
    text = bytes(range(256)) * 2000
    thread = threading.Thread(target=lambda: (os.write(writing, text), os.close(writing)))
    thread.start()
    copy = unread.copied(os.open(f"/proc/self/fd/{reading}", os.O_RDONLY), view.call)
    thread.join()
    for each in (copy, reading):
        with open(each, "rb") as file:
            assert file.read() == text


def test_what_is_no_pipe_is_read_itself(tmp_path):
    """Of a file there is no copy: it is not taken away by reading."""
    (tmp_path / "state").write_text("{}")
    with (tmp_path / "state").open("rb") as file:
        assert unread.copied(file.fileno(), view.call) == file.fileno()
