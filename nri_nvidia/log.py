# SPDX-License-Identifier: Apache-2.0
"""How log lines look (for journald, for a terminal, as JSON), and how they are written.

Lines are written in a thread: whoever reads them may stop reading, and a write that blocks would
stop the event loop with it.
"""

import contextlib
import json
import logging
import logging.handlers
import os
import pathlib
import queue
import threading
import time

from nri_nvidia import errors

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}
_SYSLOG = "/dev/log"
_HELD = 10_000
_STDERR = 2


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00 info: sentence`; under systemd `<6>sentence`, whose clock suffices.

    A sentence stays one line, whatever names and values it quotes; a traceback is indented.
    """

    def __init__(self, *, journald: bool) -> None:
        super().__init__()
        self._journald = journald

    def format(self, record: logging.LogRecord) -> str:
        text = errors.printable(record.getMessage(), 8000)
        if record.exc_info:
            trace = self.formatException(record.exc_info).split("\n")
            text = "\n".join([text, *(f"  {errors.printable(line)}" for line in trace)])
        if self._journald:
            priority = _PRIORITIES.get(record.levelno, 6)
            # sd-daemon(3): the prefix holds for one line.
            return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        return f"{stamp} {record.levelname.lower()}: {text}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (Unix seconds), level, message and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


class _Stderr(logging.Handler):
    """Writes to the descriptor itself: Python's stream has a lock, for which its end waits."""

    def emit(self, record: logging.LogRecord) -> None:
        data = f"{self.format(record)}\n".encode(errors="backslashreplace")
        while data:
            data = data[os.write(_STDERR, data) :]


class Background(logging.Handler):
    """Hands records to another handler in a thread, which no end of the process waits for.

    Holds a limited number of records; those beyond it are dropped and counted.
    """

    def __init__(self, target: logging.Handler) -> None:
        super().__init__()
        self.target = target
        self._records: queue.Queue[logging.LogRecord | threading.Event] = queue.Queue(_HELD)
        self._dropped = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record and return at once."""
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def settle(self, limit: float) -> bool:
        """Wait until what was said is written, up to `limit` seconds; tell whether it is."""
        written = threading.Event()
        try:
            self._records.put(written, timeout=limit)
        except queue.Full:
            return False
        return written.wait(limit)

    def _write(self) -> None:
        while True:
            item = self._records.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            # emit() and not handle(): its lock would be held while a write blocks.
            with contextlib.suppress(Exception):
                self.target.emit(item)
            dropped, self._dropped = self._dropped, 0
            if dropped:
                lost = f"{dropped} log lines were dropped: the log was not read fast enough"
                record = logging.LogRecord(__name__, logging.WARNING, "", 0, lost, (), None)
                with contextlib.suppress(Exception):
                    self.target.emit(record)


def set_up(level: str, form: str) -> None:
    """Send all log lines to standard error, or to syslog where that leads nowhere.

    A runtime that starts its plugins gives them /dev/null for standard error.
    """
    target: logging.Handler = _Stderr()
    if _leads_nowhere() and pathlib.Path(_SYSLOG).exists():
        with contextlib.suppress(OSError):
            syslog = logging.handlers.SysLogHandler(
                _SYSLOG, logging.handlers.SysLogHandler.LOG_DAEMON
            )
            syslog.ident = "nri-nvidia: "
            target = syslog
    journald = bool(os.environ.get("JOURNAL_STREAM"))
    target.setFormatter(JsonFormatter() if form == "json" else TextFormatter(journald=journald))
    root = logging.getLogger()
    running = _background()
    if running:
        running.target = target
    else:
        root.handlers[:] = [Background(target)]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "grpclib", "hpack"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def settle(limit: float) -> None:
    """Wait until all lines are written, up to `limit` seconds."""
    running = _background()
    if running:
        running.settle(limit)


def _background() -> Background | None:
    found = (h for h in logging.getLogger().handlers if isinstance(h, Background))
    return next(found, None)


def _leads_nowhere() -> bool:
    try:
        found = os.fstat(_STDERR)
    except OSError:
        return True
    return found.st_rdev == pathlib.Path(os.devnull).stat().st_rdev
