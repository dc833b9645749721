# SPDX-License-Identifier: Apache-2.0
"""What systemd is told of a daemon that no runtime takes in."""

import contextlib
import socket

import pytest

from nri_nvidia import errors
from nri_nvidia.daemon import connection, notify


@pytest.mark.parametrize(
    ("wanted", "registrations", "told"),
    [
        (True, 0, [b"READY=1\nSTATUS=not registered with a runtime: no socket"]),
        (True, 1, []),
        (False, 0, []),
    ],
)
async def test_who_waits_for_us_is_not_kept_waiting(
    tmp_path, monkeypatch, wanted, registrations, told
):
    """READY comes after a while without a runtime, with why; else it has been said already."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        to = connection.Connection(wanted=wanted, registrations=registrations)
        to.trouble = errors.HostError("no socket", hint="make one", code="x")
        heard = []

        async def sleep(seconds):
            assert seconds == notify.PATIENCE
            with pytest.raises(BlockingIOError):
                manager.recv(256)

        await notify.ready_at_last(to, sleep=sleep)
        with contextlib.suppress(BlockingIOError):
            heard.append(manager.recv(256))
    assert heard == told
