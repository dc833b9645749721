# SPDX-License-Identifier: Apache-2.0
"""Runs a program of the host's with a time limit, and never waits for it beyond that."""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

import attrs

# After SIGKILL a process ends at once, unless a call into the driver holds it in the kernel.
_KILL_GRACE = 1.0
_LATE, _MUCH = "late", "much"


@attrs.frozen(kw_only=True)
class Ended:
    """How a program ended, and what it wrote.

    `status` is as Popen has it, -N for a signal. `late` tells one that was killed at the limit,
    `much` one that wrote too much.
    """

    status: int = 0
    output: bytes = b""
    errors: bytes = b""
    late: bool = False
    much: bool = False

    @property
    def said(self) -> str:
        """The last line of what it complained of, else how it ended."""
        lines = self.errors.decode("utf-8", "replace").strip().splitlines()
        if self.status < 0:
            return f"it died of {signal_name(-self.status)}"
        return lines[-1][:200] if lines else f"exit status {self.status}"


def run(
    arguments: Sequence[str], environment: Mapping[str, str], *, seconds: float, limit: int
) -> Ended:
    """Run a program with nothing to read; `limit` is in bytes, for each of its two outputs.

    Blocks for at most the time and a second. Raises OSError where it cannot be started or
    listened to.
    """
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that its process group can be killed as a whole
        env=environment,
    )
    deadline = time.monotonic() + seconds
    try:
        stopped, output, errors = _collect(process, deadline, limit)
        stopped = stopped or _wait(process, deadline)
    except BaseException:
        _kill(process)
        raise
    if stopped:
        _kill(process)
        return Ended(late=stopped == _LATE, much=stopped == _MUCH, errors=errors)
    return Ended(status=process.returncode, output=output, errors=errors)


def signal_name(number: int) -> str:
    """Give a signal's name, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _collect(
    process: subprocess.Popen[bytes], deadline: float, limit: int
) -> tuple[str, bytes, bytes]:
    """Read both outputs to their end; the first value says why reading was given up."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = bytearray(), bytearray()
    stopped = ""
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
        while selector.get_map() and not stopped:
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                stopped = _LATE
            for key, _events in ready:
                chunk = os.read(key.fd, 1 << 16)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(key.data) > limit:
                    stopped = _MUCH
    return stopped, bytes(output), bytes(errors)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> str:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return _LATE
    return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_KILL_GRACE)
    except subprocess.TimeoutExpired:
        # Held inside the kernel: it dies when the driver lets go, and must not stay a zombie.
        threading.Thread(target=process.wait, name="reaper", daemon=True).start()
