# SPDX-License-Identifier: Apache-2.0
"""systemd's watchdog (sd_watchdog_enabled(3)): it hears from us while the daemon does its work.

The pings come from the event loop, so none comes while that is blocked. None comes either while a
decision is stuck, or while the daemon is not registered and does not try. systemd then ends and
starts the process; containers keep what they have.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping

from nri_nvidia.daemon import notify
from nri_nvidia.reasons import Reason

logger = logging.getLogger(__name__)

_SHARE = 3
"""Pings within the manager's limit: two may come late on a busy machine."""


def interval(environ: Mapping[str, str]) -> float | None:
    """Give the seconds between pings, None where nobody waits for this process's."""
    limit, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (limit.isascii() and limit.isdigit()) or not int(limit):
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(limit) / 1_000_000 / _SHARE


async def keep(
    pause: float | None,
    wrong: Callable[[], tuple[Reason, ...]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Send a ping each `pause` seconds while nothing is wrong; for ever, as a task."""
    if pause is None:
        return
    said = False
    while True:
        reasons = wrong()
        if reasons and not said:
            logger.error("systemd's watchdog is not told that all is well: %s", reasons[0].message)
        said = bool(reasons)
        if not reasons:
            notify.notify("WATCHDOG=1")
        await sleep(pause)
