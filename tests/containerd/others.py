# SPDX-License-Identifier: Apache-2.0
"""Another plugin beside ours in a real runtime, which gives what it should not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.nri import session
from nri_nvidia.ttrpc import connection, peer, transport


class Other(api.PluginBase):
    """A plugin that gives every container GPU 1."""

    def __init__(self) -> None:
        self.synchronised = asyncio.Event()

    async def configure(self, message: api.ConfigureRequest) -> api.ConfigureResponse:
        return api.ConfigureResponse(events=1 << (api.Event.CREATE_CONTAINER - 1))

    async def synchronize(self, message: api.SynchronizeRequest) -> api.SynchronizeResponse:
        if not message.more:
            self.synchronised.set()
        return api.SynchronizeResponse(more=message.more)

    async def create_container(
        self, message: api.CreateContainerRequest
    ) -> api.CreateContainerResponse:
        node = api.LinuxDevice(path="/dev/nvidia1", type="c", major=195, minor=1)
        linux = api.LinuxContainerAdjustment(devices=[node])
        return api.CreateContainerResponse(adjust=api.ContainerAdjustment(linux=linux))


@contextlib.asynccontextmanager
async def beside(socket: Path) -> AsyncIterator[None]:
    """Have that plugin registered as 20-other."""
    state = connection.Connection(serves=session.PLUGIN_SERVICE, calls=session.RUNTIME_SERVICE)

    async def dial(*arguments: Any) -> Any:
        return await transport.connect(str(socket), *arguments)

    plugin = Other()
    async with peer.opened(dial, state, services=[plugin]) as other:
        request = api.RegisterPluginRequest(plugin_name="other", plugin_idx="20")
        await api.RuntimeStub(other.channel).register_plugin(request, timeout=30)
        await plugin.synchronised.wait()
        yield
