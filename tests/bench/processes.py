# SPDX-License-Identifier: Apache-2.0
"""What is measured as a process that starts and ends: the hook, its interpreter, ldconfig."""

import inspect
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from nri_nvidia.oci import install
from tests.oci import bundles

_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_WRITTEN = ("etc/ld.so.cache", "etc/ld.so.conf.d/00-nri-nvidia.conf", "usr/bin/nvidia-smi")


@attrs.frozen(kw_only=True)
class Program:
    """A program to start: before each time `prepare` puts things back as they were."""

    command: Sequence[str]
    stdin: Path = Path("/dev/null")
    prepare: Callable[[], None] = lambda: None
    env: Mapping[str, str] = attrs.field(factory=dict)


def measure(programs: Mapping[str, Program], runs: int, *, seed: int = 1) -> dict[str, list[int]]:
    """Give the nanoseconds from start to end of each run; every program once a round."""
    found: dict[str, list[int]] = {name: [] for name in programs}
    order = random.Random(seed)
    for number in range(-2, runs):
        names = list(programs)
        order.shuffle(names)
        for name in names:
            taken = _time(programs[name])
            if number >= 0:
                found[name].append(taken)
    return found


def _time(program: Program) -> int:
    program.prepare()
    null = (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, str(program.stdin), os.O_RDONLY, 0), null,
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]  # fmt: skip
    begun = time.perf_counter_ns()
    env = {**_ENV, **program.env}
    pid = os.posix_spawn(program.command[0], program.command, env, file_actions=actions)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    taken = time.perf_counter_ns() - begun
    if status:
        raise RuntimeError(f"{' '.join(program.command)}: exit status {status}")
    return taken


def programs(directory: Path, large: Path) -> dict[str, Program]:
    """Give what is measured; `large` is an unpacked root of many libraries, which is written to."""
    toolbox = bundles.Toolbox.make(directory)
    small = _bundle(directory / "small", toolbox)
    many = _bundle(directory / "many", toolbox, large)
    python = install.interpreter()
    # A hook that can be compiled ahead is installed as the daemon installs it.
    ahead = [python] if "interpreter" in inspect.signature(install.install).parameters else []
    hook = install.install(str(directory / "hook"), *ahead)
    options = ["--link", "nvidia-smi", "--on-error", "fail"]
    skip = ["--skip", "links", "--skip", "ldcache"]

    def run_hook(bundle: Path, *more: str) -> Program:
        return Program(
            command=[python, "-I", "-S", hook, *options, *more],
            stdin=bundle / "state.json",
            prepare=lambda: _restore(bundle),
        )

    def run_ldconfig(bundle: Path) -> Program:
        command = ["/sbin/ldconfig", "-X", "-r", str(bundle / "rootfs")]
        return Program(command=command, prepare=lambda: _restore(bundle))

    return {
        "a static program": Program(command=[str(toolbox.quiet)]),
        "python3 -I -S -c pass": Program(command=[python, "-I", "-S", "-c", "pass"]),
        "hook, no step": run_hook(small, *skip),
        "hook": run_hook(small),
        "hook, many libraries": run_hook(many),
        "ldconfig": run_ldconfig(small),
        "ldconfig, many libraries": run_ldconfig(many),
    }


def _bundle(place: Path, toolbox: bundles.Toolbox, root: Path | None = None) -> Path:
    """Make a bundle whose root holds the driver's files, with the state that a runtime gives."""
    place.mkdir()
    if root is None:
        bundles.make_root(place / "rootfs", toolbox, "debian")
    else:
        (place / "rootfs").symlink_to(root)
    inside = (place / "rootfs").resolve() / bundles.LIBRARY_DIR.strip("/")
    shutil.copytree(toolbox.driver, inside)
    document = bundles.config(str((place / "rootfs").resolve()), ["/bin/quiet"], [], [])
    (place / "config.json").write_text(json.dumps(document), encoding="utf-8")
    state = {"ociVersion": "1.0.2", "id": "bench", "status": "created", "bundle": str(place)}
    (place / "state.json").write_text(json.dumps(state), encoding="utf-8")
    cache = place / "rootfs/etc/ld.so.cache"
    if cache.exists():
        shutil.copy(cache, place / "ld.so.cache")
    return place


def _restore(bundle: Path) -> None:
    """Make the root one that no hook has seen."""
    for name in _WRITTEN:
        (bundle / "rootfs" / name).unlink(missing_ok=True)
    if (bundle / "ld.so.cache").exists():
        shutil.copy(bundle / "ld.so.cache", bundle / "rootfs/etc/ld.so.cache")
