# SPDX-License-Identifier: Apache-2.0
"""One device node: looked at, and made where it is missing and may be made."""

import os
import pathlib
import stat
from collections.abc import Mapping

import attrs

from .model import DeviceNode
from .root import Root

# A node's numbers and rights: type, major, minor, permission bits, uid, gid.
Status = tuple[str, int, int, int, int, int]

_DIRECTORY_MODE = 0o755


@attrs.frozen(kw_only=True)
class Wanted:
    """A node that the kernel's tables call for; `command` is what a person runs to get it."""

    path: str
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    command: str = ""


@attrs.frozen(kw_only=True)
class Directory:
    """The dev root, and for a recorded host the nodes that its `dev.nodes` file lists.

    With `create`, a missing node is made (on a recorded host it only counts as made).
    """

    root: Root
    create: bool
    listed: Mapping[str, Status] = attrs.field(factory=dict)

    def status(self, path: str) -> Status | None:
        """Give what stands at a path: its node, a status of type "?" for anything else."""
        if path in self.listed:
            return self.listed[path]
        found = self.root.stat(path)
        if found is None:
            return None
        kind = "c" if stat.S_ISCHR(found.st_mode) else "?"
        numbers = os.major(found.st_rdev), os.minor(found.st_rdev)
        return kind, *numbers, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid

    def names(self, directory: str) -> tuple[str, ...]:
        """Give the names in a directory, those of listed nodes among them."""
        listed = {path.rpartition("/") for path in self.listed}
        names = {name for parent, _slash, name in listed if parent == directory}
        return tuple(sorted(names | set(self.root.entries(directory))))

    def existing(self, path: str) -> DeviceNode | None:
        """Give the character device at a path with the numbers that it has, None if none."""
        status = self.status(path)
        return None if status is None or status[0] != "c" else self._node(path, status)

    def find(self, wanted: Wanted) -> DeviceNode:
        """Give the node as it is or was made; `exists` is False, with a problem, otherwise."""
        status = self.status(wanted.path)
        if status is None and self.create and not self.root.recorded:
            refused = _make(self.root, wanted)
            if refused:
                problem = f"{self._host_path(wanted)} is missing and {refused}"
                return self._absent(wanted, f"{problem}; run: {self._command(wanted)}")
            status = self.status(wanted.path)
        elif status is None and self.create:
            status = "c", wanted.major, wanted.minor, wanted.mode, wanted.uid, wanted.gid
        if status is None:
            problem = f"{self._host_path(wanted)} is missing; run: {self._command(wanted)}"
            return self._absent(wanted, problem)
        return self._checked(wanted, status)

    def _checked(self, wanted: Wanted, status: Status) -> DeviceNode:
        if status[0] == "c" and status[1:3] == (wanted.major, wanted.minor):
            return self._node(wanted.path, status)
        path = self._host_path(wanted)
        is_node = f"has the numbers {status[1]}:{status[2]}"
        what = is_node if status[0] == "c" else "is not a character device"
        return self._absent(
            wanted,
            f"{path} {what}, the driver's numbers are {wanted.major}:{wanted.minor}; "
            f"run: rm {path} && {self._command(wanted)}",
        )

    def _host_path(self, wanted: Wanted) -> str:
        return self.root.reported(wanted.path)

    def _command(self, wanted: Wanted) -> str:
        place = self._host_path(wanted)
        made = f"mknod -m {wanted.mode:o} {place} c {wanted.major} {wanted.minor}"
        # The driver's own tool knows no root but `/`.
        return wanted.command if wanted.command and place == wanted.path else made

    def _node(self, path: str, status: Status) -> DeviceNode:
        _type, major, minor, mode, uid, gid = status
        return DeviceNode(
            path=path,
            host_path=self.root.reported(path),
            major=major,
            minor=minor,
            mode=mode,
            uid=uid,
            gid=gid,
        )

    def _absent(self, wanted: Wanted, problem: str) -> DeviceNode:
        status = "c", wanted.major, wanted.minor, wanted.mode, wanted.uid, wanted.gid
        return attrs.evolve(self._node(wanted.path, status), exists=False, problem=problem)


def parse_listed(text: str) -> dict[str, Status]:
    """Read `dev.nodes`: lines `c 195 0 0666 0 0 /dev/nvidia0`; other lines are skipped."""
    found: dict[str, Status] = {}
    for line in text.splitlines():
        parts = line.split(maxsplit=6)
        if len(parts) != 7 or parts[0] not in {"b", "c"} or not parts[6].startswith("/"):
            continue
        try:
            major, minor, uid, gid = (int(parts[at]) for at in (1, 2, 4, 5))
            mode = int(parts[3], 8)
        except ValueError:
            continue
        if min(major, minor, uid, gid) >= 0 and 0 <= mode <= 0o7777:
            found[parts[6]] = (parts[0], major, minor, mode, uid, gid)
    return found


def _make(root: Root, wanted: Wanted) -> str:
    """Make a node, never over something else; give the reason in words if it did not work."""
    parent, _slash, name = wanted.path.rpartition("/")
    place = root.resolve(parent)
    try:
        if place is None:
            above = root.resolve(parent.rpartition("/")[0] or "/")
            if above is None or parent == "/dev":
                return f"there is no {root.on_disk(parent)} to make it in"
            place = f"{above}/{parent.rpartition('/')[2]}"
            pathlib.Path(root.on_disk(place)).mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        directory = os.open(root.on_disk(place), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"its directory cannot be used ({error.strerror})"
    try:
        device = os.makedev(wanted.major, wanted.minor)
        os.mknod(name, stat.S_IFCHR | wanted.mode, device, dir_fd=directory)
        # mknod's mode went through the umask.
        os.chown(name, wanted.uid, wanted.gid, dir_fd=directory, follow_symlinks=False)
        os.chmod(name, wanted.mode, dir_fd=directory)
    except FileExistsError:
        return ""  # the driver's own helper was faster; what is there is checked like any node
    except OSError as error:
        return f"cannot be made ({error.strerror})"
    else:
        return ""
    finally:
        os.close(directory)
