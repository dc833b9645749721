# SPDX-License-Identifier: Apache-2.0
"""Machines with nothing prepared: bare roots of Debian 12 and 13, one with its systemd running.

The network is the machine's; all else is the root's own. See contrib/lib/debian-root.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = (".venv", ".cache", ".git")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that is removed at once: a root holds a gigabyte after contrib/setup."""
    with tempfile.TemporaryDirectory(prefix="nri-nvidia-root-") as directory:
        yield Path(directory, "root")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_setup_and_engines_on_a_bare_release(release: str, place: Path) -> None:
    """On a Debian with only its essential packages, contrib/setup makes all engines work."""
    made = run(ROOT / "contrib/lib/debian-root", release, place)
    assert made.returncode == 0, made.stdout
    shutil.copytree(ROOT, place / "src", symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    script = "cd /src && contrib/setup && .venv/bin/pytest -q tests/containerd/test_engines.py"
    tried = run(ROOT / "contrib/lib/enter-root", place, "bash", "-c", script)
    assert tried.returncode == 0, tried.stdout
    assert " passed in " in tried.stdout
    assert not [word for word in ("failed", "skipped") if word in tried.stdout.splitlines()[-1]]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_systemd_boots_in_a_root(place: Path) -> None:
    """A root with systemd boots, runs a unit and a daemon-reload, and is gone afterwards."""
    made = run(ROOT / "contrib/lib/debian-root", "bookworm", place, "systemd-sysv", "dbus")
    assert made.returncode == 0, made.stdout
    script = "systemd-run --quiet --wait true && systemctl daemon-reload && exit 7"
    booted = run(ROOT / "contrib/lib/nspawn", place, "bash", "-c", script)
    assert booted.returncode == 7, booted.stdout
    assert str(place) not in Path("/proc/mounts").read_text(encoding="utf-8")
