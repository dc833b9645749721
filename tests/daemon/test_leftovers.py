# SPDX-License-Identifier: Apache-2.0
"""Containers that have ended without an event, over a real socket."""

import asyncio
import contextlib

import pytest
from grpclib import server

from nri_nvidia._api.runtime import v1
from nri_nvidia.daemon import cri, ledger, leftovers
from nri_nvidia.request import container as containers


class Runtime(v1.RuntimeServiceBase):
    """A runtime in which the containers named have exited; it counts how often it is asked."""

    def __init__(self, *exited):
        self.exited = exited
        self.asked = 0

    async def list_containers(self, list_containers_request):
        self.asked += 1
        state = v1.ContainerState.CONTAINER_EXITED
        return v1.ListContainersResponse(
            containers=[v1.Container(id=each, state=state) for each in self.exited]
        )


@contextlib.asynccontextmanager
async def keeping(path, runtime, books, name="containerd", cgroups=()):
    """Have the keeper at work; gives a function that lets its time come and waits for its end."""
    listening = server.Server([runtime])
    await listening.start(path=str(path))
    due, slept, ended = asyncio.Event(), asyncio.Event(), []

    async def sleep(_seconds):
        slept.set()
        await due.wait()
        due.clear()

    async def end(container_id):
        ended.append(container_id)
        books.drop(container_id)

    async def look():
        slept.clear()
        due.set()
        await slept.wait()
        return [*ended]

    asked = cri.Cri()
    asked.use(str(path), 5.0)
    keeper = leftovers.Leftovers(asked, books, lambda: name, end, lambda path: path in cgroups)
    task = asyncio.ensure_future(keeper.keep(sleep=sleep))
    try:
        await slept.wait()
        yield look
    finally:
        task.cancel()
        listening.close()
        await listening.wait_closed()


def books_with(held=(), missed=()):
    books = ledger.Ledger()
    for name in held:
        container = containers.Container(id=name, cgroup=f"/pod/{name}")
        books.adopt(ledger.Entry(container=container, since=0.0))
    for name in missed:
        books.miss(containers.Container(id=name))
    return books


async def test_those_that_ended_are_let_go(tmp_path):
    """Holders and missed ones that the runtime says have exited, each once; no others."""
    runtime = Runtime("dead", "lost", "stranger")
    books = books_with(held=("dead", "lives", "of-docker/0"), missed=("lost", "misses"))
    async with keeping(tmp_path / "cri", runtime, books) as look:
        assert await look() == ["dead", "lost"]
        assert await look() == ["dead", "lost"]
    assert (runtime.asked, {*books.entries}, {*books.missed}) == (
        2,
        {"lives", "of-docker/0"},
        {"misses"},
    )


async def test_one_whose_cgroup_is_there_still_holds(tmp_path):
    """A runtime that was killed may take a container for ended of which processes are left."""
    books, cgroups = books_with(held=("dead",)), {"/pod/dead"}
    async with keeping(tmp_path / "cri", Runtime("dead"), books, cgroups=cgroups) as look:
        assert await look() == []
        cgroups.clear()
        assert await look() == ["dead"]


@pytest.mark.parametrize(
    ("held", "name"),
    [
        pytest.param((), "containerd", id="nobody-holds"),
        pytest.param(("of-docker/0",), "containerd", id="none-of-the-runtime"),
        pytest.param(("lives",), "", id="not-registered"),
    ],
)
async def test_a_runtime_is_not_asked_for_nothing(tmp_path, held, name):
    """Where nobody holds anything of a runtime's, or there is none, no question is asked."""
    runtime = Runtime("lives")
    async with keeping(tmp_path / "cri", runtime, books_with(held=held), name) as look:
        assert await look() == []
    assert runtime.asked == 0


async def test_runtime_that_does_not_answer_ends_nothing(tmp_path):
    """Nothing is let go of without an answer, and it is asked again."""
    books = books_with(held=("dead",))
    async with keeping(tmp_path / "cri", v1.RuntimeServiceBase(), books) as look:
        assert await look() == []
        assert await look() == []
    assert {*books.entries} == {"dead"}
