# SPDX-License-Identifier: Apache-2.0
"""A clean view of a container's root, and a process that has nothing else.

A chroot alone does not hold root's programs back: /proc of the container shows /proc/1/root, and
volumes are the host's own directories. So whatever is mounted below the root is left out of the
view, but for the driver's read-only mounts.

This is the first part of the script that `install` puts together, so nothing of the package is
used, and Python 3.9 has to do. Each container pays for each import: only modules in C are used,
by the names under which the interpreter itself has them. `os`, `ctypes`, `contextlib`, `signal`,
`re` and `json` would take three times as long as all that the hook does with them.
"""

from __future__ import annotations

import _ctypes
import posix
import sys

# Never put back in view, read-only or not: they lead elsewhere, or hold no plain files.
KERNEL_FILES = frozenset(
    b"proc sysfs cgroup cgroup2 devtmpfs devpts debugfs tracefs securityfs autofs nsfs".split()
)
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # not in glibc
KEPT_CAPABILITIES = 1 << 1 | 1 << 3  # DAC_OVERRIDE, FOWNER: images have directories of any owner
SYS_ADMIN = 1 << 21
PLACE = posix.O_PATH | posix.O_CLOEXEC
NEW_MOUNTS = 0x20000
READ_ONLY, NO_SUID_DEV_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 14, 32, 4096, 16384, 1 << 18
DETACH, UMOUNT_NO_FOLLOW = 2, 8
DROP_BOUNDING, NO_NEW_PRIVILEGES = 24, 38
CAPABILITY_VERSION = 0x20080522
SCRATCH = "proc"  # there in every container, empty in the view, and with no use there
SCRATCH_OPTIONS = b"mode=0755,size=32m,nr_inodes=64"
AUXILIARY = "/var/cache/ldconfig"  # where ldconfig would leave its notes
ESCAPES = ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\043", b"#"))


class Failure(Exception):  # noqa: N818  an outcome for the report, not a defect
    """Raised when a step cannot be done; its text is for the operator."""


class Suppressed:
    """What contextlib.suppress is."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self.kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self.kinds)


class Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    """C's int."""

    _type_ = "i"


class Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    """C's long."""

    _type_ = "l"


class Function(_ctypes.CFuncPtr):
    """A function of libc that returns an int and sets errno."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = Int


libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]


def call(name: str, *arguments: int | bytes | None) -> int:
    """Call a function of libc, numbers passed as longs; give what it gives. Raises OSError."""
    function = Function(_ctypes.dlsym(libc, name))
    result: int = function(*[Long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(_ctypes.get_errno(), posix.strerror(_ctypes.get_errno()), name)
    return result


def mount(source: int, target: int, flags: int) -> None:
    """Mount one open file on another, or change how the latter is mounted. Raises OSError."""
    call("mount", name_of(source), name_of(target), None, flags, None)


def name_of(fd: int) -> bytes:
    """Give a path to an open file."""
    return f"/proc/self/fd/{fd}".encode()


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
            fd = posix.open(name, PLACE | posix.O_NOFOLLOW, dir_fd=stack[-1])
            if not is_link(fd):
                stack.append(fd)
                continue
            target, links = posix.readlink("", dir_fd=fd), links + 1
            if links > 40:
                raise Failure(f"{path} leads through too many links")
            stack = stack[:1] if target.startswith("/") else stack
            rest += target.split("/")[::-1]
    return stack[-1]


def identity(fd: int) -> tuple[int, int]:
    """Give what tells an open file from all others: the device and the inode."""
    status = posix.fstat(fd)
    return status.st_dev, status.st_ino


def open_root(path: str, known: tuple[int, int]) -> int:
    """Open (O_PATH) the directory that was found at a path before. Raises OSError or Failure.

    Whoever may rename what is above it could put a link there meanwhile, to `/` for one.
    """
    root = posix.open(path, PLACE)
    if identity(root) != known:
        raise Failure(f"{path} is another directory than it was")
    return root


def is_link(fd: int) -> bool:
    """Whether an open file is a symbolic link."""
    return posix.fstat(fd).st_mode & 0o170000 == 0o120000


class Mount:
    """A line of mountinfo (Linux, Documentation/filesystems/proc.rst section 3.5)."""

    def __init__(self, line: bytes) -> None:
        words = line.rstrip(b"\n").split(b" ")
        self.identifier, self.parent, self.device = words[:3]
        self.root, self.point = map(plain, words[3:5])
        self.read_only = b"ro" in words[5].split(b",")
        end = words.index(b"-", 6)
        self.shared = any(word.startswith(b"shared:") for word in words[6:end])
        self.kind = words[end + 1]


def plain(word: bytes) -> str:
    """Give a path as it is before mountinfo has it without blanks."""
    for escape, character in ESCAPES:
        word = word.replace(escape, character)
    return word.replace(b"\\134", b"\\").decode("utf-8", "surrogateescape")


def read_mounts() -> dict[bytes, bytes]:
    """Give the lines of the mounts that this process can see by id, in the order of their making.

    A node may have thousands; the few that matter are looked at.
    """
    with open("/proc/self/mountinfo", "rb") as lines:  # noqa: PTH123
        return {line.partition(b" ")[0]: line for line in lines}


def mount_id(fd: int) -> bytes:
    """Give the id of the mount that an open file is on, as mountinfo has it."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:  # noqa: PTH123
        return next(line.split()[1] for line in lines if line.startswith(b"mnt_id:"))


def driver_mounts(
    root: int, places: list[str], mounts: dict[bytes, bytes]
) -> list[tuple[int, str]]:
    """Open what is mounted at some places in the root; what is not, or no files, is left out."""
    found, around = [], mount_id(root)
    for place in places:
        with Suppressed(OSError, Failure):  # what is then missed is reported
            fd = open_in(root, place)
            own = mount_id(fd)
            if own != around and own in mounts and Mount(mounts[own]).kind not in KERNEL_FILES:
                found.append((fd, place))
    return found


def may_write(root: int, path: str, mounts: dict[bytes, bytes]) -> bool:
    """Whether the engine gave a root to be written to, whatever the runtime has made of it since.

    A runtime binds the root upon itself, and crun makes that mount read-only, for a container that
    is to have it so, or writable. What counts is the mount below: one that the engine has made
    read-only may be an image's layer, of which other containers consist.
    """
    own = Mount(mounts[mount_id(root)])
    under = Mount(mounts[own.parent]) if own.parent in mounts else own
    inside = path[len(under.point.rstrip("/")) :]  # the mount below is mounted somewhere above it
    shown = normal(f"{under.root}/{inside}")
    bound_on_itself = (under.device, shown) == (own.device, own.root)
    return not (under if bound_on_itself else own).read_only


def normal(path: str) -> str:
    """Give a path from `/` without blank names, `.` and `..`."""
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            names = names[:-1]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


def enter(path: str, known: tuple[int, int], places: list[str]) -> None:
    """Make the clean view of a root, with what is mounted at some places, and make it `/`.

    Raises OSError or Failure; then this process is to do nothing more.
    """
    call("unshare", NEW_MOUNTS)
    host = posix.open("/", PLACE)
    mount(host, host, RECURSIVE | PRIVATE)
    root, mounts, alone = open_root(path, known), read_mounts(), True
    driver, writable = driver_mounts(root, places, mounts), may_write(root, path, mounts)
    try:
        mount(root, root, BIND)
    except OSError:  # mounts that belong to an outer user namespace, or a filter of system calls
        detach(path, [posix.readlink(f"/proc/self/fd/{fd}") for fd, _ in driver])
        driver, alone = [], False
    view = open_root(path, known)
    if alone and mount_id(view) == mount_id(root):
        raise Failure(f"{path} is reached another way than it was")
    restrict(view, writable=writable)
    for fd, place in driver:
        with Suppressed(OSError, Failure):  # it is in a volume of the user's own
            mount(fd, open_in(view, place), BIND)
            restrict(open_in(view, place), writable=False)
    add_scratch(view)
    posix.fchdir(view)
    try:
        call("syscall", PIVOT_ROOT.get(posix.uname().machine, -1), b".", b".")
        call("umount2", b".", DETACH)
    except OSError:  # a host that runs from its initial RAM file system
        posix.chroot(".")
    posix.chdir("/")
    confine()


def restrict(fd: int, *, writable: bool) -> None:
    """Let a mount hold plain files only, as far as an outer user namespace has not locked it."""
    with Suppressed(OSError):
        mount(fd, fd, REMOUNT | BIND | NO_SUID_DEV_EXEC | (0 if writable else READ_ONLY))


def add_scratch(view: int) -> None:
    """Give the view a place in memory for what is not to stay: ldconfig's files, its notes too.

    ldconfig waits until the disk has what it writes (glibc 2.35 and later). Where there can be no
    such place, the image's own directories do.
    """
    with Suppressed(OSError, Failure):
        directory = PLACE | posix.O_DIRECTORY | posix.O_NOFOLLOW
        below = posix.open(SCRATCH, directory, dir_fd=view)
        call("mount", b"none", name_of(below), b"tmpfs", NO_SUID_DEV_EXEC, SCRATCH_OPTIONS)
        mount(posix.open(SCRATCH, directory, dir_fd=view), open_in(view, AUXILIARY), BIND)


def detach(path: str, kept: list[str]) -> None:
    """Take away all that is mounted below a path but for some mount points. Raises OSError."""
    for line in reversed(list(read_mounts().values())):
        point = Mount(line).point
        if point.startswith(path + "/") and point not in kept:
            call("umount2", point.encode("utf-8", "surrogateescape"), DETACH | UMOUNT_NO_FOLLOW)


def confine() -> None:
    """Give up all that the steps do not need, first of all the import of the image's modules.

    One right is put by, which nothing has effect of: ldconfig, if it is run, gets namespaces of
    its own.
    """
    for finders in (sys.meta_path, sys.path_hooks, sys.path):
        finders.clear()
    with Suppressed(OSError):  # until a number that this kernel does not know
        for number in range(64):
            if not KEPT_CAPABILITIES >> number & 1:
                call("prctl", DROP_BOUNDING, number, 0, 0, 0)
    set_capabilities(KEPT_CAPABILITIES, KEPT_CAPABILITIES | SYS_ADMIN)
    call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def set_capabilities(effective: int, permitted: int = 0) -> None:
    """Have no other capabilities than these; what is permitted can be made effective later."""
    head = words_of(CAPABILITY_VERSION, 0)
    call("capset", head, words_of(effective, permitted or effective, 0, 0, 0, 0))


def words_of(*numbers: int) -> bytes:
    """Give numbers as C's array of 32-bit words."""
    return b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)
