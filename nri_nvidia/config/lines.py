# SPDX-License-Identifier: Apache-2.0
"""Where in a TOML text a key stands. tomllib keeps no positions, so prefixes are parsed again."""

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(text: str, path: Sequence[str]) -> int:
    """Give the line (from 1) on which a key starts; that of its table if it is not found.

    The longest prefix of whole lines that is valid TOML and does not hold the key ends just before
    it: a key of several lines makes the prefixes within it invalid.
    """
    lines = text.splitlines()
    if not path:
        return 1
    last_without = 0
    for count in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("\n".join(lines[:count]) + "\n")
        except tomllib.TOMLDecodeError:
            continue
        if _holds(document, path):
            return last_without + 1
        last_without = count
    return line_of(text, path[:-1])


def _holds(document: Any, path: Sequence[str]) -> bool:
    for key in path:
        if isinstance(document, dict):
            if key not in document:
                return False
            document = document[key]
        elif isinstance(document, list) and key.isdigit():
            if int(key) >= len(document):
                return False
            document = document[int(key)]
        else:
            return False
    return True
