# SPDX-License-Identifier: Apache-2.0
"""What systemd is told (sd_notify(3)): one datagram to the socket that it names."""

import logging
import os
import socket

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
