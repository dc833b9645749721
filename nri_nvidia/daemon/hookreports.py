# SPDX-License-Identifier: Apache-2.0
"""What hooks report of themselves: a datagram socket that anyone may write to.

A hook may run as any uid of any user namespace, so the socket is open to all and a report counts
only with the one-time token that its container's hook was given.
"""

import asyncio
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable

import attrs

from nri_nvidia import errors
from nri_nvidia.daemon import statedir

logger = logging.getLogger(__name__)

_MAX_REPORT = 8192
_MAX_PENDING = 4096


@attrs.frozen(kw_only=True)
class Report:
    """The result of one container's hook.

    `failures` holds a sentence for each failed step, `notes` what other steps have to say.
    """

    container_id: str
    ok: bool
    failures: tuple[str, ...]
    duration_ms: float
    notes: tuple[str, ...] = ()


class Receiver:
    """Gives out tokens and hands on the reports that come with one."""

    def __init__(self) -> None:
        self.path = ""
        self.on_report: Callable[[Report], None] = lambda _: None
        self._pending: dict[str, str] = {}
        self._socket: socket.socket | None = None

    def token(self, container_id: str) -> str:
        """Make the token for one container's hook; empty while nobody listens."""
        if self._socket is None:
            return ""
        token = secrets.token_hex(16)
        self._pending[token] = container_id
        if len(self._pending) > _MAX_PENDING:
            self._pending.pop(next(iter(self._pending)))
        return token

    def forget(self, container_id: str) -> None:
        """Let a container's token count no more."""
        for token in [t for t, owner in self._pending.items() if owner == container_id]:
            del self._pending[token]

    def open(self, path: str) -> None:
        """Start to listen on the running event loop; raises HostError."""
        self.path = path
        statedir.free(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            listener.setblocking(False)
            listener.bind(self.path)
            os.chmod(self.path, 0o222)  # noqa: S103, PTH101 - hooks of any uid write here; bind() takes no mode
        except OSError as error:
            listener.close()
            raise statedir.unusable(path, error) from error
        self._socket = listener
        asyncio.get_running_loop().add_reader(listener, self._receive)

    def close(self) -> None:
        """Stop to listen and remove the socket."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            statedir.remove(self.path)

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_MAX_REPORT)
        except OSError:
            return
        report = self._read(data)
        if report is None:
            logger.debug("a hook report without a valid token was dropped")
        else:
            self.on_report(report)

    def _read(self, data: bytes) -> Report | None:
        try:
            document = json.loads(data)
            token = document["token"]
            steps = [
                (step["ok"], errors.printable(f"{step['name']}: {step['message']}"))
                for step in document.get("steps", ())
                if step["message"] or not step["ok"]
            ]
            duration = float(document.get("duration_ms", 0))
            ok = document["ok"] is True
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
            return None
        if not isinstance(token, str) or token not in self._pending:
            return None
        return Report(
            container_id=self._pending.pop(token),
            ok=ok,
            failures=tuple(text for done, text in steps if not done),
            notes=tuple(text for done, text in steps if done),
            duration_ms=duration,
        )
