# SPDX-License-Identifier: Apache-2.0
"""The daemon, or containerd, is killed in the middle of many creations: nothing is half given."""

import asyncio
import json
import re
import signal
import time

import grpclib
import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons

GPUS = 4
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
PATIENCE = 120
ROUNDS = [
    pytest.param(2, 16, id="2"),
    pytest.param(20, 50, id="20", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
]


@pytest.fixture
def gpu_host(tmp_path):
    """A simulated host with four GPUs."""
    directory = tmp_path / "host"
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * GPUS))
    return directory


async def begun(pod, count):
    """Begin to create that many containers at once; give the tasks when the first is done."""
    tasks = [
        asyncio.ensure_future(
            pod.create(
                "debian",
                name=f"c{time.monotonic_ns()}-{number}",
                env={"NVIDIA_VISIBLE_DEVICES": str(number % GPUS)},
            )
        )
        for number in range(count)
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return tasks


def registrations(daemon):
    return daemon.status()["runtime"]["registrations"]


async def ended(tasks):
    """Give the containers that were made; every creation has an end, in time."""
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return [result for result in results if not isinstance(result, BaseException)]


async def minor_of(engine, container):
    """Give the GPU that a container's specification has, None for nothing; half is a failure."""
    info = json.loads(await engine.ctr("containers", "info", container.id))
    spec = info["Spec"]
    nodes = {device["path"] for device in spec["linux"].get("devices", ())}
    gpus = [path for path in nodes if re.fullmatch(r"/dev/nvidia\d+", path)]
    files = [m for m in spec["mounts"] if m["destination"].startswith("/usr/local/nvidia")]
    hooks = (spec.get("hooks") or {}).get("createContainer", [])
    if not gpus:
        assert [*(nodes & CONTROL), *files, *hooks] == []
        return None
    assert nodes >= CONTROL
    assert files
    assert len(hooks) == 1
    (path,) = gpus
    return int(path.removeprefix("/dev/nvidia"))


async def agrees(engine, daemon, made):
    """Wait until the daemon knows of each container what its specification says."""
    given = {container.id: await minor_of(engine, container) for container in made}

    def told():
        status = daemon.status()
        if not status["runtime"]["registered"]:
            return False
        held = {
            holder["id"]: gpu["minor"] for gpu in status["gpus"] for holder in gpu["containers"]
        }
        held |= {missed["id"]: None for missed in status["missed"]}
        return all(key in held and held[key] == minor for key, minor in given.items())

    await asyncio.to_thread(daemon.until, told, "the ledger to be as the specifications are")


@pytest.mark.parametrize(("rounds", "count"), ROUNDS)
async def test_daemon_that_is_killed_while_containers_are_made(engine, gpu_host, rounds, count):
    """All creations end; each container has all or nothing, and those with nothing are listed."""
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        for _ in range(rounds):
            async with engine.pod() as pod:
                await pod.create("debian")
                tasks = await begun(pod, count)
                await asyncio.to_thread(daemon.end, signal.SIGKILL)
                made = await ended(tasks)
                assert made
                daemon.start()
                await asyncio.to_thread(daemon.ready)
                await agrees(engine, daemon, made)
                after = await pod.create("debian", env={"NVIDIA_VISIBLE_DEVICES": "3"})
                assert await minor_of(engine, after) == 3


@pytest.mark.parametrize(("rounds", "count"), ROUNDS)
async def test_containerd_that_is_killed_while_containers_are_made(fresh, gpu_host, rounds, count):
    """The daemon stays, is registered again, and knows what the containers that were made hold.

    Each round has a containerd of its own: one that was killed may have lost track of its own
    snapshots, and then makes nothing more.
    """
    for _ in range(rounds):
        engine = fresh()
        with daemons.running(engine.nri_socket, gpu_host) as daemon:
            pid, before = daemon.pid, registrations(daemon)
            async with engine.pod() as pod:
                await pod.create("debian")
                tasks = await begun(pod, count)
                await engine.restart(signal.SIGKILL)
                made = await ended(tasks)
                await asyncio.to_thread(
                    daemon.until,
                    lambda daemon=daemon, before=before: registrations(daemon) > before,
                    "it to be registered again",
                )
                await agrees(engine, daemon, made)
                try:
                    after = await pod.create("debian", env={"NVIDIA_VISIBLE_DEVICES": "2"})
                except grpclib.GRPCError as error:
                    refusal = str(error)
                else:
                    refusal = ""
                    assert await minor_of(engine, after) == 2
                assert not refusal or "/snapshots/" in refusal
            assert daemon.pid == pid
        engine.stop()
