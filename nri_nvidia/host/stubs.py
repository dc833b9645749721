# SPDX-License-Identifier: Apache-2.0
"""Small real files: ELF shared objects that a loader accepts, and ld.so.cache.

They are written without a compiler, so that a recorded host has the same bytes everywhere.
"""

import struct
from collections.abc import Iterable

EM_386 = 3
EM_X86_64 = 62
EM_AARCH64 = 183

_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = 48
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_CACHE_FLAGS = {64: 0x0303, 32: 0x0003}


def shared_object(
    soname: str, *, needed: Iterable[str] = (), bits: int = 64, machine: int = 0
) -> bytes:
    """Give an ELF shared object without code; `machine` 0 stands for the PC's of that width."""
    wide = bits == 64
    machine = machine or (EM_X86_64 if wide else EM_386)
    needed = tuple(needed)
    strings = b"\0"
    offsets: list[int] = []
    for name in (soname, *needed):
        offsets.append(len(strings))
        strings += name.encode() + b"\0" if name else b""
    word = 8 if wide else 4
    header_size, program_size, symbol_size = (64, 56, 24) if wide else (52, 32, 16)
    hash_at = header_size + 3 * program_size
    symbols_at = _aligned(hash_at + 16)
    strings_at = symbols_at + symbol_size
    dynamic_at = _aligned(strings_at + len(strings))
    entries = [(1, offset) for offset in offsets[1:]]  # DT_NEEDED
    if soname:
        entries.append((14, offsets[0]))  # DT_SONAME
    # DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL
    entries += [(4, hash_at), (5, strings_at), (6, symbols_at), (10, len(strings))]
    entries += [(11, symbol_size), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ" if wide else "<iI", *entry) for entry in entries)
    end = dynamic_at + len(dynamic)
    programs = (
        # type, flags, offset, size, alignment. Writable: the loader may relocate the dynamic part.
        (1, 6, 0, end, 0x1000),  # PT_LOAD
        (2, 6, dynamic_at, len(dynamic), word),  # PT_DYNAMIC
        (0x6474E551, 6, 0, 0, 16),  # PT_GNU_STACK: no executable stack
    )
    data = bytearray(end)
    data[0:header_size] = _header(wide, machine, header_size, program_size, len(programs))
    for index, program in enumerate(programs):
        start = header_size + index * program_size
        data[start : start + program_size] = _program(wide, program)
    data[hash_at : hash_at + 16] = struct.pack("<4I", 1, 1, 0, 0)
    data[strings_at : strings_at + len(strings)] = strings
    data[dynamic_at:end] = dynamic
    return bytes(data)


def library_cache(paths: Iterable[tuple[str, str, int]]) -> bytes:
    """Give an ld.so.cache of entries (SONAME, path, bits) in glibc's new format."""
    entries = sorted(paths, reverse=True)
    strings, table = b"", b""
    base = _CACHE_HEADER + _CACHE_ENTRY.size * len(entries)
    for soname, path, bits in entries:
        key = base + len(strings)
        value = key + len(soname.encode()) + 1
        strings += soname.encode() + b"\0" + path.encode() + b"\0"
        table += _CACHE_ENTRY.pack(_CACHE_FLAGS[bits], key, value, 0, 0)
    # Number of entries, length of the strings, byte order (2: little), nothing more.
    counts = struct.pack("<IIB3xI12x", len(entries), len(strings), 2, 0)
    return _CACHE_MAGIC + counts + table + strings


def _header(wide: bool, machine: int, size: int, program_size: int, programs: int) -> bytes:
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
    layout = "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH"
    # ET_DYN, version 1, no entry, program headers right behind, no sections.
    return ident + struct.pack(
        layout, 3, machine, 1, 0, size, 0, 0, size, program_size, programs, 0, 0, 0
    )


def _program(wide: bool, program: tuple[int, int, int, int, int]) -> bytes:
    kind, flags, offset, size, align = program
    if wide:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, align)
    return struct.pack("<IIIIIIII", kind, offset, offset, offset, size, size, flags, align)


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
