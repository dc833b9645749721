# SPDX-License-Identifier: Apache-2.0
"""The options that several verbs share: which settings and which host.

Apart from what is made of them (`settings`), since that takes the import of nearly everything.
"""

import argparse
import os

from nri_nvidia.config import place


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add --config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"configuration (default: {place.FILE}, if it is there)",
    )


def add_host(parser: argparse.ArgumentParser) -> None:
    """Add --host."""
    parser.add_argument(
        "--host", metavar="DIR", help="a recorded host (a tree laid out like /), not this one"
    )


def file(path: str | None) -> str | None:
    """Give the file of settings: the one named, else the default one if that is there."""
    if path is None and os.path.exists(place.FILE):  # noqa: PTH110 - pathlib takes longer to import
        return place.FILE
    return path
