# SPDX-License-Identifier: Apache-2.0
"""What is measured in a process of its own: the steps of a decision, and looks at a host.

`python -m tests.bench.pieces GROUP HOST --runs N` prints JSON: for each name the nanoseconds of
each run.
"""

import argparse
import gc
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from nri_nvidia import pipeline
from nri_nvidia.config import model as config_model
from nri_nvidia.host import cache, model, report, scan, watch
from nri_nvidia.nri import convert, warmup
from nri_nvidia.render import nri as render
from nri_nvidia.request import parse
from nri_nvidia.testing import host as simulated

from . import requests

_WARM_UP = 20
FILES = 200


def timed(action: Callable[[], Any], runs: int) -> list[int]:
    """Give the nanoseconds of each run, after some that do not count; Python's collector stays on."""
    for _ in range(min(_WARM_UP, runs)):
        action()
    gc.collect()
    found = []
    for _ in range(runs):
        begun = time.perf_counter_ns()
        action()
        found.append(time.perf_counter_ns() - begun)
    return found


def decision(host: Path, runs: int) -> dict[str, list[int]]:
    """Measure the way from request to answer step by step."""
    warmup.warm_up()
    inventory = scan.scan(simulated.options_for(host))
    rules = config_model.Config().rules(
        interpreter="/usr/bin/python3", report_socket="/run/nri-nvidia/hook.sock"
    )
    context = pipeline.Context(hook_token="0" * 32)
    data = requests.create(1, *requests.ALL)
    plain = requests.create(1)

    markers = parse.markers(rules.request)

    def asks_nothing(payload: bytes) -> bool:
        return not any(marker in payload for marker in markers) and convert.is_whole(payload)

    container = convert.created(data)
    plan = pipeline.plan(container, inventory, rules, context)
    if plan.decision is not pipeline.Decision.INJECT:
        raise SystemExit(f"the host gives no GPU: {plan.reasons}")
    return {
        "decode": timed(lambda: convert.created(data), runs),
        "judge, nothing asked": timed(lambda: asks_nothing(plain), runs),
        "plan": timed(lambda: pipeline.plan(container, inventory, rules, context), runs),
        "render and encode": timed(lambda: render.encoded(plan.edits), runs),
    }


def looks(host: Path, runs: int) -> dict[str, list[int]]:
    """Measure looking at a host, as it is, and as if it had 200 driver files."""
    options = simulated.options_for(host)
    document = host / "nvml.json"
    told = report.parse(document.read_bytes()) if document.exists() else None
    inventory = scan.scan(options, told)
    watched = watch.of(options, inventory)
    many = watch.of(options, with_files(inventory))
    return {
        "scan": timed(lambda: scan.scan(options, told), max(3, runs // 20)),
        "fingerprint": timed(lambda: cache.fingerprint(options, watched), runs),
        f"fingerprint, {FILES} files": timed(lambda: cache.fingerprint(options, many), runs),
        f"behind the answer, {FILES} files": timed(lambda: watch.file_stamps(many.files), runs),
        "driver state": timed(lambda: watch.driver_state(options), runs),
        "mig devices": [sum(len(gpu.mig_devices) for gpu in inventory.gpus)],
        "files": [len(inventory.files)],
    }


def with_files(inventory: model.Inventory) -> model.Inventory:
    """Give the inventory with 200 files, further ones beside the real ones."""
    files = list(inventory.files)
    folder = Path(files[0].source).parent / "more"
    folder.mkdir(exist_ok=True)
    while len(files) < FILES:
        path = folder / f"libmore{len(files)}.so"
        path.write_bytes(b"\x7fELF")
        files.append(attrs.evolve(files[0], source=str(path), names=(path.name,)))
    return attrs.evolve(inventory, files=tuple(files))


GROUPS = {"decision": decision, "looks": looks}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=sorted(GROUPS))
    parser.add_argument("host", type=Path)
    parser.add_argument("--runs", type=int, default=500)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    sys.stdout.write(json.dumps(GROUPS[given.group](given.host, given.runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
