# SPDX-License-Identifier: Apache-2.0
"""What holds where systemd runs, whether it makes containers' cgroups or runc does.

Run by test_systemd, with cgroups of version 1 and of version 2. These need to be on a machine that
is theirs alone: they make NVIDIA's nodes in /dev itself.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import daemons, few_controllers, messages, settings
from . import engine as engines

GPU_HOST = Path("/srv/gpu-host")
"""A simulated host with two GPUs, made by test_systemd; its nodes the daemon makes in /dev."""
LINKS = Path("/dev/char")
RUNTIMES = ("runc", "runc-1.1.5")
DRIVERS = ("systemd", "cgroupfs")
"""Who makes the cgroups, as a kubelet's `cgroupDriver`."""
CGROUPS = Path("/sys/fs/cgroup")
VERSION = "CGROUP_VERSION"
"""The variable by which test_systemd says which version of cgroups it means this to be."""
NEEDED = {"cpu", "cpuset", "memory", "pids"}


def controllers() -> set[str]:
    """Give the names of the controllers that there are, of either version."""
    listed = CGROUPS / "cgroup.controllers"
    if listed.exists():
        return set(listed.read_text(encoding="utf-8").split())
    return {each.name for each in CGROUPS.iterdir() if each.is_dir()}


@pytest.fixture(scope="session")
def wrappers(
    programs: dict[str, engines.Program], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Each version of runc, as it is where all controllers are there."""
    if controllers() >= NEEDED:
        return {name: programs[name].path for name in RUNTIMES}
    directory = tmp_path_factory.mktemp("runtimes")
    return {
        name: few_controllers.install(directory, name, programs[name].path) for name in RUNTIMES
    }


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """Who makes containers' cgroups."""
    name: str = request.param
    return name


@pytest.fixture
def engine(
    fresh: Callable[..., engines.Engine], wrappers: dict[str, Path], driver: str
) -> Iterator[engines.Engine]:
    """Each version of containerd, on a machine without NVIDIA's nodes and links to them."""
    yield fresh(settings.Options(systemd=driver == "systemd", wrappers=wrappers))
    for node in Path("/dev").glob("nvidia*"):
        node.unlink()
    for link in LINKS.iterdir():
        if not link.exists():
            link.unlink()


def reload() -> None:
    """Have systemd write the rules of its units anew."""
    subprocess.run(["systemctl", "daemon-reload"], check=True)


def test_cgroups_are_of_the_version_that_is_meant():
    """What follows is about the version that whoever runs this has asked for."""
    assert (CGROUPS / "cgroup.controllers").exists() == (os.environ[VERSION] == "2")
    assert (CGROUPS / "devices").exists() == (os.environ[VERSION] == "1")


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_container_keeps_its_gpu(engine, driver, runtime):
    """A given node stays allowed, another forbidden: through reloads and an update of resources."""

    async def answers(container) -> tuple[str, str, str]:
        return (
            await container.probe("open", "/dev/nvidia0", "rw"),
            await container.probe("open", "/dev/nvidiactl", "rw"),
            await container.probe("open", "/dev/other", "rw"),
        )

    with daemons.running(engine.nri_socket, GPU_HOST, ["--dev-root", "/"]):
        async with (
            engine.pod(runtime) as pod,
            pod.container(env={"NVIDIA_VISIBLE_DEVICES": "0"}) as container,
        ):
            assert await container.probe("mknod", "/dev/other", "c", "195", "1") == "OK EPERM"
            made = f"cri-containerd-{container.id}.scope" in scopes()
            assert made == (driver == "systemd")
            assert await answers(container) == ("ENXIO", "ENXIO", "EPERM")
            reload()
            assert await answers(container) == ("ENXIO", "ENXIO", "EPERM")
            reload()
            assert await answers(container) == ("ENXIO", "ENXIO", "EPERM")
            await container.update(messages.LinuxContainerResources(cpu_shares=512))
            assert await answers(container) == ("ENXIO", "ENXIO", "EPERM")
            reload()
            assert await answers(container) == ("ENXIO", "ENXIO", "EPERM")
    assert os.readlink(LINKS / "195:0") == "../nvidia0"


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_without_links_only_the_older_runc_loses_it(engine, driver, tmp_path, runtime):
    """This is what the links are for, and shows that a loss would be seen here, and by `check`."""
    loses = driver == "systemd" and runtime == "runc-1.1.5"
    config = tmp_path / "config.toml"
    host = f'root = "{GPU_HOST}", driver_root = "{GPU_HOST}", dev_root = "/"'
    config.write_text(
        f'nri.socket = "{engine.nri_socket}"\nhost = {{{host}, dev_char_symlinks = false}}\n'
    )

    def lost(daemon: daemons.Daemon) -> list[str]:
        done = daemon.ask(
            "check", "--json", "--config", str(config),
            "--containerd-config", str(engine.directory / "config.toml"),
        )  # fmt: skip
        found = json.loads(done.stdout)["findings"]
        return [each["message"] for each in found if each["code"] == "device-permission-lost"]

    arguments = ["--dev-root", "/", "--config", str(config)]
    with daemons.running(engine.nri_socket, GPU_HOST, arguments) as daemon:
        async with (
            engine.pod(runtime) as pod,
            pod.container(env={"NVIDIA_VISIBLE_DEVICES": "0"}) as container,
        ):
            assert await container.probe("open", "/dev/nvidia0", "rw") == "ENXIO"
            assert lost(daemon) == []
            reload()
            answer = "EPERM" if loses else "ENXIO"
            assert await container.probe("open", "/dev/nvidia0", "rw") == answer
            said = lost(daemon)
            assert len(said) == loses
            assert all("/dev/nvidia0" in each for each in said)


@contextlib.contextmanager
def unit(engine: engines.Engine) -> Iterator[str]:
    """Have the daemon as a unit of Type=notify, which has started when it says so."""
    engine.directory.chmod(0o755)
    name = engine.directory.name
    command = [
        daemons.COMMAND, "run", "--nri-socket", str(engine.nri_socket),
        "--host-root", str(GPU_HOST), "--driver-root", str(GPU_HOST),
        "--hook-directory", str(engine.directory / "hook"),
    ]  # fmt: skip
    properties = ("Type=notify", "TimeoutStartSec=20", "RemainAfterExit=yes")
    given = [f"--property={each}" for each in properties]
    subprocess.run(["systemd-run", "--quiet", f"--unit={name}", *given, *command], check=True)
    try:
        yield name
    finally:
        subprocess.run(["systemctl", "stop", name], check=True)


async def test_daemon_as_a_unit(engine):
    """It is active once the daemon is registered, and stops cleanly."""
    with unit(engine) as name:
        async with (
            engine.pod() as pod,
            pod.container(env={"NVIDIA_VISIBLE_DEVICES": "1"}) as container,
        ):
            reload()
            assert await container.probe("open", "/dev/nvidia1", "rw") == "ENXIO"
            listed = subprocess.run(
                [daemons.COMMAND, "status", "--json"], check=True, capture_output=True
            )
            held = [each["id"] for each in json.loads(listed.stdout)["containers"]]
            assert held == [container.id]
    log = subprocess.run(
        ["journalctl", "--unit", name, "--output=cat"], check=True, capture_output=True, text=True
    ).stdout
    assert f"{name}.service: Deactivated successfully." in log


def scopes() -> str:
    """Give the units that systemd made for containers and others."""
    return subprocess.run(
        ["systemctl", "list-units", "--plain", "--no-legend", "--full", "*.scope"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
