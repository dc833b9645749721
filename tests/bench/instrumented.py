# SPDX-License-Identifier: Apache-2.0
"""The daemon, with what a measurement needs put around it from outside.

`python -m tests.bench.instrumented run ...` is `nri-nvidia run ...` with this difference:

- a container whose environment names a part (`BENCH_PART=nodes`) gets that part of its edits
  alone, so that one containerd and one daemon serve every arm of a breakdown;
- where the environment has BENCH_TIMES, the time from a request's arrival to the answer's
  departure is noted, and written to that file as JSON (nanoseconds, in order) at the end.
"""

import ast
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from nri_nvidia import cli, errors
from nri_nvidia.daemon import decider
from nri_nvidia.edits import model
from nri_nvidia.ttrpc import transport

Edits = model.ContainerEdits


def _only(*kept: str) -> Callable[[Edits], Edits]:
    return lambda edits: Edits(**{name: getattr(edits, name) for name in kept})


def _with_arguments(change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Callable[..., Edits]:
    """Give a function that replaces the arguments of the hook, and with them its program."""

    def changed(edits: Edits) -> Edits:
        if [hook.args[1:3] for hook in edits.hooks] != [("-I", "-S")]:
            raise errors.Error("the hook is no Python script any more, BENCH_PART knows no other")
        (hook,) = edits.hooks
        args = change(hook.args)
        return attrs.evolve(edits, hooks=(attrs.evolve(hook, path=args[0], args=args),))

    return changed


def _quiet(_: tuple[str, ...]) -> tuple[str, ...]:
    return (os.environ["BENCH_QUIET"],)


@functools.cache
def imports(script: str) -> str:
    """Give the import statements of the hook's script as a program."""
    tree = ast.parse(_source(script).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node for node in found if getattr(node, "module", "") != "__future__"]
    return "\n".join(dict.fromkeys(map(ast.unparse, names)))


def loaded(script: str) -> str:
    """Give a program that loads the script, compiled ahead where it is, and does nothing of it."""
    path = str(_source(script))
    return f"""
import sys
from _frozen_importlib_external import SourceFileLoader
sys.dont_write_bytecode = True
code = SourceFileLoader("bench", {path!r}).get_code("bench")
exec(code, {{"__name__": "bench", "__file__": {path!r}}})
"""


def _source(script: str) -> Path:
    """Give what the script that is started consists of: itself, or the module beside it."""
    module = Path(f"{script}.py")
    return module if module.exists() else Path(script)


PARTS: dict[str, Callable[[Edits], Edits]] = {
    "nothing": _only(),
    "nodes": _only("devices"),
    "files": _only("mounts"),
    "nodes+files": _only("devices", "mounts"),
    "hook:quiet": _with_arguments(_quiet),
    "hook:python": _with_arguments(lambda args: (*args[:3], "-c", "pass")),
    "hook:imports": _with_arguments(lambda args: (*args[:3], "-c", imports(args[3]))),
    "hook:script": _with_arguments(lambda args: (*args[:3], "-c", loaded(args[3]))),
    "hook:view": _with_arguments(lambda args: (*args, "--skip", "links", "--skip", "ldcache")),
    "hook:links": _with_arguments(lambda args: (*args, "--skip", "ldcache")),
    "all": lambda edits: edits,
}
"""What is left of a container's edits, by the name in BENCH_PART."""


def keep_parts() -> None:
    """Let containers choose a part of their edits."""
    whole = decider.Decider.create_container

    async def part(self: Any, container: Any, deadline: float) -> Edits:
        edits = await whole(self, container, deadline)
        name = container.environment().get("BENCH_PART")
        return PARTS[name](edits) if name and edits else edits

    decider.Decider.create_container = part  # type: ignore[method-assign]


class Times:
    """How long each request was here."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self._came = 0

    def note(self) -> None:
        """Note times from now on, one request at a time."""
        received, sent = transport.Link.data_received, transport.Link.send

        def data_received(link: transport.Link, data: bytes) -> None:
            self._came = self._came or time.perf_counter_ns()
            received(link, data)

        def send(link: transport.Link, data: bytes) -> None:
            if self._came:
                self.found.append(time.perf_counter_ns() - self._came)
                self._came = 0
            sent(link, data)

        transport.Link.data_received = data_received  # type: ignore[method-assign]
        transport.Link.send = send  # type: ignore[method-assign]


def main() -> int:
    keep_parts()
    path = os.environ.get("BENCH_TIMES")
    if not path:
        return cli.main(sys.argv[1:])
    times = Times()
    times.note()
    try:
        return cli.main(sys.argv[1:])
    finally:
        Path(path).write_text(json.dumps(times.found), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
