# SPDX-License-Identifier: Apache-2.0
"""A real daemon that may load the driver's kernel modules, by a program that stands for modprobe."""

import asyncio
import os

import pytest

from nri_nvidia.testing import host, runtime

from . import pairs

UNLOADED = host.HostSpec(gpus=(host.GpuSpec(),), driver="", libraries="550.163.01", nvml=False)
LOADED = host.HostSpec(gpus=(host.GpuSpec(),))


@pytest.fixture
def machine(tmp_path):
    """Give a function that makes a host with its driver unloaded, and settings to load it."""
    directory = tmp_path / "host"

    def make(script, **settings):
        host.build(directory, UNLOADED)
        host.build(tmp_path / "loaded", LOADED)
        program = tmp_path / "modprobe"
        program.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/log\n{script}\n')
        program.chmod(0o755)
        values = {"modprobe": f'"{program}"', "load_modules": "true", **settings}
        lines = [f"host.{key} = {value}\n" for key, value in values.items()]
        (tmp_path / "config.toml").write_text("".join(lines))
        return directory, ("--config", str(tmp_path / "config.toml"))

    # What loading changes on a host: what the kernel shows, and so what the scan makes.
    make.load = f"cp -a {tmp_path}/loaded/proc {tmp_path}/loaded/sys {directory}/"
    make.log = tmp_path / "log"
    return make


def until(pair, condition, what):
    return asyncio.to_thread(pair.daemon.until, condition, what)


async def refused(pair, number):
    with pytest.raises(runtime.CreationFailed) as caught:
        await pair.create(number, "NVIDIA_VISIBLE_DEVICES=0")
    return str(caught.value)


def test_modules_are_loaded_beside_the_answers(together, machine):
    """A node whose driver is not loaded gets it without anybody's waiting, and then gives GPUs."""
    fifo = machine.log.with_name("fifo")
    os.mkfifo(fifo)
    wait = f'[ "$1" != nvidia ] || read line < {fifo}'
    directory, arguments = machine(f"{wait}; {machine.load}")

    async def body(pair):
        await until(pair, machine.log.exists, "that loading begins")
        assert "not loaded" in await refused(pair, 1)
        assert bytes(await pair.create(2, "PATH=/bin")) == b""
        await asyncio.to_thread(fifo.write_text, "go\n")
        await until(pair, lambda: pair.daemon.status()["driver"]["loaded"], "the driver")
        adjusted = await pair.create(3, "NVIDIA_VISIBLE_DEVICES=0")
        assert [d.path for d in adjusted.linux.devices][-1] == "/dev/nvidia0"
        await until(pair, lambda: "loaded the kernel modules" in pair.daemon.logged(), "the log")
        assert machine.log.read_text().split() == ["nvidia", "nvidia-uvm", "nvidia-modeset"]

    together(body, *arguments, gpus=directory)


def test_nothing_is_loaded_unless_that_is_set(together, machine):
    """By default a container is refused with the command, and no program runs."""
    directory, arguments = machine(machine.load, load_modules="false")

    async def body(pair):
        assert "modprobe nvidia" in await refused(pair, 1)
        await pairs.status(pair)
        assert not machine.log.exists()

    together(body, *arguments, gpus=directory)


def test_a_modprobe_that_hangs_is_a_finding(together, machine):
    """It is killed at its limit and told; containers are answered all the while."""
    directory, arguments = machine("exec sleep 1000", modules_timeout="0.5")

    async def body(pair):
        await refused(pair, 1)
        found = await until(
            pair,
            lambda: [f for f in pair.daemon.status()["findings"] if "module" in f["code"]],
            "the finding",
        )
        assert [finding["code"] for finding in found] == ["module-not-loaded"]
        assert "did not end within 0.5 s" in found[0]["message"]
        await refused(pair, 2)
        assert len(pair.runtime.plugins) == 1

    together(body, *arguments, gpus=directory, request_timeout=1.0)
