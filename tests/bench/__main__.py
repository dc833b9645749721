# SPDX-License-Identifier: Apache-2.0
"""Measures what a GPU container costs: `python -m tests.bench`, as root, after contrib/setup.

Groups: creations (plain, GPU-less and GPU containers on real containerds, through CRI and by ctr,
interleaved), parts
(the same GPU container with pieces switched off), daemon (answers, start, memory, many at once),
decision (its steps), hosts (scan and fingerprint), programs (the hook, Python, ldconfig),
runtime (what nri-nvidia-runtime adds to a call of the real one), operator (status and other
commands, with a thousand containers gone and there).
Times of a busy machine are of that machine; look at ratios and paired differences.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import (
    arms,
    creations,
    document,
    life,
    operator,
    pieces,
    plot,
    processes,
    table,
    world,
    wrapped,
)

GROUPS = ("creations", "parts", "daemon", "decision", "hosts", "programs", "runtime", "operator")


def main() -> int:
    given = _parse()
    try:
        if given.plot:
            plot.check()
        found = measure(given)
    except (world.UnpreparedError, plot.NoPlotError) as error:
        _say(f"error: {error}")
        return 1
    text = table.render(found)
    sys.stdout.write(text)
    if given.markdown:
        given.markdown.write_text(text, encoding="utf-8")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.plot:
        try:
            plot.draw(found, given.plot)
        except plot.NoPlotError as error:
            _say(f"error: {error}")
            return 1
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--pairs", type=int, default=200, help="rounds on containerd (default 200)"
    )
    parser.add_argument("--runs", type=int, default=500, help="runs of a short piece")
    parser.add_argument(
        "--only", action="append", choices=GROUPS, metavar="NAME",
        help=f"a group, may be given again: {', '.join(GROUPS)}",
    )  # fmt: skip
    parser.add_argument("--long", action="store_true", help="memory after 1,000 containers, too")
    parser.add_argument("--engine", default="containerd-2")
    parser.add_argument("--runtime", default="runc")
    for name in ("json", "markdown", "plot"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.pairs < 1 or given.runs < 1:
        parser.error("--pairs and --runs are at least 1")
    return given


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure the groups asked for; gives the document. Needs root, and what contrib/setup makes."""
    chosen = given.only or GROUPS
    found: dict[str, Any] = {"schema": 1, "environment": world.environment()}
    with world.temporary() as directory:
        if {"creations", "parts"} & set(chosen):
            found |= on_containerd(
                directory, chosen, pairs=given.pairs, engine=given.engine, runtime=given.runtime
            )
        steps: Mapping[str, Callable[[Path, argparse.Namespace], Any]] = {
            "daemon": _daemon,
            "decision": _decision,
            "hosts": _hosts,
            "programs": _programs,
            "runtime": _runtime,
            "operator": _operator,
        }
        for name, step in steps.items():
            if name in chosen:
                _say(f"{name} ...")
                place = directory / f"for-{name}"
                place.mkdir()
                found[name] = step(place, given)
    found["load_after"] = list(os.getloadavg())
    return found


def on_containerd(
    directory: Path, chosen: tuple[str, ...] | list[str], *, pairs: int, engine: str, runtime: str
) -> dict[str, Any]:
    """Measure the groups `creations` and `parts`, all of their arms in the same rounds."""
    wanted: dict[str, str | None] = {}
    kinds: list[arms.Arm] = []
    if "creations" in chosen:
        wanted |= arms.engines_for_creations()
        kinds += [*arms.creations(), *arms.by_ctr()]
    if "parts" in chosen:
        wanted["parts"] = "hook.warm = false\n"  # each part is of a Python of its own
        kinds += arms.parts()
    place = directory / "containerd"
    place.mkdir()
    with world.running(wanted, place, name=engine, runtime=runtime) as running:
        _say(f"{len(kinds)} containers a round on {len(wanted)} x {engine}, {pairs} rounds ...")
        bench = creations.Bench(running, kinds, runtime)
        results = asyncio.run(bench.run(pairs, say=_say))
        version = next(iter(running.engines.values())).version
        low = world.programs()[runtime]
        found = {
            "engine": f"containerd {version} with {low.name.partition('-')[0]} {low.version}",
            "pairs": pairs,
            "files": running.files,
            "libraries": world.count_libraries(running.root),
        }
    listed = document.of_arms(results)
    first = len(kinds) - len(arms.parts()) if "parts" in chosen else len(kinds)
    if "creations" in chosen:
        found["creations"] = listed[:first]
    if "parts" in chosen:
        found["parts"] = listed[first:]
        measured = [results[arm.name] for arm in kinds[first:]]
        found["parts_total"] = document.compared(measured[0], measured[-1])
    return found


def _daemon(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    world.make_host(place / "host")
    measured = life.measure(place / "host", place, runs=given.runs, starts=20, many=given.long)
    return document.of_life(asyncio.run(measured))


def _decision(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    world.make_host(place / "host")
    return document.of_times(_pieces("decision", place / "host", given.runs))


def _hosts(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    world.make_host(place / "8")
    world.make_mig_host(place / "16", mig=False)
    world.make_mig_host(place / "16-mig")
    names = {"8 GPUs": "8", "16 GPUs": "16", "16 GPUs x 7 MIG": "16-mig"}
    found: dict[str, Any] = {}
    for name, directory in names.items():
        times = _pieces("looks", place / directory, given.runs)
        counts = {key: int(times.pop(key)[0]) for key in ("mig devices", "files")}
        found[name] = {**document.of_times(times), **counts}
    return found


def _pieces(group: str, host: Path, runs: int) -> dict[str, list[float]]:
    """Measure in a process of its own, as the daemon's is."""
    command = [sys.executable, "-m", pieces.__name__, group, str(host), "--runs", str(runs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=world.ROOT)
    if done.returncode:
        raise world.UnpreparedError(f"{' '.join(command)}:\n{done.stderr}")
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def _programs(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    world.make_library(place)
    listed = processes.programs(place, place / "root")
    return document.of_times(processes.measure(listed, max(10, given.runs // 5)))


def _runtime(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    world.make_host(place / "host")
    with wrapped.programs(place, place / "host") as listed:
        return document.of_times(processes.measure(listed, max(10, given.runs // 5)))


def _operator(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    world.make_host(place / "host")
    measured = operator.measure(place / "host", place, runs=max(10, given.runs // 20))
    return document.of_times(asyncio.run(measured))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
