# SPDX-License-Identifier: Apache-2.0
"""The text of `status`: at a glance, in 80 columns, live where that is wanted."""

import asyncio
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios

import pytest

from nri_nvidia import cli
from nri_nvidia.cli import statustext
from nri_nvidia.testing import host, host_spec, runtime
from tests.containerd import daemons
from tests.daemon.conftest import gpu_host, together

__all__ = ["gpu_host", "together"]

NAMED = {"id": "abc", "namespace": "ns", "pod": "p", "name": "c"}
AWAY = {
    "runtime": {"registered": False, "name": None, "version": None, "since": None},
    "driver": {"loaded": False},
    "ready": False,
    "not_ready": [{"code": "not-registered", "message": "nobody took us in", "hint": ""}],
    "gpus": [],
    "containers": [],
    "missed": [NAMED],
    "decisions": [],
    "counts": {},
    "hooks": {},
    "findings": [{"code": "x", "message": "a sentence " * 20, "hint": "do it"}],
}


def test_daemon_that_is_not_registered():
    """The missing registration comes first; what is long is wrapped, with its code."""
    lines = statustext.text(AWAY, 0.0)
    assert lines[0] == "runtime: not registered"
    assert "ready: no: nobody took us in" in lines
    assert "  ns/p/c (abc)" in lines
    assert lines[-1] == "    do it"
    assert lines[-2].endswith("[x]")
    assert max(map(len, lines)) <= statustext.WIDTH


def test_node_in_use(together):
    """Per GPU all it is called by, and who holds it, since when, with which capabilities."""

    async def body(pair):
        await asyncio.to_thread(pair.daemon.nvml_answered)
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=3")
        await pair.create(2, "NVIDIA_VISIBLE_DEVICES=3", "NVIDIA_DRIVER_CAPABILITIES=all")
        with pytest.raises(runtime.CreationFailed):
            await pair.create(4, "NVIDIA_VISIBLE_DEVICES=9")
        done = await asyncio.to_thread(pair.daemon.ask, "status")
        gpu = json.loads((await asyncio.to_thread(pair.daemon.ask, "status", "--json")).stdout)[
            "gpus"
        ][3]
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= statustext.WIDTH
        assert "\x1b" not in done.stdout
        at = next(n for n, line in enumerate(lines) if line.startswith("3 "))
        for part in (gpu["uuid"][:12], gpu["bus_id"], gpu["name"], "79.65 GiB"):
            assert part in lines[at]
        assert lines[at + 1].split()[:2] == ["held", "by"]
        assert lines[at + 1].endswith("compute,utility  team/pod/c1")
        assert lines[at + 2].endswith("7 capabilities   team/pod/c2")
        assert lines[at + 3].startswith("4 ")
        assert lines[at + 3].endswith("  free")
        assert any(line.endswith("[no-such-gpu]") for line in lines)
        assert "since the start: 2 inject, 1 error" in lines

    together(body)


def test_mig_devices_and_their_holders(together, tmp_path):
    """Each MIG device has its place, UUID and profile, and its holder below it."""
    gpus = tmp_path / "host"
    mig = (host_spec.MigSpec(gi=1), host_spec.MigSpec(gi=2, profile="3g.40gb"))
    host.build(gpus, host_spec.HostSpec(gpus=(host_spec.GpuSpec(mig_enabled=True, mig=mig),)))

    async def body(pair):
        await asyncio.to_thread(pair.daemon.nvml_answered)
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0:1")
        done = await asyncio.to_thread(pair.daemon.ask, "status")
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= statustext.WIDTH
        first = next(n for n, line in enumerate(lines) if line.startswith("0:0"))
        assert lines[first].split()[1].startswith("MIG-")
        assert lines[first + 1] == "     free"
        assert "3g.40gb" in lines[first + 2]
        assert lines[first + 3].endswith("team/pod/c1")

    together(body, gpus=gpus)


def test_every_key_is_in_the_readme(together):
    """What --json prints is documented, and nothing else is."""
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text("utf-8")
    section = text.partition("### What status says")[2].partition("\n### ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    told = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}

    async def body(pair):
        document = await asyncio.to_thread(pair.daemon.status)
        assert set(document) == told

    together(body)


def read_all(terminal):
    """Read until nobody writes to a terminal any more."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


def read_until(terminal, text):
    """Read from a terminal until a text has come."""
    seen = b""
    while text not in seen:
        assert select.select([terminal], [], [], daemons.PATIENCE)[0], seen
        seen += os.read(terminal, 65536)
    return seen


def watching(pair, *arguments, columns=60, lines=10, environment=None):
    """Run `status --watch` on a terminal; give the process and the terminal's other end."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    # A shell has what it starts in the background ignore interrupts, and this with it.
    heeding = ["env", "--default-signal=INT"]
    process = subprocess.Popen(
        [*heeding, daemons.COMMAND, "status", *arguments, "--socket", pair.daemon.control],
        stdin=subprocess.DEVNULL, stdout=its, stderr=its, start_new_session=True,
        env={"PATH": os.environ["PATH"], "TERM": "xterm", **(environment or {})},
    )  # fmt: skip
    os.close(its)
    return process, mine


def test_live_in_place(together):
    """On a terminal each look replaces the last one, within its lines; an interrupt ends it."""

    async def body(pair):
        process, terminal = watching(pair, "--watch", "0.1")
        try:
            await asyncio.to_thread(read_until, terminal, b"registered since")
            await asyncio.to_thread(pair.daemon.end)
            seen = await asyncio.to_thread(read_until, terminal, b"no daemon answers")
            assert b"\x1b[H" in seen
            frames = seen.split(b"\x1b[H")[1:]
            assert all(frame.count(b"\n") < 10 for frame in frames)
            process.send_signal(signal.SIGINT)
            # What it still says has to be read, as a terminal does, or it waits for that.
            await asyncio.wait_for(asyncio.to_thread(read_all, terminal), daemons.PATIENCE)
            assert await asyncio.to_thread(process.wait, daemons.PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
            os.close(terminal)

    together(body)


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_on_a_terminal(together, environment, coloured):
    """There is some, unless NO_COLOR is set."""

    async def body(pair):
        process, terminal = watching(pair, environment=environment)
        try:
            seen = await asyncio.to_thread(read_until, terminal, b"free")
            assert (b"\x1b[32m" in seen) is coloured
        finally:
            process.kill()
            process.wait()
            os.close(terminal)

    together(body)


@pytest.mark.parametrize("other", ["--ready", "--json"])
def test_live_is_a_text(capsys, other):
    """It goes with nothing that prints something else."""
    assert cli.main(["status", "--watch", "1", other]) == 2
    assert "--watch" in capsys.readouterr().err


@pytest.mark.parametrize("pause", ["0", "x", "nan", "1e9"])
def test_pause_that_is_none(capsys, pause):
    """Wrong use, with what is right."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(["status", "--watch", pause])
    assert "from 0.1 to 3600" in capsys.readouterr().err


def test_fault_in_the_settings(together, tmp_path):
    """A running daemon is asked all the same; where none runs the fault is told, as the cause."""
    settings = tmp_path / "config.toml"

    async def body(pair):
        settings.write_text(f'[control]\nsocket = "{pair.daemon.control}"\n[nri]\nsokcet = "/x"\n')
        words = [daemons.COMMAND, "status", "--config", settings]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        await asyncio.to_thread(pair.daemon.end)
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
        assert done.returncode == 3
        assert f"{settings}:4: nri.sokcet: unknown key (did you mean socket?)" in done.stderr

    together(body)


def test_user_who_may_not_ask(together):
    """Whoever may not ask is told who may, and not that the daemon is away."""

    async def body(pair):
        pair.daemon.directory.chmod(0o755)
        script = (
            "import os, sys\nfrom nri_nvidia import cli\ncli.parser({'status'}).format_help()\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\nsys.exit(cli.main(sys.argv[1:]))"
        )
        words = [sys.executable, "-c", script, "status", "--socket", pair.daemon.control]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
        assert done.returncode == 3
        assert "the daemon may not be asked: Permission denied" in done.stderr
        assert "control.group" in done.stderr
        assert "start it" not in done.stderr

    together(body)
