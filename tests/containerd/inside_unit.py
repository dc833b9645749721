# SPDX-License-Identifier: Apache-2.0
"""The installed service under a real systemd, from its installation to its removal.

Run by test_install, on a machine that is this test's alone: it installs into the system.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_nvidia.install import model, service

from . import engine as engines
from . import few_controllers, inside_systemd, settings

pytestmark = pytest.mark.timeout(400)

BUILD = Path("/build")
"""A virtual environment that nri-nvidia was installed into from its wheel."""
DROP_IN = Path(f"/etc/systemd/system/{model.UNIT}.d/test.conf")
DRIVER = Path("/var/lib/nri-nvidia/driver")
PYTHON = Path("/usr/local/bin/python-that-tells")
"""An interpreter that writes down what it is started for."""
STARTED = Path("/var/log/python-that-tells")
WATCHDOG = 10
"""Seconds: the unit's own time would be waited for here."""
PATIENCE = 60


def run(*command: str | Path) -> str:
    """Run a command, which must succeed; give what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def install() -> subprocess.CompletedProcess[str]:
    """Install, which may fail."""
    return subprocess.run(
        [BUILD / "bin/nri-nvidia", "install"], capture_output=True, text=True, check=False
    )


def state(name: str) -> str:
    return run("systemctl", "show", f"--property={name}", "--value", model.UNIT).strip()


def happens(what: Callable[[], bool]) -> bool:
    return service.wait_for(what, PATIENCE)


def set_up(engine: engines.Engine) -> None:
    """Have settings for this engine and the simulated host.

    Its socket is in a /tmp that the unit does not see otherwise, and it has a /run of its own, in
    which hooks would not find what the daemon has in /run.
    """
    PYTHON.write_text(f'#!/bin/sh\necho "$*" >>{STARTED}\nexec /usr/bin/python3 "$@"\n')
    PYTHON.chmod(0o755)
    path = Path(model.SETTINGS)
    path.parent.mkdir(exist_ok=True)
    host = inside_systemd.GPU_HOST
    path.write_text(
        f'nri.socket = "{engine.nri_socket}"\n'
        f'control.socket = "{engine.directory}/daemon/control.sock"\n'
        f'host = {{root = "{host}", driver_root = "{host}", dev_root = "/"}}\n'
        f'hook = {{directory = "{engine.directory}/hook", interpreter = "{PYTHON}"}}\n'
    )
    DROP_IN.parent.mkdir(exist_ok=True)
    engine.directory.chmod(0o755)
    DROP_IN.write_text(f"[Service]\nBindPaths={engine.directory}\nWatchdogSec={WATCHDOG}\n")


def make_newer() -> str:
    """Have another version in the environment that is installed from; give its name."""
    (source,) = BUILD.glob("lib/python3*/site-packages/nri_nvidia/__init__.py")
    version = f"99.{time.time_ns()}"
    text, count = re.subn(
        '__version__ = "[^"]*"', f'__version__ = "{version}"', source.read_text()
    )
    assert count == 1
    source.write_text(text)
    return version


def hook_of(identifier: str) -> dict[str, object]:
    """Give what a container's hook has reported; empty until then."""
    told = json.loads(run("/usr/local/bin/nri-nvidia", "explain", identifier, "--json"))
    return told["hook"] or {}


@pytest.fixture(scope="session")
def handlers(
    programs: dict[str, engines.Program], tmp_path_factory: pytest.TempPathFactory
) -> settings.Options:
    """Settings with runc, for which systemd makes the cgroups."""
    directory = tmp_path_factory.mktemp("runtimes")
    runc = few_controllers.install(directory, "runc", programs["runc"].path)
    return settings.Options(systemd=True, wrappers={"runc": runc})


@contextlib.contextmanager
def broken() -> Iterator[None]:
    """Have a version to install from whose daemon cannot start, though it reads settings."""
    (source,) = BUILD.glob("lib/python3*/site-packages/nri_nvidia/daemon/service.py")
    whole = source.read_text()
    source.write_text(f"{whole}\nraise SystemExit('broken')\n")
    try:
        yield
    finally:
        source.write_text(whole)


@pytest.fixture(autouse=True)
def gone() -> Iterator[None]:
    """Have nothing of it for the next test, also where this one failed."""
    yield
    command = Path("/usr/local/bin/nri-nvidia")
    if command.exists():
        run(command, "uninstall")


async def test_life_of_the_service(fresh, handlers):
    """It is installed and notifies, is started anew by its watchdog, upgraded and removed.

    A version that does not start, or does not take the settings, leaves the one that runs. A
    container that it gave a GPU has it all the time.
    """
    engine = fresh(handlers)
    set_up(engine)
    run(BUILD / "bin/nri-nvidia", "install")
    assert happens(lambda: state("ActiveState") == "active")
    assert happens((engine.directory / "daemon/warm/requests").exists)
    assert state("StatusText") or state("NotifyAccess") == "main"
    async with (
        engine.pod("runc") as pod,
        pod.container(env={"NVIDIA_VISIBLE_DEVICES": "0"}) as container,
    ):

        async def works() -> bool:
            return await container.probe("open", "/dev/nvidia0", "rw") == "ENXIO"

        assert await works()
        assert happens(lambda: bool(hook_of(container.id)))
        assert hook_of(container.id)["ok"], hook_of(container.id)
        # Despite the sandbox: hooks are done by the process that stands ready, and not by Python.
        started = STARTED.read_text()
        assert "nri-nvidia-warm.py" in started
        assert "nri-nvidia-hook --library-dir" not in started
        # Despite the sandbox: links to the driver's files, not copies of them.
        assert happens(lambda: any(
            path.stat().st_nlink > 1 for path in DRIVER.rglob("lib*") if path.is_file()
        ))  # fmt: skip

        stuck = service.main_pid()
        os.kill(stuck, signal.SIGSTOP)
        assert happens(lambda: service.main_pid() not in {0, stuck})
        assert "Watchdog timeout" in run("journalctl", "--unit", model.UNIT, "--output=cat")
        assert happens(lambda: state("ActiveState") == "active")
        assert await works()

        old, version = service.main_pid(), make_newer()
        said = run(BUILD / "bin/nri-nvidia", "install")
        assert f"installed {version}-" in said
        assert f"{model.SETTINGS}: is yours, and was left as it is" in said
        assert service.main_pid() not in {0, old}
        assert happens(lambda: state("ActiveState") == "active")
        told = json.loads(run("/usr/local/bin/nri-nvidia", "status", "--json"))
        assert told["version"] == version
        assert [each["id"] for each in told["containers"]] == [container.id]
        assert [path.name for path in Path(model.RELEASES).iterdir()] == [
            Path(model.CURRENT).resolve().name
        ]
        assert await works()

        with broken():
            failed = install()
        assert failed.returncode == 1
        assert f"does not answer; {version}-" in failed.stderr
        assert happens(lambda: state("ActiveState") == "active")
        told = json.loads(run("/usr/local/bin/nri-nvidia", "status", "--json"))
        assert told["version"] == version
        assert await works()

        with Path(model.SETTINGS).open("a") as file:
            file.write("log.level = 'loud'\n")
        running = service.main_pid()
        for make in (lambda: None, make_newer):  # the same version is no excuse for not saying it
            make()
            refused = install()
            assert refused.returncode == 2
            assert "log.level" in refused.stderr
            assert service.main_pid() == running

        said = run("/usr/local/bin/nri-nvidia", "uninstall")
        assert "left, since containers use it" in said or not DRIVER.exists()
        assert state("LoadState") == "not-found" or not Path(f"/proc/{running}").exists()
        assert await works()
    log = run("journalctl", "--unit", model.UNIT, "--output=cat")
    assert f"{model.UNIT}: Deactivated successfully." in log
    left = {path for path in ("/opt/nri-nvidia", "/run/nri-nvidia") if Path(path).exists()}
    assert left == set()
