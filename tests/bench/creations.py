# SPDX-License-Identifier: Apache-2.0
"""Creates and starts containers through CRI and by ctr, every arm once a round, in a new order each time."""

import asyncio
import contextlib
import gc
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.containerd import pods

from . import arms, forks, world, wrapped

Config = Callable[[], dict[str, Any]]
"""Gives the config.json of a container that runs."""

WARM_UP = 3
COUNTED = 5
"""How often the processes of an arm are counted; the least of them is reported."""
_PATIENCE = 60.0


@attrs.frozen(kw_only=True)
class Sample:
    """Milliseconds that one container took; ctr does both in one, which is `start` then."""

    create: float | None
    start: float

    @property
    def whole(self) -> float:
        return (self.create or 0) + self.start


@attrs.frozen(kw_only=True)
class Given:
    """What containerd put into a container's config.json for it."""

    mounts: int
    nodes: int
    hooks: int


@attrs.define(kw_only=True)
class Measured:
    """All that was found out about one arm. `counts` is None where nothing could be counted."""

    arm: arms.Arm
    samples: list[Sample] = attrs.field(factory=list)
    given: Given = Given(mounts=0, nodes=0, hooks=0)
    counts: forks.Count | None = None


class Bench:
    """Pods in every engine, one each, in which containers come and go."""

    def __init__(self, running: world.World, wanted: Sequence[arms.Arm], runtime: str) -> None:
        self.results = {arm.name: Measured(arm=arm) for arm in wanted}
        self._world = running
        self._runtime = runtime
        self._pods: dict[str, pods.Pod] = {}
        self._fronts: dict[str, Path] = {}
        self._references: dict[tuple[str, str], str] = {}
        self._names = (f"bench-{number}" for number in itertools.count(1))

    async def run(
        self, rounds: int, *, seed: int = 1, say: Callable[[str], None] = lambda _: None
    ) -> dict[str, Measured]:
        """Measure; gives the results by arm. `say` hears of the progress."""
        async with contextlib.AsyncExitStack() as stack:
            for name in dict.fromkeys(each.arm.engine for each in self.results.values()):
                pod = self._world.engines[name].pod(runtime=self._runtime)
                self._pods[name] = await stack.enter_async_context(pod)
            for each in self.results.values():
                if each.arm.runtime:
                    await self._prepare(each.arm)
            await self._look()
            order = random.Random(seed)
            for number in range(-WARM_UP, rounds):
                await self._round(order, keep=number >= 0)
                if number >= 0 and number % 10 == 9:
                    say(f"round {number + 1} of {rounds}")
            await self._count_all()
            return self.results

    async def _prepare(self, arm: arms.Arm) -> None:
        """Have what ctr needs: the image, and our runtime."""
        engine, key = self._world.engines[arm.engine], (arm.engine, arm.image)
        async with engine.client() as client:
            self._references[key] = await engine.use_image(arm.image, client)
        if arm.runtime is arms.Runtime.OURS and arm.engine not in self._fronts:
            real = engine.programs[0].path
            self._fronts[arm.engine] = wrapped.front(self._world.daemons[arm.engine], real)

    async def _round(self, order: random.Random, *, keep: bool) -> None:
        chosen = list(self.results.values())
        order.shuffle(chosen)
        for each in chosen:
            # The collector of this process must not fall into what is measured.
            gc.collect(0)
            gc.disable()
            try:
                sample = await self._one(each.arm)
            finally:
                gc.enable()
            if keep:
                each.samples.append(sample)

    async def _one(
        self, arm: arms.Arm, inspect: Callable[[Config], None] = lambda _: None
    ) -> Sample:
        async with (self._by_ctr if arm.runtime else self._by_cri)(arm) as (sample, config):
            inspect(config)
        return sample

    @contextlib.asynccontextmanager
    async def _by_cri(self, arm: arms.Arm) -> AsyncIterator[tuple[Sample, Config]]:
        begun = time.perf_counter()
        container = await self._pods[arm.engine].create(arm.image, env=arm.env, name="bench")
        created = time.perf_counter()
        try:
            await container.start()
            started = time.perf_counter()
            sample = Sample(create=1000 * (created - begun), start=1000 * (started - created))
            yield sample, container.config
        finally:
            await container.remove()

    @contextlib.asynccontextmanager
    async def _by_ctr(self, arm: arms.Arm) -> AsyncIterator[tuple[Sample, Config]]:
        engine, name = self._world.engines[arm.engine], next(self._names)
        program = engine.programs[0].path
        if arm.runtime is arms.Runtime.OURS:
            program = self._fronts[arm.engine]
        variables = [
            word for key, value in arm.env.items() for word in ("--env", f"{key}={value}")
        ]
        options = [
            "--runc-binary",
            str(program),
            "--cgroup",
            f"{engine.cgroup}/{name}",
            *variables,
        ]
        reference = self._references[arm.engine, arm.image]
        begun = time.perf_counter()
        await engine.ctr("run", "-d", *options, reference, name, "/probe", "pause")
        started = time.perf_counter()
        try:
            sample = Sample(create=None, start=1000 * (started - begun))
            yield sample, lambda: engine.config_json(name)
        finally:
            await engine.ctr("task", "rm", "-f", name)
            await engine.ctr("container", "rm", name)

    async def _look(self) -> None:
        """See what each arm's containers are given: an arm that is not what it says is no arm."""
        for each in self.results.values():
            deadline = time.monotonic() + _PATIENCE
            while True:
                found: list[Given] = []
                await self._one(each.arm, lambda config: found.append(given(config())))  # noqa: B023
                each.given = found[0]
                if fits(each.arm, each.given):
                    break
                if time.monotonic() > deadline:
                    raise world.UnpreparedError(
                        f"containers of the arm {each.arm.name!r} get {each.given}, which is not "
                        f"what it is to measure:\n{self._log(each.arm.engine)}"
                    )
                await asyncio.sleep(0.2)  # a volume is built beside the first containers

    def _log(self, engine: str) -> str:
        daemon = self._world.daemons.get(engine)
        return daemon.logged()[-2000:] if daemon else ""

    async def _count_all(self) -> None:
        try:
            watch = forks.Watch()
        except forks.UnavailableError:
            return
        with contextlib.closing(watch):
            for each in self.results.values():
                found = [await self._count(watch, each.arm) for _ in range(COUNTED)]
                each.counts = forks.Count(
                    processes=min(count.processes for count in found),
                    # The container's own exec may come after CRI's answer.
                    programs=max(count.programs for count in found),
                )

    async def _count(self, watch: forks.Watch, arm: arms.Arm) -> forks.Count:
        engine = self._world.engines[arm.engine]
        daemon = self._world.daemons.get(arm.engine)
        roots = [*forks.of_namespace(engine.pid), *([daemon.pid] if daemon else [])]
        found: list[forks.Count] = []
        watch.take()
        await self._one(arm, lambda _: found.append(watch.count(roots)))
        return found[0]


def given(config: dict[str, Any]) -> Given:
    """Count what of a config.json is a driver's: mounts, nodes and hooks."""
    mounts = [each["destination"] for each in config.get("mounts", [])]
    devices = [each["path"] for each in config.get("linux", {}).get("devices", [])]
    return Given(
        mounts=sum("nvidia" in each for each in mounts),
        nodes=sum(each.startswith("/dev/nvidia") for each in devices),
        hooks=sum(len(each or ()) for each in (config.get("hooks") or {}).values()),
    )


def fits(arm: arms.Arm, found: Given) -> bool:
    """Tell whether an arm's containers are given what the arm is about."""
    part = arm.env.get("BENCH_PART", "all" if arm.env else "nothing")
    hook = part == "all" or part.startswith("hook")
    wants_nodes = hook or part in {"nodes", "nodes+files"}
    wants_files = hook or part in {"files", "nodes+files"}
    few = "gpu volume" not in arm.name or found.mounts < 10
    return (
        bool(found.nodes) == wants_nodes
        and bool(found.mounts) == wants_files
        # A layout may come to do without a hook; a part that is a hook may not.
        and (bool(found.hooks) == hook or (part == "all" and arm.engine != "parts"))
        and few
    )
