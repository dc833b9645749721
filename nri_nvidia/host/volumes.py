# SPDX-License-Identifier: Apache-2.0
"""Prepared directories of driver files on the host, one for each set that containers ask for.

A file is a hard link of the driver's own where the file system allows it (no space, and the page
cache is shared with the host), else a reflink, else a copy. A directory appears whole or not at
all, is never changed afterwards, and is removed when no mount names it.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator

import attrs

from nri_nvidia import errors

_TEMPORARY = ".building-"
_FICLONE = 0x40049409  # ioctl_ficlone(2)
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EACCES}
_SPARE_BYTES = 64 << 20
_SELINUX = pathlib.Path("/sys/fs/selinux/enforce")
_LABEL = b"system_u:object_r:container_ro_file_t:s0\0"


@attrs.frozen(kw_only=True)
class Built:
    """A directory that is ready, and how its files came there: `link`, `reflink` or `copy`."""

    path: str
    ways: frozenset[str]


class Volumes:
    """The prepared directories below one directory. Its methods block; call them in a thread."""

    def __init__(self, directory: str) -> None:
        self._top = pathlib.Path(directory)

    def ready(self) -> dict[str, str]:
        """Give the directories that are there, by name."""
        try:
            entries = list(os.scandir(self._top))
        except OSError:
            return {}
        return {
            entry.name: entry.path
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        }

    def build(
        self, name: str, files: Iterable[tuple[str, str]], links: Iterable[tuple[str, str]]
    ) -> Built:
        """Make a directory if it is not there; raises HostError, and then nothing is left of it.

        `files` are pairs of a path in it and the host's file, `links` of a path and a text.
        """
        place = self._top / name
        if place.is_dir():
            return Built(path=str(place), ways=frozenset())
        wanted = list(files)
        try:
            self._make_top()
            self._require_exec()
            work = self._top / f"{_TEMPORARY}{secrets.token_hex(8)}"
            work.mkdir(mode=0o755)
            try:
                ways = {_give(work / path, source, self._room) for path, source in wanted}
                for path, text in links:
                    (work / path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                    (work / path).symlink_to(text)
                try:
                    work.rename(place)
                except OSError:
                    if not place.is_dir():  # else another process was faster
                        raise
            finally:
                shutil.rmtree(work, ignore_errors=True)
        except OSError as error:
            raise errors.HostError(
                f"{place}: the driver's files cannot be prepared: {error.strerror or error}",
                hint="they are mounted one by one meanwhile; inject.volume_dir names the place",
                code="volume-not-built",
            ) from error
        return Built(path=str(place), ways=frozenset(ways))

    def remove_unused(self, keep: Iterable[str]) -> list[str]:
        """Remove what is neither to be kept nor named by any mount; give the names removed."""
        kept = set(keep)
        candidates = {name: path for name, path in self.ready().items() if name not in kept}
        leftovers = [p for p in self._top.glob(f"{_TEMPORARY}*") if p.is_dir()]
        if not candidates and not leftovers:
            return []
        # The source of a bind mount is told by its path in its file system: names are unique.
        in_use = {part for root in _mount_roots() for part in root.split("/")}
        removed = []
        for name, path in candidates.items():
            if name not in in_use:
                shutil.rmtree(path, ignore_errors=True)
                removed.append(name)
        for leftover in leftovers:
            shutil.rmtree(leftover, ignore_errors=True)
        return removed

    def _make_top(self) -> None:
        self._top.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = self._top.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise errors.HostError(
                f"{self._top}: not a directory of this daemon's user",
                hint="remove it, or name another one: inject.volume_dir",
                code="volume-not-built",
            )

    def _require_exec(self) -> None:
        """Refuse a file system that is mounted noexec: no library in it could be mapped."""
        if os.statvfs(self._top).f_flag & os.ST_NOEXEC:
            raise errors.HostError(
                f"{self._top}: its file system is mounted noexec, so no library in it would load",
                hint="name a place on another one: inject.volume_dir",
                code="volume-not-built",
            )

    def _room(self, size: int) -> None:
        """Raise OSError where a copy of `size` bytes would fill the file system."""
        found = os.statvfs(self._top)
        if found.f_bavail * found.f_frsize < size + _SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _give(place: pathlib.Path, source: str, room: Callable[[int], None]) -> str:
    """Put one file in place; give how."""
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    real = os.path.realpath(source)
    try:
        os.link(real, place)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
    else:
        return "link"
    found = pathlib.Path(real).stat()
    with pathlib.Path(real).open("rb") as reading, place.open("xb") as writing:
        try:
            fcntl.ioctl(writing.fileno(), _FICLONE, reading.fileno())
            way = "reflink"
        except OSError:
            room(found.st_size)
            shutil.copyfileobj(reading, writing, 1 << 20)
            way = "copy"
        os.fchmod(writing.fileno(), stat.S_IMODE(found.st_mode) & 0o755 | 0o444)
        # A hard link shares the host file's label, which is not ours to change; a copy is.
        if _SELINUX.exists():
            os.setxattr(writing.fileno(), "security.selinux", _LABEL)
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
    return way


def _mount_roots() -> Iterator[str]:
    """Give the sources of all mounts of all mount namespaces (proc(5), mountinfo, field 4)."""
    seen: set[str] = set()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            namespace = str((entry / "ns/mnt").readlink())
            if namespace in seen:
                continue
            text = (entry / "mountinfo").read_text("utf-8", "replace")
            seen.add(namespace)
            for line in text.splitlines():
                fields = line.split(" ")
                if len(fields) > 4:
                    yield fields[3]
