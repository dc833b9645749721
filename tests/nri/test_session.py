# SPDX-License-Identifier: Apache-2.0
"""Sessions against the runtime's side on a real socket, clock and pauses injected."""

import asyncio
import contextlib
import logging
import socket

import pytest

from nri_nvidia import errors
from nri_nvidia.edits import model
from nri_nvidia.nri import session
from nri_nvidia.testing import runtime as runtimes

from . import decider, messages


class Pauses:
    """An injected sleep: notes each pause and ends it when the test says so."""

    def __init__(self):
        self.asked = asyncio.Queue()
        self._go = asyncio.Queue()

    async def __call__(self, seconds):
        self.asked.put_nowait(seconds)
        await self._go.get()

    def end(self):
        """End the pause that has begun."""
        self._go.put_nowait(None)

    async def over(self):
        """Wait for the next pause, end it, and give its length."""
        seconds = await self.asked.get()
        self.end()
        return seconds


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@contextlib.asynccontextmanager
async def running(noting, *, pauses=None, clock=None, **settings):
    """Have a plugin running for the length of the block."""
    task = asyncio.ensure_future(
        session.run_forever(
            session.Settings(**settings),
            noting,
            sleep=pauses or Pauses(),
            clock=clock or Clock(),
            jitter=lambda: 1.0,
        )
    )
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "nri.sock")


VERSIONS = ["0.6.1", "0.8.0", "0.12.0"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("configure_first", [True, False])
async def test_a_container_gets_its_edits(path, version, configure_first):
    """From connecting to the adjustment, in every age of the protocol and order of the handshake."""
    noting = decider.Noting()

    async def create(container, _deadline):
        return model.ContainerEdits(env=(("FOR", container.id),))

    noting.create = create
    runtime = runtimes.Runtime(
        nri_version=version,
        config="text",
        configure_first=configure_first,
        pods=[messages.pod()],
        containers=[messages.container("old")],
    )
    async with runtime.listening(path), running(noting, socket=path, name="gpu", index="42"):
        [plugin] = await runtime.attached()
        assert (plugin.display, plugin.events) == ("42-gpu", 0x608)
        [[old]] = await noting.until("synchronized")
        assert (old.id, old.display) == ("old", "team/pod0/main")
        adjustment = await runtime.create(messages.container("new"), messages.pod())
        assert [(pair.key, pair.value) for pair in adjustment.env] == [("FOR", "new")]
        await runtime.stop("new")
        await runtime.remove("new")
    order = [what for what, _ in noting.heard]
    assert order[:2] == ["configure", "registered"]
    assert order[3:] == ["create", "stop", "remove", "disconnected"]
    assert noting.heard[0][1][0] == "text"


async def test_five_hundred_containers_are_synchronised_in_chunks(path):
    """A list over the message limit comes in several messages and arrives whole and in order."""
    containers = [messages.container(f"c{number}") for number in range(500)]
    runtime = runtimes.Runtime(
        pods=[messages.pod(number) for number in range(250)],
        containers=containers,
        message_limit=512 << 10,
    )
    noting = decider.Noting()
    async with runtime.listening(path), running(noting, socket=path):
        [plugin] = await runtime.attached()
        assert plugin.synchronized > 2
        [listed] = await noting.until("synchronized")
        assert [container.id for container in listed] == [shown.id for shown in containers]


async def test_an_old_runtime_sends_nine_megabytes_at_once(path):
    """Before NRI 0.8 Synchronize is one message of any size."""
    containers = [messages.container(f"c{n}", variables=600) for n in range(500)]
    runtime = runtimes.Runtime(nri_version="0.6.1", containers=containers)
    assert sum(len(bytes(container)) for container in containers) > 9 << 20
    noting = decider.Noting()
    async with runtime.listening(path), running(noting, socket=path):
        [plugin] = await runtime.attached()
        assert plugin.synchronized == 1


async def test_containers_are_created_while_the_list_is_read(path):
    """A creation is answered although the list of hundreds is still being decoded."""
    runtime = runtimes.Runtime(
        pods=[messages.pod()], containers=[messages.container(f"c{n}") for n in range(300)]
    )
    noting = decider.Noting()
    async with runtime.listening(path), running(noting, socket=path):
        await runtime.attached()
        await runtime.create(messages.container("new"))
        await noting.until("synchronized")
        order = [what for what, _ in noting.heard]
        assert order.index("create") < order.index("synchronized")


async def test_a_broken_element_of_the_list_is_left_out(path, caplog):
    """One undecodable container does not hide the others."""
    good, bad = messages.container("good"), messages.container("", pod_id="p0")
    runtime = runtimes.Runtime(containers=[bad, good])
    noting = decider.Noting()
    async with runtime.listening(path), running(noting, socket=path):
        [listed] = await noting.until("synchronized")
        assert [container.id for container in listed] == ["good"]
    assert "is left out: the runtime shows a container without an id" in caplog.text


async def test_sixty_mounts_pass_a_go_reader(path):
    """An answer of 10 kB is framed so that the runtime can take it."""
    mounts = tuple(
        model.MountEdit(
            source="/usr/lib/x86_64-linux-gnu/" + "x" * 80 + str(n), destination=f"/{n}"
        )
        for n in range(60)
    )
    noting = decider.Noting()

    async def create(_container, _deadline):
        return model.ContainerEdits(mounts=mounts)

    noting.create = create
    runtime = runtimes.Runtime()
    async with runtime.listening(path), running(noting, socket=path):
        await runtime.attached()
        adjustment = await runtime.create(messages.container())
        assert len(bytes(adjustment)) > 8192
        assert len(adjustment.mounts) == 60


async def test_two_requests_at_once(path):
    """While one container waits for its decision, another gets its own."""
    gate = asyncio.Event()
    noting = decider.Noting()

    async def create(container, _deadline):
        if container.id == "slow":
            await gate.wait()
        return model.ContainerEdits(env=(("FOR", container.id),))

    noting.create = create
    runtime = runtimes.Runtime()
    async with runtime.listening(path), running(noting, socket=path), asyncio.TaskGroup() as group:
        await runtime.attached()
        slow = group.create_task(runtime.create(messages.container("slow")))
        await noting.until("create")
        quick = await runtime.create(messages.container("quick"))
        assert quick.env[0].value == "quick"
        assert not slow.done()
        gate.set()
    assert slow.result().env[0].value == "slow"


async def test_a_late_decision_is_a_refusal(path):
    """The runtime gets an error before its limit, so the plugin is not dropped."""
    noting = decider.Noting()

    async def create(_container, _deadline):
        await asyncio.Event().wait()

    noting.create = create
    runtime = runtimes.Runtime(request_timeout=0.6)
    async with runtime.listening(path), running(noting, socket=path):
        await runtime.attached()
        with pytest.raises(runtimes.CreationFailed, match="CreateContainer was not finished"):
            await runtime.create(messages.container())
        assert len(runtime.plugins) == 1


async def test_it_reconnects_after_the_runtime_restarted(path, caplog):
    """First a quick retry, then every second while nobody listens; each state is logged once."""
    caplog.set_level(logging.INFO)
    noting, pauses = decider.Noting(), Pauses()
    async with running(noting, pauses=pauses, socket=path):
        assert [await pauses.over() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
        assert await pauses.asked.get() == 1.0
        assert caplog.text.count("does not exist") == 1
        for number in range(2):
            async with runtimes.Runtime().listening(path):
                pauses.end()
                await noting.until("synchronized", number + 1)
            assert await pauses.over() == [0.2, 1.0][number]
            assert [await pauses.over() for _ in range(2)] == [0.2, 0.4]
            assert await pauses.asked.get() == 0.8
            assert len(await noting.until("disconnected", number + 1)) == number + 1
        assert caplog.text.count("has no listener") == 2
    assert caplog.text.count("registered as 10-nri-nvidia with containerd 2.1.9") == 2


async def test_the_pauses_grow_when_sessions_do_not_last(path):
    """Each Synchronize stops the node's container work, so failing ones get rarer, up to 30 s."""
    noting, pauses, clock = decider.Noting(), Pauses(), Clock()
    runtime = runtimes.Runtime()
    async with runtime.listening(path), running(noting, pauses=pauses, clock=clock, socket=path):
        seen = []
        for number in range(8):
            await noting.until("synchronized", number + 1)
            [plugin] = await runtime.attached()
            plugin.peer.link.close()
            seen.append(await pauses.over())
        assert seen == [0.2, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        await noting.until("synchronized", 9)
        clock.now += 60
        [plugin] = await runtime.attached()
        plugin.peer.link.close()
        assert await pauses.over() == 0.2


async def test_jitter_halves_a_pause_at_most():
    """Many nodes do not come back in step."""
    pace = session._Pace(lambda: 0.0)
    end = session._End(state="lost", reason=errors.Error("x"))
    assert [pace.delay(end) for _ in range(3)] == [0.1, 0.5, 1.0]


async def test_a_refused_plugin_waits_long(path, caplog):
    """A registration error is logged with its reason and not tried again soon."""
    noting, pauses = decider.Noting(), Pauses()
    runtime = runtimes.Runtime(nri_version="0.12.0")
    runtime.acceptable = lambda name, index: False
    async with runtime.listening(path), running(noting, pauses=pauses, socket=path):
        assert await pauses.over() == 60.0
        assert await pauses.over() == 60.0
    assert caplog.text.count("the runtime refuses plugin 10-nri-nvidia: invalid plugin") == 1
    assert noting.heard == []


async def test_a_configuration_that_cannot_be_used_waits_long(path, caplog):
    """The Decider's error goes to the runtime and to the log, and is not tried again soon."""
    noting, pauses = decider.Noting(), Pauses()

    async def configure(_config, _runtime):
        raise errors.ConfigError("line 1: unknown key")

    noting.configure = configure
    for first in (True, False):
        runtime = runtimes.Runtime(configure_first=first)
        async with runtime.listening(path), running(noting, pauses=pauses, socket=path):
            assert await pauses.over() == 60.0
    assert "Configure was answered with an error: line 1: unknown key" in caplog.text


async def test_a_failed_synchronize_leads_to_a_new_connection(path, monkeypatch, caplog):
    """On an old runtime the connection stays open and is dead, so the plugin leaves by itself."""
    noting, pauses = decider.Noting(), Pauses()

    async def broken(self, message):
        raise RuntimeError("defect in the plugin")

    monkeypatch.setattr(session.plugin.Plugin, "synchronize", broken)
    runtime = runtimes.Runtime(nri_version="0.6.1")
    async with runtime.listening(path), running(noting, pauses=pauses, socket=path):
        await runtime.said("failed to synchronize")
        assert await pauses.over() == 0.2
    assert [what for what, _ in noting.heard][:3] == ["configure", "registered", "disconnected"]
    assert "Synchronize was answered with an error: RuntimeError" in caplog.text


async def test_a_runtime_that_never_synchronises_is_left(path, caplog):
    """Without Synchronize the plugin is not in service, however open the connection is."""
    noting, pauses = decider.Noting(), Pauses()
    runtime = runtimes.Runtime()

    async def skip(_plugin):
        pass

    runtime._synchronize = skip
    async with (
        runtime.listening(path),
        running(noting, pauses=pauses, socket=path, synchronize_timeout=0.1),
    ):
        assert await pauses.over() == 0.2
    assert "no Synchronize came from the runtime within 0.1 s" in caplog.text


async def test_a_late_synchronize_leads_to_a_new_connection(path, monkeypatch):
    """An answer after the runtime's limit counts as failed."""
    noting, pauses = decider.Noting(), Pauses()

    async def stuck(self, message):
        await asyncio.Event().wait()

    monkeypatch.setattr(session.plugin.Plugin, "synchronize", stuck)
    runtime = runtimes.Runtime(nri_version="0.6.1", request_timeout=0.5)
    async with runtime.listening(path), running(noting, pauses=pauses, socket=path):
        await runtime.said("failed to synchronize")
        assert await pauses.over() == 0.2


async def test_a_mute_runtime_is_given_up(path, caplog):
    """When RegisterPlugin is not answered in time the connection is made anew."""
    noting, pauses = decider.Noting(), Pauses()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        async with running(noting, pauses=pauses, socket=path, registration_timeout=0.1):
            assert await pauses.over() == 0.2
    assert "did not answer RegisterPlugin within 0.1 s" in caplog.text


async def test_a_permission_error_says_what_to_do(caplog):
    """EACCES is explained: only root may connect."""
    end = session._unreachable(session.Settings(socket="/x"), PermissionError(13, "denied"))
    assert str(end.reason) == (
        "no permission to connect to /x "
        "(run as root; in a pod, mount the socket's directory and check SELinux)"
    )


async def test_other_errors_of_connecting_are_named(path, caplog):
    """A path that is too long for a socket is reported, and retried slowly."""
    pauses = Pauses()
    async with running(decider.Noting(), pauses=pauses, socket="/" + "x" * 200):
        assert [await pauses.over() for _ in range(3)] == [0.2, 1.0, 2.0]
    assert caplog.text.count("cannot connect to /xxx") == 1


async def test_a_decider_that_fails_to_take_note_ends_nothing(path, caplog):
    """Defects in what only informs are logged; the session goes on."""
    noting = decider.Noting()

    async def broken(*_):
        raise RuntimeError("defect in the daemon")

    noting.registered = noting.synchronized = broken
    runtime = runtimes.Runtime()
    async with runtime.listening(path), running(noting, socket=path):
        await runtime.attached()
        await runtime.create(messages.container())
    assert "defect in the daemon" in caplog.text
