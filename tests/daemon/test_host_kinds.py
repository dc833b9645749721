# SPDX-License-Identifier: Apache-2.0
"""The daemon on hosts whose driver has a root of its own, which comes, goes and hangs."""

import asyncio
import contextlib
import pathlib

import pytest

from nri_nvidia.testing import host, host_spec, runtime

from . import pairs, stalls

ASKED = "NVIDIA_VISIBLE_DEVICES=0"
BY_ITSELF = ("--driver-root", "", "--dev-root", "", "--layout", "files")


def built(directory, layout):
    host.build(directory, host.HostSpec(gpus=(host.GpuSpec(),), layout=layout))
    return directory


async def settled(pair):
    """Wait until a container created now would get its GPU."""
    await asyncio.to_thread(
        pair.daemon.until, lambda: pair.daemon.status()["ready"], "the hook in place"
    )


def sources(adjusted):
    return {mount.source for mount in adjusted.mounts if "libcuda.so" in mount.destination}


@pytest.mark.skipif(not pathlib.Path(stalls.DEVICE).exists(), reason="the kernel has no FUSE here")
def test_a_driver_container_that_never_answers(together, tmp_path):
    """While it hangs GPU containers are refused in time and others made; when it goes, all is well."""
    top = built(tmp_path / "host", "ubuntu")
    stuck = top / "run/nvidia/driver"
    stuck.mkdir(parents=True)

    async def body(pair):
        await settled(pair)
        with contextlib.ExitStack() as hanging:
            await pair.create(0, ASKED)
            hanging.enter_context(stalls.unanswering(stuck))
            with pytest.raises(runtime.CreationFailed, match="could not be read within"):
                await pair.create(1, ASKED)
            assert bytes(await pair.create(2, "PATH=/bin")) == b""
        adjusted = await pair.create(3, ASKED)
        assert all(source.startswith(f"{top}/usr/lib/") for source in sources(adjusted))
        assert (await pairs.status(pair))["runtime"]["registrations"] == 1

    together(body, *BY_ITSELF, gpus=top, request_timeout=0.7)


def test_a_driver_container_that_comes_and_goes(together, tmp_path):
    """A container is refused while the root is empty, and given the driver as soon as it is there."""
    top = built(tmp_path / "host", "operator")
    driver = top / "run/nvidia/driver"
    away = top / "run/nvidia/away"

    async def body(pair):
        await settled(pair)
        assert all(f"{driver}/" in source for source in sources(await pair.create(0, ASKED)))
        await asyncio.to_thread(driver.rename, away)
        driver.mkdir()
        with pytest.raises(runtime.CreationFailed, match="a driver container is not ready"):
            await pair.create(1, ASKED)
        driver.rmdir()
        await asyncio.to_thread(away.rename, driver)
        assert sources(await pair.create(2, ASKED))

    together(body, *BY_ITSELF, gpus=top)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("wsl", "driver of unknown version, 1 GPUs, 23 driver files; taken for wsl: /dev/dxg is"),
        ("jetson-xavier", "driver 35.4.1, 1 GPUs, 18 driver files; taken for jetson: /dev/nvhost"),
        ("rhel", "taken for rhel: /etc/os-release says ID=rhel"),
    ],
)
def test_the_log_says_which_kind_of_host_it_is(together, tmp_path, layout, said):
    """What was found, which preset that is and why are a line of the log; a GPU is then given."""
    top = tmp_path / "host"
    boards = layout in host_spec.PLATFORMS
    gpus = () if layout.startswith("jetson") else (host.GpuSpec(),)
    host.build(top, host.HostSpec(gpus=gpus, layout=layout, nvml=not boards))

    async def body(pair):
        await settled(pair)
        assert pair.daemon.says(said)
        assert sources(await pair.create(0, ASKED))
        (gpu,) = (await pairs.status(pair))["gpus"]
        assert [held["name"] for held in gpu["containers"]] == ["c0"]

    together(body, *BY_ITSELF, gpus=top)
