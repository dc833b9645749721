# SPDX-License-Identifier: Apache-2.0
"""Images and volumes on file systems that share files, are full, fixed, or do not answer."""

import contextlib
import fcntl
import os
import struct
import subprocess
from pathlib import Path

import pytest

from nri_nvidia.oci import cache
from nri_nvidia.testing import stubs
from tests.daemon import stalls

from . import bundles
from .test_defences import IN_PLACE
from .weakened import both_ways, several

CONF = "etc/ld.so.conf.d/image.conf"
GET_FLAGS, SET_FLAGS, IMMUTABLE = 0x80086601, 0x40086602, 0x10  # linux/fs.h
UNCAUGHT = (
    ("    except (Failure, OSError) as error:\n        message, ok = error, False\n", ""),
    (
        "    except Exception as error:  # noqa: BLE001  whatever it is, the container is to",
        "    except ZeroDivisionError as error:  #",
    ),
)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("debian", "etc/ld.so.cache"),
        ("debian", "etc/ld.so.conf.d/00-nri-nvidia.conf"),
        ("musl", f"etc/ld-musl-{bundles.MACHINE}.path"),
    ],
)
def test_a_file_that_is_the_hosts_too(case, runtime, place, kind, name):
    """A hard link to a file of the host's is replaced in the image; written to, it changes both."""
    file, outcome = place / "file", {}
    for way, ready in both_ways(case, IN_PLACE):
        if kind == "musl":
            subprocess.run(["rm", "-rf", ready.root], check=True)
            ready.make(kind)
        file.write_text("/host\n")
        os.link(file, ready.root / name)
        assert ready.run(runtime, ["/bin/quiet"]).step("ldcache")["ok"]
        outcome[way] = file.read_bytes() != b"/host\n"
        assert (ready.root / name).read_bytes() != b"/host\n"
    assert outcome == {"with": False, "without": True}


@contextlib.contextmanager
def small(root):
    """Have a root on a file system in memory of its own."""
    root.mkdir(parents=True)
    subprocess.run(["mount", "-n", "-t", "tmpfs", "-o", "size=32m", "none", root], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", root], check=True)


def fill(root, pages):
    """Leave so many pages free."""
    with (root / "fill").open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        size = file.tell() // os.sysconf("SC_PAGE_SIZE") - pages
        file.truncate(size * os.sysconf("SC_PAGE_SIZE"))


def test_a_full_root_keeps_its_cache(case, runtime):
    """Where the new cache has no room the image's stays whole; written in place it is lost."""
    in_place = (
        "posix.open(temporary, CREATE, mode)",
        "posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC, mode)",
    )
    outcome = {}
    with small(case.root):
        for name, ready in both_ways(case, in_place, (IN_PLACE[0], "        pass")):
            folder = ready.root / "opt"
            folder.mkdir()
            for number in range(200):
                library = f"libown{number}.so.1"
                (folder / library).write_bytes(stubs.shared_object(library))
            (ready.root / CONF).write_text("/opt\n")
            (ready.root / "etc/ld.so.cache").write_text("old")
            (ready.root / bundles.LIBRARY_DIR[1:]).mkdir(parents=True)
            fill(ready.root, 2)
            result = ready.run(runtime, ["/bin/quiet"])
            assert result.status == 0, result.errors
            assert "No space left" in result.step("ldcache")["message"]
            outcome[name] = (ready.root / "etc/ld.so.cache").read_bytes()
            assert [each for each in os.listdir(ready.root / "etc") if "nri" in each] == []
    assert outcome["with"] == b"old"
    assert outcome["without"] != b"old"


def set_immutable(path, *, on):
    """Let nobody change a directory or a file, or let everybody again. Raises OSError."""
    opened = os.open(path, os.O_RDONLY)
    try:
        flags = bytearray(8)
        fcntl.ioctl(opened, GET_FLAGS, flags)
        (old,) = struct.unpack("=l", flags[:4])
        new = old | IMMUTABLE if on else old & ~IMMUTABLE
        fcntl.ioctl(opened, SET_FLAGS, bytearray(struct.pack("=l4x", new)))
    finally:
        os.close(opened)


@pytest.mark.parametrize("name", ["etc", "etc/ld.so.conf.d", "etc/ld.so.cache", "usr/bin"])
def test_what_nobody_may_change(case, runtime, name):
    """An immutable directory or file fails a step, and not the container."""
    outcome = {}
    for way, ready in both_ways(case, *UNCAUGHT):
        path = ready.root / name
        if not path.exists():
            path.write_text("old")
        try:
            set_immutable(path, on=True)
        except OSError as error:
            pytest.skip(f"the file system of {ready.place} has no such attribute: {error}")
        try:
            result = ready.run(runtime, ["/bin/quiet"])
        finally:
            set_immutable(path, on=False)
        outcome[way] = result.status == 0
        assert way == "without" or "not permitted" in "".join(bundles.failing(result).values())
        assert list(ready.root.rglob(".nri-nvidia*")) == []
    assert outcome == {"with": True, "without": False}


def test_a_volume_that_does_not_answer(case):
    """The hook looks into no volume of the user's: into one whose server is gone it would for ever."""
    with_volumes = "mount(root, root, BIND)", "mount(root, root, BIND | RECURSIVE)"
    outcome = {}
    for name, ready in both_ways(case, with_volumes):
        ready.put_driver_in_root()
        (ready.root / "opt/own").mkdir(parents=True)
        (ready.root / CONF).write_text("/opt/own/lib\n")
        # No signal but this one ends who waits for such a file system.
        prefix = ["timeout", "--signal", "KILL", "3"] if name == "without" else []
        with stalls.unanswering(ready.root / "opt/own"):
            result = ready.direct(prefix=prefix)
        outcome[name] = result.report is not None and result.report["ok"]
    assert outcome == {"with": True, "without": False}


MEASURED = """
import os, resource, sys
status = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ), 0)[1])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024))
sys.exit(status)
"""
ROWS = 120_000
SHORT = "MAX_ROWS, MAX_STRING, MAX_HWCAPS, MAX_SECTIONS = 16384, 512,"
LONG = f"MAX_ROWS, MAX_STRING, MAX_HWCAPS, MAX_SECTIONS = {ROWS}, 5000,"
LIMIT = 'call("setrlimit", DATA, MOST_DATA.to_bytes(8, sys.byteorder) * 2)', "pass"


def inflating(rows):
    """Give a small cache whose rows all have the same path of four kilobytes."""
    name = b"lib" + b"a" * 4000 + b".so"
    path = b"/opt/" + name + b"\0"
    start = cache.HEADER + cache.ROW * rows
    row = struct.pack("<IIIIQ", 0x303, start + len(b"/opt/"), start, 0, 0)
    header = struct.pack("<7I", rows, len(path), cache.LITTLE_ENDIAN, 0, 0, 0, 0)
    return cache.MAGIC + header + row * rows + path


@pytest.mark.alone
def test_a_cache_that_grows_in_memory(case, runtime):
    """Whatever an image's cache makes of itself, the hook of 64 containers at once fits a node.

    Strings and rows have a bound, and so has the hook's memory, for what nobody thought of.
    """
    weaknesses = {"no bound": [(SHORT, LONG)], "without": [(SHORT, LONG), LIMIT]}
    outcome, peak = {}, case.place / "peak"
    for name, ready in several(case, weaknesses):
        (ready.root / "etc/ld.so.cache").write_bytes(inflating(ROWS))

        def measure(document):
            (entry,) = document["hooks"]["createContainer"]
            command = [entry["path"], "-I", "-S", "-c", MEASURED, str(peak), *entry["args"]]
            entry["args"] = command

        result = ready.run(runtime, change=measure)
        assert (result.status, result.report["ok"]) == (0, True), result
        outcome[name] = int(Path(peak).read_text())
    assert outcome["with"] < 48
    assert outcome["no bound"] < 288
    assert outcome["without"] > 400
