# SPDX-License-Identifier: Apache-2.0
"""A user's own docker (rootless): by nri-nvidia-runtime, by CDI, by --gpus; its builds."""

import contextlib

import pytest

from nri_nvidia.oci import install
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import doors, test_doors, test_rootless, users_dockers
from .test_docker_configured import ASKING

pytestmark = pytest.mark.long
ASKED = {"NVIDIA_VISIBLE_DEVICES": "0,2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
BY_NAME = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=2"]


@pytest.fixture(scope="module")
def host(programs):
    """A simulated host that the user can read, where he can start the unpacked programs."""
    for name in (*users_dockers.PROGRAMS, "docker-cli", "runc"):
        if name not in programs:
            pytest.fail(f"{name} is not there: run contrib/setup --long")
        if reason := install.closed_at(str(programs[name].path)):
            pytest.skip(f"another user cannot start the unpacked programs: {name} {reason}")
    with test_rootless.place("nnh-") as directory:
        simulated.build(directory / "host", host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 3))
        yield directory / "host"


@pytest.fixture(scope="module")
def world(host, programs, library):
    """A docker as `configure` sets it up, with what --gpus looks for, and the daemon."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(users_dockers.places(host, library.probe))
        place.provide_run()
        daemon = stack.enter_context(place.daemon(host))
        place.configure(users_dockers.wrapper(daemon, programs["runc"].path))
        path = place.directory / "path"
        path.mkdir()
        (path / "nvidia-container-runtime-hook").symlink_to(
            daemon.directory / "bin/nri-nvidia-runtime"
        )
        docker = stack.enter_context(
            users_dockers.running(place, programs, library["debian"], path)
        )
        yield docker, daemon


async def test_by_the_runtime_and_by_cdi(world):
    """The same either way; the holder is told by the user, also after a restart."""
    docker, daemon = world
    async with docker.container(ASKED, "--runtime", "nri-nvidia") as container:
        by_runtime = await doors.facts(container)
        everything = await test_doors.everything(container)
        assert {"nvidia0", "nvidia2", "nvidiactl"} < by_runtime["nodes"].keys()
        assert by_runtime["opened"] == {"ENXIO"}
        assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
        await docker.restart(container)
        assert await container.probe("open", "/dev/nvidia2", "rw") == "ENXIO"
        (entry,) = daemon.status()["containers"]
        assert entry["id"].endswith(f"/{users_dockers.USER}")
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")
    async with docker.container(None, *BY_NAME) as container:
        assert await doors.facts(container) == by_runtime
        assert await test_doors.everything(container) == everything


async def test_gpus(world):
    """`--gpus` with the runtime; without it the container is refused."""
    docker, _ = world
    for wish, nodes in (("2", {"0", "1"}), ("device=2", {"2"}), ("all", set("012"))):
        async with docker.container(None, "--runtime", "nri-nvidia", "--gpus", wish) as container:
            listed = (await container.probe("ls", "/dev")).split()
            assert {name[6:] for name in listed if name[6:].isdigit()} == nodes
            assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
    with pytest.raises(doors.RefusedError, match="runtime is not nri-nvidia-runtime"):
        async with docker.container(None, "--gpus", "all"):
            pass


async def test_refusals_are_what_docker_says(world):
    """The daemon's sentence by the runtime, docker's own by CDI; nothing is held."""
    docker, daemon = world
    env = {"NVIDIA_VISIBLE_DEVICES": "9"}
    with pytest.raises(doors.RefusedError, match="DEVICES=9: no such GPU; this node has 0-2"):
        async with docker.container(env, "--runtime", "nri-nvidia"):
            pass
    assert daemon.status()["containers"] == []
    with pytest.raises(doors.RefusedError, match=r"unresolvable CDI devices nvidia\.com/gpu=9"):
        async with docker.container(None, "--device", "nvidia.com/gpu=9"):
            pass


async def test_what_asks_for_nothing_gets_nothing(world):
    """By the runtime, and without it even what asks."""
    docker, _ = world
    for options in (["--runtime", "nri-nvidia"], []):
        async with docker.container({} if options else ASKED, *options) as container:
            assert "nvidia" not in await container.probe("ls", "/dev")


async def test_builds(host, programs, library):
    """As the default runtime for the classic builder; for BuildKit first on PATH as `runc`."""
    if "docker-buildx" not in programs:
        pytest.fail("docker-buildx is not there: run contrib/setup --long")
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(users_dockers.places(host, library.probe))
        place.provide_run()
        daemon = stack.enter_context(place.daemon(host))
        wrapper = users_dockers.wrapper(daemon, programs["runc"].path)
        place.configure(wrapper, "--default")
        path = place.directory / "path"
        path.mkdir()
        (path / "runc").symlink_to(wrapper)
        docker = stack.enter_context(
            users_dockers.running(place, programs, library["debian"], path)
        )
        docker.use_plugin(programs["docker-buildx"])
        for kit in (False, True):
            more = ["--progress", "plain", "--no-cache"] if kit else []
            done = await docker.build(ASKING, *more, kit=kit)
            seen = (done.stdout + done.stderr).split()
            assert done.code == 0, done
            assert "nvidia1" in seen
            assert "nvidia0" not in seen
            done = await docker.build([ASKING[0], ASKING[2]], *more, kit=kit)
            assert "nvidiactl" not in done.stdout + done.stderr


async def test_the_directories_have_to_be_there_first(host, programs, library):
    """Of /run the user's docker sees what was there at its start: started again it is served."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(users_dockers.places(host, library.probe))
        front = place.directory / "front"
        place.configure(front)
        with users_dockers.running(place, programs, library["debian"]) as docker:
            place.provide_run()
            daemon = stack.enter_context(place.daemon(host))
            front.symlink_to(users_dockers.wrapper(daemon, programs["runc"].path))
            # The package's own interpreter may be closed to users here.
            (daemon.directory / "bin/python").unlink()
            with pytest.raises(doors.RefusedError, match="there is no /run/nri-nvidia here"):
                async with docker.container(ASKED, "--runtime", "nri-nvidia"):
                    pass
            with pytest.raises(doors.RefusedError, match="unresolvable CDI devices"):
                async with docker.container(None, *BY_NAME):
                    pass
        with users_dockers.running(place, programs, library["debian"]) as docker:
            for env, options in ((ASKED, ["--runtime", "nri-nvidia"]), (None, BY_NAME)):
                async with docker.container(env, *options) as container:
                    assert await container.probe("open", "/dev/nvidia2", "rw") == "ENXIO"
