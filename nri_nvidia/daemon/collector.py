# SPDX-License-Identifier: Apache-2.0
"""Python's search for garbage, which stands still while the daemon starts."""

import gc


def resume(_: object = None) -> None:
    """Have garbage looked for from now on, and not in what is there: it stays, and is much.

    To look through all of it again and again would hold up answers for long.
    """
    gc.freeze()
    gc.enable()
