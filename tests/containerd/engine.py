# SPDX-License-Identifier: Apache-2.0
"""A private containerd: its own directories, sockets, mount namespace and cgroup.

What a test may rely on:

- everything of it lies in `engine.directory`, a short path below /tmp (a socket's path may have
  107 bytes);
- it lives in a mount namespace of its own in which /run is an empty tmpfs, since containerd's
  shims, runc and crun keep sockets and state there whatever they are told. So what a container
  is to mount, and a hook's program, must not lie below /run. Mounts made on the host later are
  seen inside;
- with the option `systemd` its pods are in a slice of its own name, and the sockets of systemd
  and of its bus are seen inside;
- where cgroups are hybrid, the second tree at /sys/fs/cgroup/unified is not seen inside: crun
  drops the device rules where it is. With the option `unified` it is all that is seen;
- the namespace outlives containerd, so that a restarted one finds its containers.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import grpclib
import grpclib.client

from . import cri, images, pods, processes, settings

PATIENCE = 30.0
"""Seconds after which something that should happen is taken not to happen."""
PRIVATE = """
mount -t tmpfs -o mode=755 tmpfs /mnt
for kept; do mkdir "/mnt/$kept"; mount --bind "/run/$kept" "/mnt/$kept"; done
mount -n --move /mnt /run
if [ -n "$UNIFIED" ]; then
    umount -R /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
elif mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
exec "$0" pause
"""


class EngineError(Exception):
    """Raised when containerd does not do what it is there for; the text holds its log's end."""


@attrs.frozen(kw_only=True)
class Program:
    """An unpacked program, as engines.json records it."""

    name: str
    version: str
    bin: Path
    path: Path


class Engine:
    """One private containerd with its runtimes. Start it once, use it from any event loop."""

    def __init__(
        self,
        program: Program,
        runtimes: Sequence[Program],
        library: images.Library,
        *,
        options: settings.Options | None = None,
    ) -> None:
        self.name = program.name
        self.version = program.version
        self.runtimes = tuple(each.name for each in runtimes)
        self.programs = tuple(runtimes)
        self.directory = Path(tempfile.mkdtemp(prefix="nnv-", dir="/tmp"))
        self.cgroup = f"/{self.directory.name}"
        if options and options.systemd:
            # A dash in a slice's name would put it below another.
            self.cgroup = f"{self.cgroup.replace('-', '')}.slice"
        self._unified = "1" if options and options.unified else ""
        self._kept = ("systemd", "dbus") if options and options.systemd else ()
        self.address = self.directory / "cd.sock"
        self.nri_socket = self.directory / "nri.sock"
        self.nri_plugins = self.directory / "plugins"
        self.nri_conf = self.directory / "conf.d"
        self.cdi_specs = self.directory / "cdi"
        self.state = self.directory / "state"
        self.log = self.directory / "containerd.log"
        self._program = program
        self._path = f"{program.bin}:{runtimes[0].bin}:/usr/sbin:/usr/bin:/sbin:/bin"
        self._library = library
        self._imported: set[str] = set()
        self._counter = itertools.count(1)
        self._holder: subprocess.Popen[str] | None = None
        self._namespace = 0
        self._daemon: subprocess.Popen[bytes] | None = None
        for path in (self.nri_plugins, self.nri_conf, self.cdi_specs):
            path.mkdir()
        text = settings.render(self, runtimes, library["pause"].reference, options)
        (self.directory / "config.toml").write_text(text, encoding="utf-8")

    @property
    def pid(self) -> int:
        """The containerd process."""
        if self._daemon is None:
            raise EngineError(f"{self.name} is not running")
        return self._daemon.pid

    @property
    def alive(self) -> bool:
        """Whether containerd runs: what a dead one left is removed by `stop`."""
        return self._daemon is not None and self._daemon.poll() is None

    # Life

    def start(self) -> None:
        """Start it and wait until its CRI service answers; may be called with no loop running."""
        self._hold()
        self.launch()
        self._wait_for_socket()

    def launch(self) -> None:
        """Start containerd alone, without waiting for it."""
        assert self._holder is not None
        environment = {"PATH": self._path, "HOME": str(self.directory)}
        config = self.directory / "config.toml"
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--",
                 self._program.path, "-c", config],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                cwd=self.directory, start_new_session=True,
            )  # fmt: skip

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End containerd, leaving its containers running, and wait for its end."""
        if self._daemon is not None:
            self._daemon.send_signal(number)
            try:
                self._daemon.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
            self._daemon = None

    def kill(self) -> None:
        """End containerd as a crash would."""
        self.terminate(signal.SIGKILL)

    async def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End containerd and start it again, around its running containers."""
        await asyncio.to_thread(self.terminate, number)
        self.launch()
        await asyncio.to_thread(self._wait_for_socket)
        async with self.client():
            pass

    def stop(self) -> None:
        """End containerd, its shims and containers; raise if anything of it is left."""
        try:
            self.kill()
            processes.end(self._mine, PATIENCE)
            self._release()
            processes.remove_cgroups(self.cgroup, PATIENCE)
            left = processes.mounts_below(self.directory)
            if left:
                raise EngineError(f"{self.name} left mounts: {left}")
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _mine(self, process: Path) -> bool:
        """Tell whether a process lives in this engine's namespace or in one of its cgroups."""
        if self._holder is None or process.name == str(self._holder.pid):
            return False
        if (process / "ns/mnt").stat().st_ino == self._namespace:
            return True
        return f":{self.cgroup}/" in (process / "cgroup").read_text(encoding="utf-8")

    def _hold(self) -> None:
        """Make the mount namespace, kept by a process that does nothing else."""
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "slave", "sh", "-e", "-c", PRIVATE,
             self._library.probe, *self._kept],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, cwd="/", start_new_session=True,
            env={**os.environ, "UNIFIED": self._unified},
        )  # fmt: skip
        self._until(self._held, "the mount namespace is made")
        self._namespace = Path(f"/proc/{self._holder.pid}/ns/mnt").stat().st_ino
        # What lives in this one is killed at the end, so it had better not be everyone's.
        assert self._namespace != Path("/proc/self/ns/mnt").stat().st_ino

    def _release(self) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()
            self._holder = None

    def _held(self) -> bool:
        assert self._holder is not None
        if self._holder.poll() is not None:
            assert self._holder.stderr is not None
            raise EngineError(f"no mount namespace: {self._holder.stderr.read()}")
        return Path(f"/proc/{self._holder.pid}/exe").resolve() == self._library.probe.resolve()

    def _wait_for_socket(self) -> None:
        self._until(self._connects, "its socket is served")

    def _connects(self) -> bool:
        if self._daemon is None or self._daemon.poll() is not None:
            raise EngineError(f"{self.name} ended at its start:\n{self.log_end()}")
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(self.address))
            return True
        return False

    def _until(self, condition: Any, what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise EngineError(f"{self.name}: not in {PATIENCE} s: {what}\n{self.log_end()}")
            time.sleep(0.005)

    # Use

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[cri.Client]:
        """Yield a CRI client of the running event loop, ready to be asked."""
        channel = grpclib.client.Channel(path=str(self.address))
        try:
            client = cri.Client(channel)
            await self._ready(client)
            yield client
        finally:
            channel.close()

    async def _ready(self, client: cri.Client) -> None:
        """Wait until CRI answers: it comes later than containerd's socket."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await client.version()
                except grpclib.GRPCError as error:
                    # 1.7 says so with the status UNKNOWN.
                    if "not initialized" not in str(error.message):
                        raise
                    await asyncio.sleep(0.005)
                else:
                    return

    @contextlib.asynccontextmanager
    async def pod(self, runtime: str = "runc", **wishes: Any) -> AsyncIterator[pods.Pod]:
        """Run a pod on the host's network and remove it, with its containers, at the end.

        The wishes are those of `pods.sandbox`: name, namespace, labels, annotations, privileged.
        """
        number = next(self._counter)
        wishes.setdefault("name", f"pod-{number}")
        logs = self.directory / "logs" / str(number)
        logs.mkdir(parents=True)
        config = pods.sandbox(cgroup=self.cgroup, logs=logs, **wishes)
        async with self.client() as client:
            await self.use_image("pause", client)
            identifier = await client.run_pod(config, runtime)
            try:
                yield pods.Pod(self, client, identifier, config)
            finally:
                if self.alive:
                    await client.stop_pod(identifier)
                    await client.remove_pod(identifier)

    async def use_image(self, name: str, client: cri.Client) -> str:
        """Import an image if this containerd has not got it; return its reference."""
        image = self._library[name]
        if name not in self._imported:
            await self.import_archive(image.archive)
            async with asyncio.timeout(PATIENCE):
                # CRI learns of it by an event, some milliseconds after the import is done.
                while not (await client.image_status(image.reference)).id:
                    await asyncio.sleep(0.005)
            self._imported.add(name)
        return image.reference

    def add_image(
        self,
        name: str,
        *,
        base: str,
        env: Sequence[str] = (),
        labels: Mapping[str, str] = {},
        files: Mapping[str, bytes | str] = {},
    ) -> None:
        """Make an image of another's files and some more, with `K=V` entries of its own."""
        self._library = self._library.derive(name, base, env, labels, self.directory, files=files)

    async def import_archive(self, archive: Path) -> None:
        """Import an OCI archive for CRI's use."""
        local = [] if self.version.startswith("1.") else ["--local"]
        await self.ctr("images", "import", *local, str(archive))

    async def ctr(self, *arguments: str, namespace: str = "k8s.io") -> str:
        """Run containerd's own client and return what it printed."""
        command = [str(self._program.bin / "ctr"), "-a", str(self.address), "-n", namespace]
        process = await asyncio.create_subprocess_exec(
            "nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--", *command, *arguments,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        if process.returncode:
            raise EngineError(f"ctr {' '.join(arguments)}: {output.decode()}\n{self.log_end()}")
        return output.decode()

    def inside(self, path: str) -> Path:
        """Return a path by which what only this engine sees, as in /run, is reached from here."""
        return Path("/proc", str(self.pid), "root", path.lstrip("/"))

    def bundle(self, container: str, namespace: str = "k8s.io") -> Path:
        """Return a running container's bundle directory."""
        return self.state / "io.containerd.runtime.v2.task" / namespace / container

    def config_json(self, container: str, namespace: str = "k8s.io") -> dict[str, Any]:
        """Return the OCI configuration that the runtime was given for a container."""
        text = (self.bundle(container, namespace) / "config.json").read_text(encoding="utf-8")
        document: dict[str, Any] = json.loads(text)
        return document

    def log_size(self) -> int:
        """Return how much has been logged, as a mark for `log_end`."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_end(self, since: int = 0, limit: int = 8000) -> str:
        """Return containerd's log after a mark, at most its last `limit` bytes."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(since, self.log_size() - limit))
            return log.read().decode(errors="replace")
