# SPDX-License-Identifier: Apache-2.0
"""contrib/demo: to its end, broken off, and where something is missing. It never leaves anything.

It runs as the only process of a process namespace of its own, with a /tmp of its own, so that
whatever it leaves can be seen.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from . import conftest, machines

DEMO = (machines.ROOT / ".venv/bin/python", machines.LIB / "demo.py")
"""What contrib/demo becomes when everything is set up."""
PRIVATE = r"""
mount -n -t proc proc /proc
mount -n -t tmpfs -o mode=1777 tmpfs /mnt
case $CHECKOUT in
/tmp/*)
	mkdir -p "/mnt/${CHECKOUT#/tmp/}"
	mount -n --bind "$CHECKOUT" "/mnt/${CHECKOUT#/tmp/}"
	;;
esac
mount -n --move /mnt /tmp
there=$(ls -A /tmp)
eval "$0"
look() { cat /proc/self/mountinfo; ls /sys/class/net; }
before=$(look)
status=0
"$@" || status=$?
echo "@status $status"
for process in /proc/[0-9]*; do
	case $(cat $process/status 2>/dev/null) in
		*State:*"Z (zombie)"*) ;;  # dead, and not yet asked for by the shell
		*State:*) [ $process = /proc/1 ] || echo "@process $(tr '\0' ' ' <$process/cmdline)" ;;
	esac
done
echo "@temporary $(ls -A /tmp | grep -vxF "$there")"
look | grep -vxF "$before" | sed 's/^/@new /'
"""
NOTHING_LEFT = ["@temporary "]


@attrs.define
class Run:
    """A demo under way: what it printed, and at the end its status and what is left."""

    process: subprocess.Popen[str]
    printed: str = ""

    def until(self, text: str) -> None:
        """Read until a line holds a text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if text in line:
                return
        raise AssertionError(f"{text!r} was not printed:\n{self.printed}")

    def send(self, number: signal.Signals) -> None:
        """Send the demo a signal, and only the demo."""
        first = children(children(self.process.pid)[0])
        os.kill(first[0], number)

    def end(self) -> tuple[int, list[str]]:
        """Wait for its end; give the status and what was looked at after it."""
        self.printed += self.process.communicate()[0]
        looked = [line for line in self.printed.splitlines() if line.startswith("@")]
        return int(looked[0].split()[1]), looked[1:]


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def running(*command: str | Path, prepare: str = ":") -> Iterator[Run]:
    """Run a demo after a piece of shell script in its mount namespace."""
    with subprocess.Popen(
        # A shell cannot trap what was ignored when it began, as in a job in the background.
        ["env", "--default-signal=INT", "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
         "bash", "-uc", PRIVATE, prepare, *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "CHECKOUT": str(machines.ROOT)},
    ) as process:  # fmt: skip
        try:
            yield Run(process)
        finally:
            process.kill()


def test_it_runs_to_its_end() -> None:
    """Exit status 0, after the nodes and libraries in a container and the daemon's status."""
    with running(machines.ROOT / "contrib/demo") as demo:
        assert demo.end() == (0, NOTHING_LEFT), demo.printed
    for text in ("nvidiactl", "libcuda.so.1", "nvidia-smi", "held by", "demo", "all of it worked"):
        assert text in demo.printed


@pytest.mark.parametrize(
    ("heading", "number"),
    [
        ("host with eight GPUs is simulated", signal.SIGINT),
        ("starts, privately", signal.SIGTERM),
        ("nri-nvidia starts", signal.SIGINT),
        ("through CRI", signal.SIGTERM),
        ("$ ls -l", signal.SIGINT),
        ("nri-nvidia status", signal.SIGTERM),
        ("what the daemon logged", signal.SIGINT),
    ],
)
def test_interrupted_it_puts_everything_away(heading: str, number: signal.Signals) -> None:
    """Wherever the signal comes, the status says which it was and nothing is left."""
    if has_driver():
        pytest.skip("with a driver nothing is simulated, and the headings differ")
    with running(*DEMO) as demo:
        demo.until(heading)
        demo.send(number)
        demo.send(number)
        status, left = demo.end()
    assert left == NOTHING_LEFT, demo.printed
    assert status == 128 + number, demo.printed
    assert "Traceback" not in demo.printed


def has_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_setting_up(number: signal.Signals) -> None:
    """What contrib/setup has started ends, too."""
    with running(machines.ROOT / "contrib/demo") as demo:
        demo.until("tools:")
        demo.send(number)
        status, left = demo.end()
    assert (status, left) == (128 + number, NOTHING_LEFT), demo.printed


def test_it_takes_no_arguments() -> None:
    """A question for help does not fetch everything."""
    done = machines.run(machines.ROOT / "contrib/demo", "--help")
    assert (done.returncode, done.stdout[:6]) == (2, "usage:")


def test_containerd_that_does_not_start() -> None:
    """A sentence with the reason and status 1."""
    programs = conftest.CACHE / "engines/containerd-2/bin/containerd"
    with running(*DEMO, prepare=f"mount -n --bind /bin/false {programs}") as demo:
        assert demo.end() == (1, NOTHING_LEFT), demo.printed
    assert "contrib/demo: containerd-2 ended at its start" in demo.printed
    assert "Traceback" not in demo.printed


@pytest.mark.parametrize("missing", ["engines", "images"])
def test_incomplete_setup(missing: str) -> None:
    """A sentence that says what to do, and status 1."""
    with running(*DEMO, prepare=f"mount -n -t tmpfs tmpfs {conftest.CACHE / missing}") as demo:
        assert demo.end() == (1, NOTHING_LEFT), demo.printed
    assert "run contrib/setup" in demo.printed
    assert "Traceback" not in demo.printed
