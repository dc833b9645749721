# SPDX-License-Identifier: Apache-2.0
"""File systems that never answer: FUSE with nobody behind it, or with one who does not read."""

import contextlib
import ctypes
import os
import stat
import struct
import threading

DEVICE = "/dev/fuse"
_MNT_FORCE, _MNT_DETACH = 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def unanswering(directory):
    """Mount it; a stat below blocks until the end of the block, where it fails."""
    with mounted(directory):
        yield


@contextlib.contextmanager
def mounted(directory, user="user_id=0,allow_other"):
    """Mount one; gives where the kernel asks."""
    fuse = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={fuse},rootmode=40755,group_id=0,{user}"
        if _LIBC.mount(b"fuse", bytes(directory), b"fuse", 0, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        try:
            yield fuse
        finally:
            _unmount(directory)
    finally:
        os.close(fuse)


def _unmount(directory):
    _LIBC.umount2(bytes(directory), _MNT_FORCE | _MNT_DETACH)


@contextlib.contextmanager
def unreadable(directory):
    """Mount one in which each name is a file that can be opened, and whose reader waits."""
    with mounted(directory) as fuse:
        thread = threading.Thread(target=_answer, args=(fuse,))
        thread.start()
        try:
            yield
        finally:
            _unmount(directory)
            thread.join()


def _answer(fuse):
    """Answer what is not a read, until it is unmounted (linux/fuse.h)."""
    while True:
        try:
            request = os.read(fuse, 1 << 20)
        except OSError:
            return
        _, operation, unique, node = struct.unpack_from("=IIQQ", request)
        told = _TOLD.get(operation, lambda _: b"")(node)
        if operation not in _UNTOLD:
            os.write(fuse, struct.pack("=IiQ", 16 + len(told), 0, unique) + told)


def _status(node):
    kind = stat.S_IFDIR if node == 1 else stat.S_IFREG
    return struct.pack("=6Q10I", node, 64, 1, *[0] * 6, kind | 0o755, 1, 0, 0, 0, 4096, 0)


_LOOKUP, _FORGET, _STATUS, _OPEN, _READ, _INIT, _INTERRUPT = 1, 2, 3, 14, 15, 26, 36
_NO_CACHE = 1  # else one that opens it waits for those that read
_UNTOLD = (_FORGET, _READ, _INTERRUPT)
_TOLD = {
    _INIT: lambda _: struct.pack("=4I2H2I2H8I", 7, 31, 4096, 0, 8, 8, 4096, 1, *[0] * 10),
    _LOOKUP: lambda _: struct.pack("=4Q2I", 2, 0, 60, 60, 0, 0) + _status(2),
    _STATUS: lambda node: struct.pack("=Q2I", 60, 0, 0) + _status(node),
    _OPEN: lambda _: struct.pack("=Q2I", 0, _NO_CACHE, 0),
}
