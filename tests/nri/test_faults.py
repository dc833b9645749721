# SPDX-License-Identifier: Apache-2.0
"""What a session meets that nobody foresaw ends the session at most, never the daemon."""

import asyncio
import contextlib

import pytest

from nri_nvidia.nri import convert, session
from nri_nvidia.testing import runtime as runtimes

from . import decider, messages


@contextlib.asynccontextmanager
async def running(noting, path):
    task = asyncio.ensure_future(
        session.run_forever(session.Settings(socket=str(path)), noting, jitter=lambda: 0.0)
    )
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_pod_that_cannot_be_read(tmp_path, monkeypatch):
    """It is left out of the list; the others are known and the plugin stays."""
    noting = decider.Noting()
    listed = convert.listed_pods

    def picky(elements):
        if b"p1" in elements[0]:
            raise OverflowError
        return listed(elements)

    monkeypatch.setattr(convert, "listed_pods", picky)
    runtime = runtimes.Runtime(
        pods=[messages.pod(0), messages.pod(1)],
        containers=[messages.container("c0"), messages.container("c1", pod_id="p1")],
    )
    path = tmp_path / "nri.sock"
    async with runtime.listening(path), running(noting, path):
        [[first, second]] = await noting.until("synchronized")
        assert (first.pod, second.pod) == ("pod0", "")
        await runtime.create(messages.container())


async def test_container_that_cannot_be_read(tmp_path, monkeypatch):
    """Whatever reading it raises, the others are known."""
    noting = decider.Noting()
    listed = convert.listed_container

    def picky(data, pods):
        if b"c1" in data:
            raise ZeroDivisionError
        return listed(data, pods)

    monkeypatch.setattr(convert, "listed_container", picky)
    runtime = runtimes.Runtime(
        pods=[messages.pod()], containers=[messages.container("c0"), messages.container("c1")]
    )
    path = tmp_path / "nri.sock"
    async with runtime.listening(path), running(noting, path):
        [[first]] = await noting.until("synchronized")
        assert first.id == "c0"


@pytest.mark.parametrize("news", ["configure", "registered", "synchronized", "disconnected"])
async def test_defect_in_the_decider(tmp_path, news):
    """A handler that raises is logged; the daemon goes on, by a new session if need be."""
    noting = decider.Noting()
    real, failed = getattr(noting, news), asyncio.Event()

    async def once(*arguments):
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        return await real(*arguments)

    setattr(noting, news, once)
    runtime = runtimes.Runtime()
    path = tmp_path / "nri.sock"
    async with runtime.listening(path), running(noting, path) as task:
        if news == "configure":
            await runtime.said("failed to configure plugin")
            assert not task.done()
            return
        [plugin] = await runtime.attached()
        if news == "disconnected":
            plugin.peer.link.close()
            await noting.until("registered", 2)
        await runtime.create(messages.container())
        await failed.wait()
        await runtime.create(messages.container())


async def test_defect_in_a_session(tmp_path, monkeypatch):
    """An exception that is none of ours ends the session, and there is a next one."""
    noting = decider.Noting()
    register, failed = session._Session._register, []

    async def once(self, runtime):
        if not failed:
            failed.append(1)
            raise ZeroDivisionError
        await register(self, runtime)

    monkeypatch.setattr(session._Session, "_register", once)
    runtime = runtimes.Runtime()
    path = tmp_path / "nri.sock"
    async with runtime.listening(path), running(noting, path):
        await runtime.attached()
        await runtime.create(messages.container())


def test_name_that_the_runtime_gave_is_not_judged():
    """A plugin that the runtime started has its name; to end for it would end containerd 1.7."""
    environment = {"NRI_PLUGIN_SOCKET": "3", "NRI_PLUGIN_NAME": "a b", "NRI_PLUGIN_IDX": "10"}
    assert session.Settings().from_environment(environment).descriptor == 3
