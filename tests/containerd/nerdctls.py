# SPDX-License-Identifier: Apache-2.0
"""nerdctl beside a private containerd, in its mount namespace."""

import contextlib
import itertools
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from . import doors, images
from . import engine as engines


class Nerdctl:
    """nerdctl as the user of one containerd. What it keeps lies in the engine's directory."""

    def __init__(self, program: Path, engine: engines.Engine) -> None:
        self._engine = engine
        self._numbers = itertools.count(1)
        space = ["nsenter", f"--mount=/proc/{engine.pid}/ns/mnt", "--"]
        here = engine.directory / "nerdctl"
        (here / "cni").mkdir(parents=True)
        # Its settings are the machine's unless it is told.
        env = [f"HOME={here}", f"NERDCTL_TOML={here}/none", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        self._command = [
            *space, "env", "-i", *env, str(program), "--address", str(engine.address),
            "--data-root", str(here / "data"), "--cni-netconfpath", str(here / "cni"),
            "--cgroup-manager", "cgroupfs", "--cdi-spec-dirs", str(engine.cdi_specs),
        ]  # fmt: skip

    def load(self, image: images.Image) -> None:
        """Import an image."""
        subprocess.run(
            [*self._command, "load", "-i", image.archive], check=True, capture_output=True
        )

    @contextlib.asynccontextmanager
    async def container(
        self,
        image: images.Image,
        env: Mapping[str, str] | None = None,
        *options: str,
    ) -> AsyncIterator[doors.Inside]:
        """Run a container; raises RefusedError with what nerdctl shows."""
        name = f"nerdctl-{next(self._numbers)}"
        variables = [
            word for key, value in (env or {}).items() for word in ("-e", f"{key}={value}")
        ]
        done = await doors.run(
            *self._command, "run", "-d", "--pull", "never", "--network", "none", "--name", name,
            "--cgroup-parent", self._engine.cgroup, *variables, *options, image.reference,
            "/probe", "pause",
        )  # fmt: skip
        try:
            if done.code:
                raise doors.RefusedError(done.stderr)
            yield doors.Inside(name, [*self._command, "exec", name])
        finally:
            await doors.run(*self._command, "rm", "-f", name)

    def program(self) -> Path:
        """Give a program of the name that talks to this containerd."""
        path = self._engine.directory / "nerdctl/nerdctl"
        path.write_text(f'#!/bin/sh\nexec {shlex.join(self._command)} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return path

    async def restart(self, container: doors.Inside) -> None:
        """Stop a container and start it again, from what nerdctl keeps of it."""
        done = await doors.run(*self._command, "restart", "-t", "0", container.id)
        assert done.code == 0, done.stderr


def found() -> Path:
    """Give the nerdctl on PATH; without one the test is skipped."""
    path = shutil.which("nerdctl")
    if path is None:
        pytest.skip("nerdctl is not on PATH, and Debian has no package of it")
    return Path(path)
