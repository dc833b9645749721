# SPDX-License-Identifier: Apache-2.0
"""What a running daemon says is free."""

import asyncio
import json
import subprocess

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import host, host_kernel
from tests.containerd import daemons

from .pairs import POD, container


async def free(pair):
    """Ask as a person does; give the ids and the exit status."""
    result = await asyncio.to_thread(
        subprocess.run,
        [daemons.COMMAND, "devices", "--free", "--json", "--socket", str(pair.daemon.control)],
        check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert result.stderr == ""
    return [found["id"] for found in json.loads(result.stdout)], result.returncode


def test_what_nobody_holds(together):
    """Containers take GPUs from the list and give them back; with none left the status is 1."""

    async def body(pair):
        assert await free(pair) == ([str(index) for index in range(8)], 0)
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=1,6")
        await pair.create(2, "NVIDIA_VISIBLE_DEVICES=none")
        assert await free(pair) == (["0", "2", "3", "4", "5", "7"], 0)
        await pair.create(3, "NVIDIA_VISIBLE_DEVICES=all")
        assert await free(pair) == ([], 1)
        await pair.runtime.stop(container(3).id)
        await pair.runtime.remove(container(1).id)
        assert await free(pair) == ([str(index) for index in range(8)], 0)

    together(body)


def test_mig_devices_of_containers_that_ran_before(together, tmp_path):
    """A container found running holds the MIG devices whose nodes it has, not the GPU's others."""
    migs = (host.MigSpec(gi=1), host.MigSpec(gi=2), host.MigSpec(gi=3))
    spec = host.HostSpec(gpus=(host.GpuSpec(mig_enabled=True, mig=migs), host.GpuSpec()))
    directory = tmp_path / "host"
    host.build(directory, spec)
    caps = [host_kernel.cap_minor(0, 2, ci) for ci in (None, 0)]
    nodes = [("/dev/nvidia0", 195, 0)]
    nodes += [(f"/dev/nvidia-caps/nvidia-cap{minor}", 508, minor) for minor in caps]
    devices = [
        api.LinuxDevice(path=path, type="c", major=major, minor=minor)
        for path, major, minor in nodes
    ]

    async def body(pair):
        await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["gpus"][0]["mig_devices"], "NVML"
        )
        assert (await free(pair))[0] == ["0:0", "0:1", "0:2", "1"]
        asked = "NVIDIA_VISIBLE_DEVICES=0:2"
        given = (await pair.create(1, asked)).linux.devices
        assert (await free(pair))[0] == ["0:0", "0:1", "1"]
        before = [container(2, "NVIDIA_VISIBLE_DEVICES=0:1", devices=devices)]
        pair.runtime.containers = [*before, container(1, asked, devices=given)]
        pair.runtime.plugins[0].peer.link.close()
        await asyncio.to_thread(
            pair.daemon.until, lambda: len(pair.daemon.status()["containers"]) == 2, "both"
        )
        assert (await free(pair))[0] == ["0:0", "1"]

    together(body, gpus=directory, pods=[POD])
