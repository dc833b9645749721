# SPDX-License-Identifier: Apache-2.0
"""Files of a container's root, once that is all there is: in their place may be anything.

This is a part of the script that `install` puts together; what `view` says of imports
holds here too.
"""

from __future__ import annotations

import posix

from nri_nvidia.oci.view import Failure, Suppressed

REGULAR, DIRECTORY = 0o100000, 0o040000
READ = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY
CREATE = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC


def read(path: str, limit: int) -> bytes:
    """Read a regular file; a FIFO, a device or a larger file raises Failure."""
    data = None
    if kind_of(path) in (REGULAR, 0):  # whoever waits for a reader of a FIFO is not to get one
        with open(posix.open(path, READ), "rb") as file:  # noqa: PTH123
            data = file.read(limit + 1) if is_file(file.fileno()) else None
    if data is None or len(data) > limit:
        raise Failure(f"{path} is not a regular file of at most {limit} bytes")
    return data


def write(path: str, data: bytes, mode: int = 0o644) -> None:
    """Put a file in place at once, whatever is there now, a link too."""
    temporary = f"{path.rpartition('/')[0]}/.nri-nvidia-{posix.urandom(8).hex()}"
    try:
        with open(posix.open(temporary, CREATE, mode), "wb") as file:  # noqa: PTH123
            file.write(data)
        posix.rename(temporary, path)
    finally:
        remove(temporary)


def is_file(place: str | int) -> bool:
    """Whether a path or an open file is a regular file."""
    return kind_of(place) == REGULAR


def is_directory(path: str) -> bool:
    """Whether a path leads to a directory."""
    return kind_of(path) == DIRECTORY


def is_there(path: str) -> bool:
    """Whether there is something, if only a link that leads nowhere."""
    with Suppressed(OSError):
        return bool(posix.lstat(path).st_mode)
    return False


def kind_of(place: str | int) -> int:
    """Give the kind of file that a path leads to, as stat(2) has it; 0 where there is none."""
    with Suppressed(OSError):
        return posix.stat(place).st_mode & 0o170000
    return 0


def remove(path: str) -> None:
    """Remove a file if it is there and can be."""
    with Suppressed(OSError):
        posix.unlink(path)
