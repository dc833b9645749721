# SPDX-License-Identifier: Apache-2.0
"""Output that cannot be written, daemons that talk nonsense, and names that steer terminals."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

import pytest

from nri_nvidia import cli
from nri_nvidia.host import root as roots

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
EIGHT = str(HOSTS / "debian-8xh100")


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "nri_nvidia", *arguments],
        check=False, timeout=60, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )  # fmt: skip


VERBS = [
    ["devices", "--host", EIGHT],
    ["devices", "--host", EIGHT, "--json"],
    ["plan", "--host", EIGHT, "--env", "NVIDIA_VISIBLE_DEVICES=0"],
    ["plan", "--host", EIGHT, "--env", "NVIDIA_VISIBLE_DEVICES=0", "--format", "cdi"],
]


@pytest.mark.parametrize("arguments", VERBS)
def test_reader_that_left(arguments):
    """A closed pipe ends a verb with 1 and not a word."""
    reading, writing = os.pipe()
    os.close(reading)
    done = command(*arguments, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("arguments", VERBS[:2])
def test_full_disk(arguments):
    """One sentence, exit status 1."""
    with pathlib.Path("/dev/full").open("wb") as full:
        done = command(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"nri-nvidia: No space left on device\n"


@pytest.mark.parametrize("arguments", VERBS[:1])
def test_no_standard_output(arguments):
    """With it closed, a verb works as if it was /dev/null."""
    shut = ["/bin/sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-m", "nri_nvidia"]
    assert subprocess.run([*shut, *arguments], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
def test_json_in_any_locale(locale):
    """It is JSON and ASCII, whatever was asked for, valid text or not."""
    env = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    asked = b"NVIDIA_VISIBLE_DEVICES=\xff\xe2\x82\xac\n\x1b[2J"
    done = command("plan", "--host", EIGHT, "--json", "--env", asked, env=env)
    assert done.returncode == 1
    found = json.loads(done.stdout.decode("ascii"))
    assert found["decision"] == "error"
    done = command("plan", "--host", EIGHT, "--env", asked, env=env)
    assert done.returncode == 1
    assert b"\x1b" not in done.stdout + done.stderr
    done = command("plan", "--host", EIGHT, "--env", asked, "--format", "nri", env=env)
    assert done.stdout == b""
    assert b"\x1b" not in done.stderr
    assert done.stderr.count(b"\n") == 1


@contextlib.contextmanager
def answering(path, data):
    """Have a server that says the same to everybody who connects."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = listener.accept()
                    with caller, contextlib.suppress(OSError):
                        caller.sendall(data)
                        caller.shutdown(socket.SHUT_WR)
                        while caller.recv(65536):
                            pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\n\r\n", os.urandom(4096), b"\0" * 40])
def test_status_of_something_else(tmp_path, capsys, data):
    """A socket of another program is exit status 3 and a sentence."""
    path = tmp_path / "control.sock"
    with answering(path, data):
        assert cli.main(["status", "--json", "--socket", str(path)]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["code"] == "daemon-not-running"
    assert str(path) in said.err


@pytest.mark.parametrize("place", ["/dev/null", "/", "/nonexistent/" + "x" * 300])
def test_status_where_no_socket_is(capsys, place):
    """Neither a file, nor a directory, nor a path too long is a traceback."""
    assert cli.main(["status", "--socket", place]) == 3
    assert place[:40] in capsys.readouterr().err


def test_a_hint_of_several_lines(tmp_path, capsys):
    """Each fault of the settings is a line of its own where no daemon runs because of them."""
    path = tmp_path / "config.toml"
    path.write_text('polcy = "strict"\nlog.level = "loud"\n')
    assert cli.main(["status", "--config", str(path)]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith(f"  {path}:2: ") for line in lines), lines


def test_plan_where_the_host_cannot_be_looked_at(capsys, monkeypatch):
    """It is the refusal that the daemon would give, as JSON."""

    def full(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(roots.os, "listdir", full)
    asked = ["--env", "NVIDIA_VISIBLE_DEVICES=0", "--json"]
    assert cli.main(["plan", "--host", EIGHT, *asked]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["decision"] == "error"
    assert found["reasons"][-1]["code"] == "host-scan-failed"
    assert found["request"]["devices"] == ["0"]


def test_user_who_may_not_read(tmp_path):
    """A configuration, a spec or a host that is closed to a user is named."""
    closed = tmp_path / "closed"
    closed.write_text("")
    closed.chmod(0)
    asks = [["plan", "--config", str(closed)], ["plan", "--spec", str(closed)]]
    for arguments in asks:
        done = subprocess.run(
            [sys.executable, "-c", NOBODY, *arguments], check=False, capture_output=True, text=True
        )
        assert done.returncode in {1, 2}
        assert done.stderr.startswith(f"nri-nvidia: {closed}: Permission denied")


NOBODY = """
import ctypes, os, sys
from nri_nvidia import cli
import nri_nvidia.cli.plan, nri_nvidia.cli.settings
# Root without the right to read everything; the interpreter may be where nobody else may go.
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
libc = ctypes.CDLL(None)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)()
libc.capget(header, data)
data[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
assert libc.capset(header, data) == 0
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "prog"),
    [
        (["plan", "--bogus"], "nri-nvidia plan"),
        (["status", "extra"], "nri-nvidia status"),
        (["configure", "docker", "--bogus"], "nri-nvidia configure docker"),
        (["cdi", "list", "--bogus"], "nri-nvidia cdi list"),
        (["--bogus", "plan"], "nri-nvidia"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_wrong_use_shows_how_the_verb_is_used(capsys, words, prog, as_json):
    """What a verb does not know is told with that verb's own usage, to programs as an error."""
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, *["--json"] * as_json])
    said = capsys.readouterr()
    assert caught.value.code == 2
    assert said.err.startswith(f"usage: {prog} [-h]")
    assert f"\n{prog}: error: unrecognized arguments: " in said.err
    if as_json:
        error = json.loads(said.out)["error"]
        assert error["code"] == "wrong-use"
        assert error["message"].startswith("unrecognized arguments: ")
        assert error["hint"].startswith(f"{prog} --help")
    else:
        assert said.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["status"], ["explain", "x"], ["devices", "--free"], ["config", "--config", "/nonexistent"],
        ["devices", "--config", "/nonexistent"], ["cdi", "validate", "--spec-dir", "/nonexistent"],
        ["docker-args", "x", "--host", "/nonexistent"], ["configure", "docker", "--root", "/nowhere"],
    ],
)  # fmt: skip
def test_error_is_json_where_that_is_wanted(capsys, words):
    """One document on standard output, with the message and the hint that a person is told."""
    status = cli.main([*words, "--json"])
    said = capsys.readouterr()
    assert status in {1, 2, 3}
    error = json.loads(said.out)["error"]
    assert set(error) == {"code", "message", "hint"}
    assert said.err.startswith(f"nri-nvidia: {error['message'].splitlines()[0]}")
