# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia check` on the configurations that real containerd writes."""

import json
import subprocess
from pathlib import Path

import pytest

from nri_nvidia.testing import host, host_spec
from tests.check import nodes

from . import daemons
from .conftest import ENGINES
from .settings import Options

OF_THE_MACHINE = {"two-daemons", "stale-driver"}
"""What may be found because other tests run beside this one, and is no consequence of it."""


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with two GPUs."""
    directory = tmp_path_factory.mktemp("host")
    host.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(), host_spec.GpuSpec())))
    return directory


def settings(path: Path, engine, gpu_host: Path) -> Path:
    """Write the settings by which a daemon is used beside a private engine."""
    top = json.dumps(str(gpu_host))
    path.write_text(
        f"[nri]\nsocket = {json.dumps(str(engine.nri_socket))}\n"
        f"[host]\nroot = {top}\ndriver_root = {top}\ndev_root = {top}\n"
    )
    return path


def codes(engine, config: Path, control: Path) -> list[str]:
    """Run `check` as a user would, on this machine; give what it finds."""
    done = subprocess.run(
        [
            daemons.COMMAND, "check", "--json", "--config", config, "--socket", control,
            "--containerd-config", engine.directory / "config.toml",
        ],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return [finding["code"] for finding in json.loads(done.stdout)["findings"]]


def test_engine_with_and_without_nri(fresh, gpu_host, tmp_path):
    """On a real engine without NRI that is the first thing found, and with it nothing of NRI."""
    engine = fresh(Options(nri=False))
    config = settings(tmp_path / "config.toml", engine, gpu_host)
    assert codes(engine, config, tmp_path / "none.sock")[0] == "nri-off"
    engine = fresh()
    config = settings(tmp_path / "config.toml", engine, gpu_host)
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        found = codes(engine, config, daemon.control)
        assert not [code for code in found if code.startswith(("nri-", "containerd-"))]
        assert not {"daemon-not-running", "not-registered"} & {*found}


@pytest.mark.parametrize("name", ENGINES)
def test_default_configuration(programs, tmp_path, capsys, name):
    """NRI is off in that of containerd 1.7 and on in that of 2, and check tells which."""
    program = programs[name]
    text, version = (
        subprocess.run(
            [program.path, *arguments], check=True, capture_output=True, text=True, timeout=60
        ).stdout
        for arguments in (("config", "default"), ("--version",))
    )
    node = nodes.Node(tmp_path / "node")
    node.write("etc/containerd/config.toml", text)
    node.write("versions.json", json.dumps({"containerd": version.split()[2].lstrip("v")}))
    _, found = node.findings(capsys)
    expected = ["nri-off"] if program.version.startswith("1.") else []
    assert [finding["code"] for finding in found] == expected
    if found:
        old = "disable = true"
        assert old in text.partition("io.containerd.nri.v1.nri")[2]
        head, _, tail = text.partition("io.containerd.nri.v1.nri")
        node.write(
            "etc/containerd/config.toml",
            f"{head}io.containerd.nri.v1.nri{tail.replace(old, 'disable = false', 1)}",
        )
        assert node.findings(capsys) == (0, [])


@pytest.mark.skipif(
    not Path("/sys/fs/cgroup/devices").is_dir(),
    reason="rules of a cgroup of version 2 are programs that only a runtime loads",
)
async def test_container_that_lost_its_permission(fresh, gpu_host, tmp_path):
    """A rule that is taken out of a running container's cgroup is found, and the container named."""
    engine = fresh()
    config = settings(tmp_path / "config.toml", engine, gpu_host)
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        async with engine.pod() as pod:
            environment = {"NVIDIA_VISIBLE_DEVICES": "0"}
            async with pod.container("debian", env=environment) as container:
                found = codes(engine, config, daemon.control)
                assert not {"device-permission-lost", "adjustment-not-applied"} & {*found}
                deny(await container.pid(), "c 195:0 rw")
                done = daemon.ask(
                    "check", "--json", "--config", str(config),
                    "--containerd-config", str(engine.directory / "config.toml"),
                )  # fmt: skip
                found = json.loads(done.stdout)["findings"]
                lost = [f for f in found if f["code"] == "device-permission-lost"]
                assert len(lost) == 1
                first = next(f for f in found if f["code"] not in OF_THE_MACHINE)
                assert first == lost[0]
                assert "/dev/nvidia0 and may not open it" in lost[0]["message"]
                assert lost[0]["message"].startswith("container default/")


async def test_node_that_is_taken_from_a_container(fresh, gpu_host, tmp_path):
    """What the daemon gave and another took out again is found first, with the container's name."""
    engine = fresh()
    config = settings(tmp_path / "config.toml", engine, gpu_host)
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        async with engine.pod() as pod:
            environment = {"NVIDIA_VISIBLE_DEVICES": "0"}
            async with pod.container("debian", env=environment) as container:
                Path(f"/proc/{await container.pid()}/root", "dev/nvidia0").unlink()
                found = [
                    c for c in codes(engine, config, daemon.control) if c not in OF_THE_MACHINE
                ]
                assert found[0] == "adjustment-not-applied"


def deny(pid: int, rule: str) -> None:
    """Take a rule out of a process's device cgroup, as a reload of systemd may."""
    groups = Path(f"/proc/{pid}/cgroup").read_text()
    path = next(line.split(":", 2)[2] for line in groups.splitlines() if ":devices:" in line)
    (Path("/sys/fs/cgroup/devices") / path.lstrip("/") / "devices.deny").write_text(rule)
