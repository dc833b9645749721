# SPDX-License-Identifier: Apache-2.0
"""Ways by which a container can come to its GPUs, all used the same way.

A door gives a running container: `async with door(env) as container`, then `container.exec`.
"""

import asyncio
import contextlib
import itertools
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import grpclib

from . import daemons, pods
from . import engine as engines

FRONT = Path(__file__).parents[2] / "nri_nvidia/oci/runtime.sh"
LIBRARY_DIR = "/usr/local/nvidia"
_NUMBERS = itertools.count(1)


class RefusedError(Exception):
    """Raised when a container is not created; the text is what the client shows."""


def wrapper(daemon: daemons.Daemon, runtime: Path, run: str = "") -> Path:
    """Give nri-nvidia-runtime as one daemon's, in front of one runtime.

    `run` is where the daemon's sockets are, its own directory unless named.
    """
    installed = daemon.directory / "bin"
    front = installed / "nri-nvidia-runtime"
    if not front.exists():
        installed.mkdir()
        shutil.copy(FRONT, front)
        _program(installed / "python", f"exec {sys.executable}")
    settings = f"NRI_NVIDIA_RUN={run or daemon.directory} NRI_NVIDIA_RUNTIME={runtime}"
    name = runtime.parent.parent.name
    return _program(daemon.directory / f"wrapped-{name}", f"{settings} exec {front}")


def _program(path: Path, command: str) -> Path:
    path.write_text(f'#!/bin/sh\n{command} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


async def run(*command: object) -> pods.Result:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return pods.Result(
        code=process.returncode,
        stdout=out.decode(errors="surrogateescape"),
        stderr=err.decode(errors="surrogateescape"),
    )


class Inside:
    """A running container, by a command that runs others in it."""

    def __init__(self, name: str, enter: Sequence[object]) -> None:
        self.id = name
        self._enter = enter

    async def exec(self, command: Sequence[str]) -> pods.Result:
        """Run a command inside."""
        return await run(*self._enter, *command)

    async def probe(self, *arguments: str) -> str:
        """Run /probe; see pods.Container."""
        result = await self.exec(["/probe", *arguments])
        assert result.code == 0, result
        return result.stdout.rstrip("\n")


@contextlib.asynccontextmanager
async def ctr(
    engine: engines.Engine,
    runtime: Path | None,
    env: Mapping[str, str],
    image: str = "debian",
    options: Sequence[str] = (),
) -> AsyncIterator[Inside]:
    """Run a container by containerd's own client, which NRI does not see.

    Without a runtime the client names none.
    """
    name = f"ctr-{next(_NUMBERS)}"
    async with engine.client() as client:
        reference = await engine.use_image(image, client)
    variables = [word for key, value in env.items() for word in ("--env", f"{key}={value}")]
    try:
        await engine.ctr(
            "run", "-d", *(["--runc-binary", str(runtime)] if runtime else []),
            "--cgroup", f"{engine.cgroup}/{name}", *variables, *options, reference, name, "/probe", "pause",
        )  # fmt: skip
    except engines.EngineError as error:
        with contextlib.suppress(engines.EngineError):
            await engine.ctr("container", "rm", name)
        raise RefusedError(str(error)) from error
    try:
        # ctr's own exec loses output on a busy machine.
        space = ["nsenter", f"--mount=/proc/{engine.pid}/ns/mnt", "--"]
        root = ["--root", "/run/containerd/runc/k8s.io"]
        program = runtime or engine.programs[0].path
        yield Inside(name, [*space, program, *root, "exec", name])
    finally:
        with contextlib.suppress(engines.EngineError):
            await engine.ctr("task", "rm", "-f", name)
        await engine.ctr("container", "rm", name)


@contextlib.asynccontextmanager
async def cri(
    engine: engines.Engine, env: Mapping[str, str], runtime: str = "runc", cdi: Sequence[str] = ()
) -> AsyncIterator[pods.Container]:
    """Run a container by containerd's CRI, as a kubelet does."""
    async with engine.pod(runtime=runtime) as pod:
        try:
            container = await pod.create("debian", env=env, cdi=cdi)
            await container.start()
        except grpclib.GRPCError as error:
            raise RefusedError(str(error.message)) from error
        yield container


async def facts(container: "pods.Container | Inside") -> dict[str, object]:
    """Give what a process in a container sees of the driver, the same whatever the door was."""

    async def listed(directory: str) -> list[str]:
        return sorted((await container.probe("ls", directory)).split())

    nodes = [name for name in await listed("/dev") if name.startswith("nvidia")]
    cache = (await container.exec(["/sbin/ldconfig", "-p"])).stdout
    mounts = (await container.probe("cat", "/proc/self/mountinfo")).splitlines()
    inside = [line.split() for line in mounts if f" {LIBRARY_DIR}" in line]
    return {
        "nodes": {name: await container.probe("stat", f"/dev/{name}") for name in nodes},
        "opened": {await container.probe("open", f"/dev/{name}", "rw") for name in nodes},
        "made": await container.probe("mknod", "/dev/made", "c", "195", "5"),
        "libraries": await listed(f"{LIBRARY_DIR}/lib64"),
        "programs": await listed(f"{LIBRARY_DIR}/bin"),
        "cache": sorted(line for line in cache.splitlines() if LIBRARY_DIR in line),
        "smi": await container.probe("link", "/usr/bin/nvidia-smi"),
        "written": await container.probe("write", f"{LIBRARY_DIR}/lib64/libcuda.so.1"),
        "options": {option for each in inside for option in each[5].split(",")} - {"relatime"},
    }
