# SPDX-License-Identifier: Apache-2.0
"""A machine with systemd: this one's Debian, booted in a container of its own.

What is tested in there is in inside_systemd, with containerd, runc, the daemon and systemd all
being the real ones. The kernel may have few cgroup v2 controllers, see few_controllers.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import inside_systemd, machines

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    """A root that boots, with a simulated host's driver in it."""
    with machines.debian(machines.own_release(), "systemd-sysv", "dbus", "python3") as place:
        host = place / str(inside_systemd.GPU_HOST).lstrip("/")
        simulated.build(host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
        yield place


def test_booted_machine_is_gone_afterwards(machine: Path) -> None:
    """A unit runs, a daemon-reload works, the exit status comes back, and nothing is left."""
    script = "systemd-run --quiet --wait true && systemctl daemon-reload && exit 7"
    booted = machines.run(machines.LIB / "nspawn", machine, "bash", "-c", script)
    assert booted.returncode == 7, booted.stdout
    assert str(machine) not in Path("/proc/mounts").read_text(encoding="utf-8")
    assert not list(Path("/sys/fs/cgroup").glob("**/nri-nvidia-nspawn-*"))


@pytest.mark.parametrize("version", ["1", "2"])
def test_containers_beside_systemd(machine: Path, version: str) -> None:
    """All of inside_systemd passes with cgroups of either version, with nothing left out."""
    tests = Path(inside_systemd.__file__)
    done = machines.run(
        machines.LIB / "nspawn", *(["--cgroup-v1"] if version == "1" else []), machine,
        "systemd-run", "--quiet", "--pipe", "--wait", "--collect",
        f"--working-directory={machines.ROOT}", "--setenv=PYTHONDONTWRITEBYTECODE=1",
        f"--setenv={inside_systemd.VERSION}={version}",
        machines.ROOT / ".venv/bin/pytest", "-v", "-p", "no:cacheprovider", tests,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert " passed in " in last
    assert not [word for word in ("failed", "skipped", "deselected") if word in last], done.stdout
