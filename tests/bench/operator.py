# SPDX-License-Identifier: Apache-2.0
"""What an operator waits for: the daemon's answer to a question, and the whole command.

Asked of a daemon under which a thousand containers have come and gone, and again while as many
hold GPUs. Each command finds a file of settings, as on an installed node.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from nri_nvidia.cli import unary
from tests.containerd import daemons

from . import life, processes, requests

ROOT = Path(__file__).parents[2]
STATUS, EXPLAIN, PLAN = "nri-nvidia status", "nri-nvidia explain", "nri-nvidia plan"
ANSWER = "answer to status"
GONE, HELD = "1,000 containers gone", "1,000 containers there"
_ALONE = ("--version", "--help")
_ASKED = ["--host", str(ROOT / "tests/hosts/debian-8xh100"), "--env", "NVIDIA_VISIBLE_DEVICES=0"]
_ROUTE = "/control.v1.Control/Status"


async def measure(
    host: Path, directory: Path, *, runs: int, many: int = life.MANY
) -> dict[str, list[int]]:
    """Give the nanoseconds of each; `many` below a thousand tries it out."""
    found: dict[str, list[int]] = {}
    settings = directory / "settings.toml"
    for state in (GONE, HELD):
        async with life.together(host, directory / state[-4:].strip()) as (side, daemon, _):
            for number in range(many):
                await life.ask(side, requests.CREATE, requests.create(number, *_one(number)))
                if state == GONE:
                    await life.ask(side, requests.STOP, requests.stop(number))
            settings.write_text(f"control.socket = {json.dumps(str(daemon.control))}\n", "utf-8")
            last = requests.identifier(many - 1)
            asking = {f"{STATUS}, {state}": ["status"], f"{EXPLAIN}, {state}": ["explain", last]}
            found[f"{ANSWER}, {state}"] = [_answer(daemon) for _ in range(runs)]
            found |= _commands(asking, settings, runs)
    offline = {f"nri-nvidia {word}": [word] for word in _ALONE}
    found |= processes.measure({name: _program(words) for name, words in offline.items()}, runs)
    return found | _commands({PLAN: ["plan", *_ASKED]}, settings, runs)


def _one(number: int) -> tuple[str, ...]:
    """Ask for one of the eight GPUs."""
    return (f"NVIDIA_VISIBLE_DEVICES={number % 8}", "NVIDIA_DRIVER_CAPABILITIES=all")


def _answer(daemon: daemons.Daemon) -> int:
    begun = time.perf_counter_ns()
    unary.call(str(daemon.control), _ROUTE, b"", daemons.PATIENCE)
    return time.perf_counter_ns() - begun


def _commands(commands: dict[str, list[str]], settings: Path, runs: int) -> dict[str, list[int]]:
    told = ["--config", str(settings)]
    return processes.measure(
        {name: _program([*words, *told]) for name, words in commands.items()}, runs
    )


def _program(words: Sequence[str]) -> processes.Program:
    return processes.Program(command=[str(daemons.COMMAND), *words])
