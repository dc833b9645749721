# SPDX-License-Identifier: Apache-2.0
"""What many containers are given alike, written once."""

import functools
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
KEPT = 128
"""How many values of a kind are kept as written."""


def known(encode: Callable[[T], bytes]) -> Callable[[T], bytes]:
    """Keep what values were encoded as, found by the object, and only then by what it holds.

    Containers that are given the same are mostly given the same object, which has not to be
    looked through then.
    """
    objects: dict[int, tuple[T, bytes]] = {}  # each value is held, so its number is its own
    kept = functools.lru_cache(maxsize=KEPT)(encode)

    @functools.wraps(encode)
    def encoded(value: T) -> bytes:
        known = objects.get(id(value))
        if known is None:
            if len(objects) >= KEPT:
                objects.clear()
            known = objects[id(value)] = value, kept(value)
        return known[1]

    return encoded
