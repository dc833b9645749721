# SPDX-License-Identifier: Apache-2.0
"""Who keeps the prepared directories: what it gives, what it has made anew, what it takes away."""

import asyncio
import os
import subprocess
import sys

import pytest

from nri_nvidia.daemon import volumekeeper
from nri_nvidia.edits import volume


@pytest.fixture
def wanted(tmp_path):
    """A directory that holds one file."""
    (tmp_path / "libcuda.so.550").write_bytes(b"\x7fELF")
    source = str(tmp_path / "libcuda.so.550")
    return volume.Volume(name="550-a", files=(("lib64/libcuda.so.1", source),), links=())


@pytest.fixture
def keeper(tmp_path):
    kept = volumekeeper.VolumeKeeper()
    kept.use(str(tmp_path / "v"))
    yield kept
    kept.close()


async def built(keeper, wanted):
    """Have a directory built; gives what is ready then."""
    keeper.want(wanted)
    while not await keeper.ready():
        await asyncio.sleep(0)
    return await keeper.ready()


async def test_only_what_it_knows_is_given(keeper, wanted, tmp_path):
    """A directory that was there before is given once it has been compared with the driver."""
    (tmp_path / "v/550-b").mkdir(parents=True)
    assert await keeper.ready() == {}
    assert await built(keeper, wanted) == {"550-a": str(tmp_path / "v/550-a")}


async def test_a_damaged_directory_is_noticed_and_made_anew(keeper, wanted, tmp_path, caplog):
    """It is not given to the next container, that is said, and the one after gets it again."""
    await built(keeper, wanted)
    (tmp_path / "v/550-a/lib64/libcuda.so.1").unlink()
    assert await keeper.ready() == {}
    assert await keeper.ready() == {}
    assert caplog.messages.count(f"550-a in {tmp_path}/v was changed or removed by somebody") == 1
    assert await built(keeper, wanted) == {"550-a": str(tmp_path / "v/550-a")}
    assert (tmp_path / "v/550-a/lib64/libcuda.so.1").exists()


async def test_what_is_written_over_in_place_is_found_behind_an_answer(
    keeper, wanted, tmp_path, caplog, monkeypatch
):
    """No answer waits for a look at each file, but one brings it on, and it is said."""
    monkeypatch.setattr(volumekeeper, "_BEHIND", 0.0)
    (tmp_path / "libcuda.so.550").chmod(0o4755)  # such a program is copied, so the host's stays
    await built(keeper, wanted)
    keeper._behind_at = 0.0
    (tmp_path / "v/550-a/lib64/libcuda.so.1").write_bytes(b"another")
    while await keeper.ready():
        await asyncio.sleep(0)
        keeper._behind_at = 0.0
    assert caplog.messages.count(f"550-a in {tmp_path}/v was changed or removed by somebody") == 1


async def test_a_late_look_takes_nothing_back(keeper, wanted):
    """What is built while a look is under way is known after it."""
    look = keeper.begin()
    keeper.want(wanted)
    while not keeper._stamps:
        await asyncio.sleep(0)
    assert await keeper.ready(look) == {}
    assert set(await keeper.ready()) == {"550-a"}


async def test_it_is_not_built_twice(keeper, wanted, monkeypatch):
    """A known directory that a slow disk did not show in time is not wanted again."""
    await built(keeper, wanted)
    monkeypatch.setattr(keeper._builder, "run", lambda _: pytest.fail("built again"))
    keeper.want(wanted)


async def test_a_few_are_known(keeper, wanted, tmp_path, monkeypatch):
    """Before each container a bounded number of directories is looked at: those used last."""
    monkeypatch.setattr(volumekeeper, "_KNOWN", 3)
    for number in range(5):
        name = f"550-{number}"
        keeper.want(volume.Volume(name=name, files=wanted.files, links=()))
        while name not in keeper._stamps:
            await asyncio.sleep(0)
        if number == 1:
            keeper._used["550-0"] += 1000.0  # used after all others
    assert set(await keeper.ready()) == {"550-0", "550-3", "550-4"}
    assert len(list((tmp_path / "v").iterdir())) == 5


async def test_a_use_keeps_it_for_other_daemons(keeper, wanted, tmp_path):
    """A directory in an answer counts as young, whoever looks; it is touched once in a while."""
    await built(keeper, wanted)
    place = tmp_path / "v/550-a"
    for touched in (True, False):
        os.utime(place, (0, 0))
        keeper.note_use(str(place))
        await keeper._looker.run(lambda: None)
        assert (place.stat().st_mtime > 0) is touched


async def test_what_is_old_is_removed_at_times(keeper, wanted, tmp_path, monkeypatch):
    """An upgrade's old directory goes some time after its last container, without another build."""
    await built(keeper, wanted)
    old = tmp_path / "v/535-old"
    for blind, due, gone in ((False, False, False), (True, True, False), (False, True, True)):
        old.mkdir(exist_ok=True)
        os.utime(old, (0, 0))
        keeper.blind = blind
        if due:
            keeper._sweep_at = 0.0
        keeper.note_use(str(tmp_path / "v/550-a"))
        await keeper._builder.run(lambda: None)
        assert old.exists() is not gone


async def test_another_directory(keeper, wanted, tmp_path):
    """With other settings nothing of the former directory is given."""
    await built(keeper, wanted)
    keeper.use(str(tmp_path / "w"))
    assert await keeper.ready() == {}
    assert await built(keeper, wanted) == {"550-a": str(tmp_path / "w/550-a")}
    keeper.use("")
    assert await keeper.ready() == {}


def test_in_a_namespace_of_its_own_it_is_blind():
    """Before a runtime is known a daemon in a pod takes away nothing that a container may have."""
    code = "from nri_nvidia.daemon import volumekeeper; print(volumekeeper.VolumeKeeper().blind)"
    first = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    for prefix, blind in (([], not first), (["unshare", "--pid", "--fork", "--mount-proc"], True)):
        done = subprocess.run(
            [*prefix, sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        assert done.stdout == f"{blind}\n"
