# SPDX-License-Identifier: Apache-2.0
"""Prepared directories of driver files on the host, one for each set that containers ask for.

A directory appears whole or not at all and is never changed afterwards. One that somebody else has
changed is put aside, for the containers that have it, and made anew. One that no mount names is
removed. A lock on the directory above keeps daemons that share it apart; the kernel lets it go
when a process ends, however that ends.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping

import attrs

from nri_nvidia import errors
from nri_nvidia.host import placing

_TEMPORARY = ".building-"
_ASIDE = ".aside-"
_OPEN = 0o755
"""Users other than root are in many containers, and mount for them in user namespaces."""
_SPARE_BYTES = 64 << 20
_TICK_NS = 20_000_000
"""More than a tick of the kernel's clock (`cache`)."""
_LONG_TICK_NS = 2_500_000_000
"""More than a tick of a file system that counts by itself, in whole milliseconds or seconds."""
_YOUNG_SECONDS = 3600.0
"""A directory may be in an answer whose mount is yet to be made, another daemon's answer too."""


@attrs.frozen(kw_only=True)
class Built:
    """A directory that is ready, and how its files came there: `link`, `reflink` or `copy`.

    `stamp` is what `intact` compares it with. `replaced` tells one that was not as it should be.
    """

    path: str
    ways: frozenset[str]
    stamp: placing.Stamp
    replaced: bool = False


class Volumes:
    """The prepared directories below one directory. Its methods block; call them in a thread.

    `root` is where the host's /sys is, which tells whether labels of SELinux count.
    """

    def __init__(self, directory: str, root: str = "/") -> None:
        self._top = pathlib.Path(directory)
        self._labels = pathlib.Path(root, "sys/fs/selinux/enforce")
        self._listed: dict[str, tuple[placing.Stamp, tuple[placing.Mark, ...]]] = {}

    def ready(self) -> dict[str, str]:
        """Give the directories that are there, by name."""
        return {path.name: str(path) for path in self._entries() if path.name[0] != "."}

    def intact(
        self, stamps: Mapping[str, placing.Stamp], *, glance: bool = False
    ) -> dict[str, str]:
        """Give those of some directories that are as they were built, by name.

        At a `glance` no file is looked at: what was written over in place does not show, and what
        was found by the directories' lists holds for as long as the directories are not changed.
        None are where the file system has become noexec: so would be the containers' mounts.
        """
        found: dict[str, str] = {}
        for name in self._listed.keys() - stamps.keys():
            self._listed.pop(name, None)
        with contextlib.suppress(OSError):
            if stamps and self._is_noexec():
                return found
        for name, stamp in stamps.items():
            path = f"{self._top}/{name}"
            with contextlib.suppress(OSError):
                if glance:
                    same = self._lists_the_same(name, path, stamp)
                else:
                    same = placing.names(path) == stamp.names and placing.stamp(path) == stamp
                if same:
                    found[name] = path
        return found

    def _lists_the_same(self, name: str, path: str, stamp: placing.Stamp) -> bool:
        """Tell whether a directory and those in it list what they should. Raises OSError.

        A change moves a directory's time, unless within a tick of another: so it is taken as a
        proof only where the last one was long before its list was read.
        """
        began = time.time_ns()
        marks = placing.marks(stamp.folders)
        listed = self._listed.get(name)
        if listed and listed[0] is stamp and listed[1] == marks:
            return True
        same = placing.names(path) == stamp.names
        if same and all(changed < began - _tick(changed) for *_, changed in marks):
            self._listed[name] = stamp, marks
        else:
            self._listed.pop(name, None)
        return same

    def touch(self, name: str) -> None:
        """Keep a directory from being removed for a while, by any daemon."""
        with contextlib.suppress(OSError):
            os.utime(self._top / name)

    def build(
        self, name: str, files: Iterable[tuple[str, str]], links: Iterable[tuple[str, str]]
    ) -> Built:
        """Make a directory unless it is there and whole; raises HostError, and then leaves none.

        `files` are pairs of a path in it and the host's file, `links` of a path and a text.
        """
        place = self._top / name
        try:
            self._make_top()
            with self._locked():
                return self._build(place, tuple(files), tuple(links))
        except OSError as error:
            raise errors.HostError(
                f"{place}: the driver's files cannot be prepared: {error.strerror or error}",
                hint="they are mounted one by one meanwhile; inject.volume_dir names the place",
                code="volume-not-built",
            ) from error

    def _build(
        self,
        place: pathlib.Path,
        files: tuple[tuple[str, str], ...],
        links: tuple[tuple[str, str], ...],
    ) -> Built:
        self._require_exec()
        if place.is_symlink() or place.is_file():
            place.unlink()
        there = place.exists()
        if there and placing.is_whole(place, files, links):
            self.touch(place.name)
            return Built(path=str(place), ways=frozenset(), stamp=placing.stamp(str(place)))
        work = self._top / f"{_TEMPORARY}{secrets.token_hex(8)}"
        work.mkdir(mode=0o755)
        try:
            labels = self._labels.exists()
            ways = {
                placing.give(work / path, source, self._room, labels=labels)
                for path, source in files
            }
            for path, text in links:
                (work / path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                (work / path).symlink_to(text)
            for folder, _, _ in os.walk(work):
                os.chmod(folder, _OPEN)  # noqa: PTH101 - a name; whatever this process's umask is
            if labels:
                placing.label_rest(work, files)
            if there:  # containers may have it: they keep it as it is
                place.rename(self._top / f"{_ASIDE}{place.name}-{secrets.token_hex(8)}")
            work.rename(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return Built(
            path=str(place),
            ways=frozenset(ways),
            stamp=placing.stamp(str(place)),
            replaced=there,
        )

    def remove_unused(self, keep: Iterable[str], *, blind: bool = False) -> list[str]:
        """Remove what is neither to be kept nor named by any mount; give the names removed.

        One that was built or used in the last hour stays. What a build left that was killed goes.
        Only that goes for a daemon that is `blind`: that has no sight of the containers' mounts.
        """
        kept, since = set(keep), time.time() - _YOUNG_SECONDS
        removed: list[str] = []
        with contextlib.suppress(OSError), self._locked():
            left = [path for path in self._entries() if path.name.startswith(_TEMPORARY)]
            aside = [path for path in self._entries() if path.name.startswith(_ASIDE)]
            old = [
                path
                for path in map(pathlib.Path, self.ready().values())
                if path.name not in kept and path.stat().st_mtime < since
            ]
            # The source of a bind mount is told by its path in its file system: names are unique.
            found = [] if blind else [*old, *aside]
            in_use = {
                part for root in (mount_roots() if found else ()) for part in root.split("/")
            }
            for path in (*left, *(each for each in found if each.name not in in_use)):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
        return removed

    def _entries(self) -> list[pathlib.Path]:
        """Give the directories in ours, none where there is none."""
        try:
            with os.scandir(self._top) as entries:
                return [
                    pathlib.Path(each.path)
                    for each in entries
                    if each.is_dir(follow_symlinks=False)
                ]
        except OSError:
            return []

    def _make_top(self) -> None:
        missing = [each for each in (self._top, *self._top.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            each.chmod(_OPEN)
        found = self._top.lstat()
        problem = ""
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            problem = "not a directory of this daemon's user"
        elif found.st_mode & 0o022:
            problem = f"others may write to it ({stat.S_IMODE(found.st_mode):04o})"
        if problem:
            raise errors.HostError(
                f"{self._top}: {problem}",
                # Root's is not for a user to remove: containers have it mounted.
                hint=f"{'remove it' if os.geteuid() == 0 else 'run this as root'}, or name "
                "another one: inject.volume_dir",
                code="volume-not-built",
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock that keeps other daemons' builds and removals away. Raises OSError."""
        held = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def _require_exec(self) -> None:
        """Refuse a file system that is mounted noexec: no library in it could be mapped."""
        if self._is_noexec():
            raise errors.HostError(
                f"{self._top}: its file system is mounted noexec, so no library in it would load",
                hint="name a place on another one: inject.volume_dir",
                code="volume-not-built",
            )

    def _is_noexec(self) -> bool:
        return bool(os.statvfs(self._top).f_flag & os.ST_NOEXEC)

    def _room(self, size: int) -> None:
        """Raise OSError where a copy of `size` bytes would fill the file system."""
        found = os.statvfs(self._top)
        if found.f_bavail * found.f_frsize < size + _SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _tick(changed: int) -> int:
    """Give within what time (ns) of a change of this time another one may not show."""
    return _TICK_NS if changed % 1_000_000 else _LONG_TICK_NS


def mount_roots() -> Iterator[str]:
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
