# SPDX-License-Identifier: Apache-2.0
"""One nri-nvidia for one runtime: two would both change a container, which fails its creation.

The place is a file beside the runtime's socket, locked for as long as the process lives. All
copies reach the same one, whatever their own directories: one of systemd, one in a pod (which
mounts the socket's directory), one by hand. The kernel lets it go however the process ends.
"""

import contextlib
import fcntl
import os

from nri_nvidia import errors
from nri_nvidia.nri import session

_SUFFIX = ".nri-nvidia"
_LONGEST = 512


def place(socket: str) -> str:
    """Give the lock's file for a runtime's socket."""
    return f"{socket}{_SUFFIX}"


def remove(socket: str) -> bool:
    """Remove the lock's file where nobody has it; whether none is there now."""
    path = place(socket)
    try:
        held = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return not os.path.lexists(path)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)  # noqa: PTH108 - a name, not a Path
    except OSError:
        return False
    finally:
        os.close(held)
    return True


class Standing:
    """The lock for one runtime's socket. `take` and `close` block for as long as the disk does."""

    def __init__(self, path: str, who: str) -> None:
        self._path = place(path)
        self._socket = path
        self._who = who
        self._held: int | None = None

    def take(self) -> None:
        """Have the place, or have it still; raises StandsBy where another process has it.

        Where no file can be made there (the directory is missing or read-only) nothing is known
        of others, and nothing is raised: what they did to a container shows in its request.
        """
        if self._held is not None and self._is_there(self._held):
            return
        self.close()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            held = os.open(self._path, flags, 0o600)
        except OSError:
            return
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(held, 0)
            os.pwrite(held, self._who.encode()[:_LONGEST], 0)
        except BlockingIOError:
            other = self._other(held)
            os.close(held)
            raise session.StandsBy(
                f"another nri-nvidia serves {self._socket}: {other}",
                hint="this one takes over when that one ends; stop one of the two",
            ) from None
        except OSError:
            pass  # a full disk: what counts is the lock
        if not self._is_there(held):
            # It was removed between the two steps: others will make another one, and have that.
            os.close(held)
            self.take()
            return
        self._held = held

    def close(self) -> None:
        """Leave the place to others. The file stays: to remove it would let two have it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _is_there(self, held: int) -> bool:
        """Tell whether it is still the file that others find: a cleaner may have removed it."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(held), os.lstat(self._path))
        return False

    def _other(self, held: int) -> str:
        with contextlib.suppress(OSError):
            return errors.printable(os.pread(held, _LONGEST, 0).decode("utf-8", "replace"), 200)
        return "it does not say which"
