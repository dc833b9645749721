# SPDX-License-Identifier: Apache-2.0
"""Machines with nothing prepared: roots of Debian releases, see contrib/lib/debian-root."""

import contextlib
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIB = ROOT / "contrib/lib"
PATIENCE = 60
"""Seconds that a script may take to put things away when it is ended."""


def own_release() -> str:
    """Return the code name of this machine's Debian."""
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; when the test itself is ended, the script may put things away."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate()
        except BaseException:
            process.terminate()
            process.communicate(timeout=PATIENCE)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output)


@contextlib.contextmanager
def debian(release: str, *packages: str) -> Iterator[Path]:
    """Have a root with the essential packages and those named, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="nri-nvidia-root-", dir="/tmp") as directory:
        place = Path(directory, "root")
        made = run(LIB / "debian-root", release, place, *packages)
        assert made.returncode == 0, made.stdout
        yield place
