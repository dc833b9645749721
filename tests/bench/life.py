# SPDX-License-Identifier: Apache-2.0
"""What is measured of a whole daemon beside the runtime's side of NRI: answers, start, memory."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from nri_nvidia.testing import runtime
from tests.containerd import daemons

from . import requests, world

CROWD = 64
MANY = 1000


@attrs.define(kw_only=True)
class Life:
    """Nanoseconds of each sample, bytes, and counts."""

    start: list[int] = attrs.field(factory=list)
    answer: list[int] = attrs.field(factory=list)
    answer_nothing: list[int] = attrs.field(factory=list)
    round_trip: list[int] = attrs.field(factory=list)
    round_trip_nothing: list[int] = attrs.field(factory=list)
    crowd_whole: int = 0
    crowd_slowest: int = 0
    crowd_answered: int = 0
    memory: int = 0
    memory_many: int = 0
    threads: int = 0
    threads_many: int = 0


@contextlib.asynccontextmanager
async def together(
    host: Path, directory: Path, environment: dict[str, str] | None = None, *, timed: bool = False
) -> AsyncIterator[tuple[runtime.Runtime, daemons.Daemon, int]]:
    """Give a runtime, a daemon registered with it, and the nanoseconds that its start took."""
    directory.mkdir()
    path = directory / "nri.sock"
    side = runtime.Runtime()
    async with side.listening(path):
        daemon = world.make_daemon(path, host, directory, instrumented=timed)
        try:
            begun = time.perf_counter_ns()
            daemon.start(environment)
            await side.attached()
            taken = time.perf_counter_ns() - begun
            await asyncio.to_thread(daemon.ready)
            # The first look at the host is part of nothing that is measured after the start.
            await ask(side, requests.CREATE, requests.create(0, *requests.ALL))
            yield side, daemon, taken
        finally:
            await asyncio.to_thread(daemon.close)


async def ask(side: runtime.Runtime, route: str, payload: bytes) -> tuple[int, int]:
    """Give the nanoseconds of a round trip of undecoded bytes, and the answer's length."""
    channel = side.plugins[0].peer.channel
    begun = time.perf_counter_ns()
    _, future = channel.start(route, payload, side.request_timeout)
    response = await future
    taken = time.perf_counter_ns() - begun
    if response.code:
        raise RuntimeError(f"{route}: {response.message}")
    return taken, len(response.payload)


async def measure(host: Path, directory: Path, *, runs: int, starts: int, many: bool) -> Life:
    """Measure; `many` also creates a thousand containers and looks at the daemon's memory."""
    life = Life()
    await _answers(life, host, directory, runs)
    for number in range(starts):
        async with together(host, directory / f"start-{number}") as (_, _, taken):
            life.start.append(taken)
    async with together(host, directory / "crowd") as (side, daemon, _):
        await _crowd(life, side)
        life.memory, life.threads = _size(daemon.pid)
        if many:
            for number in range(MANY):
                await ask(side, requests.CREATE, requests.create(number, *requests.ALL))
            life.memory_many, life.threads_many = _size(daemon.pid)
    return life


async def _answers(life: Life, host: Path, directory: Path, runs: int) -> None:
    """Ask one by one: the whole round trip here, and what of it the daemon took for itself."""
    times = directory / "times.json"
    environment = {"BENCH_TIMES": str(times)}
    async with together(host, directory / "answers", environment, timed=True) as (side, _, _):
        for number in range(1, runs + 1):
            taken, length = await ask(
                side, requests.CREATE, requests.create(number, *requests.ALL)
            )
            if not length:
                raise RuntimeError("the daemon gives no GPU on the bench's host")
            await ask(side, requests.STOP, requests.stop(number))
            nothing, _ = await ask(side, requests.CREATE, requests.create(number + runs))
            life.round_trip.append(taken)
            life.round_trip_nothing.append(nothing)
    inside: Sequence[int] = json.loads(times.read_text(encoding="utf-8"))[-3 * runs :]
    life.answer, life.answer_nothing = list(inside[0::3]), list(inside[2::3])


async def _crowd(life: Life, side: runtime.Runtime) -> None:
    """Create 64 containers at once; the runtime drops a plugin that does not answer in time."""
    asked = [
        ask(side, requests.CREATE, requests.create(number, *requests.ALL))
        for number in range(1, CROWD + 1)
    ]
    begun = time.perf_counter_ns()
    answers: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
    life.crowd_whole = time.perf_counter_ns() - begun
    good = [answer for answer in answers if isinstance(answer, tuple) and answer[1]]
    life.crowd_slowest = max((taken for taken, _ in good), default=0)
    life.crowd_answered = sum(taken < side.request_timeout * 1e9 for taken, _ in good)
    for number in range(1, CROWD + 1):
        await ask(side, requests.STOP, requests.stop(number))


def _size(pid: int) -> tuple[int, int]:
    """Give a process's resident bytes and its number of threads."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(found["VmRSS"].split()[0]) * 1024, int(found["Threads"])
