# SPDX-License-Identifier: Apache-2.0
"""The containers that hold a driver, seen from /proc, whoever gave it to them.

A container is a mount namespace in which files of a driver are mounted. It can be told so without
the daemon, and what the kernel lets it open is seen as the kernel sees it: by a child in the
container's cgroup that asks, by access(2), without opening anything.
"""

import contextlib
import os
import re
import select
import signal
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nri_nvidia.check import inside, model
from nri_nvidia.daemon import upgrades
from nri_nvidia.host import model as host
from nri_nvidia.host import root as roots
from nri_nvidia.request import container as containers

_ID = re.compile(r"[0-9a-f]{64}")
# docker's and podman's groups, made by themselves or by systemd.
_ENGINE = re.compile(r"/(docker|libpod)[-/][0-9a-f]{64}")
_NODE = re.compile(r"nvidia\d+|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-modeset", re.ASCII)
_ESCAPE = re.compile(r"\\([0-7]{3})")
_CGROUPS = "/sys/fs/cgroup"
_PATIENCE = 2.0
_DENIED = b"-"


def holders(
    root: roots.Root, library_dir: str, inventory: host.Inventory | None
) -> tuple[model.Holder, ...]:
    """Give the first process of each container that holds a driver, by process id."""
    found: dict[str, model.Holder] = {}
    pids = sorted(int(name) for name in root.entries("/proc") if name.isdigit())
    for pid in pids:
        namespace = _namespace(root, pid)
        if not namespace or namespace in found:
            continue
        mounts = tuple(_mounts(root, pid))
        version = upgrades.version_in(containers.Container(mounts=mounts))
        if not version:
            continue
        groups = root.text(f"/proc/{pid}/cgroup") or ""
        match = _ID.search(groups)
        found[namespace] = model.Holder(
            pid=pid,
            container=match[0] if match else "",
            engine=_engine(groups),
            version=version,
            denied=tuple(_denied(root, pid, groups, inventory)) if inventory else (),
            shadows=tuple(inside.shadows(root, pid, library_dir)),
        )
    return tuple(found.values())


def stripped(
    root: roots.Root, held: Iterable[Mapping[str, Any]], inventory: host.Inventory
) -> tuple[model.Stripped, ...]:
    """Give the containers that were given a GPU's node and do not have it.

    `held` are the containers of the daemon's status. One without a process has not started yet.
    """
    found = []
    for entry in held:
        paths = [
            gpu.node.path
            for gpu in inventory.gpus
            if gpu.node and {gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)} & {*entry["gpus"]}
        ]
        pid = inside.first_process(root, entry["id"]) if paths else None
        if pid is None:
            continue
        own = root.on_disk(f"/proc/{pid}/root")
        lost = [path for path in paths if not os.path.lexists(f"{own}{path}")]
        # It may have ended meanwhile: then nothing at all is there.
        if lost and os.path.lexists(f"{own}/dev"):
            found.append(model.Stripped(container=entry["id"], pid=pid, nodes=tuple(lost)))
    return tuple(found)


def _engine(groups: str) -> str:
    match = _ENGINE.search(groups)
    return match[1].replace("libpod", "podman") if match else ""


def _namespace(root: roots.Root, pid: int) -> str:
    try:
        return os.readlink(root.on_disk(f"/proc/{pid}/ns/mnt"))  # noqa: PTH115 - leads nowhere
    except OSError:
        return ""


def _mounts(root: roots.Root, pid: int) -> Iterator[containers.Mount]:
    """Give the mounts of /proc/PID/mountinfo (proc(5)): field 4 is the source within its disk."""
    for line in (root.text(f"/proc/{pid}/mountinfo") or "").splitlines():
        parts = line.split(" ")
        if len(parts) > 5:
            yield containers.Mount(source=_plain(parts[3]), destination=_plain(parts[4]))


def _plain(text: str) -> str:
    # A source that was removed since is marked so.
    text = text.removesuffix("//deleted")
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _denied(root: roots.Root, pid: int, groups: str, inventory: host.Inventory) -> Iterator[str]:
    """Give the nodes that a container has and that its cgroup does not let it open."""
    if root.recorded:
        return
    numbers = {
        os.makedev(node.major, node.minor): node.host_path
        for node in inventory.nodes
        if node.exists
    }
    has: dict[str, str] = {}
    own = root.on_disk(f"/proc/{pid}/root")
    top = f"{own}/dev"
    with contextlib.suppress(OSError):
        for name in os.listdir(top):  # noqa: PTH208 - names only
            if _NODE.fullmatch(name):
                found = os.lstat(f"{top}/{name}")
                if stat.S_ISCHR(found.st_mode) and found.st_rdev in numbers:
                    has[f"/dev/{name}"] = numbers[found.st_rdev]
    group = device_group(groups)
    if has and group:
        yield from refused(group, has)


def device_group(groups: str, mounted: str = _CGROUPS) -> str:
    """Give the file that a process is moved by into a device cgroup of /proc/PID/cgroup.

    cgroups(7): a line is `ID:CONTROLLERS:PATH`, with `0::` for version 2. Empty if there is none.
    """
    paths = {}
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    # At `/` a process is in no container's cgroup: nothing would be learned from it.
    if len(paths.get("devices", "")) > 1:
        return f"{mounted}/devices{paths['devices']}/cgroup.procs"
    if len(paths.get("", "")) > 1:
        return f"{mounted}{paths['']}/cgroup.procs"
    return ""


def refused(group: str, nodes: dict[str, str]) -> Iterator[str]:
    """Give the names of nodes that a member of a cgroup may not open; nothing if it is not known.

    `nodes` are host paths by the names to give. The child is moved there and only asks; where the
    cgroup is frozen or full it is ended, or never begins.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _ask(group, [*nodes.values()], writing)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], _PATIENCE)
        answer = os.read(reading, len(nodes)) if ready else b""
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for name, mark in zip(nodes, answer, strict=False):
        if mark == _DENIED[0]:
            yield name


def _ask(group: str, paths: list[str], writing: int) -> None:
    """Be the child: never returns."""
    try:
        before = [os.access(path, os.R_OK | os.W_OK) for path in paths]
        with open(group, "w", encoding="ascii") as file:  # noqa: PTH123 - a name, not a Path
            file.write("0")
        after = [os.access(path, os.R_OK | os.W_OK) for path in paths]
        marks = (
            _DENIED if could and not can else b"+"
            for could, can in zip(before, after, strict=True)
        )
        os.write(writing, b"".join(marks))
    finally:
        os._exit(0)
