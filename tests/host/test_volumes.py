# SPDX-License-Identifier: Apache-2.0
"""Prepared directories of driver files, on real file systems."""

import concurrent.futures
import contextlib
import errno
import os
import shutil
import subprocess
import sys

import pytest

from nri_nvidia import errors
from nri_nvidia.host import placing, volumes

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

    def mount(options, kind="tmpfs"):
        place = tmp_path / f"fs{len(places)}"
        place.mkdir()
        options = f"mode=755,{options}"
        subprocess.run(["mount", "-n", "-t", kind, "-o", options, "none", place], check=True)
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


@pytest.fixture
def no_margin(monkeypatch):
    """Leave nothing free: the margin is for real disks."""
    monkeypatch.setattr(volumes, "_SPARE_BYTES", 0)


@pytest.mark.usefixtures("no_margin")
def test_another_file_system_gives_copies(driver, mounted):
    """Where no link can be made the content, the mode and the times are copied."""
    place = mounted("size=8m")
    volumes_ = volumes.Volumes(str(place / "v"))
    built = volumes_.build("550-a", files(driver), LINKS)
    assert built.ways == {"copy"}
    assert content(place / "v/550-a") == EXPECTED
    copied = (place / "v/550-a/bin/nvidia-smi").stat()
    assert copied.st_mode & 0o777 == 0o755
    assert copied.st_mtime_ns == (driver / "real-smi").stat().st_mtime_ns


def age(top):
    """Let all directories be of long ago."""
    for path in top.iterdir():
        os.utime(path, (0, 0))


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


@pytest.mark.parametrize(
    ("user", "owner", "hint"), [(0, 1000, "remove it"), (1000, 0, "run this as root")]
)
def test_a_user_is_not_told_to_remove_what_is_roots(tmp_path, monkeypatch, user, owner, hint):
    """Containers have it mounted; root is to remove what others may have put there."""
    os.chown(tmp_path, owner, owner)
    monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(errors.HostError) as caught:
        volumes.Volumes(str(tmp_path)).build("550-a", [], [])
    assert caught.value.hint.startswith(hint)


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
    assert found.build("550-a", files(driver), LINKS).ways == frozenset()
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
    age(tmp_path / "v")
    target = tmp_path / "target"
    target.mkdir()
    holder = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c",
         'mount -n --bind "$0" "$1" && echo mounted && read line', tmp_path / "v/550-used", target],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout.readline() == b"mounted\n"
    assert found.remove_unused(["550-kept"]) == [".building-left", "550-old"]
    assert set(found.ready()) == {"550-used", "550-kept"}
    assert not (tmp_path / "v/.building-left").exists()
    holder.communicate(b"\n")
    assert found.remove_unused(["550-kept"]) == ["550-used"]


def test_two_builders_at_once(driver, tmp_path):
    """Two processes that build the same directory leave one whole one."""
    code = (
        "import sys; from nri_nvidia.host import placing, volumes\n"
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

    monkeypatch.setattr(placing.os, "link", refuse)
    monkeypatch.setattr(placing.fcntl, "ioctl", clone)
    built = volumes.Volumes(str(tmp_path / "v")).build("550-a", files(driver), LINKS)
    assert built.ways == {"reflink"}
    assert content(tmp_path / "v/550-a") == EXPECTED


def test_what_was_used_lately_is_not_removed(driver, tmp_path):
    """An answer that names a directory comes before its mount, perhaps another daemon's answer."""
    found = volumes.Volumes(str(tmp_path / "v"))
    found.build("550-new", files(driver), LINKS)
    found.build("550-used", files(driver), LINKS)
    assert found.remove_unused([]) == []
    age(tmp_path / "v")
    found.touch("550-used")
    assert found.remove_unused([]) == ["550-new"]


def test_who_does_not_see_containers_removes_nothing_of_theirs(driver, tmp_path):
    """In a namespace of processes of one's own no container's mounts are to be seen."""
    found = volumes.Volumes(str(tmp_path / "v"))
    found.build("550-old", files(driver), LINKS)
    (tmp_path / "v/.building-left").mkdir()
    age(tmp_path / "v")
    assert found.remove_unused([], blind=True) == [".building-left"]
    assert set(found.ready()) == {"550-old"}


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_directory_that_others_may_write_to_is_refused(driver, tmp_path, mode):
    """Whoever may write there could put a directory of that name there first."""
    place = tmp_path / "v"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(errors.HostError, match=f"others may write to it \\({mode:04o}\\)"):
        volumes.Volumes(str(place)).build("550-a", files(driver), LINKS)


KILLED = """
import sys
from nri_nvidia.host import placing, volumes
give = placing.give
def slow(*args, **more):
    give(*args, **more)
    print("half", flush=True)
    sys.stdin.read()
placing.give = slow
volumes.Volumes(sys.argv[1]).build("550-a", [("lib64/a", sys.argv[2]), ("b", sys.argv[2])], [])
"""


def test_a_build_that_is_killed(driver, tmp_path):
    """After kill -9 in the middle nothing is taken for ready, the next build is not held up, and
    what was left is removed."""
    top = tmp_path / "v"
    command = [sys.executable, "-c", KILLED, str(top), str(driver / "libcuda.so.550")]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout.readline() == b"half\n"
    found = volumes.Volumes(str(top))
    assert found.ready() == {}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(found.build, "550-a", files(driver), LINKS)
        # It waits for the one that is at work, however long that takes.
        assert concurrent.futures.wait([other], timeout=0.1).not_done
        running.kill()
        running.communicate()
        assert other.result().ways == {"link"}
    assert content(top / "550-a") == EXPECTED
    (left,) = found.remove_unused([])
    assert left.startswith(".building-")
    assert [path.name for path in top.iterdir()] == ["550-a"]


def truncate(place):
    (place / "lib64/libcuda.so.1").write_bytes(b"")


def overwrite(place):
    path = place / "lib64/libcuda.so.1"
    path.unlink()
    path.write_bytes(b"\x7fELF" + b"x" * 5000)


def delete(place):
    (place / "bin/nvidia-smi").unlink()


def delete_all(place):
    shutil.rmtree(place)


def add(place):
    (place / "lib64/libc.so.6").write_bytes(b"")


def lead_elsewhere(place):
    (place / "lib64/libcuda.so").unlink()
    (place / "lib64/libcuda.so").symlink_to("/tmp/libcuda.so.1")


def replace_by_file(place):
    shutil.rmtree(place)
    place.write_bytes(b"")


def take_over(place):
    os.chown(place / "lib64", 1000, 1000)


DAMAGES = [
    truncate,
    overwrite,
    delete,
    delete_all,
    add,
    lead_elsewhere,
    replace_by_file,
    take_over,
]


@pytest.mark.usefixtures("no_margin")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("restarted", [False, True])
def test_what_somebody_has_changed_is_made_anew(driver, mounted, damage, restarted):
    """A directory that was damaged is not given any more, and built again; also after a restart."""
    top = mounted("size=8m") / "v"
    found = volumes.Volumes(str(top))
    built = found.build("550-a", files(driver), LINKS)
    assert found.intact({"550-a": built.stamp}) == {"550-a": str(top / "550-a")}
    damage(top / "550-a")
    if restarted:
        found = volumes.Volumes(str(top))
    else:
        assert found.intact({"550-a": built.stamp}) == {}
        seen = found.intact({"550-a": built.stamp}, glance=True) == {}
        assert seen == (damage is not truncate)  # which root alone can do
    again = found.build("550-a", files(driver), LINKS)
    assert again.ways == {"copy"}
    assert again.replaced == (damage not in {delete_all, replace_by_file})
    assert content(top / "550-a") == EXPECTED
    assert found.intact({"550-a": again.stamp}) == {"550-a": again.path}
    found.remove_unused([])
    assert [path.name for path in top.iterdir()] == ["550-a"]


@pytest.mark.usefixtures("no_margin")
def test_a_glance_is_at_names_alone(driver, mounted, monkeypatch):
    """It takes no call for each file, and being used is no change."""
    found = volumes.Volumes(str(mounted("size=8m") / "v"))
    stamps = {"550-a": found.build("550-a", files(driver), LINKS).stamp}
    found.touch("550-a")
    monkeypatch.setattr(placing, "stamp", lambda _: pytest.fail("looks at each file"))
    assert set(found.intact(stamps, glance=True)) == {"550-a"}


def pass_a_tick(place):
    """Wait until the file system counts a later time than that of the last change here."""
    last = max(path.lstat().st_ctime_ns for path in (place, *place.rglob("*")))
    probe = place.parent / "probe"
    while not probe.exists() or probe.lstat().st_ctime_ns <= last:
        probe.touch()
    probe.unlink()


@pytest.mark.usefixtures("no_margin")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_a_list_holds_while_the_directories_are_not_changed(driver, mounted, damage, monkeypatch):
    """It is read once and not before each container, and yet a change shows in the next look."""
    found = volumes.Volumes(str(mounted("size=8m") / "v"))
    built = found.build("550-a", files(driver), LINKS)
    stamps = {"550-a": built.stamp}
    pass_a_tick(found._top / "550-a")
    monkeypatch.setattr(volumes, "_TICK_NS", 0)
    assert set(found.intact(stamps, glance=True)) == {"550-a"}
    names = placing.names
    monkeypatch.setattr(placing, "names", lambda _: pytest.fail("reads the lists again"))
    assert set(found.intact(stamps, glance=True)) == {"550-a"}
    monkeypatch.setattr(placing, "names", names)
    damage(found._top / "550-a")
    assert set(found.intact(stamps, glance=True)) == ({"550-a"} if damage is truncate else set())


def test_a_list_is_read_while_the_clock_proves_nothing(driver, tmp_path, monkeypatch):
    """Of a directory that was changed a moment ago a further change may show in its list alone."""
    found = volumes.Volumes(str(tmp_path / "v"))
    stamps = {"550-a": found.build("550-a", files(driver), LINKS).stamp}
    names, read = placing.names, []
    monkeypatch.setattr(placing, "names", lambda path: read.append(path) or names(path))
    for count in (1, 2):
        assert set(found.intact(stamps, glance=True)) == {"550-a"}
        assert len(read) == count


def test_a_container_keeps_what_was_put_aside(driver, tmp_path):
    """A container that has a damaged directory keeps it until it ends; others get a whole one."""
    found = volumes.Volumes(str(tmp_path / "v"))
    found.build("550-a", files(driver), LINKS)
    target = tmp_path / "target"
    target.mkdir()
    holder = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c",
         'mount -n --bind "$0" "$1" && echo mounted && read line; ls "$1/bin"',
         tmp_path / "v/550-a", target],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout.readline() == b"mounted\n"
    add(tmp_path / "v/550-a")
    assert found.build("550-a", files(driver), LINKS).replaced
    assert found.remove_unused([]) == []
    assert holder.communicate(b"\n")[0] == b"nvidia-smi\n"
    (aside,) = found.remove_unused([])
    assert aside.startswith(".aside-550-a-")
    assert set(found.ready()) == {"550-a"}


LABEL = "security.selinux"
LIBRARY, PROGRAM, FOLDER = (
    b"system_u:object_r:%s_t:s0\0" % name for name in (b"lib", b"bin", b"usr")
)


@pytest.fixture
def labelled(driver, tmp_path):
    """A driver with SELinux's labels, and a host whose kernel has SELinux."""
    try:
        for name, value in (("libcuda.so.550", LIBRARY), ("real-smi", PROGRAM), ("", FOLDER)):
            os.setxattr(driver / name, LABEL, value)
    except OSError as error:
        pytest.skip(f"no label can be set on {driver}: {error.strerror}")
    (tmp_path / "root/sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "root/sys/fs/selinux/enforce").write_text("1")
    return str(tmp_path / "root")


def labels(place):
    """Give the labels in a directory, of what has one."""
    found = {}
    for path in (place, *place.rglob("*")):
        with contextlib.suppress(OSError):
            found[str(path.relative_to(place))] = os.getxattr(path, LABEL, follow_symlinks=False)
    return found


EVERYWHERE = {
    ".": FOLDER, "lib64": FOLDER, "bin": FOLDER, "lib64/libcuda.so": FOLDER,
    "lib64/libcuda.so.1": LIBRARY, "bin/nvidia-smi": PROGRAM,
}  # fmt: skip


@pytest.mark.usefixtures("no_margin")
def test_copies_have_the_labels_of_their_sources(driver, labelled, mounted):
    """With SELinux a container may do with a copy what it may do with the driver's own file."""
    place = mounted("size=8m") / "v"
    volumes.Volumes(str(place), labelled).build("550-a", files(driver), LINKS)
    assert labels(place / "550-a") == EVERYWHERE


def test_a_hard_link_is_not_labelled(driver, labelled, tmp_path, monkeypatch):
    """It shares the host's label, which stays; only what is ours is labelled: folders and links."""
    given = []
    set_label = os.setxattr
    monkeypatch.setattr(
        placing.os,
        "setxattr",
        lambda path, *a, **k: (given.append(path), set_label(path, *a, **k)),
    )
    built = volumes.Volumes(str(tmp_path / "v"), labelled).build("550-a", files(driver), LINKS)
    assert built.ways == {"link"}
    assert labels(tmp_path / "v/550-a") == EVERYWHERE
    assert not [path for path in given if path.is_file() and not path.is_symlink()]


@pytest.mark.usefixtures("no_margin")
def test_without_selinux_nothing_is_labelled(driver, labelled, mounted, tmp_path):
    """Where the kernel has no SELinux labels mean nothing."""
    place = mounted("size=8m") / "v"
    (tmp_path / "root/sys/fs/selinux/enforce").unlink()
    volumes.Volumes(str(place), labelled).build("550-a", files(driver), LINKS)
    assert labels(place / "550-a") == {}


@pytest.mark.usefixtures("no_margin")
def test_a_file_system_without_labels(driver, labelled, mounted, monkeypatch):
    """With SELinux a container could not read the copies: it is said, and nothing is left."""
    monkeypatch.setattr(volumes.Volumes, "_room", lambda *_: None)  # ramfs tells no room
    place = mounted("mode=755", "ramfs")
    with pytest.raises(errors.HostError, match="Operation not supported"):
        volumes.Volumes(str(place), labelled).build("550-a", files(driver), LINKS)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_a_program_with_others_rights_is_not_linked(driver, tmp_path, mode):
    """It is copied without them: a link would outlive the upgrade that mends the program."""
    (driver / "real-smi").chmod(mode)
    built = volumes.Volumes(str(tmp_path / "v")).build("550-a", files(driver), LINKS)
    assert built.ways == {"link", "copy"}
    assert (tmp_path / "v/550-a/bin/nvidia-smi").stat().st_mode & 0o7777 == 0o755
    assert (driver / "real-smi").stat().st_nlink == 1


def test_every_user_may_read_it_whatever_the_umask(driver, tmp_path):
    """Containers of other users than root have it too, also from a daemon that hides its files."""
    before = os.umask(0o077)
    try:
        volumes.Volumes(str(tmp_path / "state/v")).build("550-a", files(driver), LINKS)
    finally:
        os.umask(before)
    place = tmp_path / "state/v/550-a"
    for path in (tmp_path / "state", place.parent, place, place / "lib64", place / "bin"):
        assert path.stat().st_mode & 0o777 == 0o755
