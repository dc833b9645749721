# SPDX-License-Identifier: Apache-2.0
"""The host seen from the event loop: threads that hang, looks that fail."""

import asyncio
import threading

import pytest

from nri_nvidia import errors, pipeline
from nri_nvidia.daemon import hostwatch, ledger, worker
from nri_nvidia.host import model, options
from nri_nvidia.request import container as containers
from nri_nvidia.testing import host, host_spec


async def test_worker_that_hangs_is_not_waited_for():
    """What follows it waits; the loop does not."""
    go = threading.Event()
    thread = worker.Worker("test")
    stuck, behind = thread.run(go.wait), thread.run(lambda: 7)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(behind), 0.05)
    go.set()
    assert await behind == 7
    assert await stuck
    thread.close()


async def test_call_that_fails_raises_where_it_is_awaited():
    """And the thread lives on."""
    thread = worker.Worker("test")
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(lambda: 3) == 3
    thread.close()


async def test_defect_in_a_look_is_an_error_with_a_sentence(monkeypatch):
    """Whatever a scan raises, a container is refused by it and nothing ends."""
    watch = hostwatch.HostWatch(options.Options())
    monkeypatch.setattr(watch, "_see", lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(errors.HostError, match="ZeroDivisionError"):
            await watch.inventory(5.0)
    watch.close()


async def test_everybody_waits_for_one_look(monkeypatch):
    """A look that hangs is joined, not repeated."""
    go = threading.Event()
    looks = []

    def see():
        looks.append(1)
        go.wait()
        return model.Inventory(), False

    watch = hostwatch.HostWatch(options.Options())
    monkeypatch.setattr(watch, "_see", see)
    for _ in range(3):
        with pytest.raises(errors.HostError, match="could not be read within"):
            await watch.inventory(0.02)
    go.set()
    assert await watch.inventory(5.0) == model.Inventory()
    assert len(looks) == 1
    watch.close()


async def test_files_are_looked_at_behind_an_answer(tmp_path):
    """A driver file that was written over is noticed after an answer, and the next one scans."""
    host.build(tmp_path / "h", host_spec.HostSpec(gpus=(host_spec.GpuSpec(),)))
    watch = hostwatch.HostWatch(host.options_for(tmp_path / "h"))
    watch._behind_at = float("inf")  # the timer does not come in between
    found = None
    while (again := await watch.inventory(5.0)) is not found:
        found = again
    path = next(file.source for file in found.files if "ptxjit" in file.source)
    with open(path, "r+b") as file:
        file.write(b"\x7fELG")
    assert await watch.inventory(5.0) is found
    watch._look_behind()
    assert await watch.inventory(5.0) is not found
    watch.close()


async def test_a_look_that_has_begun_is_taken(monkeypatch):
    """What was begun before is the answer, and is not looked for again."""
    looks = []

    def see():
        looks.append(1)
        return model.Inventory(), False

    watch = hostwatch.HostWatch(options.Options())
    monkeypatch.setattr(watch, "_see", see)
    begun = watch.begin()
    await begun
    assert await watch.inventory(5.0, begun) == model.Inventory()
    assert len(looks) == 1
    watch.close()


def test_ledger_keeps_no_environment():
    """Of a container its names are kept, of a request a bearable part."""
    books = ledger.Ledger()
    big = containers.Container(id="a", name="n" * 10_000, env=("X=" + "y" * 100_000,))
    plan = pipeline.refused(errors.RequestError("z" * 100_000), None)
    books.record(ledger.Decided(time=0.0, container=big, plan=plan, duration_ms=1.0))
    books.miss(big)
    assert len(repr((books.decisions, books.missed))) < 10_000
