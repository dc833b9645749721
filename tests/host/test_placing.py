# SPDX-License-Identifier: Apache-2.0
"""How driver files come into a prepared directory on a real btrfs: link, reflink, copy, or not."""

import fcntl
import json
import os
import pathlib
import struct
import subprocess

import pytest

from nri_nvidia import errors
from nri_nvidia.host import volumes

ENGINES = pathlib.Path(__file__).parents[2] / ".cache/engines/engines.json"
SIZE = 160 << 20
CONTENT = {"lib64/libcuda.so.1": b"\x7fELF" + os.urandom(1 << 20), "bin/nvidia-smi": b"smi" * 4000}
# Requests of ioctl(2): linux/btrfs.h, linux/fs.h, linux/fiemap.h
MAKE_SUBVOLUME, SET_FLAGS, MAP_EXTENTS = 0x5000940E, 0x40086602, 0xC020660B
NO_COPY_ON_WRITE, SHARED, ROOM = 0x800000, 0x2000, 64


@pytest.fixture
def btrfs(tmp_path):
    """A btrfs in a file, mounted; `driver` in it is a subvolume of its own."""
    try:
        tools = {each["name"]: each for each in json.loads(ENGINES.read_text("utf-8"))["tools"]}
    except (OSError, KeyError):
        pytest.fail("there is no mkfs.btrfs: run contrib/setup")
    if not pathlib.Path("/dev/loop-control").exists():
        pytest.skip("this machine gives no loop devices, so no file can be mounted")
    if "btrfs" not in pathlib.Path("/proc/filesystems").read_text("utf-8"):
        pytest.skip("this kernel has no btrfs")
    image, place = tmp_path / "image", tmp_path / "btrfs"
    with image.open("wb") as file:
        file.truncate(SIZE)
    # One copy of all, so that little is needed for it.
    command = [tools["btrfs-progs"]["path"], "-q", "-d", "single", "-m", "single", str(image)]
    subprocess.run(command, check=True, capture_output=True)
    place.mkdir()
    subprocess.run(["mount", "-n", "-o", "loop", image, place], check=True)
    try:
        make_subvolume(place, b"driver")
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def make_subvolume(place, name):
    directory = os.open(place, os.O_RDONLY)
    fcntl.ioctl(directory, MAKE_SUBVOLUME, bytearray(struct.pack("q4088s", 0, name)))
    os.close(directory)


def driver(place):
    """Write the driver's files into a directory; give the pairs that `build` takes."""
    place.mkdir(exist_ok=True)
    for path, data in CONTENT.items():
        file = place / pathlib.Path(path).name
        file.write_bytes(data)
        file.chmod(0o755 if path.startswith("bin/") else 0o644)
        os.utime(file, (1_000_000_000, 1_000_000_000))
    return [(path, str(place / pathlib.Path(path).name)) for path in CONTENT]


def extents(path):
    """Give where a file lies on the disk and whether it shares that with another, by FIEMAP."""
    with path.open("rb") as file:
        asked = struct.pack("=QQIIII", 0, (1 << 64) - 1, 1, 0, ROOM, 0)  # 1: write it out first
        buffer = bytearray(asked + bytes(56 * ROOM))
        fcntl.ioctl(file.fileno(), MAP_EXTENTS, buffer)
    (count,) = struct.unpack_from("=I", buffer, 20)
    found = [struct.unpack_from("=QQQQQI", buffer, 32 + 56 * each) for each in range(count)]
    return [(each[1], bool(each[5] & SHARED)) for each in found]


def build(place, files):
    return volumes.Volumes(str(place)).build("550-a", files, [])


def check(place):
    """The content, the modes and the times are the driver's."""
    for path, data in CONTENT.items():
        status = (place / "550-a" / path).stat()
        assert (place / "550-a" / path).read_bytes() == data
        assert status.st_mode & 0o7777 == (0o755 if path.startswith("bin/") else 0o644)
        assert status.st_mtime == 1_000_000_000


@pytest.fixture
def bound(tmp_path):
    """Give a function that binds a directory upon another place, where no hard link leads."""
    place = tmp_path / "bound"
    place.mkdir()

    def bind(source):
        source.mkdir()
        subprocess.run(["mount", "-n", "--bind", source, place], check=True)
        return place

    yield bind
    subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def test_within_a_subvolume_files_are_linked(btrfs):
    """There a hard link can be made."""
    files = driver(btrfs / "driver/files")
    assert build(btrfs / "driver/v", files).ways == {"link"}
    for path, source in files:
        assert (btrfs / "driver/v/550-a" / path).samefile(source)


@pytest.mark.parametrize("between", ["subvolumes", "mounts"])
def test_what_cannot_be_linked_is_shared(btrfs, bound, between):
    """Between subvolumes, and mounts of one file system, every block is the driver's own."""
    if between == "mounts" and tuple(map(int, os.uname().release.split(".")[:2])) < (5, 18):
        pytest.skip("before Linux 5.18 nothing is shared between two mounts")
    files = driver(btrfs / "driver" if between == "subvolumes" else btrfs / "files")
    top = btrfs / "v" if between == "subvolumes" else bound(btrfs / "source")
    assert build(top, files).ways == {"reflink"}
    check(top)
    for path, source in files:
        ours, theirs = extents(top / "550-a" / path), extents(pathlib.Path(source))
        assert ours == theirs
        assert {shared for _, shared in ours} == {True}


def test_a_driver_written_over_in_place_leaves_the_shared_file(btrfs):
    """A reflink is a file of its own: what it holds stays as it was."""
    files = driver(btrfs / "driver")
    assert build(btrfs / "v", files).ways == {"reflink"}
    for _, source in files:
        pathlib.Path(source).write_bytes(b"another driver")
    check(btrfs / "v")


def test_what_cannot_be_shared_either_is_copied(btrfs):
    """A file without copy-on-write shares no blocks with one that has it (EINVAL)."""
    folder = os.open(btrfs / "driver", os.O_RDONLY)
    fcntl.ioctl(folder, SET_FLAGS, bytearray(struct.pack("l", NO_COPY_ON_WRITE)))
    os.close(folder)
    files = driver(btrfs / "driver")
    assert build(btrfs / "v", files).ways == {"copy"}
    check(btrfs / "v")
    for path, source in files:
        ours, theirs = extents(btrfs / "v/550-a" / path), extents(pathlib.Path(source))
        assert not {place for place, _ in ours} & {place for place, _ in theirs}
        assert {shared for _, shared in ours} == {False}


def fill(place, left):
    """Write to a file system until less than `left` bytes are free."""
    with (place / "rest").open("wb") as file:
        while (found := os.statvfs(place)).f_bavail * found.f_frsize >= left:
            file.write(bytes(4 << 20))
            file.flush()
            os.fsync(file.fileno())


def test_a_full_disk_holds_what_is_shared(btrfs, tmp_path):
    """Where a copy is refused, since the disk would be full, a reflink needs no room."""
    shared, other = driver(btrfs / "driver"), driver(tmp_path / "other")
    fill(btrfs, 48 << 20)
    with pytest.raises(errors.HostError, match="No space left") as caught:
        build(btrfs / "copies", other)
    assert "inject.volume_dir" in caught.value.hint
    assert list((btrfs / "copies").iterdir()) == []
    assert build(btrfs / "v", shared).ways == {"reflink"}
    check(btrfs / "v")


def test_a_disk_that_gets_full_meanwhile(btrfs, tmp_path, monkeypatch):
    """The kernel's own refusal in the middle of a copy leaves nothing of the directory."""
    monkeypatch.setattr(volumes.Volumes, "_room", lambda *_: None)
    (tmp_path / "large").write_bytes(os.urandom(32 << 20))
    fill(btrfs, 24 << 20)
    with pytest.raises(errors.HostError, match="No space left"):
        build(btrfs / "v", [("lib64/large", str(tmp_path / "large"))])
    assert list((btrfs / "v").glob("*")) == []  # where there was room for that directory itself


def remount(place, options):
    subprocess.run(["mount", "-n", "-o", f"remount,{options}", place], check=True)


def test_a_disk_that_becomes_read_only(btrfs):
    """As an error makes it: what is there is still given, and what is not is refused with why."""
    files = driver(btrfs / "driver")
    found = volumes.Volumes(str(btrfs / "v"))
    built = found.build("550-a", files, [])
    remount(btrfs, "ro")
    assert found.intact({"550-a": built.stamp}) == {"550-a": built.path}
    assert found.build("550-a", files, []).ways == frozenset()
    with pytest.raises(errors.HostError, match="Read-only") as caught:
        found.build("550-b", files, [])
    assert str(btrfs / "v/550-b") in caught.value.message
    assert [path.name for path in (btrfs / "v").iterdir()] == ["550-a"]


def test_a_disk_that_becomes_noexec(btrfs):
    """What is there is not given any more: a container's mount of it would be noexec too."""
    files = driver(btrfs / "driver")
    found = volumes.Volumes(str(btrfs / "v"))
    stamps = {"550-a": found.build("550-a", files, []).stamp}
    remount(btrfs, "noexec")
    assert found.intact(stamps) == found.intact(stamps, glance=True) == {}
    with pytest.raises(errors.HostError, match="noexec"):
        found.build("550-a", files, [])
    remount(btrfs, "exec")
    assert set(found.intact(stamps, glance=True)) == {"550-a"}
