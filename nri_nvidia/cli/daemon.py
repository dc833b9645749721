# SPDX-License-Identifier: Apache-2.0
"""Asking the running daemon, over its control socket."""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from nri_nvidia import cli
from nri_nvidia.cli import settings

_LIMIT = 10
"""Seconds for an answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which daemon is meant."""
    settings.add_config(parser)
    parser.add_argument("--socket", metavar="PATH", help="the daemon's control socket")


def socket(options: argparse.Namespace) -> str:
    """Give the control socket: the one named, else the configured one."""
    path: str = options.socket or settings.config(options.config).control.socket
    return path


def status(path: str) -> Any:
    """Give the status document; raises NotRunningError."""
    from nri_nvidia._api.control import v1  # noqa: PLC0415

    return _ask(path, lambda stub: stub.status(v1.StatusRequest(), timeout=_LIMIT))


def explain(path: str, container: str) -> Any:
    """Give what the daemon knows of a container; raises NotRunningError."""
    from nri_nvidia._api.control import v1  # noqa: PLC0415

    request = v1.ExplainRequest(container=container)
    return _ask(path, lambda stub: stub.explain(request, timeout=_LIMIT))


def _ask(path: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
    return asyncio.run(_asked(path, call))


async def _asked(path: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
    from grpclib import GRPCError, client, exceptions  # noqa: PLC0415

    from nri_nvidia._api.control import v1  # noqa: PLC0415

    channel = client.Channel(path=path)
    try:
        answer = await call(v1.ControlStub(channel))
        return json.loads(answer.json)
    except (
        GRPCError,
        TimeoutError,
        exceptions.StreamTerminatedError,
        exceptions.ProtocolError,
        ValueError,
    ) as error:
        said = str(error) or f"nothing was said for {_LIMIT} s"
        raise cli.NotRunningError(
            f"{path}: the daemon did not answer: {said}",
            hint="its log says why: journalctl -u nri-nvidia",
        ) from error
    except OSError as error:
        raise cli.NotRunningError(
            f"{path}: no daemon answers: {error.strerror or error}",
            hint="start it: systemctl start nri-nvidia, or nri-nvidia run; root may ask it, and "
            "the members of control.group",
        ) from error
    finally:
        channel.close()
