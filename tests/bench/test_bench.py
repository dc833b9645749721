# SPDX-License-Identifier: Apache-2.0
"""The bench computes what it says, and runs. No test asserts a time."""

import asyncio
import random
import subprocess
import sys

import pytest

from . import __main__ as bench
from . import (
    arms,
    creations,
    document,
    figures,
    forks,
    instrumented,
    limits,
    operator,
    plot,
    processes,
    table,
    world,
    wrapped,
)


def test_quantiles_interpolate():
    """The middle of an even number of samples lies between two, the ends are the ends."""
    assert figures.median([4, 1, 3, 2]) == 2.5
    assert figures.quantile([1, 2, 3, 4, 5], 0) == 1
    assert figures.quantile([1, 2, 3, 4, 5], 1) == 5
    assert figures.quantile([0, 10], 0.95) == pytest.approx(9.5)
    assert figures.summary([7.0]) == figures.Summary(count=1, p10=7, p50=7, p95=7, p99=7, least=7)
    with pytest.raises(ValueError, match="no samples"):
        figures.quantile([], 0.5)


def test_difference_is_that_of_pairs():
    """Noise that a round's samples share falls out; medians of unpaired samples would keep it."""
    drawn = random.Random(3)
    noise = [drawn.uniform(0, 100) for _ in range(50)]
    base = [50 + each for each in noise]
    other = [52 + each + drawn.gauss(0, 0.1) for each in noise]
    found = figures.difference(base, other)
    assert found.value == pytest.approx(2, abs=0.1)
    assert found.low <= found.value <= found.high
    assert found.high - found.low < 0.2


def test_same_arms_differ_by_nothing():
    """The interval of two arms of one distribution holds 0 and 1."""
    drawn = random.Random(5)
    base, other = ([drawn.gauss(60, 5) for _ in range(200)] for _ in range(2))
    difference, ratio = figures.difference(base, other), figures.ratio(base, other)
    assert difference.low < 0 < difference.high
    assert ratio.low < 1 < ratio.high


def test_quiet_difference_is_that_of_the_low_ends():
    """What disturbs most rounds does not show in it."""
    base = [50.0 + number % 10 for number in range(100)]
    other = [each + 3 + (40 if number % 3 else 0) for number, each in enumerate(base)]
    assert figures.quiet(base, other).value < 8 < figures.difference(base, other).value


def test_ratio_of_medians():
    """The ratio is that of the medians; its interval is the same each time."""
    base, other = [10.0, 20.0, 30.0], [20.0, 40.0, 60.0]
    assert figures.ratio(base, other) == figures.Estimate(value=2, low=2, high=2)
    assert figures.difference(base, other) == figures.difference(base, other)


def test_interval_covers_as_often_as_it_says():
    """Over many experiments some 95 of 100 intervals hold the true median."""
    drawn = random.Random(7)

    def holds() -> bool:
        pairs = [drawn.gauss(2, 4) for _ in range(60)]
        estimate = figures.bootstrap(
            60, lambda chosen: figures.median([pairs[n] for n in chosen]), resamples=300
        )
        return estimate.low <= 2 <= estimate.high

    held = sum(holds() for _ in range(100))
    assert held >= 85


def test_samples_of_other_rounds_are_refused():
    """Arms with different numbers of samples have no pairs."""
    with pytest.raises(ValueError, match="is longer"):
        figures.difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="not of the same rounds"):
        figures.ratio([1.0], [1.0, 2.0])


@pytest.fixture
def watch():
    try:
        found = forks.Watch()
    except forks.UnavailableError as error:
        pytest.skip(f"the kernel counts for nobody here: {error}")
    yield found
    found.close()


def test_processes_below_one_are_counted(watch):
    """A shell and what it starts count, its builtins and what others start do not."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", "echo; read line; /bin/true; (:); exec /bin/true"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": "/bin"},
    )  # fmt: skip
    assert shell.stdout is not None
    shell.stdout.readline()  # it has been executed itself
    watch.take()
    subprocess.run(["/bin/true"], check=True)
    shell.communicate(b"\n")
    assert watch.count([shell.pid]) == forks.Count(processes=2, programs=2)


def test_threads_are_no_processes(watch):
    """A process that starts threads started no process."""
    script = "import sys, threading\nsys.stdin.read()\nfor _ in range(3):\n t = threading.Thread(target=print); t.start(); t.join()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    process.communicate(b"")
    assert watch.count([process.pid]).processes == 0


def test_arms_name_what_is_there():
    """Each arm's base is an arm, and each part one that the instrumented daemon knows."""
    headline, parts = [*arms.creations(), *arms.by_ctr()], arms.parts()
    for group in (headline, parts):
        names = {arm.name for arm in group}
        assert len(names) == len(group)
        assert {arm.base for arm in group} <= names | {""}
    assert {arm.engine for arm in headline} == set(arms.engines_for_creations())
    assert {arm.env.get("BENCH_PART", "all") for arm in parts} <= {*instrumented.PARTS}


def test_a_layout_is_one_that_the_settings_know(tmp_path):
    """A daemon can be started with each layout's settings and with its directories moved."""
    from nri_nvidia.config import load

    for settings in world.layouts().values():
        text = settings + world.private_places(tmp_path)
        load.load([load.Text(name="bench", toml=text)])


def test_given_is_counted():
    """A container's mounts, nodes and hooks are counted by what they are for."""
    config = {
        "mounts": [{"destination": "/proc"}, {"destination": "/usr/local/nvidia/lib64/x"}],
        "linux": {"devices": [{"path": "/dev/nvidia0"}, {"path": "/dev/fuse"}]},
        "hooks": {"createContainer": [{}], "prestart": None},
    }
    assert creations.given(config) == creations.Given(mounts=1, nodes=1, hooks=1)
    assert creations.given({}) == creations.Given(mounts=0, nodes=0, hooks=0)


def test_missing_matplotlib_is_said(monkeypatch):
    """Without matplotlib --plot ends before anything is measured, with what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(plot.NoPlotError, match="--group bench"):
        plot.check()


def test_programs_run_and_are_put_back(tmp_path_factory):
    """Each program ends well, twice: the hook finds the root as it was before the first."""
    with world.temporary() as directory:
        (directory / "root").mkdir()
        listed = processes.programs(directory, directory / "root")
        small = {name: each for name, each in listed.items() if "many" not in name}
        times = processes.measure(small, 2)
    assert {len(found) for found in times.values()} == {2}


def test_the_runtime_is_measured_as_it_works(tmp_path_factory):
    """Each call ends well; the container that asks is given its GPUs, the other nothing."""
    with world.temporary() as directory:
        world.make_host(directory / "host")
        with wrapped.programs(directory, directory / "host") as listed:
            times = processes.measure(listed, 2)
            given = (directory / "asking/config.json").read_text()
            plain = (directory / "plain/config.json").read_text()
    assert ("/dev/nvidia7" in given, "nvidia" in plain) == (True, False)
    found = document.of_times(times)
    assert len(limits.verdicts({"runtime": found})) == 4


def test_what_an_operator_waits_for_is_measured():
    """Every command ends well, with containers gone and there, and each has its limit."""
    with world.temporary() as directory:
        world.make_host(directory / "host")
        times = asyncio.run(operator.measure(directory / "host", directory, runs=1, many=9))
    assert {len(found) for found in times.values()} == {1}
    found = document.of_times(times)
    assert len(limits.verdicts({"operator": found})) == len(times) == 9
    assert {each.limit for each in limits.verdicts({"operator": found})} == {20, 50, 200, 300}


@pytest.mark.containerd
@pytest.mark.timeout(300)
def test_two_rounds_on_containerd(monkeypatch):
    """Every arm is measured twice, is given what it is about, and the report has them all."""
    monkeypatch.setattr(creations, "WARM_UP", 1)
    monkeypatch.setattr(creations, "COUNTED", 1)
    with world.temporary() as directory:
        found = bench.on_containerd(
            directory, ["creations", "parts"], pairs=2, engine="containerd-2", runtime="runc"
        )
    headline = [*arms.creations(), *arms.by_ctr()]
    assert [arm["name"] for arm in found["creations"]] == [arm.name for arm in headline]
    assert [arm["name"] for arm in found["parts"]] == [arm.name for arm in arms.parts()]
    for arm in (*found["creations"], *found["parts"]):
        assert arm["whole"]["count"] == 2
        assert arm["base"] == "" or arm["difference"]["low"] <= arm["difference"]["high"]
    found |= {"environment": world.environment(), "load_after": [0.0, 0.0, 0.0]}
    text = table.render(found)
    assert all(f"| {arm.name}" in text for arm in (*headline, *arms.parts()))
    assert limits.verdicts(found)
