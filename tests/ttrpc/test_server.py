# SPDX-License-Identifier: Apache-2.0
"""The real server and the real channel, joined in memory."""

import asyncio
import logging

import grpclib
import pytest
from grpclib import const

from nri_nvidia import errors as base_errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.ttrpc import errors, server, testing


class Service(api.PluginBase):
    """A plugin whose CreateContainer does what a test says."""

    def __init__(self, create=None):
        self._create = create

    async def configure(self, message):
        return api.ConfigureResponse(events=len(message.config))

    async def create_container(self, message):
        return await self._create(message)


def bytewise(data):
    return [data[place : place + 1] for place in range(len(data))]


async def raised(awaitable):
    """Await something that must fail; gives its exception."""
    try:
        return pytest.fail(f"no error but {await awaitable}")
    except (grpclib.GRPCError, base_errors.Error) as error:
        return error


async def create(behaviour, *, timeout=None, container="c", **options):
    """Call CreateContainer on a service with that behaviour."""
    async with testing.joined([Service(behaviour)], **options) as (caller, _):
        request = api.CreateContainerRequest(container=api.Container(id=container))
        return await api.PluginStub(caller.channel).create_container(request, timeout=timeout)


async def failure(behaviour, **options):
    with pytest.raises(grpclib.GRPCError) as caught:
        await create(behaviour, **options)
    return caught.value.status, caught.value.message


@pytest.mark.parametrize("cut", [bytewise, lambda data: [data]])
async def test_a_generated_stub_reaches_a_generated_base(cut):
    """A call of 20 kB comes through, also byte by byte."""
    async with testing.joined([Service()], cut=cut) as (caller, _):
        stub = api.PluginStub(caller.channel)
        reply = await stub.configure(api.ConfigureRequest(config="x" * 20_000))
        assert reply.events == 20_000


async def test_calls_run_side_by_side():
    """Two requests in flight are served in parallel and answered in any order."""
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    entered = asyncio.Queue()

    async def behave(message):
        entered.put_nowait(message.container.id)
        await gates[message.container.id].wait()
        mount = api.Mount(destination=message.container.id)
        return api.CreateContainerResponse(adjust=api.ContainerAdjustment(mounts=[mount]))

    async with testing.joined([Service(behave)]) as (caller, _):
        stub = api.PluginStub(caller.channel)

        async def ask(name):
            request = api.CreateContainerRequest(container=api.Container(id=name))
            return (await stub.create_container(request)).adjust.mounts[0].destination

        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(ask("a")), group.create_task(ask("b"))
            assert {await entered.get(), await entered.get()} == {"a", "b"}
            gates["b"].set()
            assert await second == "b"
            assert not first.done()
            gates["a"].set()
        assert first.result() == "a"


async def test_our_errors_become_a_status_with_their_sentence():
    """The runtime shows message and hint to the user."""

    async def behave(_message):
        raise base_errors.RequestError("GPU 9 was asked for, 8 exist", hint="ask for 0 to 7")

    expected = const.Status.UNKNOWN, "GPU 9 was asked for, 8 exist (ask for 0 to 7)"
    assert await failure(behave) == expected


async def test_a_grpc_error_keeps_its_status():
    """A handler may choose the code."""

    async def behave(_message):
        raise grpclib.GRPCError(const.Status.NOT_FOUND, "gone")

    assert await failure(behave) == (const.Status.NOT_FOUND, "gone")


async def test_a_grpc_error_that_says_ok_is_still_an_error():
    """Raising OK must not be taken for consent."""

    async def behave(_message):
        raise grpclib.GRPCError(const.Status.OK, "odd")

    assert (await failure(behave))[0] is const.Status.UNKNOWN


async def test_a_defect_is_answered_and_its_traceback_logged(caplog):
    """Any other exception becomes code 2 with its type and text."""

    async def behave(_message):
        raise ZeroDivisionError("by zero")

    assert await failure(behave) == (const.Status.UNKNOWN, "ZeroDivisionError: by zero")
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_response_that_cannot_be_encoded_is_a_defect(caplog):
    """A lone surrogate in a response fails the call, not the connection."""

    async def behave(_message):
        mount = api.Mount(source="/dev/\udcff")
        return api.CreateContainerResponse(adjust=api.ContainerAdjustment(mounts=[mount]))

    status, message = await failure(behave)
    assert status is const.Status.UNKNOWN
    assert message.startswith("UnicodeEncodeError")


async def test_a_method_that_nobody_overrides_is_unimplemented():
    """Both an unknown method and one without handler say so."""
    async with testing.joined([Service()]) as (caller, _):
        with pytest.raises(grpclib.GRPCError) as caught:
            await api.PluginStub(caller.channel).shutdown(api.Empty())
        assert caught.value.status is const.Status.UNIMPLEMENTED
        with pytest.raises(grpclib.GRPCError, match="not served here") as caught:
            await api.RuntimeStub(caller.channel).register_plugin(api.RegisterPluginRequest())
        assert caught.value.status is const.Status.UNIMPLEMENTED


async def test_a_reply_over_four_mebibytes_becomes_an_error():
    """It is refused here, since a Go peer would drop the connection."""

    async def behave(_message):
        mount = api.Mount(source="x" * (4 << 20))
        return api.CreateContainerResponse(adjust=api.ContainerAdjustment(mounts=[mount]))

    assert (await failure(behave))[0] is const.Status.RESOURCE_EXHAUSTED


async def test_an_undecodable_payload_is_refused():
    """A truncated message never reaches a handler."""
    async with testing.joined([Service()]) as (caller, _):
        channel = caller.channel
        _, answer = channel.start("/nri.pkg.api.v1alpha1.Plugin/Configure", b"\x0a\x05x", None)
        response = await answer
        assert response.code == const.Status.INVALID_ARGUMENT.value
        assert "undecodable Configure: field 1 claims 5 bytes, 1 are left" in response.message


async def test_a_late_handler_is_answered_for_before_the_limit():
    """When the margin is reached the caller gets an error status, not silence."""
    outcomes = []

    async def behave(_message):
        await asyncio.Event().wait()

    status, message = await failure(behave, timeout=0.5, observe=outcomes.append)
    assert status is const.Status.DEADLINE_EXCEEDED
    assert "CreateContainer was not finished after" in message
    assert [outcome.late for outcome in outcomes if "Create" in outcome.route] == [False]


async def test_a_handler_that_does_not_heed_cancellation_is_answered_for():
    """The error goes out although the handler runs on."""
    release = asyncio.Event()

    async def behave(_message):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
            raise

    async with testing.joined([Service(behave)]) as (caller, _):
        stub = api.PluginStub(caller.channel)
        with pytest.raises(grpclib.GRPCError, match="not finished"):
            await stub.create_container(api.CreateContainerRequest(), timeout=0.4)
        release.set()


async def test_an_expired_request_is_refused_at_once():
    """A request whose time is over when it comes is answered with an error."""

    async def behave(_message):
        await asyncio.Event().wait()

    async with testing.joined([Service(behave)]) as (caller, _):
        route = "/nri.pkg.api.v1alpha1.Plugin/CreateContainer"
        _, answer = caller.channel.start(route, b"", 1e-9)
        assert (await answer).code == const.Status.DEADLINE_EXCEEDED.value


async def test_a_handler_whose_inner_task_is_cancelled_is_answered_for():
    """A stray CancelledError must not leave the caller without an answer."""

    async def behave(_message):
        raise asyncio.CancelledError

    assert (await failure(behave))[0] is const.Status.CANCELLED


async def test_a_handler_sees_its_deadline():
    """The deadline is the caller's limit less the margin, in loop time; None without a limit."""
    seen = []

    async def behave(_message):
        seen.append((server.deadline(), asyncio.get_running_loop().time()))
        return api.CreateContainerResponse()

    await create(behave, timeout=2.0)
    await create(behave)
    (deadline, now), (no_deadline, _) = seen
    assert 0 < deadline - now <= 1.8
    assert no_deadline is None


async def test_stopping_refuses_what_runs():
    """A daemon that stops tells the runtime no, rather than letting a container through."""
    entered = asyncio.Event()

    async def behave(_message):
        entered.set()
        await asyncio.Event().wait()

    async with testing.joined([Service(behave)]) as (caller, callee):
        stub = api.PluginStub(caller.channel)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(raised(stub.create_container(api.CreateContainerRequest())))
            await entered.wait()
            await callee.server.stop("the daemon is stopping")
        assert call.result().message == "the daemon is stopping; try again"
        with pytest.raises(grpclib.GRPCError, match="stopping"):
            await stub.create_container(api.CreateContainerRequest())


async def test_no_task_is_left_behind():
    """After the block only the test's own task exists, however a call ended."""

    async def behave(_message):
        await asyncio.Event().wait()

    async with testing.joined([Service(behave)]) as (caller, _):
        stub = api.PluginStub(caller.channel)
        with pytest.raises(TimeoutError):
            await stub.create_container(api.CreateContainerRequest(), timeout=0.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_reading_stops_while_too_many_requests_run():
    """At the limit the link is held, and released when one has ended."""
    gate, entered = asyncio.Event(), asyncio.Queue()

    async def behave(message):
        entered.put_nowait(message.container.id)
        await gate.wait()
        return api.CreateContainerResponse()

    async with testing.joined([Service(behave)]) as (caller, callee):
        callee.server._max_running = 2
        stub = api.PluginStub(caller.channel)
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(stub.create_container(api.CreateContainerRequest()))
            await entered.get()
            await entered.get()
            assert callee.link.is_held
            gate.set()
        await asyncio.sleep(0)
        assert not callee.link.is_held


async def test_a_channel_makes_unary_calls_only():
    """Anything else is our own mistake."""
    async with testing.joined([Service()]) as (caller, _):
        with pytest.raises(errors.LocalProtocolError, match="not a unary call"):
            caller.channel.request("/s/m", const.Cardinality.STREAM_STREAM, api.Empty, api.Empty)
        async with caller.channel.request(
            "/s/m", const.Cardinality.UNARY_UNARY, api.Empty, api.Empty
        ) as stream:
            with pytest.raises(errors.LocalProtocolError, match="nothing has been asked"):
                await stream.recv_message()
            await stream.send_message(api.Empty(), end=True)
            with pytest.raises(errors.LocalProtocolError, match="one request"):
                await stream.send_message(api.Empty(), end=True)


async def test_calls_end_with_the_connection():
    """A call in flight, and one that is begun afterwards, raise why the link ended."""
    entered = asyncio.Event()

    async def behave(_message):
        entered.set()
        await asyncio.Event().wait()

    async with testing.joined([Service(behave)]) as (caller, callee):
        stub = api.PluginStub(caller.channel)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(raised(stub.create_container(api.CreateContainerRequest())))
            await entered.wait()
            callee.link.close()
        assert isinstance(call.result(), errors.ConnectionLost)
        with pytest.raises(errors.ConnectionLost, match="the peer closed"):
            await stub.create_container(api.CreateContainerRequest())


class Undecoded(Service):
    """A plugin that serves CreateContainer by its bytes."""

    def __init__(self, serve, says_nothing):
        super().__init__()
        self._raw = server.Raw(serve=serve, says_nothing=says_nothing)

    def raw(self):
        return {"/nri.pkg.api.v1alpha1.Plugin/CreateContainer": self._raw}


async def ask(service, payload=b"x", **options):
    """Send bytes; gives the response as it came."""
    async with testing.joined([service], **options) as (caller, _):
        route = "/nri.pkg.api.v1alpha1.Plugin/CreateContainer"
        _, future = caller.channel.start(route, payload, 2.0)
        return await future


async def test_a_raw_method_is_given_bytes_and_gives_bytes():
    """Neither request nor answer passes the message library."""

    async def serve(data):
        return data + b"!"

    response = await ask(Undecoded(serve, lambda _: False), b"\xff\xff")
    assert (response.code, response.payload) == (0, b"\xff\xff!")


async def test_a_request_of_which_the_bytes_say_enough_is_answered_at_once():
    """The answer is empty, nothing is served, and the outcome is told."""
    outcomes = []

    async def serve(_data):
        raise AssertionError

    response = await ask(Undecoded(serve, lambda _: True), observe=outcomes.append)
    assert (response.code, response.payload) == (0, b"")
    assert [(outcome.status, outcome.late) for outcome in outcomes] == [(const.Status.OK, False)]


async def test_a_defect_in_the_look_at_the_bytes_skips_nothing(caplog):
    """In doubt the request is served whole."""

    async def serve(_data):
        return b"served"

    response = await ask(Undecoded(serve, lambda _: 1 // 0))
    assert response.payload == b"served"
    assert "could not be judged" in caplog.text


async def test_undecodable_bytes_are_a_raw_methods_error():
    """RemoteProtocolError of the method is the caller's fault, as with decoded ones."""

    async def serve(_data):
        raise errors.RemoteProtocolError("half a field")

    response = await ask(Undecoded(serve, lambda _: False))
    assert response.code == const.Status.INVALID_ARGUMENT.value
    assert response.message == "undecodable CreateContainer: half a field"
