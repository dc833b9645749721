# SPDX-License-Identifier: Apache-2.0
"""A private podman: its storage, and a mount namespace with an /etc and a /run of its own."""

import contextlib
import itertools
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import doors, images, processes
from . import engine as engines

IMAGE = "localhost/debian:1"
PATIENCE = 20.0
# What it keeps in /run and /var/lib whatever it is told is to be of this test alone, and so is what
# it reads in /etc: podman 4 looks for CDI specifications nowhere else.
PRIVATE = """
mount -n -t tmpfs -o mode=755 tmpfs /run
mount -n -t tmpfs -o mode=755 tmpfs /var/lib
cp -a /etc /run/etc
rm -rf /run/etc/containers
ln -s {top}/node/etc/containers /run/etc/containers
mkdir -p /run/etc/cdi
mount -n --bind {top}/cdi /run/etc/cdi
mount -n --rbind /run/etc /etc
{cgroups}
exec "$0" pause
"""
# crun drops the device rules where there are two trees.
ONE_TREE = "if mountpoint -q /sys/fs/cgroup/unified; then umount -n /sys/fs/cgroup/unified; fi"
UNIFIED = "umount -n -R /sys/fs/cgroup; mount -n -t cgroup2 cgroup2 /sys/fs/cgroup"
CONTAINERS = """
[engine]
runtime = "{runtime}"
conmon_path = ["{conmon}"]
cgroup_manager = "cgroupfs"
events_logger = "file"
helper_binaries_dir = ["{top}/helpers"]
tmp_dir = "{top}/tmp"
static_dir = "{top}/static"
volume_path = "{top}/volumes"
[network]
network_config_dir = "{top}/networks"
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]
"""
STORAGE = """
[storage]
driver = "overlay"
runroot = "{top}/runroot"
graphroot = "{top}/graph"
[storage.options.overlay]
ignore_chown_errors = "{rootless}"
"""


class Podman:
    """A place where podman runs as if it were alone, as a user or as root.

    `more` are further lines of the script that makes its mount namespace. A user is mapped alone,
    which needs no subordinate ids. With `unified` it sees cgroups of version 2 alone.
    """

    def __init__(
        self,
        programs: Mapping[str, engines.Program],
        probe: Path,
        *,
        user: int = 0,
        more: str = "",
        release: str = "podman",
        unified: bool = False,
    ) -> None:
        self._user = user
        self.directory = Path(tempfile.mkdtemp(prefix="nnp-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.cdi_specs = self.directory / "cdi"
        self.cdi_specs.mkdir()
        self.node = self.directory / "node"
        """What `configure --root` takes for the node: the place of its /etc/containers."""
        settings = self.node / "etc/containers"
        self._cgroup = f"/{self.directory.name}"
        self._podman = programs[release].path
        self._numbers = itertools.count(1)
        (self.directory / "home").mkdir()
        (settings / "containers.conf.d").mkdir(parents=True)
        (settings / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        # It is looked for, and not run without a network.
        netavark = self.directory / "helpers/netavark"
        netavark.parent.mkdir()
        netavark.write_text("#!/bin/sh\nexit 1\n")
        netavark.chmod(0o755)
        values = {
            "top": self.directory,
            "runtime": programs["runc"].path,
            "conmon": programs["conmon"].path,
            "rootless": "true" if user else "false",
        }
        for name, text in (("containers", CONTAINERS), ("storage", STORAGE)):
            (settings / f"{name}.conf").write_text(text.format(**values))
        self._env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.directory / "home"),
            "CONTAINERS_STORAGE_CONF": str(settings / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": "/dev/null",
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
        }
        if user:
            self._env["XDG_RUNTIME_DIR"] = str(self.directory / "xdg")
            (self.directory / "xdg").mkdir(mode=0o700)
            for path in (self.directory, *self.directory.rglob("*")):
                os.chown(path, user, user)
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "slave", "sh", "-e", "-c",
             more + PRIVATE.format(top=self.directory, cgroups=UNIFIED if unified else ONE_TREE),
             probe],
            stdin=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while Path(f"/proc/{self._holder.pid}/exe").resolve() != probe.resolve():
            assert self._holder.poll() is None, "no mount namespace"
            assert time.monotonic() < end, "no mount namespace in time"
            time.sleep(0.005)
        self._namespace = Path(f"/proc/{self._holder.pid}/ns/mnt").stat().st_ino
        assert self._namespace != Path("/proc/self/ns/mnt").stat().st_ino

    @property
    def space(self) -> list[str]:
        """What starts a program in the mount namespace."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]

    def command(self, *words: str, program: Path | None = None) -> list[str]:
        """Give the command that calls podman, or another program in its place and with its files."""
        env = [f"{key}={value}" for key, value in self._env.items()]
        number = str(self._user)
        user = ["setpriv", "--reuid", number, "--regid", number, "--clear-groups"]
        become = user if self._user else []
        return [*self.space, *become, "env", "-i", *env, str(program or self._podman), *words]

    def load(self, image: images.Image) -> None:
        """Import an image's files."""
        digest = image.layer["digest"].removeprefix("sha256:")
        layer = self.directory / "layer.tar"
        with tarfile.open(image.archive) as archive:
            member = archive.extractfile(f"blobs/sha256/{digest}")
            assert member is not None
            layer.write_bytes(member.read())
        subprocess.run(self.command("import", str(layer), IMAGE), check=True, capture_output=True)
        layer.unlink()

    @contextlib.asynccontextmanager
    async def container(
        self,
        env: Mapping[str, str] | None = None,
        *options: str,
        runtime: "Path | str | None" = None,
    ) -> AsyncIterator[doors.Inside]:
        """Run a container; raises RefusedError with what podman shows."""
        name = f"podman-{next(self._numbers)}"
        variables = [
            word for key, value in (env or {}).items() for word in ("-e", f"{key}={value}")
        ]
        chosen = ["--runtime", str(runtime)] if runtime else []
        done = await doors.run(*self.command(
            *chosen, "run", "-d", "--pull", "never", "--network", "none", "--name", name,
            *([] if self._user else ["--cgroup-parent", self._cgroup]), "--cap-add", "MKNOD",
            *variables, *options, IMAGE, "/probe", "pause",
        ))  # fmt: skip
        try:
            if done.code:
                raise doors.RefusedError(done.stderr)
            yield doors.Inside(name, self.command(*chosen, "exec", name))
        finally:
            await doors.run(*self.command(*chosen, "rm", "-f", "-t", "0", name))

    def close(self) -> None:
        """End what is left of it."""
        try:
            processes.end(self._mine, PATIENCE)
            processes.end(self._pauses, PATIENCE)
        finally:
            self._holder.kill()
            self._holder.wait()
            processes.remove_cgroups(self._cgroup)
            shutil.rmtree(self.directory, ignore_errors=True)

    def _pauses(self, process: Path) -> bool:
        """Tell the process by which a user's podman keeps its namespaces."""
        command = (process / "cmdline").read_bytes().split(b"\0")
        user = (process / "status").read_text(encoding="utf-8")
        ours = command[0] == bytes(self._podman) and f"\nUid:\t{self._user}\t" in user
        return bool(self._user) and ours

    def _mine(self, process: Path) -> bool:
        if process.name == str(self._holder.pid):
            return False
        return (process / "ns/mnt").stat().st_ino == self._namespace


@contextlib.contextmanager
def running(
    programs: Mapping[str, engines.Program], library: images.Library, **more: Any
) -> Iterator[Podman]:
    """Have a podman with the Debian image; see Podman."""
    podman = Podman(programs, library.probe, **more)
    try:
        podman.load(library["debian"])
        yield podman
    finally:
        podman.close()
