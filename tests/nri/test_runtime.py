# SPDX-License-Identifier: Apache-2.0
"""The runtime's side that tests stand on is as unforgiving as containerd's."""

import asyncio
import contextlib
import functools
import socket

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import runtime as runtimes
from nri_nvidia.ttrpc import connection, peer, transport


class Plugin(api.PluginBase):
    """A plugin with what a test wants in it."""

    def __init__(self, events=8, adjust=None, more=None):
        self.events, self.adjust, self.more = events, adjust, more
        self.asked = asyncio.Event()

    async def configure(self, message):
        return api.ConfigureResponse(events=self.events)

    async def synchronize(self, message):
        return api.SynchronizeResponse(more=message.more if self.more is None else self.more)

    async def create_container(self, message):
        self.asked.set()
        if self.adjust is None:
            await asyncio.Event().wait()
        return api.CreateContainerResponse(adjust=self.adjust)


@contextlib.asynccontextmanager
async def plugged(path, plugin, *, index="10", margin=0.0, framing=None):
    """Have a plugin connected and registered."""
    options = {} if framing is None else {"framing": framing}
    state = connection.Connection(serves=1, calls=2, **options)
    dial = functools.partial(transport.connect, path)
    async with peer.opened(dial, state, services=[plugin], margin=margin) as live:
        request = api.RegisterPluginRequest(plugin_name="p", plugin_idx=index)
        with contextlib.suppress(Exception):
            await api.RuntimeStub(live.channel).register_plugin(request)
        yield live


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "nri.sock")


def mounts(*destinations):
    return api.ContainerAdjustment(
        mounts=[api.Mount(destination=destination) for destination in destinations]
    )


CONTAINER = api.Container(id="c")


@pytest.mark.parametrize(("version", "taken"), [("0.9.0", False), ("0.10.0", True)])
async def test_unknown_events_are_refused(path, version, taken):
    """A bit that the runtime's version does not know ends the connection."""
    runtime = runtimes.Runtime(nri_version=version)
    async with runtime.listening(path), plugged(path, Plugin(events=0x3FFF)) as live:
        if taken:
            await runtime.attached()
        else:
            await runtime.said("invalid plugin events: 0x3800")
            await live.link.closed()


async def test_a_silent_plugin_is_dropped_and_the_container_made_without_it(path):
    """Failing open is what a runtime does, and what a plugin must never cause."""
    runtime = runtimes.Runtime(request_timeout=0.2)
    async with (
        runtime.listening(path),
        plugged(path, Plugin(), margin=-9.0) as live,
        plugged(path, Plugin(adjust=mounts("/a")), index="20"),
    ):
        await runtime.attached(2)
        adjustment = await runtime.create(CONTAINER)
        assert [mount.destination for mount in adjustment.mounts] == ["/a"]
        await live.link.closed()
        assert len(runtime.plugins) == 1
        await runtime.said("failed to handle create_container: context deadline exceeded")


@pytest.mark.parametrize(
    "adjusts", [[mounts("/a", "/a")], [mounts("/a"), mounts("/a")]], ids=["itself", "another"]
)
async def test_claiming_twice_fails_the_creation(path, adjusts):
    """The same key from two plugins, or twice from one, is a conflict."""
    runtime = runtimes.Runtime()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(runtime.listening(path))
        for adjust in adjusts:
            await stack.enter_async_context(plugged(path, Plugin(adjust=adjust)))
        await runtime.attached(len(adjusts))
        with pytest.raises(runtimes.CreationFailed, match="both tried to set mount /a"):
            await runtime.create(CONTAINER)


async def test_a_large_single_frame_kills_the_plugin(path):
    """An answer of 10 kB in one frame is the end of the connection, without an error."""

    def single(mux_id, header, data):
        whole = header + data
        return mux_id.to_bytes(4) + len(whole).to_bytes(4) + whole

    runtime = runtimes.Runtime()
    plugin = Plugin(adjust=mounts("/" + "x" * 10_000))
    async with runtime.listening(path), plugged(path, plugin, framing=single):
        await runtime.attached()
        assert await runtime.create(CONTAINER) == api.ContainerAdjustment()
        await runtime.said("ENOMEM")


@pytest.mark.parametrize(("version", "open_after"), [("0.6.1", True), ("0.8.0", False)])
async def test_a_failed_synchronize(path, version, open_after):
    """Old runtimes keep the connection and never call the plugin, newer ones close it."""
    runtime = runtimes.Runtime(nri_version=version)
    async with runtime.listening(path), plugged(path, Plugin(more=True)) as live:
        await runtime.said("failed to synchronize")
        if open_after:
            assert live.link.is_open
            await runtime.create(CONTAINER)
            assert runtime.plugins == []
        else:
            await live.link.closed()


async def test_a_mute_connection_holds_up_the_next(path):
    """Plugins are registered one at a time; one that says nothing costs the others its time."""
    runtime = runtimes.Runtime(registration_timeout=0.2)
    async with runtime.listening(path):
        with socket.socket(socket.AF_UNIX) as mute:
            mute.connect(path)
            async with plugged(path, Plugin(adjust=mounts("/a"))):
                await runtime.attached()
                await runtime.said("failed to start: TimeoutError")
