# SPDX-License-Identifier: Apache-2.0
"""Runs the process that asks NVML, with a time limit, and never trusts what comes back."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time

import attrs

from nri_nvidia.errors import HostError

from . import report as nvml_report
from .options import Options

# After SIGKILL a process ends at once, unless a call into the driver holds it in the kernel.
_KILL_GRACE = 1.0


@attrs.frozen(kw_only=True)
class Answer:
    """NVML's report, or None and the reason as a sentence."""

    report: nvml_report.Report | None = None
    reason: str = ""


def query(options: Options, library: str) -> Answer:
    """Ask NVML through the given libnvidia-ml; blocks for at most the time limit and a second.

    A process that hangs, crashes, fails, says too much or talks nonsense is an answer with a
    reason; nothing is raised for them.
    """
    arguments = [sys.executable, "-P", "-m", "nri_nvidia.host.nvml", "--library", library]
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that its process group can be killed as a whole
            env={**os.environ, **dict(options.nvml_environment)},
        )
    except OSError as error:
        return Answer(reason=f"the NVML process cannot be started: {error.strerror}")
    deadline = time.monotonic() + options.nvml_timeout
    try:
        stopped, output, errors = _collect(process, deadline)
        stopped = stopped or _wait(process, deadline)
    except OSError as error:
        _kill(process)
        return Answer(reason=f"the NVML process cannot be listened to: {error.strerror}")
    except BaseException:
        _kill(process)
        raise
    if stopped:
        _kill(process)
        return Answer(reason=stopped.format(seconds=f"{options.nvml_timeout:g}"))
    return _judge(process.returncode, output, errors)


_TOO_LATE = "NVML did not answer within {seconds} s"
_TOO_MUCH = "the NVML process printed too much"


def _collect(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, bytes, bytes]:
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
                stopped = _TOO_LATE
            for key, _events in ready:
                chunk = os.read(key.fd, 1 << 16)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(key.data) > nvml_report.LIMIT:
                    stopped = _TOO_MUCH
    return stopped, bytes(output), bytes(errors)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> str:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return _TOO_LATE
    return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_KILL_GRACE)
    except subprocess.TimeoutExpired:
        # Held inside the driver: it dies when the driver lets go, and must not stay a zombie.
        threading.Thread(target=process.wait, name="nvml-reaper", daemon=True).start()


def _judge(status: int, output: bytes, errors: bytes) -> Answer:
    if status < 0:
        return Answer(reason=f"the NVML process died of {_signal(-status)}")
    if status > 0:
        said = errors.decode("utf-8", "replace").strip().splitlines()
        detail = said[-1][:200] if said else f"exit status {status}"
        return Answer(reason=f"the NVML process failed: {detail}")
    try:
        return Answer(report=nvml_report.parse(output))
    except HostError as error:
        return Answer(reason=error.message)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
