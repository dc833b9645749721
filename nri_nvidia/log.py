# SPDX-License-Identifier: Apache-2.0
"""How log lines look: for journald, for a terminal, as JSON."""

import json
import logging
import logging.handlers
import os
import pathlib
import sys
import time

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}
_SYSLOG = "/dev/log"


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00 info: sentence`; under systemd `<6>sentence`, whose clock suffices."""

    def __init__(self, *, journald: bool) -> None:
        super().__init__()
        self._journald = journald

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        if self._journald:
            priority = _PRIORITIES.get(record.levelno, 6)
            # sd-daemon(3): the prefix holds for one line.
            return "\n".join(f"<{priority}>{line}" for line in text.splitlines())
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
        return json.dumps(document, ensure_ascii=False)


def set_up(level: str, form: str) -> None:
    """Send all log lines to standard error, or to syslog where that leads nowhere.

    A runtime that starts its plugins gives them /dev/null for standard error.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if _leads_nowhere() and pathlib.Path(_SYSLOG).exists():
        handler = logging.handlers.SysLogHandler(
            _SYSLOG, logging.handlers.SysLogHandler.LOG_DAEMON
        )
        handler.ident = "nri-nvidia: "
    journald = bool(os.environ.get("JOURNAL_STREAM"))
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(journald=journald))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "grpclib", "hpack"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _leads_nowhere() -> bool:
    try:
        found = os.fstat(2)
    except OSError:
        return True
    return found.st_rdev == pathlib.Path(os.devnull).stat().st_rdev
