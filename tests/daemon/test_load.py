# SPDX-License-Identifier: Apache-2.0
"""Stalls of what the daemon reads, and much at once or for long: nothing dropped, nothing wrong."""

import asyncio
import os
import pathlib

import pytest

from nri_nvidia.testing import host

from . import pairs, stalls

needs_fuse = pytest.mark.skipif(
    not pathlib.Path(stalls.DEVICE).exists(), reason="the kernel has no FUSE here"
)
MANY = [f"SERVICE_{number}_PORT=tcp://10.0.0.1:80" for number in range(40)]


@needs_fuse
@pytest.mark.parametrize(
    "option", [("--volume-directory", ""), ("--control-socket", "/control.sock")]
)
def test_own_directories_that_never_answer(together, tmp_path, option):
    """With the prepared files or the sockets out of reach GPU containers get their GPUs in time."""
    stuck = tmp_path / "stuck"
    stuck.mkdir()
    name, end = option

    async def body(pair):
        for number in range(3):
            adjusted = await pair.create(number, f"NVIDIA_VISIBLE_DEVICES={number}")
            assert [d.path for d in adjusted.linux.devices][-1] == f"/dev/nvidia{number}"
            assert adjusted.mounts
            assert bytes(await pair.create(10 + number, "PATH=/bin")) == b""
        assert len(pair.runtime.plugins) == 1
        assert not [entry for entry in pair.runtime.log if "closing" in entry]
        assert await asyncio.to_thread(pair.daemon.end) == 0

    with stalls.unanswering(stuck):
        together(body, name, f"{stuck}{end}")


def test_nvml_that_never_answers(together, tmp_path):
    """Whole GPUs are given without it, and no container waits for it."""
    stuck = tmp_path / "host"
    host.build(stuck, pairs.EIGHT)
    (stuck / "nvml.fault").write_text("hang")

    async def body(pair):
        for number in range(8):
            adjusted = await pair.create(number, f"NVIDIA_VISIBLE_DEVICES={number}")
            assert [d.path for d in adjusted.linux.devices][-1] == f"/dev/nvidia{number}"
        found = await pairs.status(pair)
        assert found["runtime"]["registrations"] == 1
        assert found["counts"] == {"inject": 8}

    together(body, gpus=stuck)


def test_a_hundred_creations_at_once(together):
    """Each gets the GPU that it asked for, and those that asked for none get nothing."""

    async def body(pair):
        numbers = range(100)
        answers = await asyncio.gather(
            *(
                pair.create(n, *MANY, *([f"NVIDIA_VISIBLE_DEVICES={n % 8}"] if n % 2 else []))
                for n in numbers
            )
        )
        for number, adjusted in zip(numbers, answers, strict=True):
            if number % 2:
                assert [d.path for d in adjusted.linux.devices][-1] == f"/dev/nvidia{number % 8}"
                assert adjusted.hooks.create_container
            else:
                assert bytes(adjusted) == b""
        assert len(pair.runtime.plugins) == 1
        found = await pairs.status(pair)
        assert len(found["containers"]) == 50
        assert found["counts"] == {"inject": 50}

    together(body)


def test_containers_of_a_full_node_at_the_connection(together):
    """500 that were there before, in messages of up to 4 MiB, delay no creation until it fails."""
    long = [f"VARIABLE_{number}={'x' * 400}" for number in range(40)]
    before = [
        pairs.container(n, *long, *(["NVIDIA_VISIBLE_DEVICES=all"] if n % 50 == 0 else []))
        for n in range(500)
    ]

    async def body(pair):
        for number in range(1000, 1010):
            assert (await pair.create(number, "NVIDIA_VISIBLE_DEVICES=1")).mounts
        assert pair.runtime.plugins[0].synchronized > 1
        await asyncio.to_thread(
            pair.daemon.until, lambda: len(pair.daemon.status()["missed"]) == 10, "what was missed"
        )
        assert (await pairs.status(pair))["runtime"]["registrations"] == 1

    together(body, containers=before, pods=[pairs.POD])


def held(daemon):
    """Give what a process may lose: resident memory in kB, descriptors, threads, files."""
    base = pathlib.Path(f"/proc/{daemon.pid}")
    [line] = [x for x in (base / "status").read_text().split("\n") if x.startswith("VmRSS")]
    files = sum(len(names) for _, _, names in os.walk(daemon.directory))
    return (
        int(line.split()[1]),
        len(os.listdir(base / "fd")),
        len(os.listdir(base / "task")),
        files,
    )


@pytest.mark.parametrize(
    "cycles",
    [100, pytest.param(10_000, id="10000", marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_nothing_grows(together, cycles):
    """After the first containers neither memory nor descriptors nor threads nor files grow."""
    first = max(cycles // 10, 60)

    async def body(pair):
        async def cycle(numbers):
            for number in numbers:
                await pair.create(number, *MANY, f"NVIDIA_VISIBLE_DEVICES={number % 8}")
                await pair.runtime.stop(pairs.container(number).id)
                await pair.runtime.remove(pairs.container(number).id)
            # An answer to `status` comes behind what was still to be noted.
            return (await pairs.status(pair))["containers"]

        # As many records are kept as there may be, before anything is measured.
        assert await cycle(range(first)) == []
        memory, descriptors, threads, files = held(pair.daemon)
        assert await cycle(range(10_000, 10_000 + cycles)) == []
        now = held(pair.daemon)
        assert now[0] - memory < 4000
        assert now[1] <= descriptors + 2
        assert now[2] <= threads
        assert cycles < 1000 or now[3] <= files + 8

    together(body, "--log-level", "warning", limit=1800)
