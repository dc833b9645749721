# SPDX-License-Identifier: Apache-2.0
import pathlib
import re
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia.host import ldcache
from nri_nvidia.testing import stubs

LINES = [
    ("libcuda.so.1", "/opt/nvidia/lib64/libcuda.so.1", 64),
    ("libcuda.so.1", "/opt/nvidia/lib32/libcuda.so.1", 32),
    ("libnvidia-ml.so.1", "/opt/nvidia/lib64/libnvidia-ml.so.1", 64),
]
CACHE = stubs.library_cache(LINES)


def old_cache(lines: list[tuple[str, str]], new: bytes = b"") -> bytes:
    strings = table = b""
    for name, path in lines:
        key = len(strings)
        strings += f"{name}\0{path}\0".encode()
        table += struct.pack("=iII", 3, key, key + len(name) + 1)
    head = b"ld.so-1.7.0\0" + struct.pack("=I", len(lines)) + table
    if new:
        return head + bytes(-len(head) % 8) + new
    return head + strings


def listing(cache: pathlib.Path) -> set[tuple[str, str]]:
    output = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", str(cache)], check=True, capture_output=True, text=True
    ).stdout
    found = (re.match(r"\t(\S+) \(.*\) => (\S+)$", line) for line in output.splitlines())
    return {(match.group(1), match.group(2)) for match in found if match}


def test_written_cache_reads_as_it_was_written():
    """Names, paths and word sizes come back."""
    assert sorted((e.name, e.path, e.bits) for e in ldcache.parse(CACHE)) == sorted(LINES)


def test_ldconfig_reads_our_cache_as_we_do(tmp_path):
    """The cache that the tests write is one to glibc as well."""
    path = tmp_path / "ld.so.cache"
    path.write_bytes(CACHE)
    assert listing(path) == {(name, file) for name, file, _bits in LINES}


def test_a_cache_made_by_ldconfig_reads_as_ldconfig_lists_it(tmp_path):
    """A real cache, with hwcaps entries and 32-bit libraries, gives ldconfig's own list."""
    lib = tmp_path / "lib"
    (lib / "glibc-hwcaps" / "x86-64-v2").mkdir(parents=True)
    (lib / "liba.so.1").write_bytes(stubs.shared_object("liba.so.1"))
    (lib / "glibc-hwcaps/x86-64-v2/liba.so.1").write_bytes(stubs.shared_object("liba.so.1"))
    narrow = tmp_path / "lib32"
    narrow.mkdir()
    (narrow / "liba.so.1").write_bytes(stubs.shared_object("liba.so.1", bits=32))
    cache, config = tmp_path / "cache", tmp_path / "conf"
    config.write_text(f"{lib}\n{narrow}\n")
    command = ["/sbin/ldconfig", "-X", "-C", str(cache), "-f", str(config)]
    subprocess.run(command, check=True, capture_output=True)
    entries = ldcache.parse(cache.read_bytes())
    assert {(entry.name, entry.path) for entry in entries} == listing(cache)
    ours = [entry for entry in entries if entry.path.startswith(str(tmp_path))]
    assert sorted((e.path.replace(str(tmp_path), ""), e.bits, e.special) for e in ours) == [
        ("/lib/glibc-hwcaps/x86-64-v2/liba.so.1", 64, True),
        ("/lib/liba.so.1", 64, False),
        ("/lib32/liba.so.1", 32, False),
    ]


def test_old_form_alone_is_read():
    """A cache of before glibc 2.2 gives its entries."""
    data = old_cache([("libcuda.so.1", "/usr/lib/libcuda.so.1")])
    assert [(e.name, e.path) for e in ldcache.parse(data)] == [
        ("libcuda.so.1", "/usr/lib/libcuda.so.1")
    ]


def test_new_form_behind_the_old_wins():
    """Where the old form carries the new one, the new one counts."""
    data = old_cache([("libold.so.1", "/usr/lib/libold.so.1")], CACHE)
    assert {e.name for e in ldcache.parse(data)} == {"libcuda.so.1", "libnvidia-ml.so.1"}


def test_cache_of_another_byte_order_is_read():
    """The header's byte-order bits are honoured."""
    strings = b"libx.so.1\0/lib/libx.so.1\0"
    base = 48 + 24
    data = b"glibc-ld.so.cache1.1" + struct.pack(">IIB3xI12x", 1, len(strings), 3, 0)
    data += struct.pack(">iIIIQ", 0x0303, base, base + 10, 0, 0) + strings
    assert ldcache.parse(data) == (ldcache.Entry("libx.so.1", "/lib/libx.so.1", 0x0303, 0),)


@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"ld.so-1.7.0", b"glibc-ld.so.cache1.1", b"\0" * 4096]
)
def test_what_is_no_cache_gives_nothing(data):
    """No magic, or nothing behind it: no entries."""
    assert ldcache.parse(data) == ()


def test_offset_behind_the_end_drops_that_entry_alone():
    """An entry that points outside is skipped, its neighbours stay (a damaged cache)."""
    data = bytearray(CACHE)
    data[48 + 8 : 48 + 12] = b"\xff\xff\xff\x7f"
    names = [e.path for e in ldcache.parse(bytes(data))]
    assert len(names) == len(LINES) - 1


@given(st.integers(0, len(CACHE)))
def test_cut_anywhere_gives_true_entries_or_none(length):
    """A cut cache gives only entries of the whole one: no odd path is made up."""
    assert set(ldcache.parse(CACHE[:length])) <= set(ldcache.parse(CACHE))


@given(st.lists(st.tuples(st.integers(0, len(CACHE) - 1), st.integers(0, 255)), max_size=12))
def test_any_damage_gives_clean_paths(changes):
    """Whatever is changed, every path given is absolute and printable, every name plain."""
    data = bytearray(CACHE)
    for offset, value in changes:
        data[offset] = value
    for entry in ldcache.parse(bytes(data)):
        assert entry.path.startswith("/")
        assert entry.path.isprintable()
        assert "/" not in entry.name


@given(st.binary(max_size=300))
def test_any_bytes_behind_a_magic_do_not_raise(data):
    """Garbage behind either magic is no error."""
    ldcache.parse(b"ld.so-1.7.0\0" + data)
    ldcache.parse(b"glibc-ld.so.cache1.1" + data)
