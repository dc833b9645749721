# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia explain` of real containers: what it tells is what the runtime was given."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_nvidia.testing import host, host_spec

from . import daemons, engine


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with two GPUs."""
    directory = tmp_path_factory.mktemp("host")
    host.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(), host_spec.GpuSpec())))
    return directory


@pytest.fixture
def daemon(engine: engine.Engine, gpu_host: Path) -> Iterator[daemons.Daemon]:
    with daemons.running(engine.nri_socket, gpu_host) as found:
        yield found


async def test_record_agrees_with_the_spec(engine, daemon):
    """FC-003: each node, mount and hook of the record is in the spec, and each node once.

    The hook has reported, and what shadows the driver inside is seen.
    """
    env = {"NVIDIA_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/lib"}
    async with engine.pod() as pod, pod.container("debian", env=env) as container:

        def reported():
            done = daemon.ask("explain", container.id[:16], "--json")
            found = json.loads(done.stdout)
            return found if found["hook"] else None

        found = daemon.until(reported, "the hook's report")
        assert found["hook"]["ok"]
        assert found["inside"]["pid"] == await container.pid()
        assert found["inside"]["shadows"] == []
        spec = engine.config_json(container.id)
        given = [(d["path"], d["major"], d["minor"]) for d in spec["linux"]["devices"]]
        for device in found["edits"]["devices"]:
            assert given.count((device["path"], device["major"], device["minor"])) == 1
        mounts = {(m["destination"], m["source"]) for m in spec["mounts"]}
        for mount in found["edits"]["mounts"]:
            assert (mount["destination"], mount["source"]) in mounts
        hooks = [hook["args"] for hook in spec["hooks"]["createContainer"]]
        assert [hook["args"] for hook in found["edits"]["hooks"]] == hooks
