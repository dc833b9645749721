# SPDX-License-Identifier: Apache-2.0
"""Python's search for garbage: none while the daemon starts, and then not in what stays."""

import subprocess
import sys

PROGRAM = """
import gc, sys
from nri_nvidia import cli
from nri_nvidia.cli import run
from nri_nvidia.daemon import collector
run.main = lambda options: print(gc.isenabled(), gc.get_freeze_count() > 0) or 0
cli.main(["run"])
collector.resume()
print(gc.isenabled(), gc.get_freeze_count() > 10_000)
"""


def test_it_stands_still_during_the_start():
    """Imports leave no garbage; what they made is not looked through once the daemon serves."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:2] == ["False False", "True True"]
