# SPDX-License-Identifier: Apache-2.0
"""What a container sees of /proc/driver/nvidia: its own GPUs, and a driver that makes no nodes.

A runtime lets no configuration mount anything below /proc, so the hook does it, in the container's
own mount namespace. The kernel alone makes names in a procfs, so no image has a say in this; it is
looked at that it is one, and no link is followed.

This is a part of the script that `install` puts together; what `view` says of imports
holds here too.
"""

from __future__ import annotations

import posix

from nri_nvidia.oci.files import READ, is_file
from nri_nvidia.oci.view import (
    BIND,
    DETACH,
    NO_SUID_DEV_EXEC,
    PLACE,
    READ_ONLY,
    REMOUNT,
    Failure,
    Mount,
    Suppressed,
    call,
    identity,
    is_link,
    mount,
    mount_id,
    name_of,
    open_root,
    read_mounts,
)

ABOVE, DRIVER = "proc/driver", "proc/driver/nvidia"
TEXTS = ("params", "version", "registry")  # that describe the driver, to everybody
EVERYTHING = "."
COVER_OPTIONS = b"mode=0555,size=1m,nr_inodes=4k"
TEXT_LIMIT = 1 << 16
NEW_FILE = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC


def cover(
    path: str, known: tuple[int, int], shown: list[str], label: str, masked: list[str]
) -> str:
    """Cover a root's /proc/driver/nvidia but for some entries; give why there is nothing to do.

    `label` is SELinux's for the container's mounts, `masked` what its engine hides. An engine that
    hides nothing of /proc (privileged, procMount Unmasked) has a container that may hold others:
    the kernel lets no user namespace mount a procfs where the one it sees is covered anywhere.

    What another hook of ours has left uncovered stays so: a container of several CDI devices has
    one for each. crun lets a container's own configuration mount there as well: nothing that can
    be seen in such a mount is taken for more than a name. Raises OSError, and then nothing is
    covered, or Failure for what is not there.
    """
    root = open_root(path, known)
    try:
        proc, driver = descend(root, "proc"), descend(root, DRIVER)
    except OSError:
        return "this container's /proc has no driver/nvidia"
    if not masked:
        return "this container is to see all of /proc"
    mounts, before = read_mounts(), dict[str, tuple[int, int]]()
    own, around = mount_id(driver), mount_id(descend(root, ABOVE))
    if Mount(mounts[mount_id(proc)]).kind != b"proc":
        return "this container's /proc is not the kernel's"
    # As one may have it that mounts for the host.
    if Mount(mounts[own]).shared or Mount(mounts[around]).shared:
        return "this container's /proc is the host's, where the cover would be too"
    if own != around:
        if Mount(mounts[own]).kind != b"tmpfs":
            return f"this container has a mount of its own at /{DRIVER}"
        mounted_below(driver, own, "", before)
        call("umount2", name_of(driver), DETACH)
        driver = descend(root, DRIVER)
    texts = {name: text for name in TEXTS if (text := read_text(driver, name)) is not None}
    if EVERYTHING in shown:
        names = [name.decode() for name in posix.listdir(name_of(driver))]
        shown = [name for name in names if name not in TEXTS]
    found = dict(open_entry(driver, name) for name in shown)
    for name, mounted in before.items():
        _, entry = open_entry(driver, name)
        if entry >= 0 and identity(entry) == mounted:  # else it is the container's own
            found[name] = entry
    mount_memory(driver, label)
    top = descend(root, DRIVER)
    try:
        for name, text in texts.items():
            put(top, name, without_new_nodes(text) if name == "params" else text)
        for name, entry in found.items():
            if entry >= 0:
                show(top, name, entry)
        mount(top, top, REMOUNT | BIND | READ_ONLY | NO_SUID_DEV_EXEC)
    except OSError:
        call("umount2", name_of(top), DETACH)
        raise
    missing = [name for name, entry in found.items() if entry < 0]
    if missing:
        raise Failure(f"/{DRIVER} has no {', '.join(missing)}")
    return ""


def mount_memory(place: int, label: str) -> None:
    """Mount a small file system in memory, with SELinux's label where the kernel knows it."""
    kind, flags = b"tmpfs", NO_SUID_DEV_EXEC
    if label:
        named = COVER_OPTIONS + b',context="' + label.encode() + b'"'
        with Suppressed(OSError):  # a kernel without SELinux
            call("mount", b"none", name_of(place), kind, flags, named)
            return
    call("mount", b"none", name_of(place), kind, flags, COVER_OPTIONS)


def mounted_below(
    directory: int, around: bytes, path: str, found: dict[str, tuple[int, int]]
) -> None:
    """Find what is mounted below an open directory on the mount `around`: path and identity."""
    for name in sorted(each.decode() for each in posix.listdir(name_of(directory))):
        entry = descend(directory, name)
        if mount_id(entry) != around:
            found[path + name] = identity(entry)
        elif posix.fstat(entry).st_mode & 0o170000 == 0o040000:
            mounted_below(entry, around, f"{path}{name}/", found)
        posix.close(entry)


def descend(directory: int, path: str) -> int:
    """Open a path (O_PATH) below an open directory through no link. Raises OSError."""
    for name in path.split("/"):
        directory = posix.open(name, PLACE | posix.O_NOFOLLOW, dir_fd=directory)
    return directory


def open_entry(driver: int, name: str) -> tuple[str, int]:
    """Open an entry; give its name, a GPU's with the eight digits it may have, and -1 for none."""
    for each in (name, name.replace("gpus/", "gpus/0000")):
        with Suppressed(OSError):
            found = descend(driver, each)
            if not is_link(found):
                return each, found
    return name, -1


def read_text(directory: int, name: str) -> bytes | None:
    """Read a small file; None where there is none, or something else."""
    with Suppressed(OSError):
        opened = posix.open(name, READ | posix.O_NOFOLLOW, dir_fd=directory)
        with open(opened, "rb") as file:  # noqa: PTH123
            return file.read(TEXT_LIMIT) if is_file(opened) else None
    return None


def without_new_nodes(params: bytes) -> bytes:
    """Give the driver's parameters, by which its library makes no device nodes.

    nvidia-smi makes those of all GPUs else. Only the whole line counts.
    """
    lines = params.split(b"\n")
    switched = b"\n".join(
        b"ModifyDeviceFiles: 0" if line == b"ModifyDeviceFiles: 1" else line for line in lines
    )
    return switched if switched == params or switched.endswith(b"\n") else switched + b"\n"


def put(directory: int, name: str, text: bytes) -> None:
    """Make a file that everybody can read."""
    with open(posix.open(name, NEW_FILE, dir_fd=directory), "wb") as file:  # noqa: PTH123
        file.write(text)
        posix.fchmod(file.fileno(), 0o444)


def show(top: int, name: str, entry: int) -> None:
    """Put an open entry where it was, and make the directories above it."""
    *above, last = name.split("/")
    for each in above:
        with Suppressed(FileExistsError):
            posix.mkdir(each, 0o555, dir_fd=top)
        top = descend(top, each)
    if posix.fstat(entry).st_mode & 0o170000 == 0o040000:
        posix.mkdir(last, 0o555, dir_fd=top)
    else:
        put(top, last, b"")
    mount(entry, descend(top, last), BIND)
    shown = descend(top, last)
    mount(shown, shown, REMOUNT | BIND | READ_ONLY | NO_SUID_DEV_EXEC)
