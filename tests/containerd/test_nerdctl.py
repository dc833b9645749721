# SPDX-License-Identifier: Apache-2.0
"""nerdctl's containers, which no NRI shows: by nri-nvidia-runtime, by CDI, by --gpus."""

import contextlib

import pytest

from nri_nvidia import cli
from nri_nvidia.configure import transparent
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, doors, nerdctls, test_doors
from .test_docker_configured import NVIDIA_DOCKER

pytestmark = pytest.mark.long
ASKED = {"NVIDIA_VISIBLE_DEVICES": "0,2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
BY_NAME = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=2"]


@pytest.fixture(scope="module")
def world(start, programs, library, tmp_path_factory):
    """A containerd, a nerdctl that looks for CDI files where the daemon keeps them, the daemon."""
    program = nerdctls.found()
    host = tmp_path_factory.mktemp("host")
    simulated.build(host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 3))
    with contextlib.ExitStack() as stack:
        engine = start("containerd-2")
        stack.callback(engine.stop)
        text = f'cdi.keep = true\ncdi.directory = "{engine.cdi_specs}"\n'
        daemon = stack.enter_context(daemons.alone(host, text))
        daemon.until((engine.cdi_specs / "nri-nvidia-gpu.json").exists, "the CDI specification")
        nerdctl = nerdctls.Nerdctl.beside(program, engine)
        nerdctl.load(library["debian"])
        wrapper = doors.wrapper(daemon, programs["runc"].path)

        def run(env=None, *options):
            return nerdctl.container(library["debian"], env, *options)

        yield run, ["--runtime", str(wrapper)], nerdctl, daemon, engine


async def test_by_the_runtime_and_by_cdi(world):
    """As by ctr either way; the holder is known while it runs, also after a restart."""
    run, wrapped, nerdctl, daemon, engine = world
    async with doors.ctr(engine, daemon.directory / "wrapped-runc", ASKED) as container:
        expected = await doors.facts(container)
        everything = await test_doors.everything(container)
    async with run(ASKED, *wrapped) as container:
        assert await doors.facts(container) == expected
        assert await test_doors.everything(container) == everything
        daemon.until(lambda: len(daemon.status()["containers"]) == 1, "the other one's end")
        await nerdctl.restart(container)
        assert await container.probe("open", "/dev/nvidia2", "rw") == "ENXIO"
        (entry,) = daemon.status()["containers"]
        assert (entry["name"], entry["door"]) == (container.id, "runtime")
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")
    async with run(None, *BY_NAME) as container:
        assert await doors.facts(container) == expected
        assert await test_doors.everything(container) == everything


async def test_gpus(world):
    """--gpus are CDI names to nerdctl, by count and by device."""
    run, *_ = world
    for wish, nodes in (("2", {"0", "1"}), ("device=2", {"2"}), ("all", set("012"))):
        async with run(None, "--gpus", wish) as container:
            listed = (await container.probe("ls", "/dev")).split()
            assert {name[6:] for name in listed if name[6:].isdigit()} == nodes
            assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0


async def test_refusals_are_what_nerdctl_says(world):
    """The daemon's sentence by the runtime, nerdctl's own by CDI; nothing is held."""
    run, wrapped, _, daemon, _ = world
    with pytest.raises(doors.RefusedError, match="DEVICES=9: no such GPU; this node has 0-2"):
        async with run({"NVIDIA_VISIBLE_DEVICES": "9"}, *wrapped):
            pass
    assert daemon.status()["containers"] == []
    with pytest.raises(doors.RefusedError, match=r"unresolvable CDI devices nvidia\.com/gpu=9"):
        async with run(None, "--device", "nvidia.com/gpu=9"):
            pass


async def test_what_asks_for_nothing_gets_nothing(world):
    """By the runtime, and without it even what asks."""
    run, wrapped, *_ = world
    for options in (wrapped, []):
        async with run({} if options else ASKED, *options) as container:
            assert "nvidia" not in await container.probe("ls", "/dev")


async def test_nvidia_docker(world, library):
    """contrib/nvidia-docker runs by nerdctl what its users wrote."""
    _, (_, wrapper), nerdctl, *_ = world
    own = nerdctl.program()
    done = await doors.run(
        "env", "NV_GPU=1", f"NV_DOCKER={own}", f"NRI_NVIDIA_RUNTIME_PATH={wrapper}", NVIDIA_DOCKER,
        "run", "-d", "--name", "as-ever", "--pull", "never", "--network", "none",
        library["debian"].reference, "/probe", "pause",
    )  # fmt: skip
    try:
        assert done.code == 0, done
        listed = (await doors.run(own, "exec", "as-ever", "/probe", "ls", "/dev")).stdout.split()
        assert {name for name in listed if name[6:].isdigit()} == {"nvidia1"}
    finally:
        await doors.run(own, "rm", "-f", "as-ever")


async def test_as_configured(world, start, library):
    """With what `configure nerdctl` writes a container asks by its variable alone."""
    *_, daemon, _ = world

    def prepare(engine):
        words = ["--root", str(engine.directory), "--runtime-path", str(doors.FRONT)]
        assert cli.main(["configure", "nerdctl", *words, "--apply"]) == 0
        # What systemd would do by the unit's drop-in.
        first = f"{engine.directory}{transparent.DIRECTORY}/containerd"
        engine._path = f"{first}:{engine._path}"

    engine = start("containerd-2", None, prepare)
    try:
        engine.inside("/run/nri-nvidia").symlink_to(daemon.directory)
        nerdctl = nerdctls.Nerdctl.beside(nerdctls.found(), engine)
        nerdctl.load(library["debian"])
        for env, given in (({"NVIDIA_VISIBLE_DEVICES": "1"}, {"nvidia1"}), ({}, set())):
            async with nerdctl.container(library["debian"], env) as container:
                listed = (await container.probe("ls", "/dev")).split()
                assert {name for name in listed if name[6:].isdigit()} == given
        with pytest.raises(doors.RefusedError, match="no such GPU"):
            async with nerdctl.container(library["debian"], {"NVIDIA_VISIBLE_DEVICES": "9"}):
                pass
    finally:
        engine.stop()
