# SPDX-License-Identifier: Apache-2.0
"""Who may ask for what, and by which channel, as real runtimes show it."""

import json
import tempfile
from pathlib import Path

import grpclib
import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, settings

KEY = "cdi.k8s.io/nvidia-device-plugin_1"
MOUNTS = "/var/run/nvidia-container-devices"
STRICT = """
request.accept_env_when_unprivileged = false
request.accept_volume_mounts = true
"""


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 3))
    return directory


def gpus(container):
    """Give the GPUs whose nodes a container was given, by minor."""
    listed = container.config()["linux"].get("devices", [])
    nodes = [device["path"].removeprefix("/dev/nvidia") for device in listed]
    return sorted(int(name) for name in nodes if name.isdecimal())


def reasons(daemon):
    return [reason["code"] for d in daemon.status()["decisions"] for reason in d["reasons"]]


async def test_requirement_is_named_where_the_creation_fails(engine, gpu_host):
    """The error of the runtime has what was required, what there is, and the switch."""
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_REQUIRE_CUDA": "cuda>=99 brand=tesla,driver>=1"}
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        daemon.nvml_answered()
        async with engine.pod() as pod:
            with pytest.raises(grpclib.GRPCError) as caught:
                await pod.create("debian", env=env)
            assert "cuda>=99 brand=tesla,driver>=1 is not met" in caught.value.message
            assert "this node has CUDA 12.4" in caught.value.message
            assert "NVIDIA_DISABLE_REQUIRE=true" in caught.value.message
            off = {**env, "NVIDIA_DISABLE_REQUIRE": "true"}
            async with pod.container("debian", env=off) as container:
                assert gpus(container) == [0]


async def test_environment_counts_for_privileged_containers_only(engine, gpu_host, tmp_path):
    """With the switch off an unprivileged one gets nothing by it; what is mounted still counts."""
    config = tmp_path / "config.toml"
    config.write_text(STRICT)
    env = {"NVIDIA_VISIBLE_DEVICES": "1"}
    with daemons.running(engine.nri_socket, gpu_host, ("--config", str(config))) as daemon:
        async with engine.pod() as pod, pod.container("debian", env=env) as container:
            assert gpus(container) == []
            assert (await container.exec(["/bin/sh", "-c", "ls /dev/nvidia*"])).code != 0
        assert reasons(daemon) == ["environment-not-accepted"]
        async with (
            engine.pod(privileged=True) as pod,
            pod.container("debian", env=env, privileged=True) as container,
        ):
            assert gpus(container) == [1]
        mounts = [("/dev/null", f"{MOUNTS}/2")]
        env = {"NVIDIA_VISIBLE_DEVICES": MOUNTS}
        async with engine.pod() as pod, pod.container("debian", env=env, mounts=mounts) as found:
            assert gpus(found) == [2]


async def test_annotations_of_the_container_count_and_the_pods_do_not(fresh, gpu_host):
    """Where the runtime has CDI off, what the kubelet hands on by annotations is given by us."""
    engine = fresh(settings.Options(cdi=False))
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        async with engine.pod(annotations={KEY: "nvidia.com/gpu=all"}) as pod:
            async with pod.container("debian") as container:
                assert gpus(container) == []
            given = {KEY: "nvidia.com/gpu=1"}
            async with pod.container("debian", annotations=given) as container:
                assert gpus(container) == [1]
                assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
        assert [d["asked"] for d in daemon.status()["decisions"]] == [["nvidia.com/gpu=1"]]


async def test_what_the_runtime_has_applied_by_cdi_is_left(engine, gpu_host):
    """Its edits are NVIDIA's own: nothing is added, and the decision says so."""
    with tempfile.TemporaryDirectory(prefix="cdi-", dir="/tmp") as place:
        folder = Path(place)
        folder.chmod(0o755)
        hook = folder / "nvidia-cdi-hook"
        hook.write_text("#!/bin/sh\ncat > /dev/null\n")
        hook.chmod(0o755)
        edits = {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [
                {"path": "/dev/nvidia1", "hostPath": str(gpu_host / "dev/nvidia1"), "type": "c"}
            ],
            "hooks": [
                {"hookName": "createContainer", "path": str(hook), "args": ["nvidia-cdi-hook"]}
            ],
        }
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": "1", "containerEdits": edits}],
        }
        path = engine.cdi_specs / "nvidia.json"
        path.write_text(json.dumps(spec))
        try:
            with daemons.running(engine.nri_socket, gpu_host) as daemon:
                given = {KEY: "nvidia.com/gpu=1"}
                async with (
                    engine.pod() as pod,
                    pod.container("debian", annotations=given) as container,
                ):
                    assert gpus(container) == [1]
                    hooks = container.config()["hooks"]["createContainer"]
                    assert [each["path"] for each in hooks] == [str(hook)]
                assert reasons(daemon) == ["other-injector"]
        finally:
            path.unlink()
