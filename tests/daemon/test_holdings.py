# SPDX-License-Identifier: Apache-2.0
"""What containers hold, and when that is known."""

import asyncio

import pytest

from nri_nvidia import errors
from nri_nvidia.daemon import holdings, ledger, recorder, runtimeholders
from nri_nvidia.request import container as containers


def entry(identifier, *held, **more):
    return ledger.Entry(
        container=containers.Container(id=identifier), since=1.0, held=held, **more
    )


def test_each_device_is_there_with_its_holder():
    """Whose does not count where GPUs are exclusive is said, and of whom another one shares."""
    books = ledger.Ledger()
    gpu = ledger.Held(index=0, uuid="GPU-0", minor=0)
    mig = ledger.Held(index=1, uuid="GPU-1", minor=1, mig="MIG-1")
    books.adopt(entry("a", gpu, mig))
    books.adopt(entry("b", gpu, shares=True))
    books.adopt(entry("c", gpu, shared_from="main"))
    found = holdings.Holdings(books).now()
    assert [
        (each.container.id, each.gpu, each.mig, each.shares, each.shared_from) for each in found
    ] == [
        ("a", "GPU-0", "", False, ""),
        ("a", "GPU-1", "MIG-1", False, ""),
        ("b", "GPU-0", "", True, ""),
        ("c", "GPU-0", "", False, "main"),
    ]


async def test_a_decision_waits_until_every_source_is_read():
    """Whoever asks meanwhile is answered when the last one is."""
    known = holdings.Holdings(ledger.Ledger())
    await known.known(0.0)
    known.begin(holdings.RUNTIME)
    known.begin(holdings.DOOR)
    waiting = asyncio.ensure_future(known.known(60.0))
    known.end(holdings.RUNTIME)
    with pytest.raises(errors.HostError) as caught:
        await known.known(0.01)
    assert caught.value.code == "holders-not-known"
    assert holdings.DOOR in caught.value.message
    assert not waiting.done()
    known.end(holdings.DOOR)
    known.end(holdings.DOOR)
    await waiting


async def test_a_caller_that_has_left_holds_nothing():
    """It never got the answer, so no container is made, and no event would tell of its end."""
    process = await asyncio.create_subprocess_exec("/bin/true")
    await process.wait()
    books, ended = ledger.Ledger(), asyncio.Queue()
    books.adopt(entry("x/runtime"))
    kept = recorder.Recorder()
    holders = runtimeholders.Holders(books, kept, ended.put)
    holders.hold("x/runtime", process.pid, stays=False, cgroup="")
    assert await asyncio.wait_for(ended.get(), 10) == "x/runtime"
    holders.close()
    await kept.close()
