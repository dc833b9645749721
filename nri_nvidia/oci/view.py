# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH115, PTH118, PTH123
"""A clean view of a container's root, and a process that has nothing else.

A chroot alone does not hold root's programs back: /proc of the container shows /proc/1/root, and
volumes are the host's own directories. So whatever is mounted below the root is left out of the
view, but for the driver's read-only mounts. Standard library only, on Python 3.9 and later: this
is the first part of the script that `install` puts together, so nothing of the package is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import sys

# Never put back in view, read-only or not: they lead elsewhere, or hold no plain files.
KERNEL_FILES = frozenset(
    b"proc sysfs cgroup cgroup2 devtmpfs devpts debugfs tracefs securityfs autofs nsfs".split()
)
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # not in glibc
KEPT_CAPABILITIES = 1 << 1 | 1 << 3  # DAC_OVERRIDE, FOWNER: images have directories of any owner
PLACE = os.O_PATH | os.O_CLOEXEC
NEW_MOUNTS = 0x20000
READ_ONLY, NO_SUID_DEV_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 14, 32, 4096, 16384, 1 << 18
DETACH, UMOUNT_NO_FOLLOW = 2, 8
SET_DEATH_SIGNAL, DROP_BOUNDING, NO_NEW_PRIVILEGES = 1, 24, 38
CAPABILITY_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


class Failure(Exception):  # noqa: N818  an outcome for the report, not a defect
    """Raised when a step cannot be done; its text is for the operator."""


def call(name: str, *arguments: object) -> None:
    """Call a function of libc, numbers passed as longs. Raises OSError."""
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if getattr(libc, name)(*words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def mount(source: int, target: int, flags: int) -> None:
    """Mount one open file on another, or change how the latter is mounted. Raises OSError."""
    paths = [f"/proc/self/fd/{fd}".encode() for fd in (source, target)]
    call("mount", *paths, None, flags, None)


def open_in(root: int, path: str) -> int:
    """Open a path (O_PATH) below an open directory that is `/` to every link and every `..`.

    It does what openat2 does with RESOLVE_IN_ROOT, on kernels without it too. Texts of links are
    walked here, so /proc's magic links lead nowhere. Raises OSError or Failure.
    """
    stack, rest, links = [root], path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name == "..":
            stack = stack[:-1] or stack
        elif name not in ("", "."):
            fd = os.open(name, PLACE | os.O_NOFOLLOW, dir_fd=stack[-1])
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                stack.append(fd)
                continue
            target, links = os.readlink("", dir_fd=fd), links + 1
            if links > 40:
                raise Failure(f"{path} leads through too many links")
            stack = stack[:1] if target.startswith("/") else stack
            rest += target.split("/")[::-1]
    return stack[-1]


class Mount:
    """A line of mountinfo (Linux, Documentation/filesystems/proc.rst section 3.5)."""

    def __init__(self, line: bytes) -> None:
        words = line.rstrip(b"\n").split(b" ")
        self.identifier, self.parent, self.device = words[:3]
        plain = [word.decode("unicode_escape").encode("latin-1") for word in words[3:5]]
        self.root, self.point = map(os.fsdecode, plain)
        self.read_only = b"ro" in words[5].split(b",")
        self.kind = words[words.index(b"-", 6) + 1]


def read_mounts() -> list[Mount]:
    """Give the mounts that this process can see, in the order in which they were made."""
    with open("/proc/self/mountinfo", "rb") as lines:
        return [Mount(line) for line in lines]


def mount_id(fd: int) -> bytes:
    """Give the id of the mount that an open file is on, as mountinfo has it."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
        return next(line.split()[1] for line in lines if line.startswith(b"mnt_id:"))


def driver_mounts(root: int, places: list[str]) -> list[tuple[int, str]]:
    """Open what is mounted at some places in the root; what is not, or no files, is left out."""
    kinds, found = {each.identifier: each.kind for each in read_mounts()}, []
    for place in places:
        with contextlib.suppress(OSError, Failure):  # what is then missed is reported
            fd = open_in(root, place)
            own = mount_id(fd)
            if own != mount_id(root) and kinds.get(own, b"proc") not in KERNEL_FILES:
                found.append((fd, place))
    return found


def may_write(root: int, path: str) -> bool:
    """Whether the engine gave a root to be written to, whatever the runtime has made of it since.

    A runtime binds the root upon itself, and crun makes that mount read-only, for a container that
    is to have it so, or writable. What counts is the mount below: one that the engine has made
    read-only may be an image's layer, of which other containers consist.
    """
    mounts = {each.identifier: each for each in read_mounts()}
    own = mounts[mount_id(root)]
    under = mounts.get(own.parent, own)
    shown = os.path.normpath(os.path.join(under.root, os.path.relpath(path, under.point)))
    bound_on_itself = (under.device, shown) == (own.device, own.root)
    return not (under if bound_on_itself else own).read_only


def enter(path: str, places: list[str]) -> None:
    """Make the clean view of a root, with what is mounted at some places, and make it `/`.

    Raises OSError; then this process is to do nothing more.
    """
    call("unshare", NEW_MOUNTS)
    host = os.open("/", PLACE)
    mount(host, host, RECURSIVE | PRIVATE)
    root = os.open(path, PLACE)
    driver, writable = driver_mounts(root, places), may_write(root, path)
    try:
        mount(root, root, BIND)
    except OSError:  # mounts that belong to an outer user namespace, or a filter of system calls
        detach(path, [os.readlink(f"/proc/self/fd/{fd}") for fd, _ in driver])
        driver = []
    view = os.open(path, PLACE)
    restrict(view, writable=writable)
    for fd, place in driver:
        with contextlib.suppress(OSError, Failure):  # it is in a volume of the user's own
            mount(fd, open_in(view, place), BIND)
            restrict(open_in(view, place), writable=False)
    os.fchdir(view)
    try:
        call("syscall", PIVOT_ROOT.get(os.uname().machine, -1), b".", b".")
        call("umount2", b".", DETACH)
    except OSError:  # a host that runs from its initial RAM file system
        os.chroot(".")
    os.chdir("/")
    confine()


def restrict(fd: int, *, writable: bool) -> None:
    """Let a mount hold plain files only, as far as an outer user namespace has not locked it."""
    with contextlib.suppress(OSError):
        mount(fd, fd, REMOUNT | BIND | NO_SUID_DEV_EXEC | (0 if writable else READ_ONLY))


def detach(path: str, kept: list[str]) -> None:
    """Take away all that is mounted below a path but for some mount points. Raises OSError."""
    for each in reversed(read_mounts()):
        if each.point.startswith(path + "/") and each.point not in kept:
            call("umount2", os.fsencode(each.point), DETACH | UMOUNT_NO_FOLLOW)


def confine() -> None:
    """Give up all that the steps do not need, first of all the import of the image's modules."""
    for finders in (sys.meta_path, sys.path_hooks, sys.path):
        finders.clear()
    for number in range(64):
        if not KEPT_CAPABILITIES >> number & 1:
            with contextlib.suppress(OSError):  # a number that this kernel does not know
                call("prctl", DROP_BOUNDING, number, 0, 0, 0)
    kept = (ctypes.c_uint32 * 6)(KEPT_CAPABILITIES, KEPT_CAPABILITIES)
    call("capset", (ctypes.c_uint32 * 2)(CAPABILITY_VERSION), kept)
    call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call("prctl", SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
