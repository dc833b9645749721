# SPDX-License-Identifier: Apache-2.0
"""Programs of the host's that end as they should, or do not."""

import os
import pathlib

import pytest

from nri_nvidia.host import child


def run(script, *, seconds=30.0, limit=1000):
    return child.run(["/bin/sh", "-c", script], {"PATH": "/bin"}, seconds=seconds, limit=limit)


def test_output_and_status_come_back():
    """Both outputs, the status, and the last line of what it complained of."""
    ended = run("echo out; echo first >&2; echo 'last one' >&2; exit 3")
    assert (ended.status, ended.output, ended.errors) == (3, b"out\n", b"first\nlast one\n")
    assert ended.said == "last one"
    assert run("exit 4").said == "exit status 4"


def test_a_signal_is_named():
    """One that dies of a signal says of which."""
    assert run("kill -SEGV $$").said == "it died of SIGSEGV"
    assert child.signal_name(200) == "signal 200"


def test_environment_is_what_is_given():
    """Nothing of this process' own reaches it, and there is nothing to read."""
    assert run("echo $HOME$USER; cat").output == b"\n"


def test_at_the_limit_all_of_it_is_killed(tmp_path):
    """A program that hangs ends with what it started, though that holds its outputs open."""
    pid = tmp_path / "pid"
    ended = run(f"sleep 1000 & echo $! > {pid}; wait", seconds=0.5)
    assert (ended.late, ended.much) == (True, False)
    stat = pathlib.Path("/proc", pid.read_text().strip(), "stat")
    assert not stat.exists() or stat.read_text().split(")")[1].split()[0] == "Z"


def test_a_program_that_left_its_output_to_another_is_not_waited_for(tmp_path):
    """It has ended, and a child of it that keeps the pipe counts as its going on."""
    ended = run("sleep 1000 & exit 0", seconds=0.5)
    assert ended.late


def test_too_much_output_is_cut_off():
    """Above the limit it is killed and told; nothing of it is kept."""
    ended = run("while :; do echo 0123456789; done", limit=5000)
    assert (ended.much, ended.late, ended.output) == (True, False, b"")


def test_what_cannot_be_started_is_an_error(tmp_path):
    """A path without a program, and one that may not be run."""
    with pytest.raises(FileNotFoundError):
        child.run([str(tmp_path / "none")], {}, seconds=1, limit=10)
    (tmp_path / "text").write_text("no program\n")
    os.chmod(tmp_path / "text", 0o644)
    with pytest.raises(PermissionError):
        child.run([str(tmp_path / "text")], {}, seconds=1, limit=10)
