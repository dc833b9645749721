# SPDX-License-Identifier: Apache-2.0
"""Python's search for garbage, which `run` keeps to what is new while the daemon starts."""

import gc

_usual = gc.get_threshold()
"""Python's own thresholds: each release has others."""


def hold() -> None:
    """Have nothing looked through but what is new: imports make much that stays."""
    gc.set_threshold(10_000, 1, 100_000)


def resume(_: object = None) -> None:
    """Have garbage looked for as usual from now on, but not in what is there: it stays.

    To look through all of it again and again would hold up answers for long.
    """
    gc.freeze()
    gc.set_threshold(*_usual)
