# SPDX-License-Identifier: Apache-2.0
"""Python's search for garbage, which `run` has kept to what is new while the daemon starts."""

import gc

_USUAL = 700, 10, 10
"""Python's own thresholds."""


def resume(_: object = None) -> None:
    """Have garbage looked for as usual from now on, but not in what is there: it stays.

    To look through all of it again and again would hold up answers for long.
    """
    gc.freeze()
    gc.set_threshold(*_USUAL)
