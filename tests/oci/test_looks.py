# SPDX-License-Identifier: Apache-2.0
"""Who stands ready sees whether a container asks for anything: as grep does, or not at all."""

import json
import os
import posix
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia.oci import install, looks, view

from . import standing
from .test_client import PATCH, answering, interpreter, place, put
from .test_runtime_front import FRONT
from .test_warm import children, until
from .test_warm_runtime import ASKING, PLAIN, call

__all__ = ("interpreter", "place")
MARKERS = (
    b"NVIDIA_VISIBLE_DEVICES=",
    b"CUDA_VERSION=",
    b"nvidia-container-devices",
    b"cdi.k8s.io/",
)


@pytest.fixture
def running(place, python_hook):
    """A process that stands ready, for settings that look for MARKERS."""
    (place / "run/runtime/markers").write_bytes(install.marker_file(MARKERS))
    found = standing.start(python_hook, place / "run")
    yield found
    standing.end(found)


@pytest.fixture
def without_grep(place):
    """Give the environment in which grep says that everything asks, and that it was started."""
    folder = place / "out/bin"
    folder.mkdir()
    (folder / "grep").write_text(f"#!/bin/sh\necho >>{place}/out/grep\nexit 0\n")
    (folder / "grep").chmod(0o755)
    return ["env", f"PATH={folder}:/usr/sbin:/usr/bin:/sbin:/bin"]


def grepped(place):
    """Whether grep was started, since it was last asked."""
    found = (place / "out/grep").exists()
    (place / "out/grep").unlink(missing_ok=True)
    return found


def looker(running):
    """Give the child that looks, and is not busy; 0 for none: the others wait in read(2)."""
    found = [child for child in children(running.process) if waits_for_files(child)]
    return found[0] if found else 0


def waits_for_files(process):
    """Whether it is in pselect(2) or select(2), of this machine or another one."""
    try:
        number = Path(f"/proc/{process}/syscall").read_text().split()[0]
    except OSError:
        return False
    return number in {"270", "72", "23"}


def one_looks(running):
    """Wait for the child that looks."""
    until(lambda: looker(running), "one looks")
    return looker(running)


def asked(running):
    """Give what lies in the directory."""
    return sorted(path.name for path in (running.folder / looks.LOOKS).iterdir())


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_container_that_asks_for_nothing(place, running, without_grep, shell):
    """It is the runtime's at once, as it was, and nothing is left of the question."""
    for _ in range(20):
        status, errors, words, _ = call(place, spec=PLAIN, prefix=[*without_grep, shell])
        assert (status, errors, words[0], words[-1]) == (0, "", "create", "the-id")
        if not grepped(place):
            break
    else:
        pytest.fail("it never answered in time")
    until(lambda: not asked(running), "the answer is removed")


def test_a_container_that_asks(place, running, without_grep):
    """The daemon is asked, and its edits are made; grep is not started for it."""
    for _ in range(20):
        with answering(place, {"patch": PATCH}) as heard:
            status, errors, words, _ = call(place, spec=ASKING, prefix=without_grep)
        assert (status, errors, words[-1], len(heard)) == (0, "", "the-id", 1)
        if not grepped(place):
            break
    else:
        pytest.fail("it never answered in time")


def test_one_that_is_stopped_keeps_nobody(place, running):
    """grep says it; after the first nobody asks, until it goes on."""
    child = one_looks(running)
    os.kill(child, signal.SIGSTOP)
    assert call(place, spec=PLAIN)[:2] == (0, "")
    left = asked(running)
    assert looks.LATE in left
    assert len(left) == 2
    for _ in range(3):
        assert call(place, spec=PLAIN)[:2] == (0, "")
    assert asked(running) == left
    with answering(place, {"patch": PATCH}) as heard:
        assert call(place, spec=ASKING)[:2] == (0, "")
    assert len(heard) == 1
    os.kill(child, signal.SIGCONT)
    until(lambda: not asked(running), "it is asked again, and what nobody waits for is gone")


def test_one_that_is_killed_is_replaced(place, running):
    """Until then grep says it."""
    first = one_looks(running)
    os.kill(first, signal.SIGKILL)
    assert call(place, spec=PLAIN)[:2] == (0, "")
    until(lambda: looker(running) not in (0, first), "another one looks")
    until(lambda: not asked(running), "it has cleared up")


def test_what_was_left_by_one_before(place, running, python_hook):
    """A question of a process that is no more is not kept; nor is that nobody is to ask."""
    running.process.kill()
    running.process.wait()
    folder = running.folder / looks.LOOKS
    for name in ("1", "77", looks.LATE):
        (folder / name).write_text("\n")
    again = standing.start(python_hook, place / "run")
    assert asked(again) == []
    standing.end(again)


def test_settings_that_change(place, running, without_grep):
    """What is looked for is what the daemon last wrote."""
    spec = {**PLAIN, "process": {**PLAIN["process"], "env": ["OTHER_RESOURCE=GPU-1"]}}
    assert call(place, spec=spec)[:2] == (0, "")
    new = place / "run/runtime/new"
    new.write_bytes(install.marker_file((b"OTHER_RESOURCE=",)))
    new.rename(place / "run/runtime/markers")
    with answering(place, {"patch": PATCH}) as heard:
        assert call(place, spec=spec, prefix=without_grep)[:2] == (0, "")
    assert len(heard) == 1
    (place / "run/runtime/markers").unlink()
    grepped(place)
    with answering(place, {"patch": PATCH}):
        call(place, spec=PLAIN, prefix=without_grep)
    assert grepped(place), "without the texts there is no saying that it asks for nothing"


def test_a_long_configuration_is_greps(place, running, without_grep):
    """It is not read into memory here."""
    spec = {**PLAIN, "annotations": {"long": "x" * looks.LONGEST_CONFIG}}
    with answering(place, {"patch": PATCH}):
        call(place, spec=spec, prefix=without_grep)
    assert grepped(place)
    assert call(place, spec=spec)[:2] == (0, "")


@pytest.mark.parametrize("number", [8, 9])
def test_descriptors_of_the_containers(place, running, without_grep, number):
    """What an engine hands on reaches the runtime, and nobody is asked by its number."""
    real = place / "real"
    real.write_text(f"#!/bin/sh\nreadlink /proc/self/fd/{number} >{place}/out/started\n")
    with answering(place, {"patch": PATCH}):
        prefix = [*without_grep, "sh", "-c", f'exec "$@" {number}</etc/passwd', "sh"]
        assert call(place, spec=PLAIN, prefix=prefix)[0] == 0
    assert (place / "out/started").read_text() == "/etc/passwd\n"
    assert grepped(place)


@pytest.mark.parametrize("spec", [PLAIN, ASKING])
def test_its_number_is_another_ones_here(place, running, spec):
    """In a pid namespace of its own: nothing is known of it, and grep says it."""
    prefix = ["unshare", "--pid", "--fork"]
    with answering(place, {"patch": PATCH}) as heard:
        assert call(place, spec=spec, prefix=prefix)[:2] == (0, "")
    assert len(heard) == (spec is ASKING)


def test_a_user_has_nobody_to_ask(place, running, without_grep):
    """The directory is root's alone."""
    folder = running.folder / looks.LOOKS
    assert folder.stat().st_mode & 0o777 == 0o700
    put(place, json.dumps(PLAIN))
    for path in (place, *place.parents[:-1]):
        path.chmod(path.stat().st_mode | 0o055)
    (place / "out").chmod(0o777)
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *without_grep]
    call(place, prefix=prefix)
    assert grepped(place)


def test_a_question_of_nobody(running):
    """One that is no process's, or of one which holds another file: not answered by a word."""
    folder = running.folder / looks.LOOKS
    for name in ("1", str(os.getpid()), "4194305", "9" * 30, "no number", "\u0663", "\udcff"):
        (folder / name).write_text("\n")
        path = folder / name
        until(lambda path=path: not path.exists(), "it is put off")


def test_without_anything_to_be_told_by(tmp_path):
    """Where inotify is used up there is no directory, and so nobody asks."""

    def call_(name, *_arguments):
        raise OSError(24, name)

    (tmp_path / looks.LOOKS).mkdir()
    (tmp_path / looks.LOOKS / "12").write_text("\n")
    found = looks.Looks(str(tmp_path), str(tmp_path / "markers"), call_)
    assert found.events == -1
    assert not (tmp_path / looks.LOOKS).exists()


def test_a_directory_that_is_none(tmp_path):
    """It makes room for one; what a link leads to is left alone."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "12").write_text("\n")
    (tmp_path / looks.LOOKS).symlink_to(other)
    for _ in range(2):
        found = looks.Looks(str(tmp_path), "", view.call)
        assert found.is_there()
        assert stat.S_ISDIR((tmp_path / looks.LOOKS).lstat().st_mode)
        assert (other / "12").exists()
        found.close()
        (tmp_path / looks.LOOKS).write_text("a file")


class Asking:
    """This process as the script is: it has the file that asks, and the configuration, open."""

    def __init__(self, folder):
        self.folder = folder
        self.markers, self.config = folder / "markers", folder / "config.json"
        self.markers.write_bytes(install.marker_file(MARKERS))
        self.looks = looks.Looks(str(folder), str(self.markers), view.call)

    def ask(self, text):
        """Give whether it is told that nothing is asked for."""
        self.config.write_bytes(text)
        code = (
            "import os, sys\n"
            "os.dup2(os.open(sys.argv[1], os.O_RDONLY), 9)\n"
            "place = f'{sys.argv[2]}/{os.getpid()}'\n"
            "os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL), 8)\n"
            "os.write(8, b'\\n')\nprint(place, flush=True)\nsys.stdin.read()\n"
        )
        command = ["python3", "-I", "-S", "-c", code, str(self.config), self.looks.directory]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
            path = Path(process.stdout.readline().strip())
            self.looks.answer()
            told = path.stat()
            process.stdin.close()
        assert bool(told.st_size) == bool(told.st_mode & 0o1000), "it is answered"
        return bool(told.st_size)

    def grep(self):
        """Give whether grep finds nothing."""
        command = ["grep", "-q", "-F", "-f", str(self.markers), "--", str(self.config)]
        return subprocess.run(command, check=False, env={"LC_ALL": "C"}).returncode == 1


PIECES = st.sampled_from(
    [*MARKERS, *install.ESCAPES, b"\\", b"\n", b"\0", b"NVIDIA_VISIBLE_DEVICES", b"\xff\xfe", b"{",
     b"nvidia-container-", b"devices", b"\\u00", b"4", b"cdi.k8s.io", b'\\"', b"\\n"]
)  # fmt: skip


@pytest.fixture(scope="module")
def asking(tmp_path_factory):
    """What looks, in this process."""
    return Asking(tmp_path_factory.mktemp("asking"))


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(PIECES, max_size=5))
def test_it_sees_what_grep_does(asking, pieces):
    """Whatever is in the file."""
    assert asking.ask(b"".join(pieces)) == asking.grep()


def test_one_that_has_gone_on_is_not_told(asking):
    """Its number may be another's by now: whoever closed the file is not answered."""
    name = str(os.getpid())
    path = Path(asking.looks.directory) / name
    with path.open("w") as file:
        file.write("\n")
        file.flush()
        asking.looks.answer()
        assert not path.exists()


def test_very_many_questions(asking):
    """More than the kernel tells of at a time are put off or answered, and none is left."""
    folder = Path(asking.looks.directory)
    for number in range(4000000, 4000700):
        (folder / str(number)).write_text("\n")
    end = time.monotonic() + 20
    while posix.listdir(folder):
        asking.looks.answer()
        assert time.monotonic() < end


def test_the_front_asks_before_it_starts_anything():
    """Its text has the name of the directory, and of what is left there, that are used here."""
    text = FRONT.read_text()
    assert f"looks=$warm/{looks.LOOKS}" in text
    assert f'"$looks/{looks.LATE}"' in text
    assert f"{looks.CONFIG_END}<" in text
    assert f"{looks.ASKING_END}>" in text
