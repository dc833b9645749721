# SPDX-License-Identifier: Apache-2.0
"""A user's own dockerd, as docker's script for rootless mode starts it, in a private place.

The place is a mount namespace with an /etc, a /run and a /dev of its own: there the user has a name
and subordinate ids, and /dev has a simulated host's nodes. The dockerd is in a user namespace and a
network below it, and starts its own containerd.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from nri_nvidia import cli
from nri_nvidia.install import service

from . import daemons, dockers, doors, images, processes, test_rootless
from . import engine as engines

USER = 1236
PROGRAMS = ("docker-rootless", "rootlesskit", "slirp4netns", "uidmap", "docker-28", "containerd-2")
"""What is found on the user's PATH, beside the client and runc."""
RUN = "/run/nri-nvidia"
SUBORDINATE = 1_200_000
PRIVATE = """
mkdir /dev/net
mknod -m 666 /dev/net/tun c 10 200
mount -n -t tmpfs -o mode=755 tmpfs /run
cp -a /etc /run/etc
echo somebody:x:{user}:{user}::{top}/home:/bin/sh >>/run/etc/passwd
echo somebody:x:{user}: >>/run/etc/group
echo somebody:{subordinate}:65536 | tee /run/etc/subuid >/run/etc/subgid
mount -n --rbind /run/etc /etc
if mountpoint -q /sys/fs/cgroup/unified; then umount -n /sys/fs/cgroup/unified; fi
exec "$0" pause
"""


class Place:
    """Where a user has a docker and the node a nri-nvidia, whose directory is /run/nri-nvidia."""

    def __init__(self, host: Path, probe: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="nnr-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.home = self.directory / "home"
        for name in ("home", "xdg", "cdi", "run"):
            (self.directory / name).mkdir()
        (self.home / ".config/docker").mkdir(parents=True)
        self.own()
        script = test_rootless.own_dev(host) + PRIVATE.format(
            top=self.directory, user=USER, subordinate=SUBORDINATE
        )
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "slave", "sh", "-e", "-c", script, probe],
            stdin=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + dockers.PATIENCE
        while Path(f"/proc/{self._holder.pid}/exe").resolve() != probe.resolve():
            assert self._holder.poll() is None, "no mount namespace"
            assert time.monotonic() < end, "no mount namespace in time"
            time.sleep(0.005)

    @property
    def space(self) -> list[str]:
        """What starts a program there."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]

    def as_user(self, *path: Path) -> tuple[list[str], dict[str, str]]:
        """Give what starts a program there as the user, with folders on his PATH, and its variables."""
        env = {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.directory / "xdg"),
            "PATH": ":".join(map(str, [*path, "/usr/sbin:/usr/bin:/sbin:/bin"])),
        }
        number = str(USER)
        user = ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "env", "-i"]
        return [*self.space, *user, *(f"{key}={value}" for key, value in env.items())], env

    def own(self) -> None:
        """Give the user what is in his directories."""
        for top in (self.home, self.directory / "xdg"):
            for path in (top, *top.rglob("*")):
                os.chown(path, USER, USER, follow_symlinks=False)

    def provide_run(self) -> None:
        """Make what systemd makes at boot: the daemon's directory, and that of CDI files."""
        made = [
            line.split()[1] for line in service.TMPFILES.decode().splitlines() if line[0] == "d"
        ]
        assert made == [RUN, "/run/cdi"]
        for path, own in zip(made, ("run", "cdi"), strict=True):
            command = f"mkdir {path}; mount -n --bind {self.directory}/{own} {path}"
            subprocess.run([*self.space, "sh", "-e", "-c", command], check=True)

    @contextlib.contextmanager
    def daemon(self, host: Path) -> Iterator[daemons.Daemon]:
        """Have the node's daemon, which keeps CDI files."""
        words = ["--dev-root", "/", "--control-socket", f"{RUN}/control.sock"]
        words += ["--hook-directory", f"{RUN}/hook"]
        with daemons.alone(host, "cdi.keep = true\n", words, prefix=self.space) as daemon:
            daemon.control = self.directory / "run/control.sock"
            ready = self.directory / "run/runtime/nri-nvidia-client"
            daemon.until(ready.exists, "its program")
            kept = self.directory / "cdi/nri-nvidia-gpu.json"
            daemon.until(kept.exists, "the CDI specification")
            yield daemon

    def configure(self, runtime: Path, *more: str) -> None:
        """Change the user's daemon.json by `nri-nvidia configure docker`."""
        words = ["--root", str(self.home), "--config", "/.config/docker/daemon.json"]
        words += ["--runtime-path", str(runtime), *more]
        assert cli.main(["configure", "docker", *words, "--apply"]) == 0

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class UsersDocker(dockers.Dockerd):
    """The user's dockerd, with folders in front of his PATH."""

    def __init__(self, place: Place, programs: Mapping[str, engines.Program], *path: Path) -> None:
        folders = [*path, *(programs[name].bin for name in (*PROGRAMS, "docker-cli", "runc"))]
        space, env = place.as_user(*folders)
        socket = place.directory / "xdg/docker.sock"
        super().__init__(programs["docker-cli"].path, socket, place.home, space, env)
        self._place = place
        self._script = programs["docker-rootless"].path
        self._namespace = 0

    def start(self) -> None:
        """Start it and wait until it answers."""
        switches = ("iptables", "ip6tables", "ip-forward", "ip-masq", "userland-proxy")
        self._launch([
            self._script, "--bridge=none", *(f"--{switch}=false" for switch in switches),
        ])  # fmt: skip
        child = (self._place.directory / "xdg/dockerd-rootless/child_pid").read_text("utf-8")
        self._namespace = Path(f"/proc/{child}/ns/user").stat().st_ino
        assert self._namespace != Path("/proc/self/ns/user").stat().st_ino

    def stop(self) -> None:
        """End it, with all that lives in its user namespace."""
        super().stop()
        processes.end(self._mine, dockers.PATIENCE)

    def _mine(self, process: Path) -> bool:
        return (process / "ns/user").stat().st_ino == self._namespace

    def use_plugin(self, plugin: engines.Program) -> None:
        super().use_plugin(plugin)
        self._place.own()


@contextlib.contextmanager
def running(
    place: Place, programs: Mapping[str, engines.Program], image: images.Image, *path: Path
) -> Iterator[UsersDocker]:
    """Have a dockerd of the user's with an image; see UsersDocker."""
    docker = UsersDocker(place, programs, *path)
    try:
        docker.start()
        docker.load(image)
        yield docker
    finally:
        docker.stop()


@contextlib.contextmanager
def places(host: Path, probe: Path) -> Iterator[Place]:
    """Have a place; see Place."""
    place = Place(host, probe)
    try:
        yield place
    finally:
        place.close()


def wrapper(daemon: daemons.Daemon, runtime: Path) -> Path:
    """Give nri-nvidia-runtime in front of a runtime, which asks where it usually does."""
    return doors.wrapper(daemon, runtime, RUN)
