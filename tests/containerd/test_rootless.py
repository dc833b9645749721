# SPDX-License-Identifier: Apache-2.0
"""A user's own containers: no root but the daemon's, which never touches what is the user's."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_nvidia.oci import install
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, doors

USER = 1234
# A user's runtime makes no node but binds that of the host, so there must be a host's /dev.
OWN_DEV = """
mount -n -t tmpfs -o mode=755 tmpfs /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/zero c 1 5
mknod -m 666 /dev/full c 1 7
mknod -m 666 /dev/random c 1 8
mknod -m 666 /dev/urandom c 1 9
mknod -m 666 /dev/tty c 5 0
mkdir /dev/pts /dev/shm /dev/mqueue
mount -n -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
mount -n -t tmpfs -o mode=1777 tmpfs /dev/shm
"""


def own_dev(host: Path) -> str:
    """Give a script that makes a /dev of a simulated host's nodes, in a mount namespace."""
    return f"{OWN_DEV}cp -a {host}/dev/nvidia* /dev/\n"


@contextlib.contextmanager
def place(prefix: str) -> Iterator[Path]:
    """Have a directory that the user may enter."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def world(programs, library):
    """A host whose nodes are in a /dev of its own, a daemon there, and the front."""
    runtime = programs["runc"].path
    if reason := install.closed_at(str(runtime)):
        pytest.skip(f"another user cannot start the unpacked runc: it {reason}")
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(place("nnh-"))
        simulated.build(host / "host", host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 3))
        holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "slave", "sh", "-e", "-c",
             own_dev(host / "host") + 'exec "$0" pause', library.probe], cwd="/",
        )  # fmt: skip
        stack.callback(holder.wait)
        stack.callback(holder.kill)
        space = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"]
        while Path(f"/proc/{holder.pid}/exe").resolve() != library.probe.resolve():
            assert holder.poll() is None
        daemon = stack.enter_context(
            daemons.alone(host / "host", "", ["--dev-root", "/"], prefix=space)
        )
        daemon.until((daemon.directory / "runtime/nri-nvidia-client").exists, "its program")
        daemon.until(lambda: "driver files are prepared" in daemon.logged(), "the driver's files")
        yield daemon, space, doors.wrapper(daemon, runtime)


def make_bundle(directory: Path, image, env: list[str], script: str) -> Path:
    """Make a bundle of the user's, in a user namespace in which he is root."""
    bundle = directory / "bundle"
    (bundle / "rootfs").mkdir(parents=True)
    image.unpack(bundle / "rootfs")
    ids = [{"containerID": 0, "hostID": USER, "size": 1}]
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/sh", "-c", script],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", *env],
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        ],
        "linux": {
            "uidMappings": ids, "gidMappings": ids,
            "namespaces": [{"type": kind} for kind in ("user", "mount", "pid", "ipc", "uts")],
        },
    }  # fmt: skip
    (bundle / "config.json").write_text(json.dumps(config))
    (directory / "state").mkdir()
    for path in (directory, *directory.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    return bundle


def run(world, library, env: list[str], script: str):
    """Run a container as the user; give the finished process and the configuration as it was run."""
    _, space, wrapper = world
    with place("nnu-") as directory:
        bundle = make_bundle(directory, library["debian"], env, script)
        user = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups", "--"]
        clean = ["env", "-i", "PATH=/usr/bin:/bin", f"XDG_RUNTIME_DIR={directory}/state"]
        words = ["--root", f"{directory}/state", "run", "--bundle", str(bundle), "rootless"]
        done = subprocess.run(
            [*space, *user, *clean, wrapper, *words], check=False, capture_output=True, text=True,
            cwd="/", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        config = json.loads((bundle / "config.json").read_text())
        owner = (bundle / "config.json").stat().st_uid
        shutil.rmtree(bundle / "rootfs", ignore_errors=True)
    return done, config, owner


def test_a_user_has_his_gpus(world, library):
    """The nodes and the driver's files; the holder is told by his number, the bundle stays his."""
    daemon = world[0]
    script = (
        "ls /dev | grep nvidia; /probe open /dev/nvidia2 rw;"
        "/probe-dlopen libcuda.so.1; command -v nvidia-smi"
    )
    done, config, owner = run(world, library, ["NVIDIA_VISIBLE_DEVICES=2"], script)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:4]) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia2", "nvidiactl"]
    assert lines[4:] == ["ENXIO", f"{doors.LIBRARY_DIR}/lib64/libcuda.so.1", "/usr/bin/nvidia-smi"]
    assert (owner, "createContainer" in config["hooks"]) == (USER, True)
    (decided,) = daemon.status()["decisions"]
    assert (decided["id"], decided["decision"]) == (f"rootless/{USER}", "inject")
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")


def test_a_users_refusal_is_his_to_read(world, library):
    """On standard error; nothing was started."""
    done, config, _ = run(world, library, ["NVIDIA_VISIBLE_DEVICES=7"], "echo started")
    assert (done.returncode, done.stdout) == (1, "")
    assert "NVIDIA_VISIBLE_DEVICES=7: no such GPU; this node has 0-2" in done.stderr
    assert "hooks" not in config
