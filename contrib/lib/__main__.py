# SPDX-License-Identifier: Apache-2.0
"""Fetch and unpack what the tests run: `python contrib/lib [--update] [--long]`, by contrib/setup.

All of it goes below .cache, and what is there already is left alone; --update asks the mirror
for newer versions.
"""

import argparse
import fcntl
import os
import shutil
import sys
from pathlib import Path

import driver
import engines
import images
import machine
from packages import Apt, SetupError

CACHE = Path(__file__).parents[2] / ".cache"


def main() -> int:
    """Provide every piece, a line for each; return the exit status."""
    parser = argparse.ArgumentParser(prog="contrib/setup", description=__doc__)
    parser.add_argument("--update", action="store_true", help="look for newer versions")
    parser.add_argument("--long", action="store_true", help="also what the long tests need")
    options = parser.parse_args()
    update, long = options.update, options.long
    apt = Apt(CACHE / "apt")
    try:
        alone()
        for line in engines.provide(apt, CACHE / "engines", update=update, long=long):
            say(line)
        suite, line = driver.provide(apt, CACHE / "driver", update=update)
        say(line)
        for line in images.provide(apt, CACHE / "images", suite, update=update):
            say(line)
        if line := machine.provide(apt, CACHE / "machine", update=update, long=long):
            say(line)
    except SetupError as error:
        print(f"contrib/setup: {error}", file=sys.stderr)
        return 1
    say(f"packages: {apt.fetched / 1e6:.0f} MB fetched")
    return 0


def alone() -> None:
    """Wait until no other run is at work, then clear what a killed one left half fetched."""
    CACHE.mkdir(exist_ok=True)
    lock = os.open(CACHE / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)  # held until this process ends
    for left in (CACHE / "apt").glob("partial-*"):
        shutil.rmtree(left)


def say(line: str) -> None:
    """Print one step's line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
