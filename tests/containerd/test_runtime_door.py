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
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")
