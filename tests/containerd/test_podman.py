# SPDX-License-Identifier: Apache-2.0
"""podman's containers, which no daemon makes: by nri-nvidia-runtime, by CDI, by --gpus."""

import contextlib
import shutil

import pytest

from nri_nvidia import cli
from nri_nvidia.oci import install
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import conftest, daemons, doors, podmans, test_doors, test_rootless

pytestmark = pytest.mark.long
ASKED = {"NVIDIA_VISIBLE_DEVICES": "0,2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
BY_NAME = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=2"]


RELEASES = ("podman-4", "podman")
"""Debian 12's, the oldest that knows CDI, and the newest."""


@pytest.fixture(scope="module", params=RELEASES)
def release(programs, request):
    """Each podman's name."""
    for name in (request.param, "conmon"):
        if name not in programs:
            pytest.fail(f"{name} is not there: run contrib/setup --long")
    return request.param


@pytest.fixture(scope="module")
def world(release, programs, library, tmp_path_factory):
    """A podman that looks for CDI files where the daemon keeps them."""
    host = tmp_path_factory.mktemp("host")
    simulated.build(host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 8))
    with contextlib.ExitStack() as stack:
        podman = stack.enter_context(podmans.running(programs, library, release=release))
        text = f'cdi.keep = true\ncdi.directory = "{podman.cdi_specs}"\n'
        daemon = stack.enter_context(daemons.alone(host, text))
        daemon.until((podman.cdi_specs / "nri-nvidia-gpu.json").exists, "the CDI specification")
        yield podman, daemon


@pytest.fixture(params=["runc", "crun"])
def wrapped(world, request, programs):
    """nri-nvidia-runtime in front of each runtime."""
    if request.param == "crun" and (reason := conftest.crun_cannot()):
        pytest.skip(reason)
    return doors.wrapper(world[1], programs[request.param].path)


async def test_by_the_runtime_and_by_cdi(world, wrapped):
    """The same either way; the holder is known while it runs."""
    podman, daemon = world
    async with podman.container(ASKED, runtime=wrapped) as container:
        by_runtime = await doors.facts(container)
        everything = await test_doors.everything(container)
        (entry,) = daemon.status()["containers"]
        assert entry["door"] == "runtime"
        assert {"nvidia0", "nvidia2", "nvidiactl"} < by_runtime["nodes"].keys()
        assert (by_runtime["opened"], by_runtime["made"]) == ({"ENXIO"}, "OK EPERM")
        assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")
    async with podman.container(None, *BY_NAME) as container:
        assert await doors.facts(container) == by_runtime
        assert await test_doors.everything(container) == everything


@pytest.mark.parametrize("default", [False, True])
async def test_what_configure_writes(world, programs, default):
    """podman knows our runtime by its name, beside its own, and as that of all containers."""
    podman, daemon = world
    wrapper = doors.wrapper(daemon, programs["runc"].path)
    words = ["configure", "podman", "--root", str(podman.node)]
    more = ["--default"] if default else []
    assert cli.main([*words, "--runtime-path", str(wrapper), *more, "--apply"]) == 0
    try:
        chosen = None if default else "nri-nvidia"
        async with podman.container({"NVIDIA_VISIBLE_DEVICES": "2"}, runtime=chosen) as container:
            assert "nvidia2" in await container.probe("ls", "/dev")
        async with podman.container({}, runtime=programs["runc"].path) as container:
            assert "nvidiactl" not in await container.probe("ls", "/dev")
    finally:
        assert cli.main([*words, "--undo"]) == 0


async def test_gpus(world, release):
    """podman 5 makes CDI names of --gpus; 4.3 takes the option and does nothing with it."""
    podman, _ = world
    async with podman.container(None, "--gpus", "all") as container:
        listed = (await container.probe("ls", "/dev")).split()
    given = {name[6:] for name in listed if name[6:].isdigit()}
    assert given == (set() if release == "podman-4" else set("01234567"))


async def test_of_two_specifications_neither_counts(world):
    """As `cdi validate` and `check` say: their devices are not to be had until one is removed."""
    podman, _ = world
    ours, other = (podman.cdi_specs / name for name in ("nri-nvidia-gpu.json", "other.json"))
    device = ["--device", "nvidia.com/gpu=0"]
    shutil.copy(ours, other)
    try:
        with pytest.raises(doors.RefusedError, match="unresolvable CDI devices"):
            async with podman.container(None, *device):
                pass
    finally:
        other.unlink()
    async with podman.container(None, *device) as container:
        assert "nvidia0" in await container.probe("ls", "/dev")


async def test_refusals_are_what_podman_says(world, wrapped):
    """The daemon's sentence by the runtime, podman's own by CDI."""
    podman, daemon = world
    with pytest.raises(doors.RefusedError, match="NVIDIA_VISIBLE_DEVICES=9: no such GPU"):
        async with podman.container({"NVIDIA_VISIBLE_DEVICES": "9"}, runtime=wrapped):
            pass
    assert daemon.status()["containers"] == []
    with pytest.raises(doors.RefusedError, match=r"unresolvable CDI devices nvidia\.com/gpu=9"):
        async with podman.container(None, "--device", "nvidia.com/gpu=9"):
            pass


async def test_what_asks_for_nothing_gets_nothing(world, wrapped):
    """By the runtime too."""
    podman, _ = world
    async with podman.container(runtime=wrapped) as container:
        assert "nvidia" not in await container.probe("ls", "/dev")


async def test_a_users_own(release, programs, library):
    """Rootless: nodes and driver by the runtime and by CDI; the holder is told by the user."""
    paths = [programs[name].path for name in (release, "conmon", "runc")]
    closed = [reason for path in paths if (reason := install.closed_at(str(path)))]
    if closed:
        pytest.skip(f"another user cannot start the unpacked programs: podman {closed[0]}")
    user = test_rootless.USER
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(test_rootless.place("nnh-")) / "host"
        simulated.build(host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 3))
        own = test_rootless.own_dev(host)
        podman = stack.enter_context(
            podmans.running(programs, library, user=user, more=own, release=release)
        )
        text = f'cdi.keep = true\ncdi.directory = "{podman.cdi_specs}"\n'
        daemon = stack.enter_context(
            daemons.alone(host, text, ["--dev-root", "/"], prefix=podman.space)
        )
        daemon.until((podman.cdi_specs / "nri-nvidia-gpu.json").exists, "the CDI specification")
        daemon.until((daemon.directory / "runtime/nri-nvidia-client").exists, "its program")
        wrapper = doors.wrapper(daemon, programs["runc"].path)
        env = {"NVIDIA_VISIBLE_DEVICES": "2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
        async with podman.container(env, runtime=wrapper) as container:
            by_runtime = await doors.facts(container)
            (entry,) = daemon.status()["containers"]
            assert entry["id"].endswith(f"/{user}")
        assert {"nvidia2", "nvidiactl"} < by_runtime["nodes"].keys()
        assert by_runtime["opened"] == {"ENXIO"}
        daemon.until(lambda: not daemon.status()["containers"], "the container's end")
        async with podman.container(None, "--device", "nvidia.com/gpu=2") as container:
            assert await doors.facts(container) == by_runtime
