# SPDX-License-Identifier: Apache-2.0
"""Python's search for garbage: of what is new while the daemon starts, then of all but that."""

import subprocess
import sys

PROGRAM = """
import gc
before = gc.get_threshold()
from nri_nvidia import cli
from nri_nvidia.cli import run
from nri_nvidia.daemon import collector
run.main = lambda options: print(gc.get_threshold()[2] > 1000, gc.get_freeze_count() > 0) or 0
cli.main(["run"])
collector.resume()
print(gc.get_threshold() == before, gc.get_freeze_count() > 10_000)
"""


def test_it_stays_away_from_what_is_old():
    """Imports make much that stays, which is looked through neither at the start nor later."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:2] == ["True False", "True True"]
