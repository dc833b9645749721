# SPDX-License-Identifier: Apache-2.0
"""A RUN of a build as if it were a container: by podman, and by buildah in podman's place."""

import json
from collections.abc import Sequence
from pathlib import Path

import attrs

from . import doors, podmans, pods

LIMITS = ("--ulimit", "nofile=1024:4096", "--ulimit", "nproc=1024:4096")
"""What podman has in its settings and buildah does not read: as many as any machine allows."""


@attrs.frozen(kw_only=True)
class Builder:
    """podman's own build, or with a program that of a buildah.

    `options` are those of each build, `runtime` the OCI runtime's path.
    """

    podman: podmans.Podman
    buildah: Path | None = None
    runtime: Path | None = None
    options: Sequence[str] = ()
    network: str = "none"

    async def build(self, lines: Sequence[str]) -> pods.Result:
        """Build an image from lines of a Containerfile."""
        file = self.podman.directory / "Containerfile"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        named = ["--runtime", str(self.runtime)] if self.runtime else []
        before, after = (named, ()) if self.buildah is None else ([], [*named, *LIMITS])
        return await doors.run(*self.podman.command(
            *before, "build", *after, "--pull=never", "--no-cache", "--network", self.network,
            "-f", str(file), *self.options, str(self.podman.directory / "home"),
            program=self.buildah,
        ))  # fmt: skip


@attrs.frozen(kw_only=True)
class Step:
    """Where each command is the RUN of a build of its own, as root, on the Debian image."""

    builder: Builder
    env: Sequence[str] = ()
    """Variables that the Containerfile sets, each `K=V`."""

    async def exec(self, command: Sequence[str]) -> pods.Result:
        """Run a command in a build; raises RefusedError where it is not started, or fails."""
        lines = [f"FROM {podmans.IMAGE}", *(f"ENV {each}" for each in self.env)]
        done = await self.builder.build([*lines, f"RUN {json.dumps(list(command))}"])
        if done.code:
            raise doors.RefusedError(done.stderr)
        count = len(lines) + 1
        _, _, rest = done.stdout.partition(f"\nSTEP {count}/{count}: ")
        said, _, _ = rest.partition("\n")[2].partition("\nCOMMIT\n")
        return attrs.evolve(done, stdout=f"{said}\n")
