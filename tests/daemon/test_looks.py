# SPDX-License-Identifier: Apache-2.0
"""Looks before an answer: made by one thread, and none that hangs keeps the others."""

import asyncio
import threading

import pytest

from nri_nvidia.config import model as config_model
from nri_nvidia.daemon import hookplace, hostwatch, looks, volumekeeper, worker
from nri_nvidia.host import model, options


@pytest.fixture
def threads():
    """A worker for the batch, and one for what it leaves."""
    found = worker.Worker("together"), worker.Worker("instead")
    yield found
    for each in found:
        each.close()


async def test_one_thread_makes_all_and_tells_once(threads):
    """Each result is in its own future, an error too, and all are there at the same moment."""
    together, instead = threads
    batch = worker.Batch()
    made = []
    futures = [
        batch.add(lambda: made.append(threading.current_thread().name), instead),
        batch.add(lambda: 1 // 0, instead),
        batch.add(lambda: 7, instead),
    ]
    batch.begin(together)
    assert await worker.within(5.0, futures[0]) is None
    assert batch.done
    assert made == ["together"]
    assert futures[2].result() == 7
    with pytest.raises(ZeroDivisionError):
        futures[1].result()


async def test_nothing_waits_behind_a_call_that_hangs(threads):
    """What was made before it is told, and what is left is made by the other thread."""
    together, instead = threads
    go = threading.Event()
    batch = worker.Batch()
    first, stuck, behind = (
        batch.add(lambda: threading.current_thread().name, instead),
        batch.add(go.wait, instead),
        batch.add(lambda: threading.current_thread().name, instead),
    )
    batch.begin(together)
    assert await worker.within(5.0, behind) == "instead"
    assert await worker.within(5.0, first) == "together"
    assert not batch.done
    with pytest.raises(TimeoutError):
        await worker.within(0.01, stuck)
    go.set()
    assert await worker.within(5.0, stuck)
    while not batch.done:
        await asyncio.sleep(0)


async def test_without_a_thread_the_calls_fail(threads, monkeypatch):
    """A node that has no thread to give is no reason to wait for ever."""

    def full(_):
        raise RuntimeError("can't start new thread")

    together, instead = threads
    monkeypatch.setattr(together, "do", full)
    batch = worker.Batch()
    left = batch.add(lambda: 3, instead)
    batch.begin(together)
    assert await worker.within(5.0, left) == 3
    monkeypatch.setattr(instead, "do", full)
    batch = worker.Batch()
    lost = batch.add(lambda: 3, instead)
    batch.begin(together)
    with pytest.raises(RuntimeError, match="can't start"):
        await worker.within(5.0, lost)
    assert batch.done


async def test_waiting_ends_alone(threads):
    """Whoever gives up or is cancelled takes nothing from others who wait for the same."""
    _, instead = threads
    go = threading.Event()
    future = instead.run(go.wait)
    waiting = [asyncio.ensure_future(worker.within(5.0, future)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    go.set()
    assert await waiting[1]


async def test_a_directory_that_hangs_keeps_no_look_at_the_host(monkeypatch):
    """Neither that of the same container, nor that of the next ones."""
    go = threading.Event()
    watch = hostwatch.HostWatch(options.Options())
    place, keeper = hookplace.HookPlace(), volumekeeper.VolumeKeeper()
    seen = []

    def see():
        seen.append(1)
        return model.Inventory(), False

    monkeypatch.setattr(watch, "_see", see)
    monkeypatch.setattr(volumekeeper, "_look", lambda *_: (go.wait(), {}))
    keeper.use("/nonexistent")
    made = looks.Looks(watch, place, keeper)
    try:
        for number in range(1, 4):
            begun = made.begin(None)
            assert await watch.inventory(5.0, begun.host) == model.Inventory()
            assert len(seen) == number
            assert begun.volumes is not None
            assert not begun.volumes.done()
    finally:
        go.set()
        for part in (made, watch, place, keeper):
            part.close()


async def test_a_hook_of_other_settings_is_looked_for_again(monkeypatch):
    """Settings that changed while a look was under way get one of their own."""
    looked = []

    def ensure(settings, _):
        looked.append(settings.directory)
        return hookplace.Installed(
            settings=settings, interpreter=settings.directory, script="", stamp=()
        )

    monkeypatch.setattr(hookplace, "_ensure", ensure)
    place, thread = hookplace.HookPlace(), worker.Worker("together")
    old, new = (config_model.Hook(directory=name) for name in ("/old", "/new"))
    batch = worker.Batch()
    begun = place.begin(old, batch)
    batch.begin(thread)
    await worker.within(5.0, begun)
    assert await place.ready(old, 5.0, begun) == "/old"
    assert looked == ["/old"]
    assert await place.ready(new, 5.0, begun) == "/new"
    assert looked == ["/old", "/new"]
    for each in (place, thread):
        each.close()
