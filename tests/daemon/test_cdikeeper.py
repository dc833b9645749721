# SPDX-License-Identifier: Apache-2.0
"""The daemon keeps CDI specifications as the host is."""

import asyncio
import contextlib
import json

import attrs
import pytest

from nri_nvidia.config import model
from nri_nvidia.daemon import cdikeeper, hookplace, hostwatch
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec


class World:
    """A simulated host with a keeper, whose settings a test may change."""

    def __init__(self, directory):
        self.host = directory / "host"
        simulated.build(self.host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
        self.file = directory / "cdi/nri-nvidia-gpu.json"
        cdi = model.Cdi(keep=True, directory=str(self.file.parent))
        self.config = model.Config(cdi=cdi, hook=model.Hook(enabled=False))
        watch = hostwatch.HostWatch(simulated.options_for(self.host))
        self.keeper = cdikeeper.CdiKeeper(watch, hookplace.HookPlace(), self.wanted)
        self.watch = watch

    def wanted(self):
        rules = self.config.rules(interpreter="/usr/bin/python3")
        return cdikeeper.Wanted(cdi=self.config.cdi, hook=self.config.hook, rules=rules)

    def change(self, **changes):
        """Use other settings."""
        self.config = attrs.evolve(self.config, cdi=attrs.evolve(self.config.cdi, **changes))
        self.keeper.use()

    async def until(self, condition):
        """Have the host looked at again until something holds."""
        async with asyncio.timeout(20):
            while not condition():
                self.keeper.use()
                await asyncio.sleep(0.02)

    def names(self):
        if not self.file.exists():
            return []
        return [device["name"] for device in json.loads(self.file.read_text())["devices"]]


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    task = asyncio.create_task(made.keeper.keep())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    made.keeper.close()
    made.watch.close()


async def test_the_file_follows_the_host(world):
    """Written at the start, again when a GPU has gone, put back when somebody removed it."""
    await world.until(lambda: len(world.names()) == 5)
    (gone,) = (world.host / "proc/driver/nvidia/gpus").glob("0000:0f:*")
    (gone / "information").unlink()
    gone.rmdir()
    await world.until(lambda: len(world.names()) == 3)
    world.file.unlink()
    await world.until(lambda: len(world.names()) == 3)


async def test_the_file_goes_with_the_driver(world):
    """An engine would look for a node that is not there."""
    await world.until(world.names)
    (world.host / "proc/driver/nvidia/version").unlink()
    (world.host / "sys/module/nvidia/version").unlink()
    await world.until(lambda: not world.file.exists())
    assert world.keeper.problem is None


async def test_the_file_goes_with_the_setting(world):
    """And where it is to be elsewhere, it is there alone."""
    await world.until(world.names)
    other = world.file.parent / "other"
    world.change(directory=str(other))
    await world.until(lambda: (other / world.file.name).exists() and not world.file.exists())
    world.change(keep=False)
    await world.until(lambda: not list(other.iterdir()))


async def test_what_keeps_it_from_that_is_a_finding(world, tmp_path):
    """A directory that cannot be written; it is tried again."""
    await world.until(world.names)
    (tmp_path / "taken").touch()
    world.change(directory=str(tmp_path / "taken"))
    await world.until(lambda: world.keeper.problem)
    assert world.keeper.problem.code == "cdi-not-kept"
    assert "cannot be written" in world.keeper.problem.message
    world.change(directory=str(world.file.parent))
    await world.until(lambda: world.keeper.problem is None)
