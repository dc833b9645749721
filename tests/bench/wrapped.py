# SPDX-License-Identifier: Apache-2.0
"""nri-nvidia-runtime: what it adds to a call of the real one, which here ends at once."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.containerd import daemons
from tests.containerd.doors import FRONT
from tests.oci import bundles

from .processes import Program

DIRECT = "the runtime itself"
STATE, DELETE = "state", "delete"
NOTHING, GPUS = "create, nothing asked", "create, 8 GPUs"
OPTIONS = ["--root", "/run/docker/runtime-runc/moby", "--log", "/dev/null", "--log-format", "json"]


def front(daemon: daemons.Daemon, runtime: Path) -> Path:
    """Give nri-nvidia-runtime as one daemon's, before a runtime, at the cost that a node's has."""
    daemon.until((daemon.directory / "runtime/nri-nvidia-client").exists, "its program")
    first, _, text = FRONT.read_text(encoding="utf-8").partition("\n")
    settings = f"NRI_NVIDIA_RUN={daemon.directory} NRI_NVIDIA_RUNTIME={runtime}"
    path = daemon.directory / "nri-nvidia-runtime"
    path.write_text(f"{first}\n{settings}\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def programs(directory: Path, host: Path) -> Iterator[dict[str, Program]]:
    """Give what is measured, with a daemon on a host while it is."""
    toolbox = bundles.Toolbox.make(directory)
    with daemons.alone(host) as daemon:
        daemon.until((daemon.directory / "runtime/nri-nvidia-client").exists, "its program")
        daemon.until((daemon.directory / "warm/requests").exists, "a process that stands ready")
        env = {"NRI_NVIDIA_RUN": str(daemon.directory), "NRI_NVIDIA_RUNTIME": str(toolbox.quiet)}

        def call(verb: str, bundle: Path | None = None) -> Program:
            named = ["--bundle", str(bundle), "--pid-file", "/dev/null"] if bundle else []
            command = [str(FRONT), *OPTIONS, verb, *named, "bench"]
            return Program(command=command, env=env, prepare=lambda: _restore(bundle))

        plain = _bundle(directory / "plain", [])
        asking = _bundle(directory / "asking", ["NVIDIA_VISIBLE_DEVICES=all"])
        yield {
            DIRECT: Program(command=[str(toolbox.quiet), *OPTIONS, "state", "bench"]),
            STATE: call("state"),
            DELETE: call("delete"),
            NOTHING: call("create", plain),
            GPUS: call("create", asking),
        }


def _bundle(place: Path, env: list[str]) -> Path:
    """Make a bundle whose configuration is as long as docker's are."""
    place.mkdir()
    document: dict[str, Any] = bundles.config("rootfs", ["/bin/true"], [], [])
    document["process"]["env"] += env
    allowed = {"names": [f"a_system_call_{n}" for n in range(400)], "action": "SCMP_ACT_ALLOW"}
    document["linux"]["seccomp"] = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [allowed]}
    (place / "kept.json").write_text(json.dumps(document), encoding="utf-8")
    return place


def _restore(bundle: Path | None) -> None:
    if bundle:
        text = (bundle / "kept.json").read_text(encoding="utf-8")
        (bundle / "config.json").write_text(text, encoding="utf-8")
