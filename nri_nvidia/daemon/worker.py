# SPDX-License-Identifier: Apache-2.0
"""A thread for what may block, which neither the event loop nor the end of the process waits for.

An executor's threads are joined when the interpreter ends: with one of them held by a file system
that does not answer, SIGTERM would not end the daemon.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class Worker:
    """Runs calls one after the other in one thread, which is started with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Give the future result of a call; raises RuntimeError where no thread can be had."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((call, future, loop))
        return future

    def close(self) -> None:
        """Let the thread end after its present call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future, loop = item
            result: Any = None
            failure: Exception | None = None
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
                failure = error
            # The loop may have ended meanwhile, and with it whoever asked.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, result, failure)
            del item, call, future, loop, result, failure


def _settle(future: "asyncio.Future[Any]", result: Any, failure: Exception | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
        future.exception()  # it is not a defect when nobody waits any more
