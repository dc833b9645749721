# SPDX-License-Identifier: Apache-2.0
"""A file system that never answers: FUSE with nobody behind it."""

import contextlib
import ctypes
import os

DEVICE = "/dev/fuse"
_MNT_FORCE, _MNT_DETACH = 1, 2


@contextlib.contextmanager
def unanswering(directory):
    """Mount it; a stat below blocks until the end of the block, where it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={fuse},rootmode=40755,user_id=0,group_id=0,allow_other"
        mounted = libc.mount(b"fuse", bytes(directory), b"fuse", 0, options.encode())
        if mounted != 0:
            raise OSError(ctypes.get_errno(), "mount")
        try:
            yield
        finally:
            libc.umount2(bytes(directory), _MNT_FORCE | _MNT_DETACH)
    finally:
        os.close(fuse)
