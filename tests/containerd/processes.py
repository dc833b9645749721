# SPDX-License-Identifier: Apache-2.0
"""Ending what an engine started: its processes, cgroups and mounts."""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


class LeftoverError(Exception):
    """Raised when a process or cgroup of an engine cannot be removed."""


def end(mine: Callable[[Path], bool], patience: float) -> None:
    """Kill every process of which `mine` is true, given its directory in /proc, until none is.

    A dead process that its parent has not asked for yet counts as gone.
    """
    limit = time.monotonic() + patience
    while found := _living(mine):
        if time.monotonic() > limit:
            raise LeftoverError(f"still alive after SIGKILL: {found}")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def runs(pid: int) -> bool:
    """Tell whether a process is there and not a zombie, which its parent has yet to ask for."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    return "\nState:\tZ" not in status


def _living(mine: Callable[[Path], bool]) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # It may end while it is looked at; a zombie has no namespace to read.
        with contextlib.suppress(OSError):
            if mine(process):
                found.append(int(process.name))
    return found


def remove_cgroups(name: str, patience: float = 30.0) -> None:
    """Remove a cgroup (`/name`) with all below it, in every hierarchy there is.

    Where systemd made it, systemd may be faster. One is busy for as long as a process that was
    killed takes to end, of which /proc tells little by then.
    """
    limit = time.monotonic() + patience
    for top in (CGROUPS, *CGROUPS.glob("*/")):
        tree = top / name.lstrip("/")
        for path, _, _ in os.walk(tree, topdown=False):
            while True:
                try:
                    os.rmdir(path)
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > limit:
                        raise
                    time.sleep(0.005)
                else:
                    break


def mounts_below(directory: Path) -> list[str]:
    """Return what this process's mount namespace has mounted below a directory."""
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    points = [line.split()[4] for line in table.splitlines()]
    return [each for each in points if Path(each).is_relative_to(directory)]
