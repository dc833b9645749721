# SPDX-License-Identifier: Apache-2.0
"""The ways by which callers are told what a process that stands ready has done for them.

This is a part of the script that `install` puts together; what `warm` says of imports holds here
too.
"""

from __future__ import annotations

import posix

FORGOTTEN = 20.0  # seconds after which a slot is free of who took it, and never asked
SIGKILL = 9
PLACE = posix.O_PATH | posix.O_CLOEXEC
READ = posix.O_RDONLY | posix.O_CLOEXEC


class Slot:
    """A pipe by which one caller at a time is told; a file beside it says that it is taken."""

    def __init__(self, directory: str, name: str) -> None:
        self.path = f"{directory}/{name}"
        self.pipe, self.caller, self.child, self.until = -1, -1, 0, 0.0
        self.renew()

    def renew(self) -> None:
        """Be free, and another pipe: nothing that was said to one reaches the next."""
        new = make_pipe(f"{self.path}.new")
        posix.rename(f"{self.path}.new", self.path)
        for opened in (self.pipe, self.caller):
            if opened >= 0:
                posix.close(opened)
        self.pipe, self.caller, self.child, self.until = new, -1, 0, 0.0
        remove(f"{self.path}.taken")

    def begin(self, child: int, caller: int, until: float) -> None:
        """Be what a child tells by, to a process that is to be watched."""
        self.child, self.until = child, until
        try:  # noqa: SIM105
            self.caller = posix.pidfd_open(caller)
        except OSError:
            pass

    def abandon(self) -> None:
        """End a child that works for a caller which has ended: a runtime's patience is over."""
        if self.child:
            posix.kill(self.child, SIGKILL)
        if self.caller >= 0:
            posix.close(self.caller)
            self.caller = -1

    def tell(self, text: str) -> None:
        """Say something to who has it; whoever has left is not told."""
        try:  # noqa: SIM105
            posix.write(self.pipe, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass

    def is_forgotten(self, now: float) -> bool:
        """Whether it was taken a while ago and nothing asked by it; to be called now and then."""
        try:
            posix.lstat(f"{self.path}.taken")
        except OSError:
            self.until = 0.0
        else:
            self.until = self.until or now + FORGOTTEN
        return 0.0 < self.until < now


def put(path: str, text: bytes) -> None:
    """Write to a file of the kernel's, if it takes that."""
    try:
        file = posix.open(path, posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(file, text)
        posix.close(file)
    except OSError:
        pass


def make_pipe(path: str) -> int:
    """Make a named pipe for root; gives it, open for both directions."""
    remove(path)
    posix.mkfifo(path, 0o600)
    return posix.open(path, posix.O_RDWR | posix.O_CLOEXEC | posix.O_NONBLOCK)


def remove(path: str) -> None:
    """Remove a file if it is there."""
    try:  # noqa: SIM105
        posix.unlink(path)
    except FileNotFoundError:
        pass


def stamp(path: str) -> tuple[int, ...]:
    """Give what tells a file from others that were put in its place; empty if there is none."""
    try:
        status = posix.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns
