# SPDX-License-Identifier: Apache-2.0
"""Where in a TOML text a key stands. tomllib keeps no positions, so prefixes are parsed again."""

import contextlib
import tomllib
from collections.abc import Sequence
from typing import Any


class Lines:
    """The lines of one valid TOML text. What was parsed is kept for the next key."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._parsed: dict[int, Any] = {}

    def of(self, path: Sequence[str]) -> int:
        """Give the line (from 1) on which a key starts; that of its table if it is not found.

        The longest prefix of whole lines that is valid TOML and does not hold the key ends just
        before it: a key of several lines makes the prefixes within it invalid. Longer prefixes
        hold what shorter ones do, so halving finds it.
        """
        if not path:
            return 1
        first, last = 1, len(self._lines) + 1
        while first < last:
            middle = (first + last) // 2
            if _holds(self._document(middle), path):
                last = middle
            else:
                first = middle + 1
        return first if first <= len(self._lines) else self.of(path[:-1])

    def _document(self, count: int) -> Any:
        """Parse that many lines, and as many more as make them valid."""
        start = count
        while count <= len(self._lines) and count not in self._parsed:
            with contextlib.suppress(tomllib.TOMLDecodeError):
                self._parsed[count] = tomllib.loads("\n".join(self._lines[:count]) + "\n")
                break
            count += 1
        document = self._parsed.get(count, {})
        self._parsed.update(dict.fromkeys(range(start, count), document))
        return document


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
