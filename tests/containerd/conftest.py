# SPDX-License-Identifier: Apache-2.0
"""Engines for the tests: one of each version a session, and a fresh one where it must be."""

import json
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from . import engine as engines
from . import images, settings

CACHE = Path(__file__).parents[2] / ".cache"
ENGINES = ("containerd-1.7", "containerd-2")
RUNTIMES = ("runc", "runc-1.1.5", "crun")
SETUP = "run contrib/setup"

Start = Callable[..., engines.Engine]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test in this directory the marker."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("containerd")


@pytest.fixture(scope="session")
def library() -> images.Library:
    try:
        return images.load(CACHE)
    except (OSError, KeyError, ValueError) as error:
        return pytest.fail(f"there are no images to run: {SETUP} ({error})")


@pytest.fixture(scope="session")
def programs() -> dict[str, engines.Program]:
    """What contrib/setup unpacked, by name."""
    if os.geteuid() != 0:
        pytest.fail("containers need root: run the tests as root")
    try:
        text = (CACHE / "engines/engines.json").read_text(encoding="utf-8")
        records = json.loads(text)
    except (OSError, ValueError) as error:
        return pytest.fail(f"there is no containerd to test with: {SETUP} ({error})")
    return {
        record["name"]: engines.Program(
            name=record["name"],
            version=record["version"],
            bin=Path(record["bin"]),
            path=Path(record["path"]),
        )
        for record in [*records["engines"], *records["runtimes"]]
    }


@pytest.fixture(scope="session")
def start(
    programs: dict[str, engines.Program], library: images.Library
) -> Callable[..., engines.Engine]:
    """Return a function that starts an engine by name; the caller stops it."""

    def begin(name: str, options: settings.Options | None = None) -> engines.Engine:
        if name not in programs:
            pytest.fail(f"{name} is not there: {SETUP}")
        runtimes = [programs[each] for each in RUNTIMES if each in programs]
        new = engines.Engine(programs[name], runtimes, library, options=options)
        try:
            new.start()
        except BaseException:
            new.stop()
            raise
        return new

    return begin


@pytest.fixture(scope="session")
def running(start: Start) -> Iterator[dict[str, engines.Engine]]:
    """The engines of the session, started when first asked for."""
    started: dict[str, engines.Engine] = {}

    class Lazy(dict[str, engines.Engine]):
        def __missing__(self, name: str) -> engines.Engine:
            started[name] = self[name] = start(name)
            return started[name]

    yield Lazy()
    for each in started.values():
        each.stop()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, running: dict[str, engines.Engine]) -> engines.Engine:
    """Each version of containerd, shared by the session's tests: leave it as it was found."""
    found = running[request.param]
    request.node.stash[LOG] = (found, found.log_size())
    return found


@pytest.fixture(params=ENGINES)
def fresh(request: pytest.FixtureRequest, start: Start) -> Iterator[Start]:
    """Return a function that starts an engine of each version for this test alone.

    It takes settings.Options, or nothing.
    """
    started: list[engines.Engine] = []

    def begin(options: settings.Options | None = None) -> engines.Engine:
        started.append(start(request.param, options))
        request.node.stash[LOG] = (started[-1], 0)
        return started[-1]

    yield begin
    for each in started:
        each.stop()


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, programs: dict[str, engines.Program]) -> str:
    """Each runtime handler's name."""
    name: str = request.param
    if name == "crun" and (reason := crun_cannot()):
        pytest.skip(reason)
    if name not in programs:
        pytest.fail(f"{name} is not there: {SETUP}")
    return name


def crun_cannot() -> str:
    """Return why crun cannot make cgroups here, "" where it can.

    On cgroup v2 alone it asks for the io controller, which some virtual machines' kernels lack.
    """
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    if controllers.exists() and "io" not in controllers.read_text(encoding="utf-8").split():
        return "crun needs cgroup v2's io controller, and this kernel has none"
    return ""


LOG = pytest.StashKey[tuple[engines.Engine, int]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what containerd logged during a test that failed."""
    report = yield
    if report.failed and (used := item.stash.get(LOG, None)):
        found, since = used
        report.sections.append((f"log of {found.name}", found.log_end(since)))
    return report
