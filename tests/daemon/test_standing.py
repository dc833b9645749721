# SPDX-License-Identifier: Apache-2.0
"""Of two nri-nvidia for one runtime, whatever their own directories, one serves."""

import asyncio
import os
import signal

import pytest

from nri_nvidia.daemon import standing
from nri_nvidia.nri import session
from nri_nvidia.testing import runtime
from tests.containerd import daemons

from . import pairs, test_faults


def test_the_second_waits_and_takes_over(together, tmp_path, gpu_host):
    """With its own sockets and directories it stands back, says so, and serves when the first ends."""

    async def body(pair):
        second = daemons.Daemon(tmp_path / "nri.sock", gpu_host)
        try:
            second.start()
            await asyncio.to_thread(
                second.until,
                lambda: f"process {pair.daemon.pid}, {pair.daemon.control}" in second.logged(),
                "the second to say who serves",
            )
            found = await asyncio.to_thread(second.status)
            assert not found["runtime"]["registered"]
            assert "stands-by" in {finding["code"] for finding in found["findings"]}
            assert len(pair.runtime.plugins) == 1
            adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
            assert adjusted.mounts
            await asyncio.to_thread(pair.daemon.end)
            await asyncio.to_thread(second.ready)
            await pair.runtime.attached()
            adjusted = await pair.create(2, "NVIDIA_VISIBLE_DEVICES=0")
            [hook] = adjusted.hooks.create_container
            assert str(second.directory) in " ".join((hook.path, *hook.args))
        finally:
            await asyncio.to_thread(second.close)

    together(body)


def test_one_that_a_runtime_has_started_beside_another(together, tmp_path, gpu_host):
    """It may not keep the runtime waiting: it registers, and says that there are two."""
    log = tmp_path / "log"

    async def body(pair):
        other = runtime.Runtime()
        async with other.launched(name="nri-nvidia", index="10") as environment:
            descriptor = int(environment["NRI_PLUGIN_SOCKET"])
            with test_faults.launching(tmp_path / "nri.sock", gpu_host) as start:
                start(env=environment, pass_fds=[descriptor], log=log)
                os.close(descriptor)
                await other.attached()
                assert f"process {pair.daemon.pid}, {pair.daemon.control}" in log.read_text()
                assert "two nri-nvidia are on this node" in log.read_text()

    together(body)


@pytest.fixture
def two(tmp_path):
    """Give two places for one socket; both are left at the end."""
    both = [standing.Standing(str(tmp_path / "nri.sock"), who) for who in ("one", "two")]
    yield both
    for each in both:
        each.close()


def test_the_place_is_had_by_one(two):
    """The other hears who has it, each time that it asks, and has it when the first has left."""
    first, second = two
    first.take()
    first.take()
    for _ in range(2):
        with pytest.raises(session.StandsBy, match="one"):
            second.take()
    first.close()
    second.take()
    with pytest.raises(session.StandsBy, match="two"):
        first.take()


def test_a_file_that_was_removed(two, tmp_path):
    """Who had the place makes the file again at the next connection, unless another was faster."""
    first, second = two
    first.take()
    (tmp_path / "nri.sock.nri-nvidia").unlink()
    first.take()
    with pytest.raises(session.StandsBy):
        second.take()


@pytest.mark.parametrize("what", ["nothing", "link", "directory", "fifo"])
def test_where_no_place_can_be_had(two, tmp_path, what):
    """Without a directory, or with something else there, nobody is kept from serving."""
    place = tmp_path / "nri.sock.nri-nvidia"
    if what == "nothing":
        two = [standing.Standing(str(tmp_path / "none/nri.sock"), "one")] * 2
    elif what == "link":
        place.symlink_to("/etc/passwd")
    elif what == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)
    two[0].take()


@pytest.mark.parametrize("name", ["nri-nvidia", "10-nri-nvidia"])
def test_a_runtime_that_requires_the_plugin(together, name):
    """While the daemon is away nothing is created; when it is back, containers get their GPUs."""

    async def body(pair):
        assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        await asyncio.to_thread(pair.daemon.end, signal.SIGKILL)
        await pair.runtime.said("is gone")
        for env in ("NVIDIA_VISIBLE_DEVICES=0", "PATH=/bin"):
            with pytest.raises(runtime.CreationFailed, match=f"not present: {name}"):
                await pair.create(2, env)
        pair.daemon.start()
        await pair.runtime.attached()
        await asyncio.to_thread(pair.daemon.ready)
        assert (await pair.create(2, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        assert (await pairs.status(pair))["missed"] == []

    together(body, required_plugins=[name], nri_version="0.12.0")


def test_place_that_is_cleaned_away_while_it_is_taken(two, monkeypatch):
    """Whoever locks a file that was removed meanwhile takes the one that others find."""
    first, second = two
    locked = standing.fcntl.flock

    def late(held, how):
        monkeypatch.undo()
        assert standing.remove(first._socket)
        locked(held, how)

    first.take()
    first.close()
    monkeypatch.setattr(standing.fcntl, "flock", late)
    first.take()
    with pytest.raises(session.StandsBy):
        second.take()
