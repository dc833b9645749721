# SPDX-License-Identifier: Apache-2.0
"""Without room, without the right to write, without descriptors: containers get their GPUs."""

import asyncio
import contextlib
import pathlib
import socket
import subprocess
import tempfile

import pytest

from nri_nvidia.testing import runtime

from . import pairs


@pytest.fixture
def small():
    """A file system of 256 kB that other users reach, too."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="nri-nvidia-small-") as directory:
        place = pathlib.Path(directory)
        place.chmod(0o755)
        mount(place, "-t", "tmpfs", "-o", "size=256k,mode=0755", "tmpfs")
        try:
            yield place
        finally:
            subprocess.run(["umount", "-n", "-l", place], check=True)


def mount(place, *arguments):
    subprocess.run(["mount", "-n", *arguments, place], check=True)


def fill(place):
    """Leave no room on a file system; gives the file that takes it."""
    taking = place / "taking"
    with contextlib.suppress(OSError), taking.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return taking


async def finding(pair, code, *, there):
    """Wait until a finding is shown, or is no more."""

    def shown():
        return code in {each["code"] for each in pair.daemon.status()["findings"]}

    await asyncio.to_thread(pair.daemon.until, lambda: shown() is there, f"{code}: {there}")


def moved(pair, control):
    """Ask the daemon at the socket that it was told to have."""
    pair.daemon.control = control


def test_a_full_disk(together, small):
    """What cannot be kept for `explain` is a finding, for as long as there is no room."""

    async def body(pair):
        moved(pair, small / "control.sock")
        taking = fill(small)
        assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        await finding(pair, "decisions-not-kept", there=True)
        taking.unlink()
        assert (await pair.create(2, "NVIDIA_VISIBLE_DEVICES=1")).mounts
        await finding(pair, "decisions-not-kept", there=False)

    together(body, "--control-socket", str(small / "control.sock"))


def test_a_directory_that_may_be_written_only_later(together, small):
    """Containers are served meanwhile, and `status` answers when the sockets can be made."""
    mount(small, "-o", "remount,ro")

    async def body(pair):
        moved(pair, small / "control.sock")
        assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        assert pair.daemon.says("Read-only file system")
        await asyncio.to_thread(mount, small, "-o", "remount,rw")
        await asyncio.to_thread(pair.daemon.until, pair.daemon.control.exists, "the socket")
        adjusted = await pair.create(2, "NVIDIA_VISIBLE_DEVICES=1")
        assert adjusted.mounts
        assert "cannot be asked" not in str((await pairs.status(pair))["findings"])

    together(body, "--control-socket", str(small / "control.sock"))


def test_a_full_disk_of_prepared_files(together, small):
    """Without room for the driver's files they come one by one, and `status` says why."""

    async def body(pair):
        await finding(pair, "volume-not-built", there=True)
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        places = {mount.destination for mount in adjusted.mounts}
        assert "/usr/local/nvidia/lib64/libcuda.so.1" in places
        assert not any(mount.source.startswith(str(small)) for mount in adjusted.mounts)
        assert (await pairs.status(pair))["ready"]

    fill(small)
    together(body, "--volume-directory", str(small / "volumes"))


def test_a_run_directory_that_is_read_only(together, small):
    """No GPU container is made without its hook: the refusal names the place; all is well later."""
    mount(small, "-o", "remount,ro")
    arguments = (
        "--control-socket", str(small / "control.sock"), "--hook-directory", str(small / "hook"),
    )  # fmt: skip

    async def body(pair):
        moved(pair, small / "control.sock")
        for number in range(3):
            with pytest.raises(runtime.CreationFailed, match=f"{small}/hook.*Read-only"):
                await pair.create(number, "NVIDIA_VISIBLE_DEVICES=0")
            assert bytes(await pair.create(10 + number, "PATH=/bin")) == b""
        assert len(pair.runtime.plugins) == 1
        await asyncio.to_thread(mount, small, "-o", "remount,rw")
        assert (await pair.create(4, "NVIDIA_VISIBLE_DEVICES=1")).hooks.create_container
        await asyncio.to_thread(pair.daemon.until, pair.daemon.control.exists, "the socket")
        assert (await pairs.status(pair))["runtime"]["registrations"] == 1

    together(body, *arguments)


def test_a_directory_that_becomes_read_only(together, small):
    """What is decided meanwhile is not lost for `status`; GPUs are given as ever."""

    async def body(pair):
        moved(pair, small / "control.sock")
        assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        # The sockets stay open, and a file may still be being written.
        await asyncio.to_thread(
            pair.daemon.until, lambda: any(small.glob("decisions/*.json")), "the record"
        )
        await asyncio.to_thread(
            pair.daemon.until, lambda: not subprocess.run(
                ["mount", "-n", "-o", "remount,ro", small], check=False, capture_output=True
            ).returncode, "the file system to be read-only",
        )  # fmt: skip
        assert (await pair.create(2, "NVIDIA_VISIBLE_DEVICES=1")).mounts
        await finding(pair, "decisions-not-kept", there=True)
        found = await pairs.status(pair)
        assert [entry["name"] for entry in found["containers"]] == ["c1", "c2"]
        assert [each["name"] for each in found["decisions"]] == ["c1", "c2"]

    together(body, "--control-socket", str(small / "control.sock"))


def test_no_descriptors_left(together):
    """Callers that take them all up cost no container its answer, and go unnoticed afterwards."""

    async def body(pair):
        assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                caller = stack.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                with contextlib.suppress(OSError):
                    caller.connect(str(pair.daemon.control))
            for number in range(2, 6):
                try:
                    answer = (await pair.create(number, "NVIDIA_VISIBLE_DEVICES=1")).mounts
                except runtime.CreationFailed as error:
                    answer = str(error)
                assert answer
                assert bytes(await pair.create(10 + number, "PATH=/bin")) == b""
        assert len(pair.runtime.plugins) == 1
        found = await pairs.status(pair)
        assert found["runtime"]["registrations"] == 1
        assert (await pair.create(20, "NVIDIA_VISIBLE_DEVICES=2")).mounts

    together(body, prefix=("prlimit", "--nofile=48"))
