# SPDX-License-Identifier: Apache-2.0
"""A driver is upgraded under a running daemon, which nobody tells."""

import grpclib
import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec
from tests.field import harness

from . import daemons

OLD, NEW = "550.54.14", "550.90.07"
KERNEL = ("sys", "proc", "nvml.json")
FILES = ("usr", "etc")
ENV = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,graphics"}
# Names that carry the version, and the files behind all mounts of ours.
NAMES = "ls /usr/local/nvidia/lib64 /lib/firmware/nvidia"
MOUNTS = "cat /proc/self/mountinfo"


def spec(version):
    return {"gpus": (host_spec.GpuSpec(),), "driver": version, "graphics": True}


@pytest.fixture
def gpu_host(tmp_path):
    directory = tmp_path / "host"
    simulated.build(directory, host_spec.HostSpec(**spec(OLD)))
    return directory


async def seen(container) -> str:
    """Give what names and mounts of a container say of the driver."""
    told = [
        (await container.exec(["/bin/sh", "-c", command])).stdout for command in (NAMES, MOUNTS)
    ]
    assert "libcuda.so.1" in told[0]
    assert "//deleted" not in told[1]
    return "\n".join(told)


@pytest.mark.parametrize("layout", ["files", "volume"])
async def test_upgrade_under_a_running_daemon(engine, gpu_host, layout):
    """The next container has the new driver's files alone; half an upgrade is refused by name."""
    with daemons.running(engine.nri_socket, gpu_host, ("--layout", layout)) as daemon:
        async with engine.pod() as pod:
            async with pod.container("debian", env=ENV) as container:
                told = await seen(container)
                assert f"libnvidia-glcore.so.{OLD}" in told
                assert NEW not in told
            harness.become(gpu_host, *FILES, **spec(NEW))
            with pytest.raises(grpclib.GRPCError) as caught:
                async with pod.container("debian", env=ENV):
                    pass
            for word in (OLD, NEW, "reboot or reload the NVIDIA kernel modules"):
                assert word in str(caught.value)
            harness.become(gpu_host, *KERNEL, **spec(NEW))
            for turn in ("first", "when its directory may be prepared"):
                async with pod.container("debian", env=ENV) as container:
                    told = await seen(container)
                    assert f"libnvidia-glcore.so.{NEW}" in told
                    assert OLD not in told
                    loaded = await container.exec(["/probe-dlopen", "libcuda.so.1"])
                    assert loaded.code == 0, loaded
                if layout == "volume":
                    if turn != "first":
                        assert f"/volumes/{NEW}-" in told
                    daemon.until(lambda: f"/volumes/{NEW}-" in daemon.logged(), "the directory")
