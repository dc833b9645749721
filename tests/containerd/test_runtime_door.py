# SPDX-License-Identifier: Apache-2.0
"""Containers of clients that NRI does not see, by nri-nvidia-runtime."""

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, doors
from .test_gpu import nodes


@pytest.fixture(scope="session")
def gpu_host(tmp_path_factory):
    """A simulated host with eight GPUs."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 8))
    return directory


@pytest.fixture
def daemon(engine, gpu_host):
    """A daemon registered with the shared engine."""
    with daemons.running(engine.nri_socket, gpu_host) as found:
        yield found


@pytest.fixture
def wrapped(daemon, programs, runtime):
    """nri-nvidia-runtime in front of each runtime."""
    return doors.wrapper(daemon, programs[runtime].path)


@pytest.fixture
def wrapped_runc(daemon, programs):
    """nri-nvidia-runtime in front of one runtime, for what does not depend on it."""
    return doors.wrapper(daemon, programs["runc"].path)


async def test_ctr_two_gpus_of_eight(engine, daemon, wrapped):
    """As through CRI: the nodes, the device cgroup, the driver found, and the holder known."""
    env = {"NVIDIA_VISIBLE_DEVICES": "0,2"}
    async with doors.ctr(engine, wrapped, env) as container:
        assert await nodes(container) == {
            "nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools",
        }  # fmt: skip
        assert await container.probe("open", "/dev/nvidia0", "rw") == "ENXIO"
        assert await container.probe("mknod", "/dev/other", "c", "195", "1") == "OK EPERM"
        assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
        (entry,) = daemon.status()["containers"]
        assert (entry["name"], entry["door"]) == (container.id, "runtime")
        daemon.until(lambda: daemon.status()["containers"][0]["hook"] == "ok", "its report")
        explained = daemon.ask("explain", container.id).stdout
        assert "NVIDIA_VISIBLE_DEVICES=0,2" in explained or "0,2" in explained
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")


async def test_an_unknown_gpu_fails_with_the_sentence(engine, daemon, wrapped):
    """ctr shows what the daemon says, and nothing is left of the container."""
    with pytest.raises(doors.RefusedError) as caught:
        async with doors.ctr(engine, wrapped, {"NVIDIA_VISIBLE_DEVICES": "9"}):
            pass
    assert "NVIDIA_VISIBLE_DEVICES=9: no such GPU; this node has 0-7" in str(caught.value)
    assert daemon.status()["containers"] == []


async def test_without_the_daemon(engine, daemon, wrapped_runc):
    """What asks for no GPU runs; what does is refused and the sentence says why."""
    daemon.end()
    for value in ("", "void"):
        async with doors.ctr(engine, wrapped_runc, {"NVIDIA_VISIBLE_DEVICES": value}) as container:
            assert await nodes(container) == set()
    with pytest.raises(doors.RefusedError, match="nri-nvidia does not answer at"):
        async with doors.ctr(engine, wrapped_runc, {"NVIDIA_VISIBLE_DEVICES": "0"}):
            pass


async def test_a_daemon_that_comes_back_knows_the_holders(engine, daemon, wrapped_runc):
    """Also that one has ended meanwhile."""
    env = {"NVIDIA_VISIBLE_DEVICES": "3"}
    async with doors.ctr(engine, wrapped_runc, env) as container:
        async with doors.ctr(engine, wrapped_runc, env):
            daemon.end()
        daemon.start().ready()
        daemon.until(lambda: daemon.status()["containers"], "what was there before")
        status = daemon.status()
        assert [entry["name"] for entry in status["containers"]] == [container.id]
        assert [gpu["index"] for gpu in status["gpus"] if gpu["containers"]] == [3]
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")
