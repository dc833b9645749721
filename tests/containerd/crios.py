# SPDX-License-Identifier: Apache-2.0
"""A private CRI-O: its storage, and a mount namespace with an /etc, a /run and a /var/lib of its own.

It pulls nothing: images are put into its storage by buildah, which has the same.
"""

import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpclib.client
import pytest

from nri_nvidia import cli

from . import cri, images, pods, processes
from . import engine as engines

PATIENCE = 30.0
PRIVATE = """
mount -n -t tmpfs -o mode=755 tmpfs /run
mount -n -t tmpfs -o mode=755 tmpfs /var/lib
cp -a /etc /run/etc
rm -rf /run/etc/containers /run/etc/crio /run/etc/cdi
mkdir /run/etc/containers
echo '{{"default": [{{"type": "insecureAcceptAnything"}}]}}' >/run/etc/containers/policy.json
echo '[engine]
helper_binaries_dir = ["{top}/helpers"]' >/run/etc/containers/containers.conf
mount -n --rbind /run/etc /etc
if mountpoint -q /sys/fs/cgroup/unified; then umount -n /sys/fs/cgroup/unified; fi
exec "$0" pause
"""
SETTINGS = """
[crio]
root = "{top}/graph"
runroot = "{top}/runroot"
storage_driver = "overlay"
log_dir = "{top}/logs"
version_file = "{top}/version"
version_file_persist = "{top}/version-persist"
clean_shutdown_file = "{top}/clean"
[crio.api]
listen = "{top}/crio.sock"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_ulimits = ["nofile=1024:4096"]
hooks_dir = ["{top}/hooks"]
apparmor_profile = "unconfined"
cdi_spec_dirs = ["{top}/cdi"]
namespaces_dir = "{top}/ns"
pinns_path = "{pinns}"
container_exits_dir = "{top}/exits"
container_attach_socket_dir = "{top}/attach"
disable_hostport_mapping = true
[crio.image]
pause_image = "{pause}"
pause_command = "/probe pause"
[crio.network]
network_dir = "{top}/cni"
plugin_dirs = ["{top}/cni"]
[crio.nri]
nri_listen = "{top}/nri.sock"
nri_plugin_dir = "{top}/plugins"
nri_plugin_config_dir = "{top}/conf.d"
"""
HANDLER = """
[crio.runtime.runtimes.{name}]
runtime_path = "{path}"
runtime_root = "{top}/{name}"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
"""


class Crio:
    """One private CRI-O; a pod's containers see it as they see an engine.Engine."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        programs: Mapping[str, engines.Program],
        library: images.Library,
        *,
        wrappers: Mapping[str, Path] = {},
        configure: Sequence[str] = (),
    ) -> None:
        """Prepare it; `wrappers` are further handlers' programs, `configure` options of that verb.

        Without any it is as it comes: with NRI.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="nno-", dir="/tmp"))
        self.cgroup = f"/{self.directory.name}"
        self.address = self.directory / "crio.sock"
        self.nri_socket = self.directory / "nri.sock"
        self.cdi_specs = self.directory / "cdi"
        self._paths = paths
        self._programs = programs
        self._library = library
        self._loaded: set[str] = set()
        self._numbers = itertools.count(1)
        self._log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("cdi", "hooks", "cni", "plugins", "conf.d"):
            (self.directory / name).mkdir()
        # buildah looks for it, and does nothing with it.
        netavark = self.directory / "helpers/netavark"
        netavark.parent.mkdir()
        netavark.write_text("#!/bin/sh\nexit 1\n")
        netavark.chmod(0o755)
        handlers = {"runc": programs["runc"].path, **wrappers}
        values = {
            "top": self.directory,
            "conmon": programs["conmon"].path,
            "pinns": paths["pinns"],
            "pause": library["pause"].reference,
        }
        text = SETTINGS.format(**values) + "".join(
            HANDLER.format(name=name, path=path, **values) for name, path in handlers.items()
        )
        (self.directory / "crio.conf").write_text(text, encoding="utf-8")
        if configure:
            words = ["--root", str(self.directory), "--config", "/crio.conf.d", *configure]
            assert cli.main(["configure", "crio", *words, "--apply"]) == 0
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "slave", "sh", "-e", "-c", PRIVATE.format(top=self.directory),
             library.probe],
            stdin=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )  # fmt: skip
        self._until(
            lambda: (
                Path(f"/proc/{self._holder.pid}/exe").resolve() == library.probe.resolve()
                or self._holder.poll() is not None
            )
        )
        self._namespace = Path(f"/proc/{self._holder.pid}/ns/mnt").stat().st_ino
        assert self._namespace != Path("/proc/self/ns/mnt").stat().st_ino

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait for its socket; the image of pods is there before."""
        if "pause" not in self._loaded:
            self.load("pause")
        self.address.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._space, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                 f"HOME={self.directory}", self._paths["crio"], "--config",
                 self.directory / "crio.conf", "--config-dir", self.directory / "crio.conf.d"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._until(lambda: self.address.exists() or not self.alive)
        if not self.alive:
            raise engines.EngineError(f"crio ended at its start:\n{self.logged()}")

    def kill(self) -> None:
        """End it as a crash would, leaving its containers running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it with all that lives in its namespace or in its cgroup."""
        try:
            self.kill()
            processes.end(self._mine, PATIENCE)
        finally:
            self._holder.kill()
            self._holder.wait()
            processes.remove_cgroups(self.cgroup)
            shutil.rmtree(self.directory, ignore_errors=True)

    def logged(self) -> str:
        return self._log.read_text("utf-8", "replace")[-6000:]

    @property
    def _space(self) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]

    def _mine(self, process: Path) -> bool:
        if process.name == str(self._holder.pid):
            return False
        if (process / "ns/mnt").stat().st_ino == self._namespace:
            return True
        return f":{self.cgroup}/" in (process / "cgroup").read_text(encoding="utf-8")

    def _until(self, condition: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise engines.EngineError(f"crio: not in {PATIENCE} s\n{self.logged()}")
            time.sleep(0.005)

    def load(self, name: str) -> None:
        """Put an image into its storage."""
        image = self._library[name]
        call = [*self._space, self._programs["buildah"].path, "--storage-driver", "overlay",
                "--root", self.directory / "graph", "--runroot", self.directory / "runroot"]  # fmt: skip
        pulled = subprocess.run(
            [*call, "pull", "-q", f"oci-archive:{image.archive}"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        tagging = [*call, "tag", pulled.stdout.split()[-1], image.reference]
        subprocess.run(tagging, check=True, capture_output=True)
        self._loaded.add(name)

    def add_image(self, name: str, *, base: str, env: Sequence[str]) -> None:
        """Make an image of another's files, with `K=V` entries of its own."""
        self._library = self._library.derive(name, base, env, {}, self.directory)

    async def use_image(self, name: str, client: cri.Client) -> str:
        """Give the reference of an image, which is put there when it is first asked for."""
        if name not in self._loaded:
            self.load(name)
        return self._library[name].reference

    def config_json(self, container: str) -> dict[str, Any]:
        """Return the OCI configuration that the runtime was given for a container."""
        place = self.directory / f"runroot/overlay-containers/{container}/userdata/config.json"
        document: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return document

    @contextlib.asynccontextmanager
    async def pod(self, runtime: str = "runc", **wishes: Any) -> AsyncIterator[pods.Pod]:
        """Run a pod on the host's network and remove it, with its containers, at the end."""
        number = next(self._numbers)
        wishes.setdefault("name", f"pod-{number}")
        logs = self.directory / "logs" / str(number)
        logs.mkdir(parents=True)
        config = pods.sandbox(cgroup=self.cgroup, logs=logs, **wishes)
        config.metadata.uid = f"uid-{number}"
        channel = grpclib.client.Channel(path=str(self.address))
        try:
            client = cri.Client(channel)
            identifier = await client.run_pod(config, runtime)
            try:
                yield pods.Pod(self, client, identifier, config)
            finally:
                if self.alive:
                    await client.stop_pod(identifier)
                    await client.remove_pod(identifier)
        finally:
            channel.close()


@contextlib.contextmanager
def running(
    programs: Mapping[str, engines.Program], library: images.Library, **more: Any
) -> Iterator[Crio]:
    """Have the CRI-O that is on PATH, as its pinns; without them the test is skipped."""
    paths = {}
    for name in ("crio", "pinns"):
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"{name} is not on PATH, and Debian has no package of CRI-O")
        paths[name] = Path(path)
    crio = Crio(paths, programs, library, **more)
    try:
        crio.start()
        yield crio
    finally:
        crio.stop()
