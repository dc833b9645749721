# SPDX-License-Identifier: Apache-2.0
"""The README's two commands on machines with nothing prepared: bare Debian 12 and 13.

The network and the kernel are this machine's; all else is the root's own. Each command is looked
at for what it leaves behind.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import machines

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

COPY = "project"
"""Where the fresh copy lies in the root."""
LEFT_OUT = (".venv", ".cache", ".git", "__pycache__", "*_cache", ".hypothesis")
NOT_KEPT = {"proc", "sys", "dev", "run", ".old", COPY}
LOOK = r"""
look() {
	cat /proc/self/mountinfo
	find /run /sys/class/net -mindepth 1 | sort
	find /dev -maxdepth 1 -name 'nvidia*' -o -maxdepth 1 -name char | sort
}
cd "/$0"
look >/run/.before
status=0
"$@" || status=$?
echo "@status $status"
for process in /proc/[0-9]*; do
	case $(cat $process/status 2>/dev/null) in
		*State:*"Z (zombie)"*) ;;  # dead, and not yet asked for by the shell
		*State:*) [ $process = /proc/1 ] || echo "@process $(tr '\0' ' ' <$process/cmdline)" ;;
	esac
done
look | diff /run/.before - | sed -n 's/^> /@new /p'
"""
BY_PACKAGES = re.compile(
    r"/var/(lib/(apt|dpkg|python)|cache/(apt|debconf|ldconfig)|log)(/.*)?"
    r"|/etc/(alternatives/.*|ld\.so\.cache|python3(/debian_config)?|inputrc|localtime|networks)"
    r"|/usr/(lib|share)/.*/__pycache__(/.*)?"
    r"|/usr/local/lib/python3[.0-9]*(/dist-packages)?"
    r"|/usr/share/(info|man|doc|binfmts|applications)/.*"
)
"""What apt and the packages' own scripts write beside the packages' files."""


def content(root: Path) -> dict[str, tuple[int, int, int]]:
    """Give every path of a root with what tells a change: mode, and for no directory size, time."""
    found = {}
    for directory, below, names in os.walk(root):
        if Path(directory) == root:
            below[:] = [name for name in below if name not in NOT_KEPT]
        for path in (os.path.join(directory, name) for name in (*below, *names)):
            status = os.lstat(path)
            of_file = (status.st_size, status.st_mtime_ns)
            found[path.removeprefix(str(root))] = (
                (status.st_mode, 0, 0)
                if stat.S_ISDIR(status.st_mode)
                else (status.st_mode, *of_file)
            )
    return found


def packaged(root: Path) -> Iterator[str]:
    """Give the paths of every installed package's files, as they are with a merged /usr."""
    for listing in (root / "var/lib/dpkg/info").glob("*.list"):
        for path in listing.read_text(encoding="utf-8").splitlines():
            yield re.sub(r"^/(bin|sbin|lib|lib32|lib64)(?=/)", r"/usr/\1", path)


def not_of_packages(root: Path, before: dict[str, tuple[int, int, int]]) -> list[str]:
    """Give what changed since, appeared or went, other than by installing packages."""
    after = content(root)
    owned = set(packaged(root))
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    return sorted(
        path
        for path in changed - owned
        if not BY_PACKAGES.fullmatch(path)
        and not ((root / path[1:]).is_symlink()
                 and os.readlink(root / path[1:]).startswith("/etc/alternatives/"))
    )  # fmt: skip


def enter(root: Path, *command: str) -> tuple[str, list[str]]:
    """Run a command in the copy; give its output and what was looked at after it."""
    done = machines.run(machines.LIB / "enter-root", root, "bash", "-uc", LOOK, COPY, *command)
    lines = done.stdout.splitlines()
    looked = [line for line in lines if line.startswith("@")]
    return "\n".join(line for line in lines if not line.startswith("@")), looked


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_two_commands_on_a_bare_release(release: str) -> None:
    """From a fresh copy both work, and nothing but distribution packages is left outside of it."""
    with machines.debian(release) as root:
        shutil.copytree(
            machines.ROOT, root / COPY, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT)
        )
        before = content(root)

        output, looked = enter(root, "contrib/demo")
        assert looked == ["@status 0"], output
        for text in ("nvidiactl", "libcuda.so.1", "held by", "all of it worked"):
            assert text in output
        assert not_of_packages(root, before) == []

        output, looked = enter(root, "contrib/test")
        assert looked == ["@status 0"], output
        assert re.search(r" \d{4,} passed(, \d+ skipped)? in ", output.splitlines()[-1]), output
        assert not_of_packages(root, before) == []
