# SPDX-License-Identifier: Apache-2.0
"""What runc knows of the containers it made: its own state files, and the kernel's view.

runc keeps one directory a container below its root, with a state.json that holds the configuration
it worked by. containerd's shims give it the root /run/containerd/runc/NAMESPACE.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from . import engine as engines

ROOT = "/run/containerd/runc/k8s.io"
CONTROL = frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"})
FILES = "/usr/local/nvidia"


@attrs.frozen(kw_only=True)
class State:
    """What one container was given, as runc has written it down.

    `nodes` are NVIDIA's, by path. `allowed` are the numbers of nodes of which the cgroup lets both
    read and write. `present` are NVIDIA's nodes that its root really has, None where its first
    process is gone.
    """

    id: str
    nodes: dict[str, tuple[int, int]]
    allowed: frozenset[tuple[int, int]]
    mounts: tuple[str, ...]
    hooks: int
    present: dict[str, tuple[int, int]] | None

    def minor(self) -> int | None:
        """Give the GPU that it has, None for nothing of ours at all; half is a failure."""
        gpus = [path for path in self.nodes if re.fullmatch(r"/dev/nvidia\d+", path)]
        if not gpus:
            assert (self.nodes, self.mounts, self.hooks) == ({}, (), 0)
            assert not self.present
            return None
        assert {*self.nodes} == {*CONTROL, *gpus}
        assert {*self.nodes.values()} <= self.allowed
        assert self.mounts
        assert self.hooks == 1
        assert self.present in (None, self.nodes)
        (path,) = gpus
        return self.nodes[path][1]


def states(engine: engines.Engine) -> dict[str, State]:
    """Read the states of all containers that runc has, pods' own among them, by id."""
    found = {}
    for directory in sorted(engine.inside(ROOT).iterdir()):
        # One that is being made or removed has no state at this moment.
        if (path := directory / "state.json").exists():
            document = json.loads(path.read_text(encoding="utf-8"))
            found[directory.name] = _read(document)
    return found


def _read(document: dict[str, Any]) -> State:
    config = document["config"]
    rules = config["cgroups"]["devices"]
    mounts = [mount["destination"] for mount in config["mounts"]]
    hooks = [hook for stage in (config["Hooks"] or {}).values() for hook in stage or ()]
    return State(
        id=document["id"],
        nodes={
            device["path"]: (device["major"], device["minor"])
            for device in config["devices"]
            if device["path"].startswith("/dev/nvidia")
        },
        allowed=frozenset(
            (rule["major"], rule["minor"])
            for rule in rules
            if rule["allow"] and {*"rw"} <= {*rule["permissions"]}
        ),
        mounts=tuple(path for path in mounts if path.startswith(FILES)),
        hooks=len(hooks),
        present=_present(document["init_process_pid"]),
    )


def _present(pid: int) -> dict[str, tuple[int, int]] | None:
    try:
        return dict(_nodes(Path(f"/proc/{pid}/root") / "dev"))
    except OSError:
        return None


def _nodes(directory: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for node in directory.glob("nvidia*"):
        status = node.lstat()
        if stat.S_ISCHR(status.st_mode):
            yield f"/dev/{node.name}", (os.major(status.st_rdev), os.minor(status.st_rdev))
