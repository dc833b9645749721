# SPDX-License-Identifier: Apache-2.0
"""The daemon's directory: one process has it, and the sockets in it are its own."""

import contextlib
import fcntl
import os
import pathlib
import socket
import stat

from nri_nvidia import errors


class TakenError(errors.HostError):
    """Raised when another daemon has the directory or listens at the socket."""

    code = "already-running"


def claim(directory: pathlib.Path) -> int:
    """Make the directory if need be and take it; gives the descriptor that holds it.

    The kernel lets it go when the process ends, however that ends. Raises TakenError when another
    process has it, HostError when it cannot be used.
    """
    try:
        missing = [each for each in (directory, *directory.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            each.chmod(0o755)  # hooks of any user report here, whatever this process's umask is
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unusable(str(directory), error) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise TakenError(
            f"{directory}: another nri-nvidia is running on this node",
            hint="nri-nvidia status shows it; two would get into each other's way",
        ) from None
    except OSError as error:
        os.close(held)
        raise unusable(str(directory), error) from error
    return held


def free(path: str) -> None:
    """Make room for a socket: remove what a daemon left that is gone.

    Raises TakenError where somebody listens, HostError where something else than a socket stands.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise unusable(path, error) from error
    if not stat.S_ISSOCK(mode):
        raise errors.HostError(
            f"{path} is there and is not a socket",
            hint="move it away, or name another place: control.socket",
            code="no-state-directory",
        )
    if _answers(path):
        raise TakenError(
            f"{path}: another program listens there", hint="name another place: control.socket"
        )
    remove(path)


def remove(path: str) -> None:
    """Remove a socket's file, if it is there and can be removed."""
    with contextlib.suppress(OSError):
        pathlib.Path(path).unlink()


def unusable(path: str, error: OSError) -> errors.HostError:
    """Give the error of a path that cannot be used."""
    return errors.HostError(
        f"{path}: {error.strerror or error}",
        hint="the daemon runs as root and keeps its sockets there: control.socket",
        code="no-state-directory",
    )


def _answers(path: str) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC) as caller:
            caller.setblocking(False)
            try:
                caller.connect(path)
            except BlockingIOError:
                return True  # it has more callers than it takes
            except OSError:
                continue
            return True
    return False
