# SPDX-License-Identifier: Apache-2.0
"""Columns, sizes and JSON as all verbs print them."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from nri_nvidia import errors

_LONGEST_LINE = 20_000


def print_json(document: Any) -> None:
    """Print a JSON document, two spaces deep; in ASCII, whatever the locale and the names are."""
    print(json.dumps(document, indent=2))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, with what would steer a terminal made visible."""
    for line in lines:
        print(errors.printable(line, _LONGEST_LINE))


def plain(document: Any) -> Any:
    """Give a JSON document with what would steer a terminal made visible in its texts."""
    match document:
        case str():
            return errors.printable(document, _LONGEST_LINE)
        case dict():
            return {key: plain(value) for key, value in document.items()}
        case list():
            return [plain(item) for item in document]
        case _:
            return document


def columns(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Give rows as lines with aligned columns, two spaces apart."""
    table = [[str(cell) for cell in row] for row in rows]
    if not table:
        return []
    longest = max(map(len, table))
    widths = [max(len(row[i]) for row in table if i < len(row)) for i in range(longest)]
    return [
        (indent + "  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row))).rstrip()
        for row in table
    ]


def size(count: int) -> str:
    """Give bytes as a person reads them, e.g. `79.6 GiB`; empty for 0 (not known)."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}" if count else ""
        value /= 1024
    return f"{value:.4g} TiB"


def paint(text: str, code: str) -> str:
    """Colour a text on a terminal that wants colour (https://no-color.org)."""
    if not code or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{code}m{text}\033[0m"


def ago(seconds: float) -> str:
    """Give a length of time as a person says it, e.g. `3 min`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
