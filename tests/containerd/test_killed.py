# SPDX-License-Identifier: Apache-2.0
"""The daemon, or containerd, is killed in the middle of many creations: nothing is half given.

What containers have is read from runc's own state files; from containerd's specification only for
one that runc has not made.
"""

import asyncio
import contextlib
import json
import pprint
import re
import signal
import time

import grpclib
import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, messages, runcs

GPUS = 4
PATIENCE = 120
ASKS = "gpu-"
"""What the names of containers that ask for a GPU begin with."""
CREATED = messages.ContainerState.CREATED
ROUNDS = [
    pytest.param(2, 16, id="2"),
    pytest.param(20, 50, id="20", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
]


@pytest.fixture
def gpu_host(tmp_path):
    """A simulated host with four GPUs."""
    directory = tmp_path / "host"
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * GPUS))
    return directory


@contextlib.contextmanager
def daemon_of(engine, gpu_host):
    """Have a daemon that asks the engine's CRI service of containers which could not be started."""
    config = gpu_host.parent / "config.toml"
    config.write_text(f"policy.cri_socket = {json.dumps(str(engine.address))}\n")
    with daemons.running(engine.nri_socket, gpu_host, ["--config", str(config)]) as daemon:
        yield daemon


async def begun(pod, count, done):
    """Begin to make that many containers at once, started; give the tasks when `done` are."""

    async def make(number):
        container = await pod.create(
            "debian",
            name=f"{ASKS}{time.monotonic_ns()}-{number}",
            env={"NVIDIA_VISIBLE_DEVICES": str(number % GPUS)},
        )
        await container.start()

    tasks = [asyncio.ensure_future(make(number)) for number in range(count)]
    while sum(task.done() for task in tasks) < done:
        await asyncio.wait(
            [task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED
        )
    return tasks


async def ended(tasks):
    """Wait for every creation's end, in time, whatever that is."""
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks, return_exceptions=True)


async def listed(pod):
    """Give the state by id of what containerd has of ours: also one whose answer was lost."""
    return {
        container.id: container.state
        for container in await pod.client.list_containers()
        if container.pod_sandbox_id == pod.id and container.metadata.name.startswith(ASKS)
    }


async def started(pod):
    """Start what was created and not started; containerd refuses that of some it lost track of."""

    async def start(identifier):
        with contextlib.suppress(grpclib.GRPCError):
            await pod.client.start_container(identifier)

    async with asyncio.timeout(PATIENCE):
        waiting = [key for key, state in (await listed(pod)).items() if state is CREATED]
        await asyncio.gather(*map(start, waiting))


async def minor_of(engine, identifier):
    """Give the GPU of a container that runc has not made, by its specification."""
    spec = json.loads(await engine.ctr("containers", "info", identifier))["Spec"]
    nodes = {device["path"] for device in spec["linux"].get("devices", ())}
    gpus = [path for path in nodes if re.fullmatch(r"/dev/nvidia\d+", path)]
    files = [m for m in spec["mounts"] if m["destination"].startswith(runcs.FILES)]
    hooks = (spec.get("hooks") or {}).get("createContainer", [])
    if not gpus:
        assert [*(nodes & runcs.CONTROL), *files, *hooks] == []
        return None
    assert nodes >= runcs.CONTROL
    assert files
    assert len(hooks) == 1
    (path,) = gpus
    return int(path.removeprefix("/dev/nvidia"))


async def given(engine, pod):
    """Give the GPU or None of each container that runc has or could be told to make, by id."""
    found = {
        key: await minor_of(engine, key)
        for key, state in (await listed(pod)).items()
        if state is CREATED
    }
    plain = {each.id for each in await pod.client.list_containers()} - {*await listed(pod)}
    for key, state in runcs.states(engine).items():
        if key not in {pod.id, *plain}:
            found[key] = state.minor()
    return found


def registrations(daemon):
    return daemon.status()["runtime"]["registrations"]


async def agrees(engine, daemon, pod):
    """Wait until the daemon knows exactly of what runc has; give what that is.

    That is by id of the container its GPU's minor, None for one that was missed.
    """
    truth = await given(engine, pod)
    told = {}

    def agreed():
        status = daemon.status()
        told.clear()
        told.update({held["id"]: "no GPU" for held in status["containers"]})
        told.update(
            {held["id"]: gpu["minor"] for gpu in status["gpus"] for held in gpu["containers"]}
        )
        told.update({missed["id"]: None for missed in status["missed"]})
        return status["runtime"]["registered"] and told == truth

    with contextlib.suppress(AssertionError):
        await asyncio.to_thread(daemon.until, agreed, "the ledger to be as runc's files are")
    kept, states = runcs.states(engine), await listed(pod)
    differ = {
        key: {
            "told": told.get(key, "nothing"),
            "truth": truth.get(key, "nothing"),
            "containerd": states.get(key),
            "runc": key in kept and kept[key].present is not None,
            "log": [line for line in daemon.logged().splitlines() if key[:12] in line],
        }
        for key in {*told, *truth}
        if told.get(key, "nothing") != truth.get(key, "nothing")
    }
    assert not differ, pprint.pformat(differ)
    return truth


@pytest.mark.parametrize(("rounds", "count"), ROUNDS)
async def test_daemon_that_is_killed_while_containers_are_made(engine, gpu_host, rounds, count):
    """All creations end; each container has all or nothing, and those with nothing are listed."""
    with daemon_of(engine, gpu_host) as daemon:
        for number in range(rounds):
            async with engine.pod() as pod:
                await pod.create("debian")
                tasks = await begun(pod, count, done=number % 5 + 1)
                await asyncio.to_thread(daemon.end, signal.SIGKILL)
                await ended(tasks)
                assert [task.exception() for task in tasks] == [None] * count
                daemon.start()
                await asyncio.to_thread(daemon.ready)
                assert len(await agrees(engine, daemon, pod)) == count
                env = {"NVIDIA_VISIBLE_DEVICES": "3"}
                async with pod.container("debian", env=env) as after:
                    assert runcs.states(engine)[after.id].minor() == 3


@pytest.mark.parametrize(("rounds", "count"), ROUNDS)
async def test_containerd_that_is_killed_while_containers_are_made(fresh, gpu_host, rounds, count):
    """The daemon stays, is registered again, and knows what the containers that were made hold.

    Each round has a containerd of its own: one that was killed may have lost track of its own
    snapshots, and then makes nothing more.
    """
    for number in range(rounds):
        engine = fresh()
        with daemon_of(engine, gpu_host) as daemon:
            pid, before = daemon.pid, registrations(daemon)
            async with engine.pod() as pod:
                await pod.create("debian")
                tasks = await begun(pod, count, done=number % 5 + 1)
                await engine.restart(signal.SIGKILL)
                await ended(tasks)
                await asyncio.to_thread(
                    daemon.until,
                    lambda daemon=daemon, before=before: registrations(daemon) > before,
                    "it to be registered again",
                )
                await started(pod)
                assert await agrees(engine, daemon, pod)
                try:
                    after = await pod.create("debian", env={"NVIDIA_VISIBLE_DEVICES": "2"})
                except grpclib.GRPCError as error:
                    refusal = str(error)
                else:
                    refusal = ""
                    assert await minor_of(engine, after.id) == 2
                assert not refusal or "/snapshots/" in refusal
            assert daemon.pid == pid
        engine.stop()
