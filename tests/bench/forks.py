# SPDX-License-Identifier: Apache-2.0
"""Counts the processes that are started below some others, by the kernel's process events.

The kernel tells of each fork and exec on a netlink socket (linux/cn_proc.h), with the parent's
and the child's process and thread. So threads are told from processes, and what others on the
machine do is not counted: only forks whose parent descends from the processes named.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

_NETLINK_CONNECTOR = 11
_GROUP = _ID = 1  # CN_IDX_PROC, CN_VAL_PROC
_LISTEN, _IGNORE = 1, 2
_FORK, _EXEC = 0x1, 0x2
_HEADERS = 16 + 20  # nlmsghdr and cn_msg
_BODY = _HEADERS + 16  # what, cpu, timestamp
_BUFFER = 8 << 20
_FORCED_BUFFER = 33  # SO_RCVBUFFORCE


class UnavailableError(Exception):
    """Raised where the kernel does not tell: no rights, or a namespace that is not the first."""


@attrs.define(kw_only=True)
class Count:
    """What was started: processes, and programs executed in them."""

    processes: int = 0
    programs: int = 0


class Watch:
    """The kernel's events, from the moment it is made until it is closed."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _FORCED_BUFFER, _BUFFER)
            self._socket.bind((0, _GROUP))
            self._socket.setblocking(False)
            self._ask(_LISTEN)
            # Nothing is said where this process may not know: then a fork of ours goes unseen.
            self.take()
            child = os.posix_spawn("/bin/true", ["true"], {})
            os.waitpid(child, 0)
            seen = self.count([os.getpid()]).processes
        except OSError as error:
            self._socket.close()
            raise UnavailableError(f"the kernel's process events: {error.strerror}") from error
        if not seen:
            self._socket.close()
            raise UnavailableError("the kernel's process events do not reach this namespace")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._ask(_IGNORE)
        self._socket.close()

    def take(self) -> list[bytes]:
        """Give the events that have come since the last time."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self._socket.recv(4096))
        return found

    def count(self, roots: Iterable[int]) -> Count:
        """Count what the processes `roots` and their descendants started since the last time."""
        family, counted = set(roots), Count()
        for kind, numbers in _events(self.take()):
            if kind == _FORK:
                _, parent, child_thread, child = numbers
                if child_thread == child and parent in family:
                    family.add(child)
                    counted.processes += 1
            elif kind == _EXEC and numbers[1] in family:
                counted.programs += 1
        return counted

    def _ask(self, operation: int) -> None:
        body = struct.pack("=IIIIHHI", _GROUP, _ID, 0, 0, 4, 0, operation)
        self._socket.send(struct.pack("=IHHII", 16 + len(body), 3, 0, 0, os.getpid()) + body)


def _events(datagrams: Iterable[bytes]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Give (kind, numbers): of a fork parent thread and process, child thread and process."""
    for data in datagrams:
        if len(data) < _BODY + 8:
            continue
        (kind,) = struct.unpack_from("=I", data, _HEADERS)
        if kind == _FORK and len(data) >= _BODY + 16:
            yield kind, struct.unpack_from("=4I", data, _BODY)
        elif kind == _EXEC:
            yield kind, struct.unpack_from("=2I", data, _BODY)


def of_namespace(pid: int) -> list[int]:
    """List the processes in the mount namespace of a process, itself with them."""
    wanted = Path(f"/proc/{pid}/ns/mnt").stat().st_ino
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended since, or a kernel thread
            if (entry / "ns/mnt").stat().st_ino == wanted:
                found.append(int(entry.name))
    return found
