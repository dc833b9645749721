# SPDX-License-Identifier: Apache-2.0
"""Reads a file that a person named: to its end, but never for ever nor without a limit."""

import os
import stat

LIMIT = 16 * 1024 * 1024
BOM = "\ufeff"
"""A byte order mark, as some editors write first: docker (moby `daemon/config`), podman, CRI-O and
containerd 1 take one, containerd 2 refuses it."""
_PIECE = 1 << 16


def text(path: str) -> str:
    """Give the text of a file or pipe; raises OSError, and ValueError for what is no such text.

    A FIFO is read like any file (`<(command)` of a shell is one), but one to which nobody writes
    is refused rather than waited for. More than 16 MiB are a device or a mistake.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.set_blocking(descriptor, True)
        pieces, length = [], 0
        while piece := os.read(descriptor, _PIECE):
            pieces.append(piece)
            length += len(piece)
            if length > LIMIT:
                raise ValueError(f"longer than {LIMIT // (1024 * 1024)} MiB")
        if not pieces and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise ValueError("a pipe to which nobody wrote anything")
    finally:
        os.close(descriptor)
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not text in UTF-8: byte {error.start}") from error
