# SPDX-License-Identifier: Apache-2.0
"""docker's containers, which no NRI shows: by nri-nvidia-runtime, by CDI, by --gpus."""

import contextlib

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec
from tests.field import harness

from . import daemons, dockers, doors, test_doors

pytestmark = pytest.mark.long
ASKED = {"NVIDIA_VISIBLE_DEVICES": "0,2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
ENGINES = {
    "docker-20": "containerd-1.7",
    "docker-26": "containerd-1.7",
    "docker-28": "containerd-2",
}


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    """A simulated host with eight GPUs."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 8))
    return directory


@pytest.fixture(scope="module", params=ENGINES)
def world(request, start, gpu_host, programs, library):
    """A docker that knows the runtime, CDI and --gpus as README has it, and a daemon."""
    for name in (request.param, "docker-cli"):
        if name not in programs:
            pytest.fail(f"{name} is not there: run contrib/setup --long")
    with contextlib.ExitStack() as stack:
        engine = start(ENGINES[request.param])
        stack.callback(engine.stop)
        text = f'cdi.keep = true\ncdi.directory = "{engine.cdi_specs}"\n'
        daemon = stack.enter_context(daemons.alone(gpu_host, text))
        daemon.until((engine.cdi_specs / "nri-nvidia-gpu.json").exists, "the CDI specification")
        wrapper = doors.wrapper(daemon, programs["runc"].path)
        # What --gpus looks for on PATH.
        path = engine.directory / "path"
        path.mkdir()
        (path / "nvidia-container-runtime-hook").symlink_to(
            daemon.directory / "bin/nri-nvidia-runtime"
        )
        settings = {"runtimes": {"nri-nvidia": {"path": str(wrapper)}}}
        if request.param != "docker-20":
            settings |= {"features": {"cdi": True}, "cdi-spec-dirs": [str(engine.cdi_specs)]}
        else:
            settings |= {"deprecated-key-path": str(engine.directory / "key.json")}
        program = programs[request.param]
        docker = stack.enter_context(
            dockers.running(engine, program, programs["docker-cli"], settings, [path])
        )
        docker.load(library["debian"])
        yield docker, daemon, engine


@pytest.fixture
def cdi(world, request):
    """A docker that has CDI."""
    if "docker-20" in request.node.callspec.id:
        pytest.skip("docker 20.10 knows no CDI")
    return world


async def expected(world):
    """Give what the same request gets by CRI and the runtime."""
    _, daemon, engine = world
    async with doors.ctr(engine, daemon.directory / "wrapped-runc", ASKED) as container:
        return await doors.facts(container)


async def test_by_the_runtime(world):
    """As by ctr; the holder is known while it runs, also after docker restarts it."""
    docker, daemon, _ = world
    async with docker.container(ASKED, "--runtime", "nri-nvidia") as container:
        assert await doors.facts(container) == await expected(world)
        daemon.until(lambda: len(daemon.status()["containers"]) == 1, "the other one's end")
        await docker.restart(container)
        assert await container.probe("open", "/dev/nvidia2", "rw") == "ENXIO"
        (entry,) = daemon.status()["containers"]
        assert entry["door"] == "runtime"
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")


async def test_a_refusal_is_what_docker_says(world):
    """The daemon's sentence, and nothing is held."""
    docker, daemon, _ = world
    env = {"NVIDIA_VISIBLE_DEVICES": "9"}
    with pytest.raises(doors.RefusedError, match="NVIDIA_VISIBLE_DEVICES=9: no such GPU"):
        async with docker.container(env, "--runtime", "nri-nvidia"):
            pass
    assert daemon.status()["containers"] == []


async def test_what_asks_for_nothing_gets_nothing(world):
    """By the runtime, and without it even what asks."""
    docker, _, _ = world
    for options in (["--runtime", "nri-nvidia"], []):
        env = {} if options else ASKED
        async with docker.container(env, *options) as container:
            assert "nvidia" not in await container.probe("ls", "/dev")


async def test_gpus(world):
    """`--gpus` with the runtime, by count and by device; its hook is taken out again."""
    docker, _, _ = world
    for wish, nodes in (("2", {"0", "1"}), ("device=3", {"3"}), ("all", set("01234567"))):
        async with docker.container(None, "--runtime", "nri-nvidia", "--gpus", wish) as container:
            listed = (await container.probe("ls", "/dev")).split()
            assert {name[6:] for name in listed if name[6:].isdigit()} == nodes
            assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0


async def test_gpus_without_the_runtime_is_refused(world):
    """Rather than a container without a GPU."""
    docker, _, _ = world
    with pytest.raises(doors.RefusedError, match="runtime is not nri-nvidia-runtime"):
        async with docker.container(None, "--gpus", "all"):
            pass


async def test_gpus_that_are_none(world):
    """`--gpus 0` is a container without a GPU, by the runtime and without it."""
    docker, _, _ = world
    for options in (["--runtime", "nri-nvidia"], []):
        async with docker.container(None, *options, "--gpus", "0") as container:
            assert "nvidia" not in await container.probe("ls", "/dev")


async def test_by_cdi(cdi):
    """`--device nvidia.com/gpu=…`, as by the runtime; an unknown one is docker's to refuse."""
    docker, _, _ = cdi
    names = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=2"]
    async with docker.container(None, *names) as container:
        assert await doors.facts(container) == await expected(cdi)
        by_cdi = await test_doors.everything(container)
    async with docker.container(ASKED, "--runtime", "nri-nvidia") as container:
        assert await test_doors.everything(container) == by_cdi
    with pytest.raises(doors.RefusedError, match=r"unresolvable CDI devices nvidia\.com/gpu=9"):
        async with docker.container(None, "--device", "nvidia.com/gpu=9"):
            pass


async def test_cdi_and_the_runtime_do_not_add_up(cdi):
    """An image or `--gpus` that asks for all, with one device by name: that one."""
    docker, _, _ = cdi
    options = ["--runtime", "nri-nvidia", "--device", "nvidia.com/gpu=5"]
    for env, more in (({"NVIDIA_VISIBLE_DEVICES": "all"}, []), ({}, ["--gpus", "all"])):
        async with docker.container(env, *options, *more) as container:
            listed = (await container.probe("ls", "/dev")).split()
            assert {name for name in listed if name[6:].isdigit()} == {"nvidia5"}


async def test_what_docker_starts_with_itself(world, request):
    """`--restart always`: by the runtime with each; by CDI not with 26, which registers it late."""
    docker, _, _ = world
    which = request.node.callspec.id
    by = {"runtime": ({"NVIDIA_VISIBLE_DEVICES": "1"}, ["--runtime", "nri-nvidia"])}
    if which != "docker-20":
        by["cdi"] = ({}, ["--device", "nvidia.com/gpu=1"])
    async with contextlib.AsyncExitStack() as stack:
        names = {
            door: await stack.enter_async_context(
                docker.container(env, "--restart", "always", *options)
            )
            for door, (env, options) in by.items()
        }
        docker.stop()
        docker.start()
        runs = {}
        for door, container in names.items():
            told = await docker.call("inspect", "-f", "{{.State.Running}}", container.id)
            runs[door] = told.stdout.strip()
        expected = {"runtime": "true"}
        if which != "docker-20":
            expected["cdi"] = "true" if which == "docker-28" else "false"
        assert runs == expected


@pytest.mark.parametrize("which", ENGINES)
async def test_one_that_is_restarted_after_an_upgrade(which, start, tmp_path, programs, library):
    """It has the new driver: docker writes its configuration anew, and the runtime looks again."""
    old, new = (
        {"gpus": (host_spec.GpuSpec(),), "driver": each} for each in ("550.54.14", "550.90.07")
    )
    simulated.build(tmp_path / "host", host_spec.HostSpec(**old))
    with contextlib.ExitStack() as stack:
        engine = start(ENGINES[which])
        stack.callback(engine.stop)
        daemon = stack.enter_context(daemons.alone(tmp_path / "host"))
        wrapper = doors.wrapper(daemon, programs["runc"].path)
        settings = {"runtimes": {"nri-nvidia": {"path": str(wrapper)}}}
        if which == "docker-20":
            settings["deprecated-key-path"] = str(engine.directory / "key.json")
        docker = stack.enter_context(
            dockers.running(engine, programs[which], programs["docker-cli"], settings)
        )
        docker.load(library["debian"])
        env = {"NVIDIA_VISIBLE_DEVICES": "0"}
        async with docker.container(env, "--runtime", "nri-nvidia") as container:
            harness.become(tmp_path / "host", "usr", "etc", "sys", "proc", "nvml.json", **new)
            daemon.until(lambda: daemon.status()["containers"][0]["stale"], "the new driver")
            await docker.restart(container)
            (held,) = daemon.status()["containers"]
            assert (held["driver_version"], held["stale"]) == ("550.90.07", False)
            assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0


@pytest.mark.parametrize("which", ENGINES)
async def test_as_the_default_runtime(which, start, gpu_host, programs, library):
    """Nothing is to be said on the command line; plain containers run as ever, without a daemon too."""
    with contextlib.ExitStack() as stack:
        engine = start(ENGINES[which])
        stack.callback(engine.stop)
        daemon = stack.enter_context(daemons.alone(gpu_host))
        wrapper = doors.wrapper(daemon, programs["runc"].path)
        settings = {
            "runtimes": {"nri-nvidia": {"path": str(wrapper)}},
            "default-runtime": "nri-nvidia",
        }
        if which == "docker-20":
            settings["deprecated-key-path"] = str(engine.directory / "key.json")
        docker = stack.enter_context(
            dockers.running(engine, programs[which], programs["docker-cli"], settings)
        )
        docker.load(library["debian"])
        async with docker.container({"NVIDIA_VISIBLE_DEVICES": "4"}) as container:
            assert await container.probe("open", "/dev/nvidia4", "rw") == "ENXIO"
        daemon.end()
        async with docker.container() as container:
            assert "nvidia" not in await container.probe("ls", "/dev")
        with pytest.raises(doors.RefusedError, match="nri-nvidia does not answer at"):
            async with docker.container({"NVIDIA_VISIBLE_DEVICES": "4"}):
                pass
