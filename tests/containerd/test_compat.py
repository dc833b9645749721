# SPDX-License-Identifier: Apache-2.0
"""Which libcuda.so.1 the loader takes in containers of images like CUDA's."""

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_driver, host_spec

from . import daemons

DIRECTORY = "/usr/local/nvidia"
COMPAT = "/usr/local/cuda/compat"
SEARCH = f"LD_LIBRARY_PATH={DIRECTORY}/lib:{DIRECTORY}/lib64"
ENV = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),)))
    return directory


def image(engine, *, version, env=()):
    """Make an image with a CUDA driver of its own, reached as in CUDA's images; give its name."""
    name = f"compat-{version.partition('.')[0]}-{len(env)}"
    options = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-DSIM_CUDA_VERSION=12090")
    files = {
        f"/usr/local/cuda-12.9/compat/libcuda.so.{version}": host_driver.compiled(
            "cuda.c", *options
        ),
        "/usr/local/cuda-12.9/compat/libcuda.so.1": f"libcuda.so.{version}",
        "/usr/local/cuda": "/etc/alternatives/cuda",
        "/etc/alternatives/cuda": "/usr/local/cuda-12.9",
    }
    engine.add_image(name, base="debian", env=env, files=files)
    return name


async def loaded(engine, name, runtime="runc", **wishes):
    """Give which libcuda.so.1 a program gets in a container of an image."""
    async with engine.pod(runtime=runtime) as pod, pod.container(name, env=ENV, **wishes) as made:
        result = await made.exec(["/probe-dlopen", "libcuda.so.1"])
        assert result.code == 0, result
        return result.stdout.strip()


@pytest.mark.parametrize("layout", ["files", "volume"])
async def test_newer_driver_of_the_image_wins(engine, gpu_host, runtime, layout):
    """It does by ld.so.cache and by the LD_LIBRARY_PATH of CUDA's images, in both layouts."""
    plain = image(engine, version="575.57.08")
    searching = image(engine, version="575.57.08", env=[SEARCH])
    with daemons.running(engine.nri_socket, gpu_host, ("--layout", layout)) as daemon:
        if layout == "volume":
            daemon.until(lambda: "are prepared in" in daemon.logged(), "the prepared directory")
        assert await loaded(engine, plain, runtime) == f"{COMPAT}/libcuda.so.1"
        assert await loaded(engine, searching, runtime) == f"{DIRECTORY}/lib/libcuda.so.1"
        daemon.until(
            lambda: (
                "its hook: compat: the CUDA driver 575.57.08 of /usr/local/cuda/compat is used"
                in daemon.logged()
            ),
            "what its hook reports",
        )


@pytest.mark.parametrize("layout", ["files", "volume"])
async def test_older_driver_of_the_image_is_left(engine, gpu_host, layout):
    """The host's is newer, so it is what programs get."""
    searching = image(engine, version="535.104.05", env=[SEARCH])
    with daemons.running(engine.nri_socket, gpu_host, ("--layout", layout)) as daemon:
        if layout == "volume":
            daemon.until(lambda: "are prepared in" in daemon.logged(), "the prepared directory")
        assert await loaded(engine, searching) == f"{DIRECTORY}/lib64/libcuda.so.1"


async def test_it_can_be_switched_off(engine, gpu_host, tmp_path):
    """With inject.cuda_compat = never the host's is used, whatever an image holds."""
    searching = image(engine, version="575.57.08", env=[SEARCH])
    config = tmp_path / "config.toml"
    config.write_text('inject.cuda_compat = "never"\n')
    with daemons.running(engine.nri_socket, gpu_host, ("--config", str(config))):
        assert await loaded(engine, searching) == f"{DIRECTORY}/lib64/libcuda.so.1"
