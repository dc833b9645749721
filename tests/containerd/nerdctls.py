# SPDX-License-Identifier: Apache-2.0
"""nerdctl, beside a private containerd in its mount namespace, or a user's own."""

import contextlib
import itertools
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from . import doors, images, pods
from . import engine as engines


class Nerdctl:
    """nerdctl as the user of one containerd, by the command that calls it.

    `directory` is one for what is needed besides, `options` are those of each container.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, options: Sequence[str] = ()
    ) -> None:
        self._command = [*command]
        self._directory = directory
        self._options = options
        self._numbers = itertools.count(1)

    @classmethod
    def beside(cls, program: Path, engine: engines.Engine) -> "Nerdctl":
        """Give a program as that of an engine, in whose directory all lies that it keeps."""
        space = ["nsenter", f"--mount=/proc/{engine.pid}/ns/mnt", "--"]
        here = engine.directory / "nerdctl"
        (here / "cni").mkdir(parents=True)
        # Its settings are the machine's unless it is told.
        env = [f"HOME={here}", f"NERDCTL_TOML={here}/none", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        command = [
            *space, "env", "-i", *env, str(program), "--address", str(engine.address),
            "--data-root", str(here / "data"), "--cni-netconfpath", str(here / "cni"),
            "--cgroup-manager", "cgroupfs", "--cdi-spec-dirs", str(engine.cdi_specs),
        ]  # fmt: skip
        return cls(command, here, ["--cgroup-parent", engine.cgroup])

    @property
    def answers(self) -> bool:
        """Whether its containerd does."""
        done = subprocess.run([*self._command, "info"], check=False, capture_output=True)
        return not done.returncode

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
            *self._options, *variables, *options, image.reference,
            "/probe", "pause",
        )  # fmt: skip
        try:
            if done.code:
                raise doors.RefusedError(done.stderr)
            yield doors.Inside(name, [*self._command, "exec", name])
        finally:
            await doors.run(*self._command, "rm", "-f", name)

    async def build(self, context: Path, *options: str) -> pods.Result:
        """Build by the buildctl on PATH."""
        folder = found("buildctl").parent
        words = [f"{each}:{folder}" if each[:5] == "PATH=" else each for each in self._command]
        return await doors.run(*words, "build", "--progress", "plain", *options, context)

    def program(self) -> Path:
        """Give a program of the name that talks to this containerd."""
        path = self._directory / "nerdctl"
        path.write_text(f'#!/bin/sh\nexec {shlex.join(self._command)} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return path

    async def restart(self, container: doors.Inside) -> None:
        """Stop a container and start it again, from what nerdctl keeps of it."""
        done = await doors.run(*self._command, "restart", "-t", "0", container.id)
        assert done.code == 0, done.stderr


def found(name: str = "nerdctl") -> Path:
    """Give the nerdctl on PATH, or another such program; without one the test is skipped."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on PATH, and Debian has no package of it")
    return Path(path)
