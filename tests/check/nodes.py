# SPDX-License-Identifier: Apache-2.0
"""A recorded node on which nothing is wrong, and ways to do something to it."""

import json
import os
import shutil
import stat

from nri_nvidia import cli
from nri_nvidia.cli import check
from nri_nvidia.host import options, scan
from nri_nvidia.testing import host, host_spec

CONFIG = """\
version = 3
[plugins.'io.containerd.nri.v1.nri']
  disable = false
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = true
"""
SOCKET = "/run/nri/nri.sock"
LISTENS = f"Num RefCount Protocol Flags Type St Inode Path\n0: 00000002 00000000 00010000 0001 01 7 {SOCKET}\n"
ID = "c0ffee" * 10 + "abcd"


class Node:
    """The recorded node, as a directory."""

    def __init__(self, top, **spec):
        self.top = top
        values = {"gpus": (host_spec.GpuSpec(), host_spec.GpuSpec()), "recorded": True, **spec}
        host.build(top, host_spec.HostSpec(**values))
        versions = {"containerd": "2.1.9", "runc": "1.3.0", "systemd": "252"}
        self.write("versions.json", json.dumps(versions))
        self.write("settings.toml", "")
        self.write("etc/containerd/config.toml", CONFIG)
        self.write("proc/net/unix", LISTENS)
        self.process(100, "/usr/bin/containerd")
        self.process(101, "/opt/nri-nvidia/bin/python", "/opt/nri-nvidia/bin/nri-nvidia", "run")
        self.process(102, "/usr/bin/nvidia-persistenced", "--user", "nvidia")
        self.write("usr/sbin/ldconfig", "")
        self.path("var").mkdir()
        self.path("var/run").symlink_to("/run")
        self.char_links()
        self.socket()

    def copied(self, top):
        """Give a copy in another directory."""
        shutil.copytree(self.top, top, symlinks=True, ignore=shutil.ignore_patterns("nri.sock"))
        copy = object.__new__(Node)
        copy.top = top
        copy.socket()
        return copy

    def socket(self):
        place = self.path("run/nri")
        place.mkdir(parents=True, exist_ok=True)
        os.mknod(place / "nri.sock", stat.S_IFSOCK | 0o600)

    def path(self, name):
        return self.top / name.lstrip("/")

    def write(self, name, text):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def process(self, pid, *arguments):
        self.write(f"proc/{pid}/cmdline", "\0".join(arguments) + "\0")

    def container(self, pid, version, *, environment=()):
        """Have a process with a driver's files in a mount namespace of its own."""
        self.process(pid, "/usr/bin/python3", "train.py")
        self.write(f"proc/{pid}/cgroup", f"0::/kubepods/cri-containerd-{ID}.scope\n")
        self.write(
            f"proc/{pid}/mountinfo",
            "1 2 0:1 / / rw - overlay overlay rw\n"
            f"3 1 8:1 /usr/lib/x86_64-linux-gnu/libcuda.so.{version} "
            "/usr/local/nvidia/lib64/libcuda.so.1 ro - ext4 /dev/sda1 rw\n",
        )
        self.write(f"proc/{pid}/environ", "\0".join(environment) + "\0")
        self.path(f"proc/{pid}/ns").mkdir()
        self.path(f"proc/{pid}/ns/mnt").symlink_to(f"mnt:[40265{pid}]")

    def char_links(self):
        """Make every link /dev/char/MAJOR:MINOR."""
        found = scan.scan(options.Options.for_recorded(str(self.top)))
        self.path("dev/char").mkdir(parents=True, exist_ok=True)
        for node in found.nodes:
            link = self.path(f"dev/char/{node.major}:{node.minor}")
            if not link.is_symlink():
                link.symlink_to(f"../{node.path.removeprefix('/dev/')}")

    def findings(self, capsys, *arguments):
        """Run `check` on the node; give its exit status and findings."""
        status = cli.main(
            [
                "check", "--host", str(self.top), "--json",
                "--config", str(self.path("settings.toml")), *arguments,
            ]
        )  # fmt: skip
        found = json.loads(capsys.readouterr().out)
        assert found["schema"] == check.SCHEMA
        return status, found["findings"]
