# SPDX-License-Identifier: Apache-2.0
"""Files below a node's `/`: read through links, written at once, by one process at a time."""

import contextlib
import fcntl
import os
import pathlib
import stat
import time
from collections.abc import Iterator

from nri_nvidia import errors

_LIMIT = 4 << 20
_LINKS = 40
"""The kernel's own bound for one path (path_resolution(7))."""
_PATIENCE, _PAUSE = 30.0, 0.05
_NEW = ".nri-nvidia-new"


class Places:
    """Paths that begin with `/`, of this node or of one whose `/` is another directory."""

    def __init__(self, root: str = "/") -> None:
        if not pathlib.Path(root).is_dir():
            raise errors.ConfigError(f"--root {root}: there is no such directory")
        self._root = os.path.realpath(root)

    def text(self, path: str) -> str | None:
        """Give a file's text, None where there is none; raises ConfigError for what is no text."""
        data = self._data(self._inside(path), path)
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise errors.ConfigError(
                f"{path}:{line}: not UTF-8", hint="mend it; it was left as it is"
            ) from error

    def names(self, directory: str) -> tuple[str, ...]:
        """Give the sorted names in a directory, none where there is no directory."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return tuple(sorted(each.name for each in self._inside(directory).iterdir()))
        return ()

    def is_directory(self, path: str) -> bool:
        """Tell whether a path leads to a directory."""
        return self._inside(path).is_dir()

    def link(self, path: str) -> str | None:
        """Give where a link leads, None where there is nothing; raises ConfigError for others."""
        place = self._place(path)
        if place.is_symlink():
            return str(place.readlink())
        if place.exists():
            raise errors.ConfigError(f"{path}: is there and is no link", hint="move it away")
        return None

    @contextlib.contextmanager
    def alone(self, path: str) -> Iterator[None]:
        """Hold a lock for what is done inside; raises ConfigError where it is not to be had."""
        place = self._place(path)
        end = time.monotonic() + _PATIENCE
        while (lock := self._locked(place, path)) is None:
            if time.monotonic() >= end:
                raise errors.ConfigError(
                    f"{path} is held by another nri-nvidia configure; nothing was changed",
                    hint="repeat it when that is done",
                )
            time.sleep(_PAUSE)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                place.unlink()
            os.close(lock)

    def _locked(self, place: pathlib.Path, path: str) -> int | None:
        try:
            self._make_directories(path)
            lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None  # who held it has removed the directory too
        except OSError as error:
            raise errors.ConfigError(
                f"{os.path.dirname(path)}: cannot be written, where what is done is recorded: "  # noqa: PTH120
                f"{error.strerror}; nothing was changed"
            ) from error
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who held it before has removed it, and the next one's is another.
            if os.path.samestat(os.fstat(lock), place.lstat()):
                return lock
        os.close(lock)
        return None

    def _inside(self, path: str) -> pathlib.Path:
        """Give where a path leads, with links as the node itself has them: none leads out."""
        pending, done, links = path.split("/")[::-1], list[str](), 0
        while pending:
            part = pending.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                del done[-1:]
                continue
            try:
                target = str(pathlib.Path(self._root, *done, part).readlink())
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > _LINKS:
                raise errors.ConfigError(f"{path}: leads through too many links")
            done = [] if target.startswith("/") else done
            pending += target.split("/")[::-1]
        return pathlib.Path(self._root, *done)

    def _place(self, path: str) -> pathlib.Path:
        """Give where a path is; of its own name no link is followed."""
        directory, name = os.path.split(path)
        return self._inside(directory) / name

    def _data(self, place: pathlib.Path, path: str) -> bytes | None:
        try:
            if not stat.S_ISREG(place.lstat().st_mode):
                raise errors.ConfigError(f"{path}: is no file")
            with place.open("rb") as file:
                data = file.read(_LIMIT + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(data) > _LIMIT:
            raise errors.ConfigError(f"{path}: larger than {_LIMIT >> 20} MiB")
        return data

    def _own_data(self, path: str) -> bytes | None:
        """Give the content of a file that is to be written; raises ConfigError for a link."""
        place = self._place(path)
        if place.is_symlink():
            # A link may be another program's way to swap files: it is told, not followed.
            raise errors.ConfigError(
                f"{path}: is a link to {place.readlink()}",
                hint="name the file itself by --config, or replace the link by a file",
            )
        return self._data(place, path)

    def _missing(self, path: str) -> list[str]:
        """Give the directories that a file wants and that are not there, the innermost first."""
        directory = self._place(path).parent
        found = []
        while not directory.exists():
            found.append(f"/{directory.relative_to(self._root)}")
            directory = directory.parent
        return found

    def _make_directories(self, path: str) -> None:
        for each in reversed(self._missing(path)):
            place = pathlib.Path(self._root, each.lstrip("/"))
            with contextlib.suppress(FileExistsError):
                place.mkdir()
                place.chmod(0o755)

    def _write(self, path: str, data: bytes, *, like: str = "") -> None:
        """Put a file in place at once, with the mode, owner and labels of the one there."""
        place = self._place(path)
        model_of = self._place(like or path)
        self._sweep(path)
        temporary = _new(place)
        try:
            with temporary.open("xb") as file:
                file.write(data)
                if model_of.exists():
                    found = model_of.stat()
                    os.fchown(file.fileno(), found.st_uid, found.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
                    _copy_labels(model_of, file.fileno())
                else:
                    os.fchmod(file.fileno(), 0o644)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)

    def _put_link(self, path: str, target: str) -> None:
        self._sweep(path)
        temporary = _new(self._place(path))
        temporary.symlink_to(target)
        temporary.replace(self._place(path))

    def _sweep(self, path: str) -> None:
        """Remove what one that was killed left beside a path; the lock says that none is left."""
        with contextlib.suppress(NotADirectoryError):
            _new(self._place(path)).unlink(missing_ok=True)


def _new(place: pathlib.Path) -> pathlib.Path:
    """Give where what is to be put in a place is written first: the same name each time."""
    return place.with_name(f".{place.name}{_NEW}")


def _copy_labels(source: pathlib.Path, descriptor: int) -> None:
    for name in os.listxattr(source):
        # A file system may refuse what it takes from others: SELinux then labels by the place.
        with contextlib.suppress(OSError):
            os.setxattr(descriptor, name, os.getxattr(source, name))
