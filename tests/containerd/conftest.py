# SPDX-License-Identifier: Apache-2.0
"""Engines for the tests: one of each version a session, and a fresh one where it must be."""

import contextlib
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
        for part in ("engines", "runtimes", "clients")
        for record in records.get(part, ())
    }


@pytest.fixture(scope="session")
def start(
    programs: dict[str, engines.Program], library: images.Library
) -> Callable[..., engines.Engine]:
    """Return a function that starts an engine by name; the caller stops it."""

    def begin(
        name: str,
        options: settings.Options | None = None,
        prepare: Callable[[engines.Engine], None] = lambda _: None,
    ) -> engines.Engine:
        if name not in programs:
            pytest.fail(f"{name} is not there: {SETUP}")
        runtimes = [programs[each] for each in RUNTIMES if each in programs]
        new = engines.Engine(programs[name], runtimes, library, options=options)
        try:
            prepare(new)
            new.start()
        except BaseException:
            new.stop()
            raise
        return new

    return begin


@pytest.fixture(scope="session")
def running(start: Start) -> Iterator[Callable[[str], engines.Engine]]:
    """Return a function that gives the session's engine of a name, started when first asked for."""
    started: dict[str, engines.Engine] = {}
    with contextlib.ExitStack() as stack:

        def find(name: str) -> engines.Engine:
            if name not in started:
                started[name] = start(name)
                stack.callback(started[name].stop)
            return started[name]

        yield find


@pytest.fixture(params=ENGINES)
def engine(
    request: pytest.FixtureRequest, running: Callable[[str], engines.Engine]
) -> engines.Engine:
    """Each version of containerd, shared by the session's tests: leave it as it was found."""
    found = running(request.param)
    request.node.stash[LOG] = (found, found.log_size())
    return found


@pytest.fixture(params=ENGINES)
def fresh(request: pytest.FixtureRequest, start: Start) -> Iterator[Start]:
    """Return a function that starts an engine of each version for this test alone.

    It takes settings.Options, or nothing, and what is to be done with the engine before it starts.
    """
    with contextlib.ExitStack() as stack:

        def begin(
            options: settings.Options | None = None,
            prepare: Callable[[engines.Engine], None] = lambda _: None,
        ) -> engines.Engine:
            new = start(request.param, options, prepare)
            stack.callback(new.stop)
            request.node.stash[LOG] = (new, 0)
            return new

        yield begin


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
