# SPDX-License-Identifier: Apache-2.0
"""What containerd has from 2.2 on: NRI that shows what all plugins change, and required ones."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nri_nvidia import cli
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import conftest, daemons, doors, others
from . import engine as engines

pytestmark = pytest.mark.long
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def newer():
    """The containerd that is on PATH, with its shim; none that is older."""
    path = shutil.which("containerd")
    said = (
        path
        and subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    )
    found = re.search(r"\bv?((\d+)\.(\d+)\.\d+\S*)", said or "")
    if found is None or (int(found[2]), int(found[3])) < (2, 2):
        pytest.skip("no containerd 2.2 or later is on PATH, and Debian has no package of one")
    binary = Path(path).resolve()
    return engines.Program(name="containerd", version=found[1], bin=binary.parent, path=binary)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A simulated host with two GPUs."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
    return directory


@pytest.fixture
def engine(newer, programs, library):
    """Give a function that starts it, after something was done with what it will read."""
    runtimes = [programs[each] for each in conftest.RUNTIMES if each in programs]
    made = engines.Engine(newer, runtimes, library)

    def start(*configure):
        if configure:
            words = ["--root", str(made.directory), "--config", "/config.toml"]
            words += ["--engine-version", newer.version, *configure, "--apply"]
            assert cli.main(["configure", "containerd", *words]) == 0
        made.start()
        return made

    yield start
    made.stop()


async def gpus(engine, env):
    """Give the numbers of the GPUs that a container gets."""
    async with doors.cri(engine, env) as container:
        listed = (await container.probe("ls", "/dev")).split()
        return {name[6:] for name in listed if name[6:].isdigit() and name[:6] == "nvidia"}


async def test_what_another_plugin_makes_of_a_decision(engine, host, tmp_path):
    """With `nri.validate` the creation is refused, and the sentence names the plugin."""
    running = engine()
    config = tmp_path / "config.toml"
    config.write_text('nri.validate = "ours"\n')
    with daemons.running(running.nri_socket, host, ["--config", str(config)]) as daemon:
        assert await gpus(running, {VISIBLE: "0"}) == {"0"}
        async with others.beside(running.nri_socket):
            with pytest.raises(doors.RefusedError, match="plugin 20-other gives /dev/nvidia1"):
                await gpus(running, {VISIBLE: "0"})
            last = daemon.status()["decisions"][-1]
            assert last["reasons"][-1]["code"] == "adjustment-altered"
            assert daemon.status()["containers"] == []


async def test_required(engine, host):
    """With what `configure containerd --require` writes nothing is created without the daemon."""
    running = engine("--require")
    with daemons.running(running.nri_socket, host) as daemon:
        assert await gpus(running, {VISIBLE: "1"}) == {"1"}
        daemon.end()
        with pytest.raises(doors.RefusedError, match=r"required plugin.*nri-nvidia"):
            await gpus(running, {})
        daemon.start().ready()
        assert await gpus(running, {VISIBLE: "1"}) == {"1"}
