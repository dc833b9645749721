# SPDX-License-Identifier: Apache-2.0
"""The handlers, called through a real server and channel in memory."""

import asyncio
import contextlib

import grpclib
import pytest

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.edits import model
from nri_nvidia.nri import plugin, warmup
from nri_nvidia.ttrpc import testing, wire

from . import decider, messages


@contextlib.asynccontextmanager
async def serving(**configuration):
    """Give (stub, decider, plugin), configured as a runtime does."""
    noting = decider.Noting()
    served = plugin.Plugin(noting)
    async with testing.joined([served], observe=served.observe) as (caller, _):
        stub = api.PluginStub(caller.channel)
        await stub.configure(api.ConfigureRequest(**configuration), timeout=2)
        yield stub, noting, served


def test_the_mask_is_that_of_the_handlers():
    """CreateContainer, StopContainer and RemoveContainer; no bit that an old runtime lacks."""
    assert plugin.Plugin.events() == 0x8 | 0x200 | 0x400


def test_every_method_is_answered():
    """No method of the service is left to the base, whose UNIMPLEMENTED would fail a pod."""
    mine = vars(plugin.Plugin)
    base = [name for name in vars(api.PluginBase) if not name.startswith("_")]
    assert [name for name in base if name not in mine] == []


async def test_configure_tells_about_the_runtime():
    """Timeouts come in milliseconds; old runtimes send none, and the known defaults count."""
    async with serving(
        config="x = 1",
        runtime_name="containerd",
        runtime_version="v2.3.0",
        registration_timeout=7000,
        request_timeout=3500,
        nri_version="0.12.0",
    ) as (_, noting, served):
        assert noting.heard == [
            (
                "configure",
                (
                    "x = 1",
                    plugin.RuntimeInfo(
                        name="containerd",
                        version="v2.3.0",
                        nri_version="0.12.0",
                        request_timeout=3.5,
                        registration_timeout=7.0,
                    ),
                ),
            )
        ]
        assert served.configured.done()
    async with serving(runtime_name="containerd") as (_, noting, _):
        runtime = noting.heard[0][1][1]
        assert (runtime.request_timeout, runtime.registration_timeout) == (2.0, 5.0)


async def test_a_container_that_gets_nothing_has_an_empty_answer():
    """Not even an empty adjustment is sent."""
    async with serving() as (stub, noting, _):
        request = api.CreateContainerRequest(pod=messages.pod(), container=messages.container())
        assert bytes(await stub.create_container(request)) == b""
        assert noting.heard[-1][1].display == "team/pod0/main"


async def test_edits_are_rendered():
    """What the Decider gives is in the answer."""
    async with serving() as (stub, noting, _):

        async def create(_container, _deadline):
            return model.ContainerEdits(env=(("A", "1"),))

        noting.create = create
        request = api.CreateContainerRequest(container=api.Container(id="c"))
        reply = await stub.create_container(request)
        assert [(pair.key, pair.value) for pair in reply.adjust.env] == [("A", "1")]


async def test_a_refusal_is_the_creations_error():
    """The Decider's error reaches the runtime as it reads."""
    async with serving() as (stub, noting, _):

        async def create(_container, _deadline):
            raise errors.HostError("there is no driver", hint="install one")

        noting.create = create
        request = api.CreateContainerRequest(container=api.Container(id="c"))
        with pytest.raises(grpclib.GRPCError) as caught:
            await stub.create_container(request)
        assert caught.value.message == "there is no driver (install one)"


@pytest.mark.parametrize("timeout", [None, 2.0])
async def test_the_decider_has_a_deadline(timeout):
    """It is the call's, or where it has none that of the configuration; less the margin."""
    seen = []
    async with serving(request_timeout=2000) as (stub, noting, _):

        async def create(_container, deadline):
            seen.append(deadline)
            return model.ContainerEdits()

        noting.create = create
        request = api.CreateContainerRequest(container=api.Container(id="c"))
        before = loop_time()
        await stub.create_container(request, timeout=timeout)
        assert before + 1.8 <= seen[0] <= loop_time() + 1.8


def loop_time():
    return asyncio.get_running_loop().time()


async def test_a_request_without_id_is_refused():
    """Neither a creation nor a stop is passed on without the container's id."""
    async with serving() as (stub, noting, _):
        with pytest.raises(grpclib.GRPCError, match="without an id"):
            await stub.create_container(api.CreateContainerRequest())
        with pytest.raises(grpclib.GRPCError, match="without an id"):
            await stub.stop_container(api.StopContainerRequest())
        assert [what for what, _ in noting.heard] == ["configure"]


async def test_docker_gets_nothing():
    """docker refuses devices and hooks, so the container is left alone and nobody is asked."""
    async with serving(runtime_name="docker") as (stub, noting, served):
        request = api.CreateContainerRequest(container=api.Container(id="c"))
        assert bytes(await stub.create_container(request)) == b""
        assert [what for what, _ in noting.heard] == ["configure"]
        assert not served.runtime.can_inject


async def test_ends_of_containers_are_passed_on():
    """Removal comes by a method or, before NRI 0.12, as a state change; others mean nothing."""
    async with serving() as (stub, noting, _):
        reference = api.ContainerReference(id="c")
        await stub.stop_container(api.StopContainerRequest(container=reference))
        await stub.remove_container(api.RemoveContainerRequest(container=reference))
        for event in (api.Event.REMOVE_CONTAINER, api.Event.START_CONTAINER):
            await stub.state_change(api.StateChangeEvent(event=event, container=reference))
        assert noting.heard[1:] == [("stop", "c"), ("remove", "c"), ("remove", "c")]


async def test_what_is_not_subscribed_is_answered():
    """Every other method gives an empty answer to whatever it is sent."""
    async with serving() as (stub, noting, _):
        for name in ("run_pod_sandbox", "update_container", "post_start_container", "shutdown"):
            assert bytes(await getattr(stub, name)(api.Empty())) == b""
        assert len(noting.heard) == 1


async def test_synchronize_is_put_aside_undecoded():
    """Chunks are acknowledged with the same `more`, and even rubbish in them does not matter."""
    async with serving() as (stub, _, served):
        first = api.SynchronizeRequest(pods=[b"\xff"], containers=[b"a"], more=True)
        assert (await stub.synchronize(first, timeout=2)).more is True
        assert not served.acknowledged.done()
        last = api.SynchronizeRequest(containers=[b"b"])
        assert (await stub.synchronize(last, timeout=2)).more is False
        await served.acknowledged
        assert (served.pods, served.containers) == ([b"\xff"], [b"a", b"b"])


async def test_a_refused_configure_is_noted():
    """When the Decider cannot use the configuration, the handshake has failed."""
    noting = decider.Noting()

    async def configure(_config, _runtime):
        raise errors.ConfigError("line 1: unknown key")

    noting.configure = configure
    served = plugin.Plugin(noting)
    async with testing.joined([served], observe=served.observe) as (caller, _):
        with pytest.raises(grpclib.GRPCError, match="unknown key"):
            await api.PluginStub(caller.channel).configure(api.ConfigureRequest())
        with pytest.raises(plugin.HandshakeFailed, match="unknown key"):
            await served.configured


def test_synchronize_of_five_hundred_containers_stays_bytes():
    """The elements of the lists are not messages, which is what makes the decoding quick."""
    data = bytes(messages.container())
    request = api.SynchronizeRequest(containers=[data] * 500)
    encoded = bytes(request)
    wire.check(api.SynchronizeRequest, encoded)
    parsed = api.SynchronizeRequest().parse(encoded)
    assert parsed.containers == [data] * 500


def test_warming_up_runs_every_codec():
    """It passes over all messages without an error."""
    warmup.warm_up()
