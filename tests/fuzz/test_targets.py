# SPDX-License-Identifier: Apache-2.0
"""Whatever comes from outside gives a value or one of the promised errors.

The test command tries the same few examples of each target; `--fuzz-seconds N` searches with new
ones for that long each.
"""

import time

import hypothesis
import pytest

from . import callers, kept, targets

FEW = 60
MANY = 2000
TARGETS = (*targets.TARGETS, *kept.TARGETS, *callers.TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_comes_from_outside(target, request):
    """Each target holds for seeded examples, or for new ones as long as is asked for."""
    seconds = request.config.getoption("--fuzz-seconds")
    quiet = list(hypothesis.HealthCheck)
    few = hypothesis.settings(
        max_examples=MANY if seconds else FEW,
        derandomize=not seconds,
        database=None,
        deadline=None,
        suppress_health_check=quiet,
    )
    run = few(hypothesis.given(target.values)(target.check))
    until = time.monotonic() + seconds
    run()
    while time.monotonic() < until:
        run()
