# SPDX-License-Identifier: Apache-2.0
"""The control socket: gRPC on a unix socket that root alone may connect to."""

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib import server

from nri_nvidia._api.control import v1
from nri_nvidia.daemon import records, statedir, statusview

_GOODBYE = 1.0
"""Seconds that a caller has to take its answer when the daemon ends."""


class Control(v1.ControlBase):
    """Answers questions about the daemon's state."""

    def __init__(
        self,
        status: Callable[[], Awaitable[dict[str, Any]]],
        explain: Callable[[str], Awaitable[dict[str, Any]]],
    ) -> None:
        self._status = status
        self._explain = explain

    async def status(self, status_request: v1.StatusRequest) -> v1.StatusResponse:  # noqa: ARG002
        """Give the state as JSON."""
        document = await self._status()
        return v1.StatusResponse(json=json.dumps(document), schema=statusview.SCHEMA)

    async def explain(self, explain_request: v1.ExplainRequest) -> v1.ExplainResponse:
        """Give the decision over a container as JSON, or the containers that may be meant."""
        document = await self._explain(explain_request.container)
        return v1.ExplainResponse(json=json.dumps(document), schema=records.SCHEMA)


async def serve(path: str, control: Control) -> server.Server:
    """Listen on a socket; raises HostError where that cannot be, TakenError where another does."""
    statedir.free(path)
    listening = server.Server([control])
    # The socket is made by bind(): a umask is the only way to have no moment of wider rights.
    before = os.umask(0o177)
    try:
        await listening.start(path=path)
    except OSError as error:
        raise statedir.unusable(path, error) from error
    finally:
        os.umask(before)
    return listening


async def end(path: str, listening: server.Server) -> None:
    """Listen no more. A caller that stays connected and mute is not waited for."""
    listening.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(listening.wait_closed(), _GOODBYE)
    statedir.remove(path)
