# SPDX-License-Identifier: Apache-2.0
"""Field cases that only a real container shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, messages
from . import engine as engines

LIBRARIES = "/usr/local/nvidia/lib64"
NODES = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with four GPUs."""
    directory = tmp_path_factory.mktemp("host")
    spec = host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 4)
    simulated.build(directory, spec)
    return directory


@pytest.fixture
def daemon(engine: engines.Engine, gpu_host: Path) -> Iterator[daemons.Daemon]:
    with daemons.running(engine.nri_socket, gpu_host) as found:
        yield found


async def test_spec_of_a_container_that_a_client_makes(engine, daemon):
    """FC-001, FC-101, FC-119: config.json holds four nodes and a rule for each, for a plain request."""
    async with (
        engine.pod() as pod,
        pod.container("debian", env=[("NVIDIA_VISIBLE_DEVICES", "0")]) as container,
    ):
        linux = container.config()["linux"]
        given = {d["path"]: (d["major"], d["minor"]) for d in linux["devices"]}
        assert {f"/dev/{name}" for name in NODES} == {p for p in given if "nvidia" in p}
        rules = [(r.get("major"), r.get("minor")) for r in linux["resources"]["devices"]
                 if r["allow"]]  # fmt: skip
        for name in NODES:
            assert rules.count(given[f"/dev/{name}"]) == 1
        assert not [rule for rule in rules if rule[0] in {195, 511} and rule[1] is None]
        assert await container.probe("mknod", "/dev/other", "c", "195", "1") == "OK EPERM"


async def test_updates_of_resources_leave_the_gpu(engine, daemon):
    """FC-004: after a CPU manager's updates the nodes can still be opened."""
    async with (
        engine.pod() as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "0"}) as container,
    ):
        for shares in (512, 1024):
            await container.update(messages.LinuxContainerResources(cpu_shares=shares))
            for name in NODES:
                assert await container.probe("open", f"/dev/{name}", "rw") == "ENXIO"


async def test_names_that_programs_open(engine, daemon):
    """FC-042, FC-045: libcuda.so.1 and libcuda.so are in the cache of a plain image."""
    async with (
        engine.pod() as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "0"}) as container,
    ):
        cache = (await container.exec(["/sbin/ldconfig", "-p"])).stdout
        for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
            assert f"{name} (libc6,x86-64) => {LIBRARIES}/{name}\n" in cache
            assert (await container.exec(["/probe-dlopen", name])).code == 0


@pytest.mark.parametrize("capabilities", ["graphics", "video", "all"])
async def test_hook_of_every_capability(engine, daemon, capabilities):
    """FC-046: with any capability the hook does all its steps, and reports so."""
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_DRIVER_CAPABILITIES": capabilities}
    async with engine.pod() as pod, pod.container("debian", env=env) as container:

        def reported():
            entries = daemon.status()["containers"]
            return next(entry["hook"] for entry in entries if entry["id"] == container.id)

        assert daemon.until(reported, "the hook's report") == "ok"


async def test_user_directories_on_the_host_stay_as_they_are(engine, daemon, tmp_path):
    """FC-029, FC-103: nothing is made in what the user mounts at /etc/vulkan or a library directory."""
    for name in ("vulkan", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib/libcuda.so.1").write_text("the user's")
    mounts = [(tmp_path / "vulkan", "/etc/vulkan"), (tmp_path / "lib", "/opt/driver")]
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_DRIVER_CAPABILITIES": "all"}
    async with (
        engine.pod() as pod,
        pod.container("debian", env=env, mounts=mounts) as container,
    ):
        assert await container.probe("open", "/dev/nvidia0", "rw") == "ENXIO"
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == ["lib", "libcuda.so.1", "vulkan"]
    assert (tmp_path / "lib/libcuda.so.1").read_text() == "the user's"
    reasons = [r["code"] for d in daemon.status()["decisions"] for r in d["reasons"]]
    assert "users-mount-kept" in reasons


async def test_privileged_container(engine, daemon, gpu_host):
    """FC-080: one that is privileged starts with each node once, and the daemon knows it sees all."""
    async with (
        engine.pod(privileged=True) as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "0"}, privileged=True) as container,
    ):
        paths = [d["path"] for d in container.config()["linux"]["devices"]]
        assert len(paths) == len(set(paths))
        assert await container.probe("open", "/dev/nvidia0", "rw") == "ENXIO"
