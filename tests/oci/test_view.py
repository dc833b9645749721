# SPDX-License-Identifier: Apache-2.0
"""The clean view by itself: how paths resolve in it, and what is left of the mounts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nri_nvidia.oci import view

from . import bundles


@pytest.fixture
def tree(place):
    """A root with a directory, and a file outside of it with the same name as one inside."""
    root = place / "root"
    (root / "inside").mkdir(parents=True)
    (root / "file").write_text("inside")
    (place / "file").write_text("outside")
    return root


def resolve(root, path):
    """Give the real path of what `open_in` opens."""
    folder = os.open(root, os.O_PATH)
    try:
        return os.readlink(f"/proc/self/fd/{view.open_in(folder, path)}")
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    "target",
    ["/file", "../file", "../../../file", "inside/../../../file", "/inside/../file", "//./file"],
)
def test_links_stay_below_the_root(tree, target):
    """Absolute links and `..` are taken from the root, however many."""
    (tree / "link").symlink_to(target)
    (tree / "inside" / "link").symlink_to(target)
    assert resolve(tree, "/link") == f"{tree}/file"
    assert resolve(tree, "/../link") == f"{tree}/file"


@pytest.mark.parametrize("name", ["root", "cwd"])
def test_magic_links_are_texts(tree, name):
    """A link of /proc is walked by its text, so that it leads to the root's own directories."""
    (tree / "proc").mkdir()
    script = f"""
mount -t proc proc {tree}/proc
exec "$@"
"""
    code = (
        "import os, sys; from nri_nvidia.oci import view\n"
        f"root = os.open({str(tree)!r}, os.O_PATH)\n"
        "os.chdir('/')\n"
        f"fd = view.open_in(root, 'proc/self/{name}')\n"
        "print(os.readlink(f'/proc/self/fd/{fd}'))"
    )
    assert private(script, [sys.executable, "-c", code]) == f"{tree}\n"


def test_a_loop_of_links_ends(tree):
    """Links that lead to each other are given up."""
    (tree / "a").symlink_to("b")
    (tree / "b").symlink_to("/a")
    with pytest.raises(view.Failure, match="too many links"):
        resolve(tree, "/a")


@pytest.mark.parametrize("path", ["/none", "/file/x", "/inside/none/x"])
def test_what_is_not_there_is_an_error(tree, path):
    """A missing component, or one below a file, raises OSError."""
    with pytest.raises(OSError, match=r"No such file|Not a directory"):
        resolve(tree, path)


def private(script, command):
    """Run a shell script, then a command, with a mount namespace of their own."""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "-", *command],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


KNOWN = "view.identity(os.open({!r}, os.O_PATH))"


def look(root, places, prepare, patch=""):
    """Enter the view of a root in a process of its own; give what it sees there."""
    code = (
        "import json, os; from nri_nvidia.oci import view\n"
        f"{patch}\n"
        f"view.enter({str(root)!r}, {KNOWN.format(str(root))}, {places!r})\n"
        "def walk(folder):\n"
        "    for each in sorted(os.scandir(folder), key=lambda e: e.name):\n"
        "        yield each.path\n"
        "        if each.is_dir(follow_symlinks=False): yield from walk(each.path)\n"
        "def status():\n"
        "    try: os.open('/written', os.O_CREAT | os.O_WRONLY)\n"
        "    except OSError as error: return error.strerror\n"
        "print(json.dumps([sorted(walk('/')), status()]))"
    )
    return json.loads(private(prepare + '\nexec "$@"', [sys.executable, "-c", code]))


FULL = """
mount --bind {root} {root}
mount -t proc proc {root}/proc
mount -t tmpfs none {root}/volume; mkdir {root}/volume/own
mount --bind {driver} {root}/driver
mount -t tmpfs none "{root}/with space"
"""


@pytest.fixture
def full(place, toolbox):
    """A root, and the script that mounts /proc, two volumes and the driver on it."""
    root = place / "root"
    for name in ("proc", "volume", "driver", "with space"):
        (root / name).mkdir(parents=True)
    return root, FULL.format(root=root, driver=toolbox.driver)


BARE = ["/driver", "/proc", "/volume", "/with space"]
DRIVER = ["/driver/bin", "/driver/bin/nvidia-smi", "/driver/lib64"]
DRIVER += [f"/driver/lib64/{name}" for name in sorted(bundles.LIBRARIES)]


def test_only_the_driver_is_in_view(full):
    """Of what is mounted on the root there is the driver; the root itself can be written to."""
    root, prepare = full
    assert look(root, ["/driver"], prepare) == [sorted([*BARE, *DRIVER]), None]


def test_nothing_is_in_view_without_places(full):
    """Without a place named there is the root's own mount only."""
    root, prepare = full
    assert look(root, ["/none", "/volume/none"], prepare) == [BARE, None]


def test_proc_is_never_in_view(full):
    """Not even where the configuration calls it the driver's."""
    root, prepare = full
    assert look(root, ["/proc", "/driver"], prepare)[0] == sorted([*BARE, *DRIVER])


REFUSE = """
mount = view.mount
def refuse(source, target, flags):
    if source == target and flags == view.BIND:
        raise PermissionError(1, "refused")
    mount(source, target, flags)
view.mount = refuse
"""


def test_what_cannot_be_covered_is_detached(full):
    """Where the root cannot be bound anew its mounts are taken away, the driver's excepted."""
    root, prepare = full
    assert look(root, ["/driver"], prepare, REFUSE) == [sorted([*BARE, *DRIVER]), None]


def test_without_pivot_root(full):
    """Where the root cannot be exchanged, as on an initial RAM file system, a chroot does."""
    root, prepare = full
    patch = "view.PIVOT_ROOT = {}"
    assert look(root, ["/driver"], prepare, patch)[0] == sorted([*BARE, *DRIVER])


@pytest.mark.parametrize(
    ("prepare", "outcome"),
    [
        ("mount --bind {root} {root}; mount -o remount,bind,ro {root}", None),
        ("mount --bind {other} {root}; mount -o remount,bind,ro {root}", "Read-only file system"),
        (
            "mount --bind {other} {root}; mount -o remount,bind,ro {root}; mount --bind {root} {root}",
            "Read-only file system",
        ),
        (
            "mount --bind {other} {root}; mount --bind {root} {root}; mount -o remount,bind,ro {root}",
            None,
        ),
        ("mount -t tmpfs -o ro none {root}", "Read-only file system"),
        (
            "mount -t tmpfs none {root}; mount --bind {root} {root}; mount -o remount,bind,ro {root}",
            None,
        ),
    ],
)
def test_whose_read_only_counts(place, prepare, outcome):
    """A root is writable if the engine's mount is, whatever the runtime made of it; else not."""
    root, other = place / "root", place / "other"
    root.mkdir()
    other.mkdir()
    assert look(root, [], prepare.format(root=root, other=other)) == [[], outcome]


def test_what_the_process_still_may(place):
    """In the view two capabilities have effect, a third one can be given it; no import is left.

    The third is what namespaces of ldconfig's own take, where that is run.
    """
    root = place / "root"
    root.mkdir()
    code = (
        "import os; from nri_nvidia.oci import view\n"
        "own = open('/proc/self/status')\n"
        f"view.enter({str(root)!r}, {KNOWN.format(str(root))}, [])\n"
        "words = dict(line.split(':', 1) for line in own.read().splitlines())\n"
        "print(*(words[name].strip() for name in ('CapPrm', 'CapEff', 'CapBnd', 'NoNewPrivs')))\n"
        "try:\n    import this\nexcept ImportError as error:\n    print(error)"
    )
    kept = f"{view.KEPT_CAPABILITIES:016x}"
    permitted = f"{view.KEPT_CAPABILITIES | view.SYS_ADMIN:016x}"
    out = private('exec "$@"', [sys.executable, "-c", code])
    assert out == f"{permitted} {kept} {kept} 1\nNo module named 'this'\n"


def test_mount_points_with_blanks():
    """mountinfo writes blanks and backslashes of a path as octal numbers."""
    line = rb"36 35 98:0 /a\040b /mnt/c\134\011d rw,noatime master:1 - ext3 /dev/root rw,errors=x"
    mount = view.Mount(line + b"\n")
    assert (mount.root, mount.point, mount.kind) == ("/a b", "/mnt/c\\\td", b"ext3")
    assert (mount.identifier, mount.parent, mount.read_only) == (b"36", b"35", False)


def test_a_mount_point_that_is_not_utf_8():
    """A name of any bytes is given as the file system functions of Python take it."""
    mount = view.Mount(b"1 2 0:1 / /\xff ro - tmpfs none rw\n")
    assert os.fsencode(mount.point) == b"/\xff"
    assert mount.read_only


def test_the_view_is_of_this_process_alone(full):
    """After the view was made elsewhere, the mounts here are as they were."""
    root, prepare = full
    look(root, ["/driver"], prepare)
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    assert [line for line in lines if str(root) in line] == []
