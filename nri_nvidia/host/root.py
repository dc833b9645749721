# SPDX-License-Identifier: Apache-2.0
"""Paths below a root: links resolve inside it, `..` cannot leave it, loops end."""

import errno
import os
import pathlib
import stat

import attrs

from nri_nvidia.errors import HostError

# The kernel's own bound for one path look-up (path_resolution(7)).
MAX_LINKS = 40

_OWN_LACK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

# Nothing that is read as text (proc, sys, os-release) is anywhere near this long.
TEXT_LIMIT = 1 << 20


@attrs.define
class Trace:
    """What was looked at, as pairs of a root and an inner path: by name, and content or names."""

    looked: "dict[tuple[Root, str], None]" = attrs.field(factory=dict)
    read: "dict[tuple[Root, str], None]" = attrs.field(factory=dict)


@attrs.frozen
class Root:
    """A directory taken for `/`. Inner paths are absolute as the tree itself would name them.

    With `recorded` the tree shows another host, whose own `/` is `top` (empty: the directory
    itself): reported paths then lack that prefix. `trace`, if given, notes what is looked at.
    """

    directory: str = "/"
    recorded: bool = False
    top: str = ""
    trace: Trace | None = attrs.field(default=None, eq=False)

    def on_disk(self, inner: str) -> str:
        """Give the path on this machine of an inner path, without resolving anything."""
        return os.path.normpath(f"{self.directory}/{inner}")

    def reported(self, inner: str) -> str:
        """Give the path that an Inventory shows for an inner path."""
        if not self.recorded:
            return self.on_disk(inner)
        top = (self.top or self.directory).rstrip("/")
        return self.on_disk(inner).removeprefix(top) or "/"

    def resolve(self, path: str) -> str | None:
        """Give the inner path with all links resolved; None if it is missing or loops.

        This is a look-up, no guard against one who swaps links meanwhile: the trees belong to the
        host's administrator.
        """
        self._note(path)
        pending = [part for part in reversed(path.split("/")) if part not in {"", "."}]
        done: list[str] = []
        links = 0
        top = self.directory.rstrip("/")
        while pending:
            part = pending.pop()
            if part == "..":
                del done[-1:]
                continue
            here = "/".join((top, *done, part))
            try:
                mode = os.lstat(here).st_mode
                target = str(pathlib.Path(here).readlink()) if stat.S_ISLNK(mode) else None
            except (OSError, ValueError) as error:
                must_be_absence(here, error)
                return None
            if target is None:
                done.append(part)
                if pending and not stat.S_ISDIR(mode):
                    return None
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            if target.startswith("/"):
                done.clear()
            pending.extend(p for p in reversed(target.split("/")) if p not in {"", "."})
        return "/" + "/".join(done)

    def trail(self, path: str) -> tuple[str, ...]:
        """Give the paths on this machine by which it shows that `path` leads to something else.

        These are the links on the way and the end; where nothing is there, the first part that is
        missing. None of them is to be followed any more.
        """
        pending = [part for part in reversed(path.split("/")) if part not in {"", "."}]
        done: list[str] = []
        links: list[str] = []
        top = self.directory.rstrip("/")
        while pending:
            part = pending.pop()
            if part == "..":
                del done[-1:]
                continue
            here = "/".join((top, *done, part))
            try:
                target = os.readlink(here)  # noqa: PTH115 - a name, not a Path
            except (OSError, ValueError) as error:
                done.append(part)
                if isinstance(error, OSError) and error.errno == errno.EINVAL:
                    continue  # there, and no link
                must_be_absence(here, error)
                break
            links.append(here)
            if len(links) > MAX_LINKS:
                break
            if target.startswith("/"):
                done.clear()
            pending.extend(p for p in reversed(target.split("/")) if p not in {"", "."})
        return (*links, "/".join((top, *done)) or "/")

    def stat(self, path: str) -> os.stat_result | None:
        """Give the status of what a path leads to, None if that is nothing."""
        place = self._place(path)
        if place is None:
            return None
        try:
            return os.stat(place)  # noqa: PTH116
        except (OSError, ValueError) as error:
            must_be_absence(path, error)
            return None

    def entries(self, path: str) -> tuple[str, ...]:
        """Give the sorted names in a directory, none if it is not there or not readable."""
        self._note(path, whole=True)
        place = self._place(path)
        if place is None:
            return ()
        try:
            return tuple(sorted(os.listdir(place)))  # noqa: PTH208 - names only
        except (OSError, ValueError) as error:
            must_be_absence(path, error)
            return ()

    def data(self, path: str, limit: int = TEXT_LIMIT) -> bytes | None:
        """Give up to `limit` bytes of a regular file, None if there is none to read."""
        self._note(path, whole=True)
        place = self._place(path)
        if place is None:
            return None
        try:
            # O_NONBLOCK: a fifo in the place of a file must not stop the daemon.
            fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            must_be_absence(path, error)
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return _read(fd, limit)
        except OSError:
            return None
        finally:
            os.close(fd)

    def _place(self, path: str) -> str | None:
        """Give the path to use for what a path leads to, None where that is nothing."""
        if self.directory == "/":
            self._note(path)
            return path  # for the machine's own root the kernel resolves links alike
        inner = self.resolve(path)
        return None if inner is None else f"{self.directory.rstrip('/')}{inner}"

    def _note(self, path: str, *, whole: bool = False) -> None:
        if self.trace is not None:
            notes = self.trace.read if whole else self.trace.looked
            notes.setdefault((self, path))

    def text(self, path: str) -> str | None:
        """Give a file's text; bytes that are not UTF-8 come as replacement characters."""
        content = self.data(path)
        return None if content is None else content.decode("utf-8", "replace")


def must_be_absence(path: str, error: OSError | ValueError) -> None:
    """Raise HostError where it is not the host that lacks something, but this process.

    A host that could not be looked at would else pass for one without a driver.
    """
    if isinstance(error, OSError) and error.errno in _OWN_LACK:
        raise HostError(
            f"{path} could not be looked at: {error.strerror}",
            hint="raise the limit of open files or memory of the daemon; try again",
            code="host-scan-failed",
        ) from error


def _read(fd: int, limit: int) -> bytes:
    # Files in proc and sys report size 0 and may answer in pieces.
    chunks: list[bytes] = []
    left = limit
    while left > 0:
        chunk = os.read(fd, min(left, 1 << 16))
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)
