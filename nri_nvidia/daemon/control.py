# SPDX-License-Identifier: Apache-2.0
"""The control socket: gRPC on a unix socket that root alone may connect to."""

import asyncio
import contextlib
import json
import os
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib import server

from nri_nvidia import errors
from nri_nvidia._api.control import v1
from nri_nvidia.daemon import statusview


class Control(v1.ControlBase):
    """Answers questions about the daemon's state."""

    def __init__(self, status: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._status = status

    async def status(self, status_request: v1.StatusRequest) -> v1.StatusResponse:  # noqa: ARG002
        """Give the state as JSON."""
        document = await self._status()
        return v1.StatusResponse(json=json.dumps(document), schema=statusview.SCHEMA)


async def serve(path: str, control: Control) -> server.Server:
    """Listen on a socket; raises HostError when another daemon does so already."""
    if await _answers(path):
        raise errors.HostError(
            f"{path}: another nri-nvidia is running on this node",
            hint="nri-nvidia status shows it; two would get into each other's way",
            code="already-running",
        )
    remove(path)
    listening = server.Server([control])
    # The socket is made by bind(): a umask is the only way to have no moment of wider rights.
    before = os.umask(0o177)
    try:
        await listening.start(path=path)
    finally:
        os.umask(before)
    return listening


def remove(path: str) -> None:
    """Remove the socket's file."""
    pathlib.Path(path).unlink(missing_ok=True)


async def _answers(path: str) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
