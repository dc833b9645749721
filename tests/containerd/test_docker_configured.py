# SPDX-License-Identifier: Apache-2.0
"""docker with what `nri-nvidia configure docker` makes of its configuration; builds with GPUs."""

import contextlib
import json
import shlex
from pathlib import Path

import pytest

from nri_nvidia import cli
from nri_nvidia.configure import transparent
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, dockers, doors
from .test_docker import ENGINES

NVIDIA_DOCKER = Path(__file__).parents[2] / "contrib/nvidia-docker"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    """A simulated host with two GPUs."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
    return directory


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """The root of a node whose docker is configured."""
    directory = tmp_path_factory.mktemp("node")
    (directory / "etc/docker").mkdir(parents=True)
    return directory


@pytest.fixture(scope="module", params=ENGINES)
def docker(request, start, gpu_host, programs, node):
    """A docker whose default runtime is ours, by the command; BuildKit finds it as well."""
    library = request.getfixturevalue("library")
    for name in (request.param, "docker-cli", "docker-buildx"):
        if name not in programs:
            pytest.fail(f"{name} is not there: run contrib/setup --long")
    with contextlib.ExitStack() as stack:
        engine = start(ENGINES[request.param])
        stack.callback(engine.stop)
        kept = f'cdi.keep = true\ncdi.directory = "{engine.cdi_specs}"\n'
        daemon = stack.enter_context(daemons.alone(gpu_host, kept))
        daemon.until((engine.cdi_specs / "nri-nvidia-gpu.json").exists, "the CDI specification")
        wrapper = doors.wrapper(daemon, programs["runc"].path)
        file = node / "etc/docker/daemon.json"
        words = ["--root", str(node), "--runtime-path", str(wrapper), "--default", "--builds"]
        if request.param == "docker-20":
            own = {"deprecated-key-path": str(engine.directory / "key.json")}
        else:
            own = {"cdi-spec-dirs": [str(engine.cdi_specs)]}
            words.append("--cdi")
        file.write_text(json.dumps(own, indent=2))
        assert cli.main(["configure", "docker", *words, "--apply"]) == 0
        # What the unit's drop-in puts first on PATH.
        path = node / transparent.DIRECTORY.lstrip("/") / "docker"
        found = stack.enter_context(
            dockers.running(
                engine, programs[request.param], programs["docker-cli"],
                json.loads(file.read_text()), [path],
            )
        )  # fmt: skip
        found.use_plugin(programs["docker-buildx"])
        found.load(library["debian"])
        yield found


async def test_a_container_gets_its_gpu(docker):
    """docker starts with the file, and with no option more there is the GPU."""
    async with docker.container({"NVIDIA_VISIBLE_DEVICES": "1"}) as container:
        assert "nvidia1" in await container.probe("ls", "/dev")


async def test_a_device_by_its_cdi_name(docker, request):
    """docker 26 knows CDI by what `--cdi` wrote alone."""
    if "docker-20" in request.node.callspec.id:
        pytest.skip("docker 20.10 knows no CDI")
    async with docker.container(None, "--device", "nvidia.com/gpu=1") as container:
        listed = (await container.probe("ls", "/dev")).split()
        assert {name for name in listed if name[6:].isdigit()} == {"nvidia1"}


RUN = ("run", "--rm", "--pull", "never", "--network", "none")


async def test_nvidia_docker(docker):
    """contrib/nvidia-docker runs what its users wrote."""
    done = await doors.run(
        "env", "NV_GPU=1", f"NV_DOCKER={docker.program()}", NVIDIA_DOCKER,
        *RUN, dockers.IMAGE, "/probe", "ls", "/dev",
    )  # fmt: skip
    assert done.code == 0, done
    assert "nvidia1" in done.stdout.split()
    assert "nvidia0" not in done.stdout.split()


async def test_docker_args(docker, gpu_host, tmp_path, capsys):
    """A plain runc with these arguments has the node, the cgroup's leave and the driver."""
    config = tmp_path / "config.toml"
    config.write_text(
        "".join(f'host.{name} = "{gpu_host}"\n' for name in ("root", "driver_root", "dev_root"))
        + f'inject.volume_dir = "{tmp_path}/volumes"\n'
    )
    assert cli.main(["docker-args", "1", "--config", str(config)]) == 0
    words = shlex.split(capsys.readouterr().out)
    for command, expected in (
        (["/probe", "open", "/dev/nvidia1", "rw"], "ENXIO"),
        (["/probe-dlopen", "libcuda.so.1"], "/usr/local/nvidia/lib64/libcuda.so.1"),
    ):
        plain = (docker.program(), *RUN, "--runtime", "runc", *words, dockers.IMAGE)
        done = await doors.run(*plain, *command)
        assert (done.code, done.stdout.strip()) == (0, expected), done


ASKING = ["FROM debian:1", "ENV NVIDIA_VISIBLE_DEVICES=1", 'RUN ["/probe", "ls", "/dev"]']


@pytest.mark.parametrize("kit", [False, True], ids=["classic", "BuildKit"])
async def test_builds(docker, kit):
    """A RUN has the GPUs that the image's variable asks for, and none where it asks for none.

    BuildKit in docker runs the runc on PATH, and takes no notice of docker's runtimes.
    """
    more = ["--progress", "plain", "--no-cache"] if kit else []
    done = await docker.build(ASKING, "-t", "built:1", *more, kit=kit)
    assert done.code == 0, done
    seen = done.stdout + done.stderr
    assert "nvidia1" in seen
    assert "nvidia0" not in seen
    done = await docker.build([ASKING[0], ASKING[2]], *more, kit=kit)
    assert "nvidiactl" not in done.stdout + done.stderr
    # What a build left in the image is in nobody's way.
    async with docker.container({}, image="built:1") as container:
        assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
    async with docker.container({"NVIDIA_VISIBLE_DEVICES": "void"}, image="built:1") as container:
        assert "nvidiactl" not in await container.probe("ls", "/dev")


async def test_buildkits_own_devices(docker, request):
    """BuildKit in docker 28 lists what CDI knows, and lets no build have it by `RUN --device`."""
    if "docker-28" not in request.node.callspec.id:
        pytest.skip("older BuildKits know no CDI")
    lines = [ASKING[0], "RUN --device=nvidia.com/gpu=1 /probe ls /dev"]
    for option, said in (
        (["--allow", "device"], "granting entitlement device is not allowed"),
        ([], "only supported in Dockerfile frontend 1.14.0-labs"),
    ):
        done = await docker.build(lines, "--progress", "plain", *option, kit=True)
        assert done.code != 0
        assert said in done.stdout + done.stderr


async def test_a_build_that_asks_for_what_is_not_there(docker):
    """It fails with the sentence."""
    lines = [ASKING[0], "ENV NVIDIA_VISIBLE_DEVICES=9", ASKING[2]]
    done = await docker.build(lines)
    assert done.code != 0
    assert "no such GPU; this node has 0-1" in done.stdout + done.stderr
