# SPDX-License-Identifier: Apache-2.0
"""Nodes beside whole GPUs, seen from inside real containers.

As with GPUs, a node that was given answers that there is no such device, one that was not EPERM.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import grpclib
import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_kernel, host_spec

from . import daemons
from . import engine as engines

MIGS = (host_spec.MigSpec(gi=1), host_spec.MigSpec(gi=2))
SPEC = host_spec.HostSpec(
    gpus=(
        host_spec.GpuSpec(mig_enabled=True, mig=MIGS),
        host_spec.GpuSpec(),
        host_spec.GpuSpec(),
    ),
    drm=True,
    imex_channels=(0,),
    groups=host_spec.GROUPS,
)
CHANNELS = "/dev/nvidia-caps-imex-channels"
# No driver has the number (ENXIO), or one has the major and not the minor (ENODEV).
NO_DEVICE = {"ENXIO", "ENODEV"}


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with a divided GPU, two whole ones, and all other nodes."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, SPEC)
    return directory


@pytest.fixture
def daemon(engine: engines.Engine, gpu_host: Path) -> Iterator[daemons.Daemon]:
    with daemons.running(engine.nri_socket, gpu_host) as found:
        found.until(lambda: found.status()["driver"]["nvml"] == "ok", "NVML's answer")
        yield found


async def listed(container, directory):
    return set((await container.probe("ls", directory)).split())


async def test_the_drm_nodes_of_one_gpu(engine, daemon, runtime):
    """Graphics: the GPU's own two for everybody, reached by udev's links; no other GPU's."""
    env = {"NVIDIA_VISIBLE_DEVICES": "1", "NVIDIA_DRIVER_CAPABILITIES": "graphics"}
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container("debian", env=env) as container,
    ):
        assert await listed(container, "/dev/dri") == {"by-path", "card2", "renderD130"}
        assert await container.probe("stat", "/dev/dri/card2") == "c 226 2 0666 0 44"
        assert await container.probe("stat", "/dev/dri/renderD130") == "c 226 130 0666 0 106"
        for name in ("card2", "renderD130", "by-path/pci-0000:0f:00.0-render"):
            assert await container.probe("open", f"/dev/dri/{name}", "rw") in NO_DEVICE
        link = "/dev/dri/by-path/pci-0000:0f:00.0-card"
        found = await container.exec(["/bin/readlink", "-f", link])
        assert found.stdout.strip() == "/dev/dri/card2"
        assert await container.probe("open", f"{link.replace('0f', '17')}", "rw") == "ENOENT"
        assert await container.probe("mknod", "/dev/other", "c", "226", "1") == "OK EPERM"


async def test_what_is_asked_beside_gpus(engine, daemon, runtime, gpu_host):
    """IMEX channels, one of them made on the host, and the nodes of each group; nothing unasked."""
    env = {"NVIDIA_VISIBLE_DEVICES": "1", "NVIDIA_IMEX_CHANNELS": "0,5"}
    asked = {f"NVIDIA_{group.upper()}": "enabled" for group in host_spec.GROUPS}
    nodes = [f"/dev/{name}" for group in host_kernel.GROUPS.values() for name, _, _ in group]
    nodes += [f"{CHANNELS}/channel{number}" for number in (0, 5)]
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container("debian", env={**env, **asked}) as container,
    ):
        for path in nodes:
            assert await container.probe("open", path, "rw") in NO_DEVICE
        assert await container.probe("mknod", "/dev/channel1", "c", "507", "1") == "OK EPERM"
        assert await container.probe("write", "/etc/cufile.json") == "EROFS"
        assert "c506:0" in await listed(container, "/run/udev/data")
    made = (gpu_host / CHANNELS[1:] / "channel5").stat()
    assert (os.major(made.st_rdev), os.minor(made.st_rdev)) == (507, 5)
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "1"}) as container,
    ):
        for path in nodes:
            assert await container.probe("open", path, "rw") == "ENOENT"


async def test_one_mig_device(engine, daemon, runtime):
    """The GPU's node and the two capabilities of the instance, with the rights of the host's."""
    uuid = host_spec.mig_uuid_of(SPEC.gpus[0], 0, MIGS[1])
    minors = [host_kernel.cap_minor(0, 2, ci) for ci in (None, 0)]
    other = str(host_kernel.cap_minor(0, 1, None))
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": uuid}) as container,
    ):
        assert await listed(container, "/dev/nvidia-caps") == {f"nvidia-cap{n}" for n in minors}
        for minor in minors:
            path = f"/dev/nvidia-caps/nvidia-cap{minor}"
            assert await container.probe("stat", path) == f"c 508 {minor} 0444 0 0"
            assert await container.probe("open", path, "r") == "ENXIO"
        assert await container.probe("open", "/dev/nvidia0", "rw") == "ENXIO"
        assert await container.probe("mknod", "/dev/other", "c", "508", other) == "OK EPERM"
        assert await container.probe("mknod", "/dev/config", "c", "508", "1") == "OK EPERM"


async def test_mig_management_of_a_privileged_container(engine, daemon):
    """It has cap1 and cap2 among the nodes; the same container without privileges is refused."""
    env = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_MIG_CONFIG_DEVICES": "all",
        "NVIDIA_MIG_MONITOR_DEVICES": "all",
    }
    async with (
        engine.pod(privileged=True) as pod,
        pod.container("debian", env=env, privileged=True) as container,
    ):
        names = await listed(container, "/dev/nvidia-caps")
        assert {"nvidia-cap1", "nvidia-cap2"} < names
        assert len(names) == 6
    async with engine.pod() as pod:
        with pytest.raises(grpclib.GRPCError) as caught:
            await pod.create("debian", env=env)
        assert "only a privileged container may manage MIG" in caught.value.message


async def test_a_container_that_mounts_the_drm_directory_itself(engine, daemon, runtime, gpu_host):
    """Its mount is kept with the host's nodes and rights; it may use those of its own GPU alone."""
    env = {"NVIDIA_VISIBLE_DEVICES": "1", "NVIDIA_DRIVER_CAPABILITIES": "graphics"}
    mounts = [(str(gpu_host / "dev/dri"), "/dev/dri")]
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container("debian", env=env, mounts=mounts) as container,
    ):
        assert await container.probe("stat", "/dev/dri/card2") == "c 226 2 0660 0 44"
        assert await container.probe("open", "/dev/dri/card2", "rw") in NO_DEVICE
        assert await container.probe("open", "/dev/dri/card1", "rw") == "EPERM"
    assert (gpu_host / "dev/dri/card2").stat().st_mode & 0o777 == 0o660


async def test_a_read_only_image_without_anything(engine, daemon, runtime):
    """What comes with the nodes has its place even where the image has no directory for it."""
    env = {
        "NVIDIA_VISIBLE_DEVICES": "2",
        "NVIDIA_DRIVER_CAPABILITIES": "graphics",
        "NVIDIA_GDS": "enabled",
    }
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container("distroless", env=env, readonly=True) as container,
    ):
        assert await listed(container, "/dev/dri") == {"by-path", "card3", "renderD131"}
        assert await container.probe("open", "/dev/nvidia-fs1", "rw") in NO_DEVICE
        assert await container.probe("open", "/etc/cufile.json", "r") == "OK"
        assert "c506:0" in await listed(container, "/run/udev/data")
