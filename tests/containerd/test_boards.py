# SPDX-License-Identifier: Apache-2.0
"""Kinds of hosts in real containers: files from their places, nodes, and the loader."""

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec, host_wsl

from . import daemons

ARCH = "/usr/lib/aarch64-linux-gnu"
INSIDE = "/usr/local/nvidia/lib64"


@pytest.fixture(scope="module")
def boards(tmp_path_factory):
    """Give a function that builds a live host of a kind."""

    def build(layout):
        directory = tmp_path_factory.mktemp(layout)
        gpus = () if layout.startswith("jetson") else (host_spec.GpuSpec(),)
        spec = host_spec.HostSpec(gpus=gpus, layout=layout, nvml=layout in host_spec.LAYOUTS)
        simulated.build(directory, spec)
        return directory

    return build


async def listed(container, *paths):
    """Give which of the paths are files with content in a container."""
    command = "".join(f'test -s "{path}" && echo "{path}";' for path in paths)
    result = await container.exec(["/bin/sh", "-c", f"{command} true"])
    assert result.code == 0
    return result.stdout.split()


async def cached(container, name):
    result = await container.exec(["/bin/sh", "-c", f"/sbin/ldconfig -p | grep -wF {name}"])
    return result.stdout


@pytest.mark.parametrize("layout", ["files", "volume"])
async def test_wsl(engine, boards, layout):
    """/dev/dxg may be opened, libcuda is found by ld.so, the driver store is where it is outside."""
    host = boards("wsl")
    with daemons.running(engine.nri_socket, host, ("--layout", layout)):
        async with (
            engine.pod() as pod,
            pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "all"}) as container,
        ):
            assert await container.probe("open", "/dev/dxg", "rw") == "ENODEV"
            assert f"{INSIDE}/libcuda.so.1" in await cached(container, "libcuda.so.1")
            assert f"{INSIDE}/libdxcore.so" in await cached(container, "libdxcore.so")
            store = [f"/{host_wsl.STORE}/{name}" for name in ("libcuda_loader.so", "nvcubins.bin")]
            assert await listed(container, *store) == store
        async with (
            engine.pod() as pod,
            pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "none"}) as container,
        ):
            assert await container.probe("stat", "/dev/dxg") == "ENOENT"
            assert f"{INSIDE}/libcuda.so.1" in await cached(container, "libcuda.so.1")


async def test_jetson(engine, boards):
    """Nodes with the board's rights, files and links at the paths of the lists, and ld.so finds them."""
    host = boards("jetson-xavier")
    with daemons.running(engine.nri_socket, host):
        async with (
            engine.pod() as pod,
            pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "0"}) as container,
        ):
            rights = await container.exec(["/bin/sh", "-c", "stat -c '%a %u %g' /dev/nvmap"])
            assert rights.stdout.split() == ["440", "0", "44"]
            names = ("tegra/libcuda.so.1.1", "tegra/libcuda.so", "libcuda.so",
                     "gstreamer-1.0/libgstnvvidconv.so")  # fmt: skip
            wanted = [*(f"{ARCH}/{name}" for name in names), "/etc/vulkan/icd.d/nvidia_icd.json"]
            assert await listed(container, *wanted) == wanted
            assert f"{INSIDE}/libcuda.so.1" in await cached(container, "libcuda.so.1")
            assert f"{INSIDE}/libcuda.so" in await cached(container, "libcuda.so")


@pytest.mark.parametrize("layout", ["operator", "nixos", "bottlerocket", "cos"])
async def test_layouts_with_links_and_roots(running, boards, layout):
    """The driver is found by the kind of host alone, below its own root and by its own links."""
    host = boards(layout)
    by_itself = ("--driver-root", "", "--dev-root", "")
    engine = running("containerd-2")
    with daemons.running(engine.nri_socket, host, by_itself):
        async with (
            engine.pod() as pod,
            pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "0"}) as container,
        ):
            assert await container.probe("open", "/dev/nvidia0", "rw") == "ENXIO"
            assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
            result = await container.exec(
                ["/bin/sh", "-c", "nvidia-smi -L; command -v nvidia-smi"]
            )
            assert "/usr/bin/nvidia-smi" in result.stdout
