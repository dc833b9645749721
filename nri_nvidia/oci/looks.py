# SPDX-License-Identifier: Apache-2.0
"""Sees for nri-nvidia-runtime whether a container asks for anything, as its `grep` would.

Most containers ask for nothing, and what they wait for then is the start of a program. A script
that has the file open makes another one here, named by its process's number, and looks at that for
a moment only: it never waits for this process. What it finds is
- a file with the setuid bit: the container asks for nothing;
- no file any more: it asks for something, or may do so;
- the file as it was, or empty: nothing is known, and grep is to say.

So to remove a file is right at any time, and to overlook one too. A script that went on without an
answer leaves the file `late`: until this process comes to it, nobody asks.

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
NOTHING = 0o4600  # the mode of a file whose container asks for nothing
KEPT = 0.05  # seconds until an answer is removed: the script reads it at once
MOST_ANSWERS = 256
WAS_WRITTEN, HEAD = 2, 16  # inotify(7)


class Looks:
    """The directory, and what it is looked for by; `events` is ready to be read, or -1."""

    def __init__(self, directory: str, markers: str, call: Callable[..., int]) -> None:
        self.directory, self.markers = f"{directory}/{LOOKS}", markers
        self.stamp = stamp("")
        self.texts: list[bytes] = []
        self.escapes: list[bytes] = []
        self.answered: list[str] = []
        self.place = self.events = -1
        try:
            try:
                posix.mkdir(self.directory, 0o700)
            except FileExistsError:
                posix.chmod(self.directory, 0o700)
            self.place = posix.open(self.directory, PLACE | posix.O_DIRECTORY)
            self.events = call("inotify_init1", posix.O_CLOEXEC | posix.O_NONBLOCK)
            call("inotify_add_watch", self.events, self.directory.encode(), WAS_WRITTEN)
            for name in posix.listdir(self.directory):
                remove(f"{self.directory}/{name}")
        except OSError:
            self.close()

    def close(self) -> None:
        """Have nobody ask."""
        for opened in (self.place, self.events):
            if opened >= 0:
                posix.close(opened)
        self.place = self.events = -1
        try:
            for name in posix.listdir(self.directory):
                remove(f"{self.directory}/{name}")
            posix.rmdir(self.directory)
        except OSError:
            pass

    def serve(self) -> None:
        """Answer for ever."""
        while True:
            wait = KEPT if self.answered else None
            if select.select([self.events], [], [], wait)[0]:
                self.answer()
            else:
                self.clear()

    def clear(self) -> None:
        """Remove what was answered."""
        answered, self.answered = self.answered, []
        for name in answered:
            remove(f"{self.directory}/{name}")

    def answer(self) -> None:
        """Answer all that is asked."""
        try:
            data = posix.read(self.events, 1 << 16)
        except BlockingIOError:
            return
        if len(self.answered) > MOST_ANSWERS:
            self.clear()
        begin, names = 0, set()
        while begin < len(data):
            length = int.from_bytes(data[begin + HEAD - 4 : begin + HEAD], sys.byteorder)
            names.add(data[begin + HEAD : begin + HEAD + length].rstrip(b"\0"))
            begin += HEAD + length
        if LATE.encode() in names:
            remove(f"{self.directory}/{LATE}")
        for name in names:
            if name.isdigit():
                self.answer_one(name.decode())

    def answer_one(self, name: str) -> None:
        """Answer one process."""
        try:
            status = posix.stat(name, dir_fd=self.place, follow_symlinks=False)
            if not status.st_size:
                return  # that it is empty is our answer
            self.answered.append(name)
            try:
                asks = self.asks(int(name), identity(status))
            except (OSError, NotServed):
                posix.truncate(f"{self.directory}/{name}", 0)
                return
            if asks:
                remove(f"{self.directory}/{name}")
            else:
                posix.chmod(name, NOTHING, dir_fd=self.place)
        except OSError:
            pass

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
