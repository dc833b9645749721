# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for metrics and health: GET alone, one answer a connection.

Whoever can reach it may ask, so all that a caller can do is bounded: the length of the question,
the time for it, and how many are served at once.
"""

import asyncio
import contextlib
import http
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

import attrs

from nri_nvidia import errors
from nri_nvidia.daemon import statedir

logger = logging.getLogger(__name__)

_HEAD = 8192
_LIMIT = 10.0
_MOST = 64
_MOST_CONNECTED = 2 * _MOST


@attrs.frozen(kw_only=True)
class Answer:
    """A status of HTTP, and a body."""

    status: http.HTTPStatus = http.HTTPStatus.OK
    body: bytes = b""
    type: str = "text/plain; charset=utf-8"


Route = Callable[[], Awaitable[Answer]]


class Web:
    """Serves routes by path, on one TCP address or unix socket."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._path = ""
        self._serving = 0

    async def open(self, listen: str) -> None:
        """Listen at `HOST:PORT` or `unix:PATH`; raises HostError where that cannot be."""
        try:
            if listen.startswith("unix:"):
                self._path = listen.removeprefix("unix:")
                statedir.free(self._path)
                self._server = await asyncio.start_unix_server(
                    self._serve, path=self._path, limit=_HEAD
                )
            else:
                self._server = await asyncio.start_server(
                    self._serve, sock=_bound(listen), limit=_HEAD
                )
        except OSError as error:
            raise errors.HostError(
                f"metrics and health cannot be asked at {listen}: {error.strerror or error}",
                hint="name another place: metrics.listen",
                code="metrics-not-served",
            ) from error

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None
            if self._path:
                statedir.remove(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving += 1
        try:
            if self._serving > _MOST_CONNECTED:
                # Callers that say nothing would hold all descriptors of this process.
                return
            async with asyncio.timeout(_LIMIT):
                head, answer = await self._answered(reader)
                writer.write(_encoded(answer, with_body=head))
                await writer.drain()
        except (OSError, TimeoutError, EOFError):
            logger.debug("a caller of metrics or health left before its answer")
        except Exception:
            logger.exception("metrics or health could not be told")
        finally:
            self._serving -= 1
            with contextlib.suppress(OSError):
                writer.close()

    async def _answered(self, reader: asyncio.StreamReader) -> tuple[bool, Answer]:
        """Give whether a body is wanted, and the answer."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return True, Answer(status=http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if self._serving > _MOST:
            return True, Answer(status=http.HTTPStatus.SERVICE_UNAVAILABLE, body=b"busy\n")
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return True, Answer(status=http.HTTPStatus.BAD_REQUEST)
        method, target, _ = parts
        if method not in {b"GET", b"HEAD"}:
            return True, Answer(status=http.HTTPStatus.METHOD_NOT_ALLOWED)
        route = self._routes.get(target.partition(b"?")[0].decode("ascii", "replace"))
        if route is None:
            known = "".join(f"{path}\n" for path in self._routes)
            return method == b"GET", Answer(
                status=http.HTTPStatus.NOT_FOUND, body=f"there are:\n{known}".encode()
            )
        return method == b"GET", await route()


def _encoded(answer: Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + (answer.body if with_body else b"")


def _bound(listen: str) -> socket.socket:
    """Give a socket bound to an address as the configuration has it (`config.model.Metrics`)."""
    name, _, port = listen.rpartition(":")
    host = name.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
    except OSError:
        listener.close()
        raise
    return listener
