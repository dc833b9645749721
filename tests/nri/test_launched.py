# SPDX-License-Identifier: Apache-2.0
"""A plugin that the runtime starts itself, and where the mode comes from."""

import asyncio
import os
import subprocess
import sys

import attrs
import pytest

from nri_nvidia import errors
from nri_nvidia.nri import session
from nri_nvidia.testing import runtime as runtimes

from . import decider, messages

PROGRAM = """
import asyncio, os
from nri_nvidia.edits import model
from nri_nvidia.nri import session

class Decider:
    markers, validates = (b"",), False
    async def nothing(self, *_): pass
    configure = registered = synchronized = stop_container = remove_container = nothing
    disconnected = nothing
    async def create_container(self, container, deadline):
        return model.ContainerEdits(env=(("SEEN", ",".join(sorted(os.environ))),))

asyncio.run(session.run_forever(session.Settings().from_environment(os.environ), Decider()))
"""


async def test_a_launched_program_needs_nothing_but_its_socket(tmp_path):
    """Without PATH, HOME or standard streams it serves, and ends by itself with the runtime."""
    runtime = runtimes.Runtime()
    async with runtime.launched(name="gpu", index="07") as environment:
        descriptor = int(environment["NRI_PLUGIN_SOCKET"])
        program = subprocess.Popen(
            [sys.executable, "-B", "-c", PROGRAM],
            env=environment,
            pass_fds=[descriptor],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(descriptor)
        try:
            await runtime.attached()
            adjustment = await runtime.create(messages.container())
            seen = set(adjustment.env[0].value.split(","))
            assert seen - {"LC_CTYPE"} == set(environment)
            runtime.plugins[0].peer.link.close()
            assert await asyncio.to_thread(program.wait, 60) == 0
        finally:
            program.kill()
            program.wait()


@pytest.mark.parametrize("version", ["0.6.1", "0.8.0", "0.12.0"])
async def test_a_launched_plugin_serves_and_ends_with_its_runtime(version):
    """With an inherited descriptor it registers under the given name, and returns at the end.

    A runtime before NRI 0.8 sends it no Synchronize.
    """
    noting = decider.Noting()
    runtime = runtimes.Runtime(nri_version=version)
    async with runtime.launched(name="gpu", index="07") as environment:
        settings = session.Settings().from_environment(environment)
        task = asyncio.ensure_future(session.run_forever(settings, noting))
        [plugin] = await runtime.attached()
        assert plugin.display == "07-gpu"
        await noting.until("registered")
        await runtime.create(messages.container())
    await task
    heard = [what for what, _ in noting.heard]
    assert ("synchronized" in heard) == (version != "0.6.1")
    assert heard[-1] == "disconnected"


async def test_a_launched_plugin_that_is_refused_raises():
    """There is no second attempt on an inherited descriptor."""
    runtime = runtimes.Runtime()
    runtime.acceptable = lambda name, index: False
    async with runtime.launched(name="gpu", index="07") as environment:
        settings = session.Settings().from_environment(environment)
        with pytest.raises(session.Rejected, match="refuses plugin 07-gpu"):
            await session.run_forever(settings, decider.Noting())


async def test_a_descriptor_that_is_no_socket_raises(tmp_path):
    """The variable is named, with the way out."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(errors.ConfigError, match="NRI_PLUGIN_SOCKET"):
            await session.run_forever(session.Settings(descriptor=descriptor), decider.Noting())
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        ({"NRI_PLUGIN_SOCKET": ""}, {}),
        (
            {"NRI_PLUGIN_SOCKET": "3", "NRI_PLUGIN_NAME": "n", "NRI_PLUGIN_IDX": "05"},
            {"descriptor": 3, "name": "n", "index": "05"},
        ),
    ],
)
def test_the_mode_comes_from_the_environment(environment, expected):
    """A non-empty NRI_PLUGIN_SOCKET means that the runtime started us."""
    settings = session.Settings()
    assert settings.from_environment(environment) == attrs.evolve(settings, **expected)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"name": ""}, "plugin name ''"),
        ({"name": "a b"}, "plugin name 'a b'"),
        ({"index": "5"}, "give two digits"),
        ({"index": "\u0660\u0665"}, "give two digits"),
    ],
)
def test_what_runtimes_refuse_is_refused_before(wrong, reason):
    """Name and index are checked where they are set."""
    with pytest.raises(errors.ConfigError, match=reason):
        session.Settings(**wrong)


def test_a_descriptor_that_is_no_number_is_refused():
    """NRI_PLUGIN_SOCKET holds decimal digits."""
    with pytest.raises(errors.ConfigError, match="not the number of a file descriptor"):
        session.Settings().from_environment({"NRI_PLUGIN_SOCKET": "x"})
