# SPDX-License-Identifier: Apache-2.0
"""What a container that draws has, seen from inside, whichever way the driver's files come."""

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, test_layouts

ENV = {"NVIDIA_VISIBLE_DEVICES": "1", "NVIDIA_DRIVER_CAPABILITIES": "all"}
PROFILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    directory = tmp_path_factory.mktemp("host")
    spec = host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2, graphics=True, compat32=True)
    simulated.build(directory, spec)
    return directory


async def test_both_layouts_are_the_same_for_graphics(engine, gpu_host):
    """Modules of X, 32-bit libraries and loaders' files do not differ between the layouts."""
    both = []
    for layout in ("files", "volume"):
        with daemons.running(engine.nri_socket, gpu_host, ("--layout", layout)) as daemon:
            async with engine.pod() as pod:
                if layout == "volume":  # the first such container has its directory prepared
                    before = daemon.logged().count("are prepared in")
                    async with pod.container("debian", env=ENV):
                        daemon.until(
                            lambda: daemon.logged().count("are prepared in") > before,  # noqa: B023
                            "the directory for these capabilities",
                        )
                async with pod.container("debian", env=ENV) as container:
                    mounts = {each["destination"] for each in container.config()["mounts"]}
                    whole = test_layouts.DIRECTORY in mounts
                    assert whole is (layout == "volume")
                    found = await test_layouts.seen(container)
                    for path in (PROFILE, "/etc/vulkan/icd.d/nvidia_icd.json",
                                 "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"):  # fmt: skip
                        found[path] = await container.probe("cat", path)
        found.pop("lib64/new.so")
        both.append(found)
    assert both[0] == both[1]
    for name in ("xorg/nvidia_drv.so", "xorg/libglxserver_nvidia.so", "lib32/libcuda.so.1"):
        assert f"'{name}' -rw" in both[0]["names"]
    assert '"EGLVisibleDGPUDevices",0x2]' in both[0][PROFILE]
