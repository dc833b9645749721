# SPDX-License-Identifier: Apache-2.0
"""An OCI runtime for kernels with few cgroup v2 controllers: of all resources it keeps devices.

Virtual machines' kernels may have cgroup v2 with no controller for CPU or memory. Device rules are
no controller's business there, they are BPF programs, and are all that matters to us; but runc
fails at the first limit that it cannot write.

    few_controllers.py RUNTIME ARGUMENT...   as RUNTIME ARGUMENT...
"""

import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path


def install(directory: Path, name: str, runtime: Path) -> Path:
    """Write the program that calls `runtime` this way; return its path."""
    program = directory / f"{name}-few-controllers"
    command = f'exec {sys.executable} -I -S {__file__} {runtime} "$@"'
    program.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def reduce_bundle(bundle: Path) -> None:
    """Take all resources but the device rules out of a bundle's config.json."""
    path = bundle / "config.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    resources = document["linux"].get("resources", {})
    document["linux"]["resources"] = {"devices": resources.get("devices", [])}
    path.write_text(json.dumps(document), encoding="utf-8")


def main(runtime: str, arguments: Sequence[str]) -> None:
    """Become the runtime, after `create` has its bundle changed or `update` its resources."""
    if "create" in arguments:
        reduce_bundle(Path(arguments[arguments.index("--bundle") + 1]))
    elif "update" in arguments:
        # The resources come on standard input; without any, runc applies what it has again.
        assert stat.S_ISFIFO(os.fstat(0).st_mode)
        sys.stdin.read()
        reading, writing = os.pipe()
        os.write(writing, b"{}")
        os.close(writing)
        os.dup2(reading, 0)
    os.execv(runtime, [runtime, *arguments])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
