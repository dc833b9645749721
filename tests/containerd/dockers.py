# SPDX-License-Identifier: Apache-2.0
"""A private dockerd on a private containerd, in its mount namespace."""

import contextlib
import itertools
import json
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import doors, images, pods
from . import engine as engines

PATIENCE = 30.0
IMAGE = "debian:1"


# A network of its own, of which there is only the loopback interface (netdevice(7), SIOCSIFFLAGS).
ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh14x", b"lo", 0x41))
os.execv(sys.argv[1], sys.argv[1:])
"""


class Dockerd:
    """One dockerd, wherever it runs, and its client."""

    def __init__(
        self,
        program: Path,
        socket: Path,
        directory: Path,
        space: Sequence[object],
        env: Mapping[str, str],
    ) -> None:
        """Call the client `program` by `space`, which starts others where the dockerd is.

        What it has is in a directory of its own.
        """
        self._program = program
        self._socket = socket
        self._directory = directory
        self._space = space
        self._env = env
        self._numbers = itertools.count(1)
        self._log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def _launch(self, command: Sequence[object]) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*map(str, [*self._space, *command])], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env=self._env, cwd=self._directory, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while subprocess.run(
            self._command("version"), check=False, capture_output=True, env=self._env
        ).returncode:
            if self._process.poll() is not None or time.monotonic() > end:
                raise engines.EngineError(f"dockerd does not answer:\n{self.logged()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, with its containers removed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def logged(self) -> str:
        return self._log.read_text("utf-8", "replace")[-6000:]

    def load(self, image: images.Image) -> None:
        """Import an image's files."""
        digest = image.layer["digest"].removeprefix("sha256:")
        with tarfile.open(image.archive) as archive:
            layer = archive.extractfile(f"blobs/sha256/{digest}")
            assert layer is not None
            subprocess.run(
                self._command("import", "-", IMAGE), input=layer.read(), check=True,
                capture_output=True, env=self._env,
            )  # fmt: skip

    def _command(self, *words: str) -> list[str]:
        start = [*map(str, self._space), str(self._program)]
        return [*start, "-H", f"unix://{self._socket}", *words]

    @contextlib.asynccontextmanager
    async def container(
        self, env: Mapping[str, str] | None = None, *options: str, image: str = IMAGE
    ) -> AsyncIterator[doors.Inside]:
        """Run a container; raises RefusedError with what the client shows."""
        name = f"docker-{next(self._numbers)}"
        variables = [
            word for key, value in (env or {}).items() for word in ("-e", f"{key}={value}")
        ]
        done = await doors.run(*self._command(
            "run", "-d", "--pull", "never", "--network", "none", "--name", name,
            *variables, *options, image, "/probe", "pause",
        ))  # fmt: skip
        try:
            if done.code:
                raise doors.RefusedError(done.stderr)
            yield doors.Inside(name, self._command("exec", name))
        finally:
            await doors.run(*self._command("rm", "-f", name))

    def program(self) -> Path:
        """Give the client as a program of its own that talks to this dockerd."""
        path = self._directory / "docker"
        words = shlex.join(self._command())
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return path

    def use_plugin(self, plugin: engines.Program) -> None:
        """Give the client a plugin, as that for builds by BuildKit."""
        plugins = self._directory / ".docker/cli-plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        (plugins / plugin.name).symlink_to(plugin.path)

    async def call(self, *words: str) -> pods.Result:
        """Call the client."""
        return await doors.run("env", f"HOME={self._directory}", *self._command(*words))

    async def build(self, lines: Sequence[str], *options: str, kit: bool = False) -> pods.Result:
        """Build an image from lines of a Dockerfile, by the classic builder or by BuildKit."""
        context = self._directory / f"build-{next(self._numbers)}"
        context.mkdir()
        (context / "Dockerfile").write_text("\n".join(lines) + "\n", encoding="utf-8")
        settings = [f"DOCKER_BUILDKIT={int(kit)}", f"HOME={self._directory}"]
        command = self._command("build", "--network", "none", *options, str(context))
        return await doors.run("env", *settings, *command)

    async def restart(self, container: doors.Inside) -> None:
        """Stop a container and start it again, from what docker keeps of it."""
        done = await doors.run(*self._command("restart", "-t", "0", container.id))
        assert done.code == 0, done.stderr


class Docker(Dockerd):
    """One dockerd and its client. Everything lies in the engine's directory.

    With `alone` it has a network of its own.
    """

    def __init__(
        self,
        engine: engines.Engine,
        program: engines.Program,
        client: engines.Program,
        settings: Mapping[str, Any],
        path: Sequence[Path] = (),
        *,
        alone: bool = False,
    ) -> None:
        directory = engine.directory / "docker"
        directory.mkdir(exist_ok=True)
        runc = next(Path(each.path) for each in engine.programs if each.name == "runc")
        super().__init__(
            client.path,
            engine.directory / "d.sock",
            directory,
            ["nsenter", f"--mount=/proc/{engine.pid}/ns/mnt", "--"],
            {
                "PATH": ":".join(map(str, [*path, runc.parent, "/usr/sbin:/usr/bin:/sbin:/bin"])),
                "HOME": str(directory),
            },
        )
        self._engine = engine
        self._dockerd = program.path
        network = ["unshare", "--net", sys.executable, "-c", ALONE]
        self._network = network if alone else []
        (self._directory / "daemon.json").write_text(json.dumps(settings), encoding="utf-8")

    def start(self) -> None:
        """Start it and wait until it answers."""
        here = self._directory
        switches = ("iptables", "ip6tables", "ip-forward", "ip-masq", "userland-proxy")
        self._launch([
            *self._network, self._dockerd, "--config-file", here / "daemon.json",
            "--containerd", self._engine.address, "-H", f"unix://{self._socket}",
            "--data-root", here / "data", "--exec-root", here / "exec",
            "-p", here / "pid", "--bridge=none", "--cgroup-parent", self._engine.cgroup,
            *(f"--{switch}=false" for switch in switches),
        ])  # fmt: skip


@contextlib.contextmanager
def running(*words: Any, **more: Any) -> Iterator[Docker]:
    """Have a dockerd; see Docker."""
    docker = Docker(*words, **more)
    try:
        docker.start()
        yield docker
    finally:
        docker.stop()
