# SPDX-License-Identifier: Apache-2.0
"""Says why a container is not created, as low-level runtimes do.

This is a part of the script that `install` puts together; what `client` says of imports holds here
too.
"""

from __future__ import annotations

import _json
import posix
import time


def complain(arguments: list[str], told: str) -> None:
    """Say why where engines look: in the log that they named, and on standard error."""
    given = {"log": "", "log-format": ""}
    for place, word in enumerate(arguments):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name in given and not given[name]:
            given[name] = value if equals else "".join(arguments[place + 1 : place + 2])
    quoted = _json.encode_basestring_ascii(f"nri-nvidia: {told}")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f'time="{now}" level=error msg={quoted}\n'
    if given["log-format"] == "json":
        line = f'{{"level":"error","msg":{quoted},"time":"{now}"}}\n'
    if given["log"]:
        appending = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC
        try:
            posix.write(posix.open(given["log"], appending, 0o644), line.encode())
        except OSError as error:
            told += f" (and {given['log']} cannot be written: {error.strerror})"
        line = f"nri-nvidia: {''.join(c if c.isprintable() else '?' for c in told)}\n"
    posix.write(2, line.encode("utf-8", "backslashreplace"))
