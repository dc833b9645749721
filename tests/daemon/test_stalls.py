# SPDX-License-Identifier: Apache-2.0
"""Each place that the daemon reads or writes, while it does not answer.

Whoever asks for no GPU is answered meanwhile, and a GPU container gets its GPU or a refusal that
says what did not answer; the runtime keeps the plugin. Other such tests stand beside what they
are about: the driver's root and the hook's directory in test_faults, the daemon's own directories
and NVML in test_load, a driver container in test_host_kinds, CRI in test_cri and test_policy.
"""

import asyncio
import contextlib
import pathlib

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.daemon import cdikeeper
from nri_nvidia.testing import host, runtime

from . import pairs, stalls, test_cdikeeper

needs_fuse = pytest.mark.skipif(
    not pathlib.Path(stalls.DEVICE).exists(), reason="the kernel has no FUSE here"
)
GPU = "NVIDIA_VISIBLE_DEVICES=0"


def creation(number, *env):
    return api.CreateContainerRequest(pod=pairs.POD, container=pairs.container(number, *env))


async def others_are_answered_while(pair, number):
    """Ask for a GPU, and for none behind it; gives what the first one came to.

    Requests are made beside each other, which no runtime does: it would wait for the first.
    """
    (attached,) = pair.runtime.plugins
    asking = asyncio.ensure_future(
        attached.stub.create_container(creation(number, GPU), timeout=20)
    )
    for further in range(3):
        answer = await attached.stub.create_container(creation(100 + further, "PATH=/bin"))
        assert bytes(answer) == b""
        assert not asking.done()
    await asyncio.wait((asking,))


def unharmed(pair, found):
    assert len(pair.runtime.plugins) == 1
    assert not [entry for entry in pair.runtime.log if "closing" in entry]
    assert found["runtime"]["registrations"] == 1


async def settled(pair):
    await asyncio.to_thread(
        pair.daemon.until, lambda: pair.daemon.status()["ready"], "the first look at the host"
    )


@needs_fuse
@pytest.mark.parametrize("place", ["dev/char", "dev", "proc/driver/nvidia", "sys", "etc"])
def test_a_part_of_the_host_that_never_answers(together, tmp_path, place):
    """The links of /dev/char, nodes, /proc, /sys and the loader's cache: refused, and why."""
    top = tmp_path / "host"
    host.build(top, pairs.EIGHT)
    (top / place).mkdir(parents=True, exist_ok=True)

    async def body(pair):
        await settled(pair)
        assert (await pair.create(0, GPU)).mounts
        with stalls.unanswering(top / place):
            await others_are_answered_while(pair, 1)
            for number in range(2, 4):
                with pytest.raises(runtime.CreationFailed, match="could not be read within"):
                    await pair.create(number, GPU)
                assert bytes(await pair.create(10 + number, "PATH=/bin")) == b""
            found = await pairs.status(pair)
            unharmed(pair, found)
            assert "host-scan-late" in {each["code"] for each in found["findings"]}
        assert (await pair.create(5, GPU)).mounts

    together(body, gpus=top, request_timeout=0.9)


@needs_fuse
def test_records_that_cannot_be_written(together):
    """A disk that hangs after the start: GPUs are given, and what is in memory is explained."""

    async def body(pair):
        await settled(pair)
        assert (await pair.create(0, GPU)).mounts
        kept = pair.daemon.directory / "decisions"
        await asyncio.to_thread(pair.daemon.until, lambda: any(kept.glob("*.json")), "a record")
        with stalls.unanswering(kept):
            for number in range(1, 4):
                assert (await pair.create(number, GPU)).mounts
                assert bytes(await pair.create(10 + number, "PATH=/bin")) == b""
            unharmed(pair, await pairs.status(pair))
            assert len((await pairs.status(pair))["containers"]) == 4
            assert await asyncio.to_thread(pair.daemon.end) == 0

    together(body)


@needs_fuse
def test_cdi_directory_that_never_answers(together, tmp_path):
    """Containers get their GPUs; that the specification is not kept is said when it is known."""
    stuck = tmp_path / "cdi"
    stuck.mkdir()
    config = tmp_path / "config.toml"
    config.write_text(f'[cdi]\nkeep = true\ndirectory = "{stuck}"\n')

    async def body(pair):
        for number in range(3):
            assert (await pair.create(number, GPU)).mounts
            assert bytes(await pair.create(10 + number, "PATH=/bin")) == b""
        unharmed(pair, await pairs.status(pair))
        assert await asyncio.to_thread(pair.daemon.end) == 0

    with stalls.unanswering(stuck):
        together(body, "--config", str(config))


@needs_fuse
async def test_a_cdi_directory_that_hangs_is_said(tmp_path, monkeypatch):
    """It is a problem for as long as it lasts, and one call waits for it, not one a look."""
    monkeypatch.setattr(cdikeeper, "_LIMIT", 0.2)
    world = test_cdikeeper.World(tmp_path)
    world.file.parent.mkdir()
    keeping = asyncio.ensure_future(world.keeper.keep())
    try:
        with stalls.unanswering(world.file.parent):
            await world.until(lambda: world.keeper.problem)
            assert world.keeper.problem.code == "cdi-not-kept"
            assert str(world.file.parent) in world.keeper.problem.message
            for _ in range(20):
                world.keeper.use()
                await asyncio.sleep(0)
            assert world.keeper._writer._calls.qsize() == 0
        await world.until(world.file.exists)
        await world.until(lambda: not world.keeper.problem)
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        world.keeper.close()
        world.watch.close()
