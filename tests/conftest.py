# SPDX-License-Identifier: Apache-2.0
"""Options and rules that hold for every test."""

from pathlib import Path

import hypothesis
import pytest

DRIVER = Path("/dev/nvidiactl")

# The same examples each time, on a machine of any speed; --long looks for new ones.
hypothesis.settings.register_profile(
    "seeded",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("searching", deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="also run the tests that are marked `long`"
    )
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=0.0,
        metavar="N",
        help="search for N seconds with each target of tests/fuzz, by new examples",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the examples before the test modules are read, which derive from these settings."""
    long = config.getoption("--long")
    hypothesis.settings.load_profile("searching" if long else "seeded")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests unless asked for; skip what needs a driver where there is none."""
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]
            config.stash[LEFT_OUT] = len(long)
    if not DRIVER.exists():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA driver ({DRIVER})"))


def pytest_report_collectionfinish(config: pytest.Config) -> str | list[str]:
    """Say how many long tests are left out, and how to run them."""
    count = config.stash.get(LEFT_OUT, 0)
    return f"{count} long tests left out (--long runs them)" if count else []


LEFT_OUT = pytest.StashKey[int]()
