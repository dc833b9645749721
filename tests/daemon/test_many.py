# SPDX-License-Identifier: Apache-2.0
"""A thousand containers come and go under one daemon as a process."""

import asyncio
import pathlib

import pytest

from nri_nvidia.testing import runtime

from . import pairs

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
MANY = 1000
WARM = 100
"""Containers after which all code has run and what is kept of a few is in memory."""


def resident(pid):
    """Give a process's resident memory in kibibytes."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_thousand_containers_leave_nothing_behind(together):
    """FC-123: status answers throughout, nobody holds a GPU in the end, and what is kept is bounded.

    Memory grows by less than a tenth from the hundredth on, however different the containers are.
    """

    async def one(pair, number):
        """Have a container of one of five kinds, to its end."""
        variable = (f"{number % 8}", "all", "none", "GPU-typo", "void")[number % 5]
        env = (f"NVIDIA_VISIBLE_DEVICES={variable}", f"OF_ITS_OWN={number:0200}")
        if variable == "GPU-typo":
            with pytest.raises(runtime.CreationFailed):
                await pair.create(number, *env)
            return
        await pair.create(number, *env)
        found = await pairs.status(pair) if number % 100 == 0 else None
        if found:
            held = [gpu["index"] for gpu in found["gpus"] if gpu["containers"]]
            assert held == [number % 8]
        await pair.runtime.stop(pairs.container(number).id)
        await pair.runtime.remove(pairs.container(number).id)

    async def body(pair):
        await asyncio.to_thread(pair.daemon.nvml_answered)
        for number in range(WARM):
            await one(pair, number)
        warm = resident(pair.daemon.pid)
        for number in range(WARM, MANY):
            await one(pair, number)
        assert resident(pair.daemon.pid) < 1.1 * warm
        found = await pairs.status(pair)
        assert found["runtime"]["registrations"] == 1
        assert found["counts"] == {"inject": MANY * 3 // 5, "error": MANY // 5}
        assert (found["containers"], found["missed"], found["findings"]) == ([], [], [])
        assert not any(gpu["containers"] for gpu in found["gpus"])
        assert len(found["decisions"]) == 200
        kept = [*(pair.daemon.directory / "decisions").iterdir()]
        assert 256 <= len(kept) <= 512 + 64
        done = await asyncio.to_thread(pair.daemon.ask, "explain", pairs.container(MANY - 2).id)
        assert (done.returncode, "[no-such-gpu]" in done.stdout) == (0, True)

    together(body, limit=240)
