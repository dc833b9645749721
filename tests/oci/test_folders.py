# SPDX-License-Identifier: Apache-2.0
"""When an image's cache is one to go by, and when ldconfig has to make another one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nri_nvidia.oci import folders
from nri_nvidia.testing import stubs

from . import bundles, linking

CACHE = "etc/ld.so.cache"
DRIVER = [linking.Library(soname=name, folder=linking.LIB64) for name in bundles.LIBRARIES]
OF_IMAGE = [
    linking.Library(soname="libz.so.1", folder=linking.OWN, file="libz.so.1.2.3", linked=True),
    linking.Library(soname="libone.so.1", folder="/opt/one"),
    linking.Library(soname="libone.so.1", folder="/opt/two"),
    linking.Library(soname="libone.so.1", folder="/opt/one/glibc-hwcaps/x86-64-v2"),
]


@pytest.fixture
def root(place):
    """An image whose cache is of the same second as all that it was made of, and a driver."""
    root = place / "rootfs"
    linking.make(root, OF_IMAGE, {"zz": "/opt/one\n/opt/two\n"})
    linking.ldconfig(root)
    for each in DRIVER:
        each.write(root)
    settle(root)
    return root


def settle(root: Path) -> None:
    """Give all of an image one time, as those have that can be built again."""
    for path in (root, *root.rglob("*")):
        os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)


def test_an_image_of_one_time(root):
    """A cache of the same second as its folders is one to go by."""
    assert linking.why_not(root) == ""


def test_seconds_are_whole(root):
    """What images keep of a time is its second; a part of one is not later."""
    os.utime(root / "opt/one", ns=(0, 1_700_000_000_999_999_999))
    assert linking.why_not(root) == ""


@pytest.mark.parametrize("folder", ["opt/one/glibc-hwcaps", "opt/one/glibc-hwcaps/x86-64-v2"])
def test_a_folder_of_hwcaps_that_changed_since(root, folder):
    """A folder for some processors that is newer than the cache may hold other files."""
    os.utime(root / folder, (1_700_000_001, 1_700_000_001))
    assert linking.why_not(root) == f"Unclear: /opt/one/glibc-hwcaps is newer than /{CACHE}"


NEWER = {
    "another one": (linking.Library(soname="libtwo.so.1", folder="/opt/one"), False),
    "one of another kind": (linking.Library(soname="libone.so.1", folder="/opt/one", bits=32), False),
    "the same": (linking.Library(soname="libone.so.1", folder="/opt/one"), True),
    "a mount point": (linking.Library(soname="", folder="/opt/one/firmware", file="x.bin"), True),
    "a loader": (linking.Library(soname="ld-linux-x86-64.so.2", folder="/opt/one"), True),
}  # fmt: skip


@pytest.mark.parametrize(("library", "same"), NEWER.values(), ids=NEWER)
def test_a_folder_that_changed_since(root, library, same):
    """A folder that is newer than the cache is read: it counts whether there is another library."""
    library.write(root)
    os.utime(root / "opt/one", (1_700_000_001, 1_700_000_001))
    assert (linking.why_not(root) == "") == same


def test_a_folder_that_lost_a_library(root):
    """What the cache lists and the folder has no more is not to be listed."""
    (root / "opt/two/libone.so.1").unlink()
    assert linking.why_not(root) == f"Unclear: /{CACHE} has other libraries than /opt/two"


def test_a_large_folder_that_changed_since(root):
    """Many libraries are not read; that ldconfig does faster."""
    for number in range(300):
        linking.Library(soname=f"libmany{number}.so.1", folder="/opt/two").write(root)
    linking.ldconfig(root)
    settle(root)
    os.utime(root / "opt/two", (1_700_000_001, 1_700_000_001))
    assert linking.why_not(root) == "Unclear: /opt/two has too many libraries to read them"


def test_the_drivers_folder_may_be_new(root):
    """The driver's own folder is read, whatever its time."""
    os.utime(root / linking.LIB64[1:])
    assert linking.why_not(root) == ""


def test_a_configuration_that_names_the_driver_last(root):
    """CUDA's base images name its folders after their last ldconfig; that adds nothing to find."""
    path = root / "etc/ld.so.conf.d/nvidia.conf"
    path.write_text(f"/usr/local/nvidia/lib\n{linking.LIB64}\n")
    assert linking.why_not(root) == ""


def test_a_configuration_that_names_another_folder(root):
    """A folder with libraries of which the cache has none was not listed when it was made."""
    linking.Library(soname="libnew.so.1", folder="/opt/new").write(root)
    os.utime(root / "opt/new", (0, 0))
    (root / "etc/ld.so.conf.d/new.conf").write_text("/opt/new\n")
    assert linking.why_not(root) == f"Unclear: /{CACHE} has other libraries than /opt/new"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/opt/one\n", "/opt/two is not searched any more"),
        ("/opt/two\n/opt/one\n", "the order of folders is another one"),
        ("/opt/alias\n/opt/two\n", f"/{CACHE} has other libraries than /opt/alias"),
        ("/opt/one\n/opt/two=libc6\n", "'/opt/two=libc6' is not the path of a folder"),
        ("opt/one\n", "'opt/one' is not the path of a folder"),
        ("include /etc/[a-z]*.conf\n", "'/etc/[a-z]*.conf' is not a plain pattern"),
        ("include /opt/*/*.conf\n", "'/opt/*/*.conf' is not a plain pattern"),
        ("".join(f"include zz/{n}\n" for n in range(70)), "too many files are included"),
        ("\0", "the configuration is not a plain one"),
        ("/opt/\xe9\n", "the configuration is not a plain one"),
        ("\n".join(f"/opt/many/{n}" for n in range(200)), "too many folders are listed"),
    ],
)
def test_a_configuration_that_is_another_one(root, text, reason):
    """What is listed otherwise than when the cache was made, or is not plain, is ldconfig's."""
    (root / "opt/alias").symlink_to("one")
    for number in range(200):
        (root / f"opt/many/{number}").mkdir(parents=True)
    (root / "etc/ld.so.conf.d/zz.conf").write_text(text, encoding="latin-1")
    assert linking.why_not(root) == f"Unclear: {reason}"


def test_files_that_include_each_other(root):
    """An endless chain of files ends."""
    (root / "etc/ld.so.conf.d/zz.conf").write_text("include zz.conf\n")
    assert linking.why_not(root) == "Unclear: the configuration is not a plain one"


def test_comments_blanks_and_hwcap_lines(root):
    """What ldconfig passes over is passed over."""
    text = " # none\n\t/opt/one/ \t# one\n\nhwcap 0 nosegneg\n/opt/two//\n/opt/none\n/etc/ld.so.conf\n"
    (root / "etc/ld.so.conf.d/zz.conf").write_text(text)
    assert linking.why_not(root) == ""


@pytest.mark.parametrize("kind", ["fifo", "directory", "large"])
def test_a_configuration_that_is_no_file(root, kind):
    """A FIFO, a directory or a large file in a configuration's place is not waited for."""
    path = root / "etc/ld.so.conf.d/aa.conf"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(bytes(1 << 20))
    assert linking.why_not(root).startswith("Failure: /etc/ld.so.conf.d/aa.conf is not a regular")


@pytest.mark.parametrize("kind", ["missing", "link", "directory", "fifo", "garbage", "large"])
def test_a_cache_that_is_none(root, kind):
    """Without a cache of its own kind in its place there is nothing to go by."""
    path = root / CACHE
    path.rename(root / "etc/other")
    if kind == "link":
        path.symlink_to("other")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "garbage":
        path.write_bytes(b"none")
    elif kind == "large":
        path.touch()
        os.truncate(path, 1 << 40)
    assert linking.why_not(root) != ""


def test_a_folder_on_another_file_system(root):
    """What is mounted in the image is not what its cache was made of."""
    code = f"from tests.oci import linking; import pathlib; print(linking.why_not(pathlib.Path({str(root)!r})))"
    script = f'mount -n -t tmpfs none {root}/opt/two && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "-", sys.executable, "-c", code],
        check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout == "Unclear: /opt/two is not on the image's file system\n"


def add_loader(folder):
    (folder / "ld-linux-x86-64.so.2").write_bytes(stubs.shared_object("ld-linux-x86-64.so.2"))


UNUSUAL = {
    "a directory for some processors": lambda folder: (folder / "tls").mkdir(),
    "glibc-hwcaps": lambda folder: (folder / "glibc-hwcaps").mkdir(),
    "a loader": add_loader,
    "a text": lambda folder: (folder / "libtext.so").write_text("INPUT(-lc)"),
    "a link to nothing": lambda folder: (folder / "libnone.so.1").symlink_to("none"),
    "a FIFO": lambda folder: os.mkfifo(folder / "libfifo.so.1"),
    "a temporary file": lambda folder: (folder / "libcuda.so.1;5f00").write_text(""),
    "a short file": lambda folder: (folder / "libshort.so.1").write_bytes(b"\x7fELF\2\1"),
    "an empty file": lambda folder: (folder / "libempty.so.1").touch(),
    "another machine's": lambda folder: (folder / "libarm.so.1").write_bytes(
        stubs.shared_object("libarm.so.1", machine=40)
    ),
    "32 bits without libc": lambda folder: (folder / "libalone.so.1").write_bytes(
        stubs.shared_object("libalone.so.1", bits=32)
    ),
    "two kinds of one name": lambda folder: (folder / "libcuda.so.2").write_bytes(
        stubs.shared_object("libcuda.so.1", bits=32, needed=["libc.so.6"])
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_files_beside_the_drivers(root, change):
    """A file that the driver does not have leaves it to ldconfig, which does not fail."""
    change(root / linking.LIB64[1:])
    assert linking.why_not(root) != ""
    linking.by_ldconfig(root, linking.HOSTS)
    assert {line.split()[0] for line in linking.listed(root / CACHE)} > set(bundles.LIBRARIES)


def test_what_ldconfig_passes_over(root):
    """Files by other names and the driver's own directories are no libraries."""
    for name in ("nvidia_drv.so", "README", "vdpau/libvdpau_nvidia.so.1", "gbm/nvidia-drm_gbm.so"):
        path = root / linking.LIB64[1:] / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(stubs.shared_object(path.name))
    assert linking.why_not(root) == ""


def test_a_library_without_a_soname(root):
    """It is listed by its file's name."""
    folder = root / linking.LIB64[1:]
    (folder / "libplain.so.7").write_bytes(stubs.shared_object(""))
    assert linking.why_not(root) == ""
    assert folders.libraries(str(folder), bundles.MACHINE)
    names = {each.name for each in folders.libraries(str(folder), bundles.MACHINE)}
    assert b"libplain.so.7" in names


def test_real_libraries_have_their_sonames():
    """Of this machine's own libraries the same is read as binutils reads."""
    own = [path for path in Path(linking.OWN).glob("lib*.so*") if not path.is_symlink()][:40]
    told = {}
    for path in own:
        text = subprocess.run(["readelf", "-d", path], check=False, capture_output=True, text=True)
        name = text.stdout.partition("Library soname: [")[2].partition("]")[0]
        if text.returncode == 0 and "Dynamic section" in text.stdout:
            told[path] = name
    assert len(told) > 10
    kinds = folders.KINDS[bundles.MACHINE]
    assert {path: folders.read_elf(str(path), kinds)[0] for path in told} == told
