# SPDX-License-Identifier: Apache-2.0
"""systemd's watchdog hears from a daemon that can do its work, and from no other."""

import asyncio
import os
import socket
import time
import types

import pytest

from nri_nvidia.daemon import connection, readiness, watchdog
from nri_nvidia.reasons import Reason


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.0),
    ],
)
def test_pings_come_well_within_the_limit(environ, seconds):
    """There are three within it; none for another process, nor where nobody listens."""
    assert watchdog.interval(environ) == seconds


async def test_no_ping_while_something_is_wrong(tmp_path, monkeypatch, caplog):
    """It is said once why, and the pings go on when all is well again."""
    stuck = (Reason(code="stuck", message="a decision is stuck"),)
    faults = [(), stuck, stuck, ()]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        heard = []

        async def sleep(seconds):
            assert seconds == 5
            try:
                heard.append(manager.recv(64))
            except BlockingIOError:
                heard.append(b"")
            if not faults:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await watchdog.keep(5, lambda: faults.pop(0), sleep=sleep)
    assert heard == [b"WATCHDOG=1", b"", b"", b"WATCHDOG=1"]
    assert [r.message for r in caplog.records if "stuck" in r.message] == [
        "systemd's watchdog is not told that all is well: a decision is stuck"
    ]


@pytest.mark.parametrize(
    ("ago", "since", "wanted", "deciding", "codes"),
    [
        (10, 0.0, True, 0.0, []),
        (1000, 0.0, True, 0.0, ["connecting-stuck"]),
        (1000, 7.0, True, 0.0, []),
        (1000, 0.0, False, 0.0, []),
        (10, 7.0, True, 3.0, []),
        (10, 7.0, True, 5.0, ["handler-stuck"]),
    ],
)
def test_what_is_wrong(ago, since, wanted, deciding, codes):
    """No attempt to register for long, or a decision that takes twice the runtime's limit.

    A daemon that waits for a runtime, or with NRI switched off, is well.
    """
    tried = time.monotonic() - ago
    state = types.SimpleNamespace(
        connection=connection.Connection(since=since, wanted=wanted, tried=tried),
        longest_decision=deciding,
    )
    assert [reason.code for reason in readiness.hung(state)] == codes


def test_a_daemon_gives_signs_of_life(together):
    """As a process with a service manager's variables it pings again and again."""

    async def body(pair):
        told = []
        while told.count("WATCHDOG=1") < 3:
            told += (await asyncio.to_thread(pair.daemon.told)).split("\n")

    together(body, environment={"WATCHDOG_USEC": "300000"})
