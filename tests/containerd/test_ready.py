# SPDX-License-Identifier: Apache-2.0
"""Hooks of real containers are done by the process that stands ready, whoever runs them."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_nvidia.testing import host, host_spec

from . import daemons


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that any user may enter, with a simulated host's driver in it."""
    with tempfile.TemporaryDirectory(prefix="nnr-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        host.build(Path(name, "host"), host_spec.HostSpec(gpus=(host_spec.GpuSpec(),)))
        yield Path(name)


async def test_no_python_is_started_for_a_hook(engine, runtime, place):
    """The hook of a container says that all went well, and its interpreter was not started."""
    started, python, config = place / "started", place / "python", place / "config.toml"
    python.write_text(f'#!/bin/sh\necho "$*" >>{started}\nexec /usr/bin/python3 "$@"\n')
    python.chmod(0o755)
    config.write_text(f'hook.interpreter = "{python}"\n')
    with daemons.running(engine.nri_socket, place / "host", ["--config", str(config)]) as daemon:
        daemon.until((daemon.directory / "warm/requests").exists, "a process that stands ready")
        async with (
            engine.pod(runtime) as pod,
            pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "0"}) as container,
        ):

            def hook():
                return json.loads(daemon.ask("explain", container.id, "--json").stdout)["hook"]

            assert daemon.until(hook, "the hook's report")["ok"]
            (given,) = engine.config_json(container.id)["hooks"]["createContainer"]
            assert given["args"][0] == "/bin/sh"
            assert "nri-nvidia-warm.py" in started.read_text()
            assert "nri-nvidia-hook --library-dir" not in started.read_text()
