# SPDX-License-Identifier: Apache-2.0
"""A thread for what may block, which neither the event loop nor the end of the process waits for.

An executor's threads are joined when the interpreter ends: with one of them held by a file system
that does not answer, SIGTERM would not end the daemon.
"""

import asyncio
import collections
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE = 0.05
"""Seconds after which the calls of a batch that are still to be made get threads of their own."""


class Worker:
    """Runs calls one after the other in one thread, which is started with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Give the future result of a call; raises RuntimeError where no thread can be had."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.fulfil(call, future)
        return future

    def fulfil(self, call: Callable[[], T], future: "asyncio.Future[T]") -> None:
        """Have a call's result in a future; raises RuntimeError where no thread can be had."""
        loop = future.get_loop()

        def make() -> None:
            result, failure = _outcome(call)
            _tell(loop, _settle, future, result, failure)

        self.do(make)

    def do(self, work: Callable[[], None]) -> None:
        """Have work done that raises nothing; raises RuntimeError where no thread can be had."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self._calls.put(work)

    def close(self) -> None:
        """Let the thread end after its present call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
            del work


class Batch:
    """Calls that one thread makes one after the other, told to the event loop all at once.

    Each thread more that wakes and wants Python's lock costs more than what it is to do. But
    nothing waits for long behind a call that hangs: after a moment what has been made is told, and
    what has not been begun is left to the worker that each call comes with.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._left: collections.deque[tuple[Callable[[], Any], asyncio.Future[Any], Worker]]
        self._left = collections.deque()
        self._made: collections.deque[tuple[asyncio.Future[Any], Any, Exception | None]]
        self._made = collections.deque()
        self._late = False
        self._alarm: asyncio.TimerHandle | None = None
        self.done = False

    def add(self, call: Callable[[], T], instead: Worker) -> "asyncio.Future[T]":
        """Give the future result of a further call, before the batch is begun."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._left.append((call, future, instead))
        return future

    def begin(self, thread: Worker) -> None:
        """Have all calls made by a worker that is idle; without a thread they fail."""
        if not self._left:
            self.done = True
            return
        try:
            thread.do(self._make)
        except RuntimeError:
            self._part()
            self.done = True
        else:
            self._alarm = self._loop.call_later(_PATIENCE, self._part)

    def _make(self) -> None:
        """Make the calls, in the thread; the loop may take away those that are left."""
        while True:
            try:
                call, future, _ = self._left.popleft()
            except IndexError:
                break
            result, failure = _outcome(call)
            self._made.append((future, result, failure))
            if self._late:
                _tell(self._loop, self._settle)
        _tell(self._loop, self._end)

    def _part(self) -> None:
        """Tell what there is and have the rest made elsewhere, since a call takes long."""
        self._late = True  # from here on the thread tells each result by itself
        self._settle()
        while self._left:
            call, future, instead = self._left.popleft()
            try:
                instead.fulfil(call, future)
            except RuntimeError as error:
                _settle(future, None, error)

    def _settle(self) -> None:
        while self._made:
            _settle(*self._made.popleft())

    def _end(self) -> None:
        self.done = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._settle()


async def within(limit: float, future: "asyncio.Future[T]") -> T:
    """Await what others wait for, too; raises TimeoutError after `limit` seconds.

    It goes on in any case. `asyncio.wait_for` around a shield does the same in twice the time.
    """
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def wake(_: object = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        alarm = loop.call_later(limit, wake)
        future.add_done_callback(wake)
        try:
            await waiter
        finally:
            alarm.cancel()
            future.remove_done_callback(wake)
        if not future.done():
            raise TimeoutError
    return future.result()


def _outcome(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
        return None, error


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *given: Any) -> None:
    # The loop may have ended meanwhile, and with it whoever asked.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *given)


def _settle(future: "asyncio.Future[Any]", result: Any, failure: Exception | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
        future.exception()  # it is not a defect when nobody waits any more
