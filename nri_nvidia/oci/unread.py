# SPDX-License-Identifier: Apache-2.0
"""What a caller is told on standard input, read without being taken away.

A container's state can be read from its pipe once. The process that reads it for a caller may be
killed, with the daemon or for want of memory; the caller then starts Python, which is to find it.

This is a part of the script that `install` puts together; what `warm` says of imports holds here
too.
"""

from __future__ import annotations

import posix
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SET_PIPE_SIZE, NOT_BLOCKING = 1031, 2  # fcntl(2), splice(2)
MOST = 1 << 20  # bytes of a state, as the hook has it
PATIENCE = 5000  # milliseconds until a state is not waited for whole: it may be longer than that


def copied(state: int, call: Callable[..., int]) -> int:
    """Give a file to read what an open pipe holds, which then still holds it.

    Waits until nobody writes to it any more. Gives the open file itself where there is no copy: it
    is no pipe, or not whole in time. `call` calls a function of libc.
    """
    reading, writing = posix.pipe()
    ended = select.poll()
    ended.register(state, 0)  # its end is told unasked
    try:
        for pipe in (state, writing):
            call("fcntl", pipe, SET_PIPE_SIZE, MOST)
        whole = bool(ended.poll(PATIENCE))
        if whole:
            call("tee", state, writing, MOST, NOT_BLOCKING)
    except OSError:
        whole = False
    posix.close(writing)
    return reading if whole else state
