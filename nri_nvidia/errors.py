# SPDX-License-Identifier: Apache-2.0
"""The root error and its families, one for each party who has to act."""


class Error(Exception):
    """Raised when something is wrong that a person can act on.

    `message` is one sentence that names what was asked and what exists, `hint` one that says what
    to do, `code` a stable kebab-case name for programs, logs and metrics.
    """

    code = "error"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code:
            self.code = code

    def __str__(self) -> str:
        """Give the sentence with its hint in brackets, as it goes to the runtime."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class RequestError(Error):
    """Raised when a container asks for something malformed or that is not there."""

    code = "bad-request"


class PolicyError(Error):
    """Raised when the operator's rules refuse a request."""

    code = "refused-by-policy"


class HostError(Error):
    """Raised when the driver or the host cannot give what was rightly asked."""

    code = "host-not-ready"


class ConfigError(Error):
    """Raised when a configuration file or option cannot be used as it is."""

    code = "bad-configuration"


def cut(text: str, limit: int) -> str:
    """Give a text, a longer one cut after `limit` characters with a word of its length."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def printable(text: str, limit: int = 2000) -> str:
    r"""Give a text as one line that cannot steer a terminal, cut after `limit` characters.

    What people and images put into names and variables ends up in logs and on terminals: a line
    break would begin a log line of their own, an escape sequence would be obeyed. Such characters
    are written as Python writes them, `\n` or `\x1b`.
    """
    shown = text[: limit + 1]
    if not shown.isprintable():
        shown = "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown
        )
    return shown if len(shown) <= limit else f"{shown[:limit]}... ({len(text)} characters)"
