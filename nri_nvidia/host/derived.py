# SPDX-License-Identifier: Apache-2.0
"""What follows from an Inventory, worked out once for as long as that Inventory is in use."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from .model import Inventory

T = TypeVar("T")
_MOST = 256
"""Results kept of one Inventory; what is asked with are capabilities and GPUs, of which a node's
containers have a few sets."""

_results: dict[int, tuple[weakref.ref[Inventory], dict[object, Any]]] = {}


def kept(function: Callable[..., T]) -> Callable[..., T]:
    """Keep the results of a pure function of an Inventory and further values that can be keys.

    It is the object that counts: to compare two Inventories takes as long as to decide. Those
    values must be the host's or the operator's own and nothing that a container wrote, which may
    be long. Results must not refer to the Inventory. What is raised is not kept.
    """

    @functools.wraps(function)
    def found(inventory: Inventory, *values: object) -> T:
        results = _of(inventory)
        key = (function, *values)
        try:
            result: T = results[key]
        except KeyError:
            result = function(inventory, *values)
            if len(results) >= _MOST:
                results.clear()
            results[key] = result
        return result

    return found


def _of(inventory: Inventory) -> dict[object, Any]:
    number = id(inventory)
    known = _results.get(number)
    if known is None or known[0]() is not inventory:
        known = weakref.ref(inventory, lambda _: _results.pop(number, None)), {}
        _results[number] = known
    return known[1]
