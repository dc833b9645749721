# SPDX-License-Identifier: Apache-2.0
"""What systemd is told (sd_notify(3)): one datagram to the socket that it names."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable

from nri_nvidia import errors
from nri_nvidia.daemon import connection

PATIENCE = 30.0
"""Seconds after which the daemon counts as started without a runtime, too."""

logger = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send a state such as `READY=1`; nothing happens without a service manager."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("systemd could not be told %r: %s", state, error.strerror or error)


async def ready_at_last(
    to: connection.Connection,
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Say READY after a while even if no runtime has taken us in; once one has, that is said.

    What is ordered behind the unit, as docker, and `systemctl reload` would wait for ever where
    the runtime has no NRI.
    """
    await sleep(PATIENCE)
    if to.wanted and not to.registrations:
        why = errors.printable(to.trouble.message) if to.trouble else "nobody has answered yet"
        notify(f"READY=1\nSTATUS=not registered with a runtime: {why}")
