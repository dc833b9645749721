# SPDX-License-Identifier: Apache-2.0
"""Ways by which a container can come to its GPUs, all used the same way.

A door gives a running container: `async with door(env) as container`, then `container.exec`.
"""

import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from . import daemons, pods
from . import engine as engines

FRONT = Path(__file__).parents[2] / "nri_nvidia/oci/runtime.sh"
_NUMBERS = itertools.count(1)


class RefusedError(Exception):
    """Raised when a container is not created; the text is what the client shows."""


def wrapper(daemon: daemons.Daemon, runtime: Path) -> Path:
    """Give nri-nvidia-runtime as one daemon's, in front of one runtime."""
    installed = daemon.directory / "bin"
    front = installed / "nri-nvidia-runtime"
    if not front.is_symlink():
        installed.mkdir()
        front.symlink_to(FRONT)
        _program(installed / "python", f"exec {sys.executable}")
    settings = f"NRI_NVIDIA_RUN={daemon.directory} NRI_NVIDIA_RUNTIME={runtime}"
    name = runtime.parent.parent.name
    return _program(daemon.directory / f"wrapped-{name}", f"{settings} exec {front}")


def _program(path: Path, command: str) -> Path:
    path.write_text(f'#!/bin/sh\n{command} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


class CtrContainer:
    """A container that ctr has started."""

    def __init__(self, engine: engines.Engine, name: str) -> None:
        self.id = name
        self._engine = engine
        self._execs = itertools.count(1)

    async def exec(self, command: Sequence[str]) -> pods.Result:
        """Run a command inside; both streams are given as one."""
        try:
            told = await self._engine.ctr(
                "task", "exec", "--exec-id", f"e{next(self._execs)}", self.id, *command
            )
        except engines.EngineError as error:
            return pods.Result(code=1, stdout="", stderr=str(error))
        return pods.Result(code=0, stdout=told, stderr="")

    async def probe(self, *arguments: str) -> str:
        """Run /probe; see pods.Container."""
        result = await self.exec(["/probe", *arguments])
        assert result.code == 0, result
        return result.stdout.rstrip("\n")


@contextlib.asynccontextmanager
async def ctr(
    engine: engines.Engine,
    runtime: Path,
    env: Mapping[str, str],
    image: str = "debian",
    options: Sequence[str] = (),
) -> AsyncIterator[CtrContainer]:
    """Run a container by containerd's own client, which NRI does not see."""
    name = f"ctr-{next(_NUMBERS)}"
    async with engine.client() as client:
        reference = await engine.use_image(image, client)
    variables = [word for key, value in env.items() for word in ("--env", f"{key}={value}")]
    try:
        await engine.ctr(
            "run", "-d", "--runc-binary", str(runtime), "--cgroup", f"{engine.cgroup}/{name}",
            *variables, *options, reference, name, "/probe", "pause",
        )  # fmt: skip
    except engines.EngineError as error:
        with contextlib.suppress(engines.EngineError):
            await engine.ctr("container", "rm", name)
        raise RefusedError(str(error)) from error
    try:
        yield CtrContainer(engine, name)
    finally:
        with contextlib.suppress(engines.EngineError):
            await engine.ctr("task", "rm", "-f", name)
        await engine.ctr("container", "rm", name)
