# SPDX-License-Identifier: Apache-2.0
"""How a driver file comes into a prepared directory, and how that is told to be whole.

A file is a hard link of the driver's own where the file system allows it, else a reflink, else a
copy. With SELinux a container may read a file only by its label: a hard link has the host's own,
which is not ours to change, and whatever else is made gets the label that its source has, so that
a container may do with it what it may do with the driver's own file.
"""

import errno
import fcntl
import os
import pathlib
import shutil
import stat
from collections.abc import Callable, Iterable

import attrs

_FICLONE = 0x40049409  # ioctl_ficlone(2)
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EACCES}
_LABEL = "security.selinux"


@attrs.frozen(kw_only=True)
class Stamp:
    """What is in a directory.

    `names` are the paths in it with their inodes, as the directories themselves list them, and of
    a directory also mode, owner and time of change; `entries` have of each path the inode, mode,
    owner, size and time of change. `folders` are the directory's path and those of the ones in
    it.
    """

    names: frozenset[tuple[str | int, ...]]
    entries: frozenset[tuple[str, int, int, int, int, int]]
    folders: tuple[str, ...] = attrs.field(default=(), eq=False)


def give(place: pathlib.Path, source: str, room: Callable[[int], None], *, labels: bool) -> str:
    """Put one file in place, with its label where `labels` count; give how. Raises OSError.

    `room` is asked before so many bytes are copied.
    """
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    real = os.path.realpath(source)
    found = pathlib.Path(real).stat()
    try:
        # A link would keep a program with another user's rights past the upgrade that mends it.
        if not found.st_mode & (stat.S_ISUID | stat.S_ISGID):
            os.link(real, place)
            return "link"
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
    with pathlib.Path(real).open("rb") as reading, place.open("xb") as writing:
        try:
            fcntl.ioctl(writing.fileno(), _FICLONE, reading.fileno())
            way = "reflink"
        except OSError:
            room(found.st_size)
            shutil.copyfileobj(reading, writing, 1 << 20)
            way = "copy"
        os.fchmod(writing.fileno(), stat.S_IMODE(found.st_mode) & 0o755 | 0o444)
    if labels:
        label(place, real)
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
    return way


def label(place: pathlib.Path, source: str) -> None:
    """Give a file, link or directory the SELinux label that a source has; raises OSError."""
    try:
        value = os.getxattr(source, _LABEL)
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.ENOTSUP}:  # what has none is labelled by its mount
            return
        raise
    os.setxattr(place, _LABEL, value, follow_symlinks=False)


def label_rest(work: pathlib.Path, files: Iterable[tuple[str, str]]) -> None:
    """Give directories and links the label of the directory that their first file comes from."""
    source = next((str(pathlib.Path(each).resolve().parent) for _, each in files), "")
    if source:
        for folder, names, others in os.walk(work):
            label(pathlib.Path(folder), source)
            for name in (*names, *others):
                entry = pathlib.Path(folder, name)
                if entry.is_symlink():
                    label(entry, source)


def names(directory: str) -> frozenset[tuple[str | int, ...]]:
    """Tell what a directory lists, which takes no call for each file. Raises OSError.

    What is added, removed or replaced shows in it; what is written over in place does not.
    """
    found: list[tuple[str | int, ...]] = []
    pending = [directory]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                found.append((entry.path, entry.inode()))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    own = entry.stat(follow_symlinks=False)
                    found.append((entry.path, own.st_mode, own.st_uid, own.st_mtime_ns))
    return frozenset(found)


Mark = tuple[int, int, int, int]
"""A directory's inode, mode, owner and time of the last change of its inode (ns)."""


def marks(folders: Iterable[str]) -> tuple[Mark, ...]:
    """Tell what changes in a directory when anything is added, removed or replaced in it.

    The kernel's time of a change cannot be set back, but moves in ticks. Raises OSError.
    """
    found = [os.lstat(folder) for folder in folders]
    return tuple([(each.st_ino, each.st_mode, each.st_uid, each.st_ctime_ns) for each in found])


def stamp(directory: str) -> Stamp:
    """Tell what is in a directory, so that a change by anybody shows. Raises OSError."""
    found, pending, folders = set(), [directory], [directory]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                size, changed = status.st_size, status.st_mtime_ns
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    folders.append(entry.path)
                    size = changed = 0  # its entries are looked at
                name = entry.path[len(directory) :]
                found.add((name, status.st_ino, status.st_mode, status.st_uid, size, changed))
    return Stamp(names=names(directory), entries=frozenset(found), folders=tuple(folders))


def is_whole(
    place: pathlib.Path, files: Iterable[tuple[str, str]], links: Iterable[tuple[str, str]]
) -> bool:
    """Whether a directory of ours holds these files as they are on the host now, and these links.

    It holds nothing else then, and nothing of another user's.
    """
    sources, texts = dict(files), dict(links)
    seen = set()
    try:
        for folder, names, others in os.walk(place):
            for name in ("", *names, *others):
                entry = pathlib.Path(folder, name)
                path, found = str(entry.relative_to(place)), entry.lstat()
                if stat.S_ISDIR(found.st_mode):
                    same = found.st_uid == os.geteuid()
                else:
                    seen.add(path)
                    same = _is_meant(entry, found, sources.get(path, ""), texts.get(path, ""))
                if not same:
                    return False
    except OSError:
        return False
    return seen == {*sources, *texts}


def _is_meant(entry: pathlib.Path, found: os.stat_result, source: str, text: str) -> bool:
    """Whether a link has this text, or a file is its source or a copy with its size and time."""
    if stat.S_ISLNK(found.st_mode):
        return bool(text) and str(entry.readlink()) == text
    if not source or not stat.S_ISREG(found.st_mode):
        return False
    own = pathlib.Path(source).stat()
    copied = found.st_uid, found.st_size, found.st_mtime_ns
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) or (
        copied == (os.geteuid(), own.st_size, own.st_mtime_ns)
    )
