# SPDX-License-Identifier: Apache-2.0
"""The script that asks the process which stands ready, as that finds it in /proc.

This is a part of the script that `install` puts together; what `warm` says of imports holds here
too.
"""

from __future__ import annotations

import posix

from nri_nvidia.oci.slots import PLACE, READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STANDARD_INPUT, READING_END = 7, 9  # the descriptors of ask.sh
LONGEST = 16 << 20
REGULAR = 0o100000


class NotServed(Exception):  # noqa: N818  an outcome
    """Raised before anything is done for a caller, which then starts Python."""


class Caller:
    """The script that asks, by descriptors of that very process."""

    def __init__(self, number: int, slot: str) -> None:
        self.number = number
        self.process = posix.pidfd_open(number)
        self.folder = posix.open(f"/proc/{number}", PLACE | posix.O_DIRECTORY)
        if self.identity(f"fd/{READING_END}") != identity(posix.lstat(slot)):
            raise NotServed("its number is another process's here")
        if self.identity("ns/user") != identity(posix.stat("/proc/self/ns/user")):
            raise NotServed("it is in a user namespace")
        self.root = posix.open("root", PLACE, dir_fd=self.folder)
        self.cwd = posix.open("cwd", PLACE, dir_fd=self.folder)

    def identity(self, name: str) -> tuple[int, int]:
        """Give what tells a file of its folder in /proc from others."""
        return identity(posix.stat(name, dir_fd=self.folder))

    def words(self) -> list[str]:
        """Give the words that it was started with."""
        with open(posix.open("cmdline", READ, dir_fd=self.folder), "rb") as file:  # noqa: PTH123
            return file.read().decode("utf-8", "surrogateescape").split("\0")[:-1]

    def join(self, call: Callable[..., int], namespaces: int) -> None:
        """Be where it is. Raises OSError."""
        call("setns", self.process, namespaces)
        posix.fchdir(self.root)
        posix.chroot(".")
        posix.fchdir(self.cwd)


def identity(status: Any) -> tuple[int, int]:
    """Give device and inode."""
    return status.st_dev, status.st_ino


def read(place: str | int, most: int = 0) -> bytes:
    """Read a regular file, by its path or open, and close it. Raises OSError or NotServed.

    One that is longer than `most` is not served; without that, its beginning is.
    """
    opened = posix.open(place, READ | posix.O_NONBLOCK) if isinstance(place, str) else place
    try:
        status = posix.fstat(opened)
        if status.st_mode & 0o170000 != REGULAR:
            raise NotServed(f"{place} is not a regular file")
        if most and status.st_size > most:
            raise NotServed(f"{place} is longer than {most} bytes")
        data, piece = b"", b"first"
        while piece and len(data) < LONGEST:
            piece = posix.read(opened, max(status.st_size, 4096))
            data += piece
        if most and len(data) > most:
            raise NotServed(f"{place} has become longer than {most} bytes")
        return data
    finally:
        posix.close(opened)
