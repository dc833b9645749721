# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia.host import elf
from nri_nvidia.testing import stubs

STUB = stubs.shared_object("libx.so.1", needed=("liby.so.2", "libz.so.3"))


def parse(data: bytes) -> elf.Elf | None:
    return elf.parse(lambda offset, size: data[offset : offset + size], len(data))


def by_pyelftools(path: pathlib.Path) -> elf.Elf:
    with path.open("rb") as file:
        found = ELFFile(file)
        dynamic = next((s for s in found.iter_segments() if s.header.p_type == "PT_DYNAMIC"), None)
        tags = list(dynamic.iter_tags()) if dynamic else []
        sonames = [tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"]
        return elf.Elf(
            bits=found.elfclass,
            machine={"EM_X86_64": 62, "EM_386": 3}[found["e_machine"]],
            soname=sonames[0] if sonames else "",
            needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        )


def test_own_libraries_read_as_pyelftools_reads_them():
    """Every shared object of this machine's own library directory gives what pyelftools gives."""
    libraries = [
        path
        for path in sorted(pathlib.Path("/usr/lib/x86_64-linux-gnu").glob("lib*.so*"))
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"
    ][:80]
    assert libraries, "a Linux machine has shared libraries"
    for path in libraries:
        assert elf.read(str(path)) == by_pyelftools(path)


@pytest.mark.parametrize("bits", [32, 64])
def test_stub_reads_as_pyelftools_reads_it(tmp_path, bits):
    """32- and 64-bit objects give class, machine, SONAME and needed names."""
    path = tmp_path / "lib.so"
    path.write_bytes(stubs.shared_object("libx.so.1", needed=("libc.so.6",), bits=bits))
    expected = elf.Elf(
        bits=bits,
        machine={32: elf.MACHINE_386, 64: elf.MACHINE_X86_64}[bits],
        soname="libx.so.1",
        needed=("libc.so.6",),
    )
    assert elf.read(str(path)) == expected == by_pyelftools(path)


def test_object_without_soname_has_an_empty_one():
    """No DT_SONAME is an empty SONAME."""
    found = parse(stubs.shared_object("", needed=("liby.so.2",)))
    assert found == elf.Elf(bits=64, machine=62, soname="", needed=("liby.so.2",))


def test_what_is_no_regular_elf_file_is_none(tmp_path):
    """An empty file, text, a directory, a fifo, nothing at all: None, never an exception."""
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("INPUT(-lcuda)")
    os.mkfifo(tmp_path / "fifo")
    for name in ("empty", "text", "fifo", "missing", ".", "a\0b"):
        assert elf.read(f"{tmp_path}/{name}") is None


def test_string_table_outside_the_file_is_damage():
    """A SONAME that lies behind the end gives None."""
    assert parse(STUB[:-8]) is None


def test_huge_header_count_is_damage():
    """A program header table that cannot be in the file gives None at once."""
    data = bytearray(STUB)
    data[56:58] = b"\xff\xff"
    assert parse(bytes(data)) is None


@given(st.integers(0, len(STUB)))
def test_any_cut_is_none_or_the_whole(length):
    """A file cut anywhere is None: its dynamic part is at the end."""
    assert parse(STUB[:length]) in {None, parse(STUB)}


@given(st.lists(st.tuples(st.integers(0, len(STUB) - 1), st.integers(0, 255)), max_size=12))
def test_any_damage_is_none_or_a_value(changes):
    """Bytes changed anywhere give None or a value with bounded, printable names."""
    data = bytearray(STUB)
    for offset, value in changes:
        data[offset] = value
    found = parse(bytes(data))
    assert found is None or (found.bits in {32, 64} and len(found.needed) < 1 << 13)


@given(st.binary(max_size=400))
def test_any_bytes_behind_the_magic_do_not_raise(data):
    """Garbage behind an ELF identification gives None or a value."""
    for ident in (b"\x7fELF\x02\x01", b"\x7fELF\x01\x01", b"\x7fELF\x02\x02", b"\x7fELF\x01\x02"):
        parse(ident + data)
