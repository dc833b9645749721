# SPDX-License-Identifier: Apache-2.0
"""A simulated host, and a runtime with a daemon on it."""

import asyncio

import pytest

from nri_nvidia.testing import host, runtime
from tests.containerd import daemons

from . import pairs


@pytest.fixture(scope="package")
def gpu_host(tmp_path_factory):
    """A simulated host with eight GPUs."""
    directory = tmp_path_factory.mktemp("host")
    host.build(directory, pairs.EIGHT)
    return directory


@pytest.fixture
def together(tmp_path, gpu_host):
    """Give a function that runs a test's body with both; everything ends with it."""

    def run(body, *arguments, gpus=gpu_host, environment=None, limit=60, prefix=(), **options):
        async def whole():
            rt = runtime.Runtime(**options)
            path = tmp_path / "nri.sock"
            async with asyncio.timeout(limit), rt.listening(path):
                daemon = daemons.Daemon(path, gpus, *arguments, prefix=prefix)
                try:
                    daemon.start(environment)
                    await rt.attached()
                    await asyncio.to_thread(daemon.ready)
                    await body(pairs.Pair(rt, daemon))
                finally:
                    await asyncio.to_thread(daemon.close)

        asyncio.run(whole())

    return run
