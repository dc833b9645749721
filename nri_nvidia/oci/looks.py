# SPDX-License-Identifier: Apache-2.0
"""Sees for nri-nvidia-runtime whether a container asks for anything, as its `grep` would.

Most containers ask for nothing, and what they wait for then is the start of a program. A script
that has the file open makes another one here, named by its process's number, and looks at that for
a moment only: it never waits for this process. What it finds is
- a file with the sticky bit: the container asks for nothing;
- an empty file: it asks for something, or may do so;
- the file as it was, or none: nothing is known, and grep is to say.

So to remove a file is right at any time, and to overlook one too. A file is removed when the
script has closed it, which it does by its end at the latest. One that went on without an answer
leaves the file `late`: until this process comes to it, nobody asks.

This is a part of the script that `install` puts together; what `warm` says of imports holds here
too.
"""

from __future__ import annotations

import posix
import select
import sys

from nri_nvidia.oci.caller import NotServed, identity, read
from nri_nvidia.oci.slots import PLACE, READ, remove, stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LOOKS, LATE = "looks", "late"
ASKING_END, CONFIG_END = 8, 9  # the descriptors of runtime.sh
LONGEST_CONFIG = 1 << 20  # bytes; grep takes longer than its start for such a one
NOTHING = 0o1600  # the mode of a file whose container asks for nothing
WAS_WRITTEN, WAS_CLOSED, LOST = 0x2, 0x8, 0x4000  # inotify(7)
NO_OTHER = 0x1000000 | 0x2000000  # to be told of a directory, and not of what a link leads to
KIND, LENGTH, HEAD = 4, 12, 16  # where an event has them


class Looks:
    """The directory, and what it is looked for by; `events` is ready to be read, or -1."""

    def __init__(self, directory: str, markers: str, call: Callable[..., int]) -> None:
        self.directory, self.markers = f"{directory}/{LOOKS}", markers
        self.stamp = stamp("")
        self.texts: list[bytes] = []
        self.escapes: list[bytes] = []
        self.place = self.events = -1
        try:
            self.make()
            self.place = posix.open(self.directory, READ | posix.O_DIRECTORY | posix.O_NOFOLLOW)
            posix.chmod(self.place, 0o700)
            self.events = call("inotify_init1", posix.O_CLOEXEC | posix.O_NONBLOCK)
            kinds = WAS_WRITTEN | WAS_CLOSED | NO_OTHER
            call("inotify_add_watch", self.events, self.directory.encode(), kinds)
            self.clear()
        except OSError:
            self.close()

    def make(self) -> None:
        """Make the directory, unless it is there. Raises OSError."""
        try:
            remove(self.directory)  # a link would have files made, and removed, elsewhere
        except IsADirectoryError:
            return
        posix.mkdir(self.directory, 0o700)

    def close(self) -> None:
        """Have nobody ask."""
        try:
            if self.place >= 0:
                self.clear()
                posix.rmdir(self.directory)
        except OSError:
            pass
        for opened in (self.place, self.events):
            if opened >= 0:
                posix.close(opened)
        self.place = self.events = -1

    def is_there(self) -> bool:
        """Whether scripts find the directory that is looked at, or none is."""
        try:
            found = identity(posix.stat(self.directory, follow_symlinks=False))
        except OSError:
            found = 0, 0
        return self.place < 0 or found == identity(posix.fstat(self.place))

    def late(self) -> tuple[int, ...]:
        """Give what tells by whom this process is waited for in vain; empty if by nobody."""
        return stamp(f"{self.directory}/{LATE}")

    def clear(self) -> None:
        """Remove all that is asked."""
        for name in posix.listdir(self.place):
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a file if that can be."""
        try:  # noqa: SIM105
            posix.unlink(name, dir_fd=self.place)
        except OSError:
            pass

    def serve(self) -> None:
        """Answer for ever."""
        self.clear()  # another one may have been killed over what it was told
        while True:
            select.select([self.events], [], [])
            self.answer()

    def answer(self) -> None:
        """Answer what is asked by now, and remove what is done with."""
        try:
            data = posix.read(self.events, 1 << 16)
        except BlockingIOError:
            return
        begin = 0
        written: set[str] = set()
        closed: set[str] = set()
        while begin < len(data):
            end = begin + HEAD + number_at(data, begin + LENGTH)
            name = data[begin + HEAD : end].rstrip(b"\0").decode("utf-8", "surrogateescape")
            kind = number_at(data, begin + KIND)
            if kind & LOST:
                self.clear()
            (closed if kind & WAS_CLOSED else written).add(name)
            begin = end
        for name in written - closed:
            if name.isdecimal():
                self.answer_one(name)
        for name in closed:
            self.remove(name)

    def answer_one(self, name: str) -> None:
        """Answer one process."""
        asked = -1
        try:
            asked = posix.open(name, READ | posix.O_NONBLOCK | posix.O_NOFOLLOW, dir_fd=self.place)
            status = posix.fstat(asked)
            if not status.st_size:
                pass  # that it is empty is our answer
            elif self.asks(int(name), identity(status)):
                posix.truncate(f"{self.directory}/{name}", 0)
            else:
                posix.chmod(asked, NOTHING)
        except (OSError, NotServed):
            self.remove(name)
        finally:
            if asked >= 0:
                posix.close(asked)

    def asks(self, number: int, file: tuple[int, int]) -> bool:
        """Whether a process's container may ask for something. Raises OSError or NotServed."""
        process = posix.open(f"/proc/{number}", PLACE | posix.O_DIRECTORY)
        try:
            if identity(posix.stat(f"fd/{ASKING_END}", dir_fd=process)) != file:
                raise NotServed("its number is another process's here, or it has gone on")
            config = posix.open(f"fd/{CONFIG_END}", READ | posix.O_NONBLOCK, dir_fd=process)
        finally:
            posix.close(process)
        text = read(config, LONGEST_CONFIG)
        self.learn()
        if any(each in text for each in self.texts):
            return True
        return b"\\" in text and any(each in text for each in self.escapes)

    def learn(self) -> None:
        """Know the texts that a request begins with, as the daemon's settings are now."""
        now = stamp(self.markers)
        if not now or now != self.stamp:
            lines = read(self.markers).split(b"\n")
            self.texts = [line for line in lines if line and not line.startswith(b"\\")]
            self.escapes = [line for line in lines if line.startswith(b"\\")]
            self.stamp = now


def number_at(data: bytes, place: int) -> int:
    """Give a number of 32 bits as the kernel has it."""
    return int.from_bytes(data[place : place + 4], sys.byteorder)
