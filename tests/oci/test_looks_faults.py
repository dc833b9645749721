# SPDX-License-Identifier: Apache-2.0
"""Who sees whether a container asks for anything is killed, blocked, or has its files taken away."""

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nri_nvidia.oci import caller, install, looks, view, warm
from tests.daemon import stalls

from . import standing
from .test_client import PATCH, answering, interpreter, place
from .test_looks import asked, grepped, looker, one_looks, running, without_grep
from .test_runtime_front import FRONT
from .test_warm import children, until
from .test_warm_runtime import PLAIN, call

__all__ = ("interpreter", "place", "running", "without_grep")
needs_fuse = pytest.mark.skipif(
    not Path(stalls.DEVICE).exists(), reason="the kernel has no FUSE here"
)


@contextlib.contextmanager
def instead(place, act):
    """Do something to each question, where nobody else answers; gives how often it was in time."""
    folder = place / "run/warm" / looks.LOOKS
    folder.mkdir(parents=True)
    done, ending = [], threading.Event()

    def serve():
        while not ending.is_set():
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if name.isdigit() and (folder / name).stat().st_size:
                        act(folder / name)
                        done.append(name)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield done
    finally:
        ending.set()
        thread.join()


def ask_until(done, place, prefix):
    """Create containers that ask for nothing until one was answered; gives whether grep was."""
    for _ in range(100):
        (place / "run/warm/looks/late").unlink(missing_ok=True)
        before = len(done)
        with answering(place, {"patch": PATCH}):
            assert call(place, spec=PLAIN, prefix=prefix)[0] == 0
        found = grepped(place)
        if len(done) > before:
            return found
    pytest.fail("it was never in time")


@pytest.mark.parametrize("what", ["nothing", "something"])
def test_what_is_an_answer(place, without_grep, what):
    """By these words no grep is started; so what follows here is about others."""
    mode = looks.NOTHING

    def act(path):
        path.chmod(mode) if what == "nothing" else os.truncate(path, 0)

    with instead(place, act) as done:
        while ask_until(done, place, without_grep):
            pass


def test_a_question_that_is_taken_away(place, without_grep):
    """By one that is started anew, say: grep says it, and no daemon is asked over it."""
    with instead(place, os.unlink) as done:
        for _ in range(10):
            assert ask_until(done, place, without_grep)


def test_the_answer_of_another_of_its_number(place, without_grep):
    """In a pid namespace each number is there again: only what was done to its own file counts."""

    def act(path):
        other = path.with_name("other")
        other.write_text("\n")
        other.chmod(0o5600)
        other.rename(path)

    with instead(place, act) as done:
        for _ in range(10):
            assert ask_until(done, place, without_grep)


def test_one_that_is_killed_before_it_asks(running):
    """And one on a full disk: it has made a file, and nothing is in it."""
    for name in ("4194304", looks.LATE):
        (running.folder / looks.LOOKS / name).touch()
        until(lambda: not asked(running), "it is removed")


def test_one_that_is_killed_over_what_it_was_told(place, running):
    """Who follows does not know that it was late, and yet is asked again."""
    child = one_looks(running)
    os.kill(running.process.pid, signal.SIGSTOP)
    os.kill(child, signal.SIGSTOP)
    (running.folder / looks.LOOKS / looks.LATE).write_text("\n")
    with contextlib.closing(taken_from(running.process.pid)) as events:
        assert events.read(4096)
    os.kill(child, signal.SIGKILL)
    os.kill(running.process.pid, signal.SIGCONT)
    until(lambda: looker(running) not in (0, child), "another one looks")
    until(lambda: not asked(running), "it has cleared up")


def taken_from(pid):
    """Give what a process is told of its directory by, to read it in its place."""
    number = next(
        int(each.name)
        for each in Path(f"/proc/{pid}/fdinfo").iterdir()
        if "inotify" in each.read_text()
    )
    watched = os.pidfd_open(pid)
    try:
        return open(view.call("syscall", 438, watched, number, 0), "rb", buffering=0)
    finally:
        os.close(watched)


def test_more_than_it_is_told_of(tmp_path):
    """Where the kernel has lost something, all that is there is removed."""
    found = looks.Looks(str(tmp_path), "", view.call)
    (tmp_path / looks.LOOKS / looks.LATE).touch()
    os.close(found.events)
    found.events, writing = os.pipe()
    os.write(writing, struct.pack("=iIII", -1, looks.LOST, 0, 0))
    found.answer()
    assert list((tmp_path / looks.LOOKS).iterdir()) == []
    os.close(writing)
    found.close()


def ask_whether_ready(running):
    """Ask it as the daemon does now and then."""
    running.process.stdin.write(b"\n")
    running.process.stdin.flush()
    assert running.process.stdout.readline() == b"ready\n"


def test_one_that_is_stopped_for_long_is_replaced(place, running):
    """As soon as it is late at two looks of the daemon's."""
    child = one_looks(running)
    os.kill(child, signal.SIGSTOP)
    assert call(place, spec=PLAIN)[:2] == (0, "")
    assert looks.LATE in asked(running)
    ask_whether_ready(running)
    assert one_looks(running) == child
    ask_whether_ready(running)
    until(lambda: looker(running) not in (0, child), "another one looks")
    until(lambda: not asked(running), "it is asked again")
    until(lambda: child not in children(running.process), "the first one has ended")


@needs_fuse
def test_a_file_that_cannot_be_read(place, running):
    """Who waits for it and cannot be killed is replaced, a few times: they are not to pile up."""
    stuck, callers, folder = [], [], place / "fuse"
    folder.mkdir()
    patient = place / "patient"
    patient.write_text(FRONT.read_text().replace("-gt 300", "-gt 20000"))
    with stalls.unreadable(folder):
        try:
            for _ in range(warm.MOST_STUCK + 1):
                until(lambda: not asked(running), "one is asked")
                stuck.append(one_looks(running))
                env = {"NRI_NVIDIA_RUN": f"{place}/run", "NRI_NVIDIA_RUNTIME": "/bin/true"}
                command = ["sh", patient, "create", "--bundle", folder, "the-id"]
                callers.append(subprocess.Popen(command, env={**os.environ, **env}))
                until(lambda: not looker(running) and looks.LATE in asked(running), "it is late")
                for _ in range(3):
                    ask_whether_ready(running)
            assert not looker(running)
            assert call(place, spec=PLAIN)[:2] == (0, "")
            assert set(stuck) <= set(children(running.process))
        finally:
            for each in callers:
                each.kill()
    for each in callers:
        each.wait(30)
    until(lambda: not set(stuck[:-1]) & set(children(running.process)), "they have ended")
    until(lambda: not asked(running), "it is asked again")


def test_without_its_directory(running, python_hook, place):
    """It ends, so that it is started anew."""
    standing.end(running)
    text = Path(python_hook[-1]).with_name(f"{install.WARM}.py").read_text()
    assert text.count("LOOK = 15.0") == 1
    (place / "impatient.py").write_text(text.replace("LOOK = 15.0", "LOOK = 0.1"))
    impatient = standing.start(python_hook, place / "run", place / "impatient.py")
    try:
        (impatient.folder / looks.LOOKS).rename(impatient.folder / "moved")
        (impatient.folder / looks.LOOKS).mkdir()
        impatient.process.wait(30)
    finally:
        standing.end(impatient)


def test_a_file_that_has_become_longer():
    """What is behind the longest is not overlooked: the kernel says of this one that it is empty."""
    assert os.stat("/proc/self/status").st_size == 0
    with pytest.raises(caller.NotServed):
        caller.read("/proc/self/status", 10)


def test_a_descriptor_where_there_is_no_proc(place, running):
    """Whether it is open is not to be seen there; it reaches the runtime."""
    (place / "real").write_text(f"#!/bin/sh\ncat <&8 >{place}/out/started\n")
    text = 'mount -t tmpfs none /proc; exec "$@" 8</etc/passwd'
    call(place, spec=PLAIN, prefix=["unshare", "--mount", "sh", "-c", text, "-"])
    assert (place / "out/started").read_text() == Path("/etc/passwd").read_text()


@needs_fuse
def test_a_descriptor_that_may_not_be_looked_at(place, running):
    """Also of a file that is hidden from root, as users' FUSE is: it reaches the runtime."""
    real = place / "real"
    real.write_text(f"#!/bin/sh\nreadlink /proc/self/fd/8 >{place}/out/started\n")
    code = (
        "import os, sys\n"
        "os.dup2(os.open(sys.argv[1], os.O_PATH), 8)\n"
        "os.execv(sys.argv[2], sys.argv[2:])\n"
    )
    folder = place / "fuse"
    folder.mkdir()
    with stalls.mounted(folder, "user_id=1000"):
        prefix = [sys.executable, "-c", code, folder]
        call(place, spec=PLAIN, prefix=prefix)
    assert (place / "out/started").read_text() == f"{folder}\n"
