# SPDX-License-Identifier: Apache-2.0
"""The process that stands ready for hooks, as the daemon starts it."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs

from nri_nvidia.oci import install


@attrs.frozen(kw_only=True)
class Ready:
    """One that runs; `folder` is where it is asked."""

    process: "subprocess.Popen[bytes]"
    folder: Path


def start(hook: list[str], run: Path, program: Path | None = None, limit: str = "15") -> Ready:
    """Have one stand ready for an installed hook, below a directory; waits until it is."""
    folder = run / "warm"
    install.install_ask(str(folder))
    program = program or Path(hook[-1]).with_name(f"{install.WARM}.py")
    process = subprocess.Popen(
        [*hook[:-1], str(program), str(folder), str(run), hook[-1], limit],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    said = process.stdout.readline()
    if said != b"ready\n":
        end(Ready(process=process, folder=folder))
        raise AssertionError(said)
    return Ready(process=process, folder=folder)


def end(ready: Ready) -> None:
    """Have it end as it does when the daemon ends."""
    assert ready.process.stdin
    assert ready.process.stdout
    ready.process.stdin.close()
    ready.process.stdout.close()
    ready.process.wait(10)


def front(hook: list[str], folder: Path) -> list[str]:
    """Give the command by which a runtime has it do a hook's work.

    Its interpreter is nobody's: where it went on as Python after all, it would fail.
    """
    return ["/bin/sh", f"{hook[-1]}.sh", str(folder), "/nowhere/python3", *hook[1:]]


@contextlib.contextmanager
def ready(hook: list[str], run: Path) -> Iterator[list[str]]:
    """Have one stand ready; give the command of a hook that it does."""
    running = start(hook, run)
    try:
        yield front(hook, running.folder)
    finally:
        end(running)
