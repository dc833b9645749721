# SPDX-License-Identifier: Apache-2.0
"""Hosts, root file systems and daemons for the field cases."""

import asyncio

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import host, host_spec, runtime
from tests.containerd import daemons
from tests.host.conftest import tree
from tests.oci.conftest import Case, case, hook, place, python_hook, ready, shared, toolbox

__all__ = ["Case", "case", "hook", "place", "python_hook", "ready", "shared", "toolbox", "tree"]

POD = api.PodSandbox(id="p", name="pod", namespace="team")


class Pair:
    """A runtime and a daemon, which is registered with it unless the test begins otherwise."""

    def __init__(self, rt, daemon, directory):
        self.runtime = rt
        self.daemon = daemon
        self.host = directory

    def container(self, number, *env, devices=(), hooks=None, mounts=(), name=""):
        return api.Container(
            id=f"container{number:055d}",
            pod_sandbox_id="p",
            name=name or f"c{number}",
            env=[*env],
            mounts=[bytes(mount) for mount in mounts],
            hooks=bytes(hooks) if hooks else b"",
            linux=api.LinuxContainer(devices=[bytes(device) for device in devices]),
        )

    async def create(self, number, *env, pod=POD, **more):
        return await self.runtime.create(self.container(number, *env, **more), pod)

    async def status(self):
        return await asyncio.to_thread(self.daemon.status)

    async def until(self, condition, what):
        """Wait until the status fulfils a condition; give that value."""
        return await asyncio.to_thread(
            self.daemon.until, lambda: condition(self.daemon.status()), what
        )

    async def refused(self, number, *env):
        """Create a container that is refused; give the sentence."""
        with pytest.raises(runtime.CreationFailed) as caught:
            await self.create(number, *env)
        return str(caught.value)


@pytest.fixture
def live(tmp_path):
    """Give a function that builds a live host."""

    def make(**spec):
        directory = tmp_path / "host"
        host.build(directory, host_spec.HostSpec(**spec))
        return directory

    return make


@pytest.fixture
def together(tmp_path):
    """Give a function that runs a test's body with a runtime and a daemon; both end with it."""

    def run(body, directory, *arguments, environment=None, log_level="debug", **options):
        async def whole():
            rt = runtime.Runtime(**options)
            path = tmp_path / "nri.sock"
            async with asyncio.timeout(60), rt.listening(path):
                level = ("--log-level", log_level) if log_level else ()
                daemon = daemons.Daemon(path, directory, *level, "--layout", "files", *arguments)
                if not log_level:
                    given = list(daemon._arguments)
                    del given[(at := given.index("--log-level")) : at + 2]
                    daemon._arguments = tuple(given)
                try:
                    daemon.start(environment)
                    await rt.attached()
                    await asyncio.to_thread(daemon.ready)
                    await body(Pair(rt, daemon, directory))
                finally:
                    await asyncio.to_thread(daemon.close)

        asyncio.run(whole())

    return run


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """Give a function that names a directory for each host which a property builds."""
    top = tmp_path_factory.mktemp("hosts")
    numbers = iter(range(1 << 20))
    return lambda: top / f"host-{next(numbers)}"
