# SPDX-License-Identifier: Apache-2.0
"""Installed from a wheel on Debian 12 and 13, by what each distribution has; then its service.

The network and the kernel are this machine's; all else is the root's own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_nvidia.install import model
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import inside_systemd, inside_unit, machines

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

BUILD = f"python3 -m venv {inside_unit.BUILD} && {inside_unit.BUILD}/bin/pip install -q /*.whl"
COMMAND = "/usr/local/bin/nri-nvidia"
NOT_KEPT = {"proc", "sys", "dev", "run", "tmp", ".old", "build"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, machines.ROOT],
        check=True,
    )
    (found,) = out.glob("*.whl")
    return found


def enter(root: Path, script: str) -> str:
    """Run a script in a root, without traces of Python's; it must succeed."""
    done = machines.run(
        machines.LIB / "enter-root", root,
        "env", "PYTHONDONTWRITEBYTECODE=1", "LC_ALL=C.UTF-8", "bash", "-euc", script,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def paths(root: Path) -> set[str]:
    """Give every file and link of a root."""
    found = set()
    for directory, below, names in os.walk(root):
        if Path(directory) == root:
            below[:] = [name for name in below if name not in NOT_KEPT]
        links = [name for name in below if Path(directory, name).is_symlink()]
        found |= {f"{directory}/{name}".removeprefix(str(root)) for name in (*names, *links)}
    return found


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_files_on_a_bare_release(release: str, wheel: Path) -> None:
    """Installing, upgrading and removing leave what the manifest says, and then the settings.

    The shells and the manual find what is theirs.
    """
    with machines.debian(release, "python3-venv", "fish", "zsh", "man-db") as root:
        (root / wheel.name).write_bytes(wheel.read_bytes())
        enter(root, BUILD)
        before = paths(root)

        enter(root, f"{inside_unit.BUILD}/bin/nri-nvidia install")
        told = json.loads((root / model.MANIFEST[1:]).read_text())
        assert paths(root) - before == {*told["entries"], model.MANIFEST}
        assert enter(root, f"{COMMAND} config --check {model.SETTINGS}") == (
            f"{model.SETTINGS}: nothing is wrong\n"
        )

        assert enter(root, "fish -c 'complete -C \"nri-nvidia uninst\"'").startswith("uninstall\t")
        zsh = "autoload -Uz compinit && compinit -D -u && echo $_comps[nri-nvidia]"
        assert enter(root, f"zsh -fc '{zsh}'") == "_nri-nvidia\n"
        enter(root, "zsh -n /usr/local/share/zsh/site-functions/_nri-nvidia")
        assert "nri-nvidia uninstall" in enter(root, "MANWIDTH=80 man nri-nvidia | cat")
        assert paths(root) - before == {*told["entries"], model.MANIFEST}

        enter(
            root,
            "sed -i 's/^__version__ = .*/__version__ = \"99\"/' "
            f"{inside_unit.BUILD}/lib/python3*/site-packages/nri_nvidia/__init__.py && "
            f"{inside_unit.BUILD}/bin/nri-nvidia install",
        )
        told = json.loads((root / model.MANIFEST[1:]).read_text())
        assert told["version"] == "99"
        assert paths(root) - before == {*told["entries"], model.MANIFEST}
        assert enter(root, f"{COMMAND} --version") == "99\n"

        enter(root, f"{COMMAND} uninstall")
        assert paths(root) - before == {model.SETTINGS}
        assert before - paths(root) == set()


@pytest.fixture(scope="module")
def machine(wheel: Path) -> Iterator[Path]:
    """A root that boots, with a simulated host's driver and an environment to install from."""
    packages = ("systemd-sysv", "dbus", "python3-venv")
    with machines.debian(machines.own_release(), *packages) as place:
        host = place / str(inside_systemd.GPU_HOST).lstrip("/")
        simulated.build(host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
        (place / wheel.name).write_bytes(wheel.read_bytes())
        enter(place, BUILD)
        yield place


def test_service_on_a_booted_machine(machine: Path) -> None:
    """All of inside_unit passes on such a machine, with nothing left out."""
    done = machines.run(
        machines.LIB / "nspawn", machine,
        "systemd-run", "--quiet", "--pipe", "--wait", "--collect",
        f"--working-directory={machines.ROOT}", "--setenv=PYTHONDONTWRITEBYTECODE=1",
        machines.ROOT / ".venv/bin/pytest", "-v", "-p", "no:cacheprovider",
        Path(inside_unit.__file__),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert " passed in " in last
    assert not [word for word in ("failed", "skipped", "deselected") if word in last], done.stdout
