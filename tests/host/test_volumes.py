# SPDX-License-Identifier: Apache-2.0
"""Prepared directories of driver files, on real file systems."""

import errno
import os
import subprocess
import sys

import pytest

from nri_nvidia import errors
from nri_nvidia.host import volumes

FILES = (("lib64/libcuda.so.1", "libcuda.so.550"), ("bin/nvidia-smi", "nvidia-smi"))
LINKS = (("lib64/libcuda.so", "libcuda.so.1"),)


@pytest.fixture
def driver(tmp_path):
    """Two files of a driver, one of them a link as Debian has it."""
    directory = tmp_path / "driver"
    directory.mkdir()
    (directory / "libcuda.so.550").write_bytes(b"\x7fELF" + b"c" * 5000)
    (directory / "real-smi").write_bytes(b"smi")
    (directory / "real-smi").chmod(0o755)
    (directory / "nvidia-smi").symlink_to("real-smi")
    return directory


def files(driver):
    return [(path, str(driver / name)) for path, name in FILES]


@pytest.fixture
def mounted(tmp_path):
    """Give a function that mounts a tmpfs with options; all are unmounted at the end."""
    places = []

    def mount(options):
        place = tmp_path / f"fs{len(places)}"
        place.mkdir()
        subprocess.run(["mount", "-n", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", place], check=True)


def content(path):
    return {
        str(p.relative_to(path)): p.readlink().name if p.is_symlink() else p.read_bytes()
        for p in path.rglob("*")
        if not p.is_dir()
    }


EXPECTED = {
    "lib64/libcuda.so.1": b"\x7fELF" + b"c" * 5000,
    "lib64/libcuda.so": "libcuda.so.1",
    "bin/nvidia-smi": b"smi",
}


def test_same_file_system_gives_hard_links(driver, tmp_path):
    """No space is used, a link of the host is followed, the program may be run."""
    built = volumes.Volumes(str(tmp_path / "v")).build("550-a", files(driver), LINKS)
    place = tmp_path / "v/550-a"
    assert (built.path, built.ways) == (str(place), {"link"})
    assert content(place) == EXPECTED
    assert (place / "lib64/libcuda.so.1").samefile(driver / "libcuda.so.550")
    assert os.access(place / "bin/nvidia-smi", os.X_OK)


def test_another_file_system_gives_copies(driver, mounted):
    """Where no link can be made the content, the mode and the times are copied."""
    place = mounted("size=8m,mode=755")
    volumes_ = volumes.Volumes(str(place / "v"))
    # The margin that is left free is for real disks.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(volumes, "_SPARE_BYTES", 0)
        built = volumes_.build("550-a", files(driver), LINKS)
    assert built.ways == {"copy"}
    assert content(place / "v/550-a") == EXPECTED
    copied = (place / "v/550-a/bin/nvidia-smi").stat()
    assert copied.st_mode & 0o777 == 0o755
    assert copied.st_mtime_ns == (driver / "real-smi").stat().st_mtime_ns


@pytest.mark.parametrize(
    ("options", "said"), [("size=64k", "No space left"), ("ro", "Read-only"), ("noexec", "noexec")]
)
def test_file_system_that_cannot_hold_it(driver, mounted, options, said):
    """Full, read-only or noexec: an error that names the place and the setting, and no rest."""
    place = mounted(options)
    with pytest.raises(errors.HostError, match=said) as caught:
        volumes.Volumes(str(place)).build("550-a", files(driver), LINKS)
    assert str(place) in caught.value.message
    assert "inject.volume_dir" in caught.value.hint
    assert list(place.iterdir()) == []


def test_missing_source_leaves_nothing(driver, tmp_path):
    """A driver that vanishes in between: an error, and no half directory."""
    gone = [*files(driver), ("lib64/gone.so", str(driver / "gone"))]
    with pytest.raises(errors.HostError, match="No such file"):
        volumes.Volumes(str(tmp_path / "v")).build("550-a", gone, LINKS)
    assert list((tmp_path / "v").iterdir()) == []


def test_ready_lists_whole_directories_alone(driver, tmp_path):
    """What is being built is not ready; what is there is not built again."""
    found = volumes.Volumes(str(tmp_path / "v"))
    assert found.ready() == {}
    first = found.build("550-a", files(driver), LINKS)
    (tmp_path / "v/.building-x").mkdir()
    assert found.ready() == {"550-a": first.path}
    assert found.build("550-a", [], []).ways == frozenset()
    assert content(tmp_path / "v/550-a") == EXPECTED


def test_directory_of_somebody_else_is_refused(driver, tmp_path):
    """Whoever owns the place could exchange a library under every container."""
    place = tmp_path / "v"
    place.mkdir()
    os.chown(place, 1000, 1000)
    with pytest.raises(errors.HostError, match="not a directory of this daemon's user"):
        volumes.Volumes(str(place)).build("550-a", files(driver), LINKS)


def test_unused_are_removed_and_used_are_not(driver, tmp_path):
    """A directory that some mount names stays, also in another mount namespace."""
    found = volumes.Volumes(str(tmp_path / "v"))
    for name in ("550-used", "550-old", "550-kept"):
        found.build(name, files(driver), LINKS)
    (tmp_path / "v/.building-left").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    holder = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c",
         'mount -n --bind "$0" "$1" && echo mounted && read line', tmp_path / "v/550-used", target],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout.readline() == b"mounted\n"
    assert found.remove_unused(["550-kept"]) == ["550-old"]
    assert set(found.ready()) == {"550-used", "550-kept"}
    assert not (tmp_path / "v/.building-left").exists()
    holder.communicate(b"\n")
    assert found.remove_unused(["550-kept"]) == ["550-used"]


def test_two_builders_at_once(driver, tmp_path):
    """Two processes that build the same directory leave one whole one."""
    code = (
        "import sys; from nri_nvidia.host import volumes\n"
        "v = volumes.Volumes(sys.argv[1])\n"
        "v.build('550-a', [(f'lib64/l{i}', sys.argv[2]) for i in range(200)], [])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "v"), str(driver / "libcuda.so.550")]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for each in both:
        assert each.communicate()[1] == b""
        assert each.returncode == 0
    assert [p.name for p in (tmp_path / "v").iterdir()] == ["550-a"]
    assert len(list((tmp_path / "v/550-a/lib64").iterdir())) == 200


def test_reflink_is_tried_before_a_copy(driver, tmp_path, monkeypatch):
    """Where links are refused and the file system can clone, nothing is copied."""

    def refuse(*_args, **_more):
        raise OSError(errno.EXDEV, "x")

    def clone(target, _request, source):
        os.sendfile(target, source, 0, 1 << 20)

    monkeypatch.setattr(volumes.os, "link", refuse)
    monkeypatch.setattr(volumes.fcntl, "ioctl", clone)
    built = volumes.Volumes(str(tmp_path / "v")).build("550-a", files(driver), LINKS)
    assert built.ways == {"reflink"}
    assert content(tmp_path / "v/550-a") == EXPECTED
