# SPDX-License-Identifier: Apache-2.0
"""compose files and swarm services, which ask docker for GPUs in their own ways."""

import asyncio
import contextlib
import json

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, dockers, doors

pytestmark = pytest.mark.long
GPUS = (host_spec.GpuSpec(),) * 3
RESOURCE = "DOCKER_RESOURCE_NVIDIA-GPU"


@pytest.fixture(scope="module")
def docker(start, tmp_path_factory, programs, library):
    """A docker whose default runtime is ours, with CDI, --gpus, and GPUs as swarm's resources."""
    for name in ("docker-28", "docker-cli", "docker-compose"):
        if name not in programs:
            pytest.fail(f"{name} is not there: run contrib/setup --long")
    host = tmp_path_factory.mktemp("host")
    simulated.build(host, host_spec.HostSpec(gpus=GPUS))
    with contextlib.ExitStack() as stack:
        engine = start("containerd-2")
        stack.callback(engine.stop)
        text = f'cdi.keep = true\ncdi.directory = "{engine.cdi_specs}"\n'
        text += f'request.swarm_resources = ["{RESOURCE}"]\n'
        daemon = stack.enter_context(daemons.alone(host, text))
        daemon.until((engine.cdi_specs / "nri-nvidia-gpu.json").exists, "the CDI specification")
        daemon.until((daemon.directory / "runtime/markers").exists, "what to look for")
        wrapper = doors.wrapper(daemon, programs["runc"].path)
        path = engine.directory / "path"
        path.mkdir()
        (path / "nvidia-container-runtime-hook").symlink_to(
            daemon.directory / "bin/nri-nvidia-runtime"
        )
        settings = {
            "runtimes": {"nri-nvidia": {"path": str(wrapper)}},
            "default-runtime": "nri-nvidia",
            "features": {"cdi": True},
            "cdi-spec-dirs": [str(engine.cdi_specs)],
            "node-generic-resources": [
                f"NVIDIA-GPU={host_spec.uuid_of(gpu, place)}" for place, gpu in enumerate(GPUS)
            ],
        }
        found = stack.enter_context(
            dockers.running(
                engine, programs["docker-28"], programs["docker-cli"], settings, [path], alone=True
            )
        )
        found.use_plugin(programs["docker-compose"])
        found.load(library["debian"])
        yield found


def reserved(**more):
    """Give a service's reservation of devices."""
    return {"deploy": {"resources": {"reservations": {"devices": [more]}}}}


@pytest.mark.parametrize(
    ("service", "nodes"),
    [
        ({"runtime": "nri-nvidia", "environment": {"NVIDIA_VISIBLE_DEVICES": "0,2"}}, {"0", "2"}),
        ({"runtime": "nri-nvidia", **reserved(capabilities=["gpu"], count=2)}, {"0", "1"}),
        (reserved(driver="nvidia", capabilities=["gpu"], device_ids=["2"]), {"2"}),
        ({"gpus": "all"}, {"0", "1", "2"}),
        ({"devices": ["nvidia.com/gpu=1"]}, {"1"}),
        (reserved(driver="cdi", capabilities=["gpu"], device_ids=["nvidia.com/gpu=1"]), {"1"}),
        ({}, set()),
    ],
    ids=["runtime", "count", "device_ids", "gpus", "devices", "driver cdi", "none"],
)
async def test_compose(docker, tmp_path, service, nodes):
    """Each way that a compose file has of asking."""
    file = tmp_path / "compose.yaml"  # JSON is YAML
    common = {"image": dockers.IMAGE, "pull_policy": "never", "network_mode": "none",
              "command": ["/probe", "ls", "/dev"]}  # fmt: skip
    file.write_text(json.dumps({"services": {"gpu": {**common, **service}}}))
    done = await docker.call("compose", "-f", str(file), "-p", "tried", "run", "--rm", "-T", "gpu")
    assert done.code == 0, done
    assert {n[6:] for n in done.stdout.split() if n[:6] == "nvidia" and n[6:].isdigit()} == nodes


async def test_swarm(docker):
    """A service's generic resource is the GPU that swarm allotted to it, of three two and one."""
    done = await docker.call("swarm", "init", "--advertise-addr", "127.0.0.1")
    assert done.code == 0, done
    try:
        seen = set()
        for number, wish in enumerate((2, 1)):
            done = await docker.call(
                "service", "create", "--detach", "--name", f"gpus-{number}", "--no-resolve-image",
                "--network", "host", "--restart-condition", "none",
                "--generic-resource", f"NVIDIA-GPU={wish}", dockers.IMAGE, "/probe", "pause",
            )  # fmt: skip
            assert done.code == 0, done
            name = await _task(docker, f"gpus-{number}")
            listed = (await docker.call("exec", name, "/probe", "ls", "/dev")).stdout.split()
            mine = {node for node in listed if node[:6] == "nvidia" and node[6:].isdigit()}
            assert len(mine) == wish
            assert not mine & seen
            seen |= mine
        assert len(seen) == len(GPUS)
    finally:
        await docker.call("swarm", "leave", "--force")


async def _task(docker, service):
    """Give the running container of a service, once it is there."""
    words = ["ps", "--quiet", "--filter", f"label=com.docker.swarm.service.name={service}"]
    async with asyncio.timeout(dockers.PATIENCE):
        while not (found := (await docker.call(*words)).stdout.split()):
            await asyncio.sleep(0.1)
    return found[0]
