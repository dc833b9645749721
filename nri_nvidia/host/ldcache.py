# SPDX-License-Identifier: Apache-2.0
"""Reads ld.so.cache, in glibc's old and new form (glibc `sysdeps/generic/dl-cache.h`).

The old form (`ld.so-1.7.0`) may carry the new one (`glibc-ld.so.cache1.1`) behind its entries.
A damaged or cut cache gives the entries that are sound; nothing here is a promise that a file
exists.
"""

import struct

import attrs

_OLD_MAGIC = b"ld.so-1.7.0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_HEADER = 16  # the magic, one byte of padding, the number of entries
_NEW_HEADER = 48
_OLD_ENTRY = 12
_NEW_ENTRY = 24

# A cache of a big host has some ten thousand entries.
_MAX_ENTRIES = 1 << 18
_MAX_NAME = 4096

# The byte-order bits of the new header's flags: 0 means "not said", 2 little, 3 big.
_BIG_ENDIAN = 3

_TYPE_MASK = 0x00FF
_ABI_MASK = 0xFF00
# Types: 1 for an object that needs no libc, 3 for one of glibc's; 2 was libc5.
_TYPES = frozenset({1, 3})
_ABI_NATIVE32 = 0x0000
_ABI_64 = frozenset({0x0300, 0x0500, 0x0A00})  # x86-64, powerpc64, aarch64


@attrs.frozen
class Entry:
    """A line of the cache: the name a program asks for and the file that answers it."""

    name: str
    path: str
    flags: int
    hwcap: int = 0

    @property
    def bits(self) -> int:
        """The word size of the file as the cache has it: 32, 64, or 0 for another ABI."""
        if self.flags & _TYPE_MASK not in _TYPES:
            return 0
        abi = self.flags & _ABI_MASK
        if abi in _ABI_64:
            return 64
        return 32 if abi == _ABI_NATIVE32 else 0

    @property
    def special(self) -> bool:
        """Whether it holds only for some processors (glibc-hwcaps, or older capability bits)."""
        return self.hwcap != 0


def parse(data: bytes) -> tuple[Entry, ...]:
    """Give the sound entries of a cache, none if it is not one."""
    if data.startswith(_NEW_MAGIC):
        return _new(data)
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER:
        return ()
    (count,) = struct.unpack_from("=I", data, 12)
    end = _OLD_HEADER + min(count, _MAX_ENTRIES) * _OLD_ENTRY
    # glibc aligns the new part for its 64-bit field, which is 4 bytes wide only on i386.
    for alignment in (8, 4):
        start = -(-end // alignment) * alignment
        if data.startswith(_NEW_MAGIC, start):
            return _new(data[start:])
    return _old(data, count)


def _new(data: bytes) -> tuple[Entry, ...]:
    if len(data) < _NEW_HEADER:
        return ()
    order = ">" if data[28] & 3 == _BIG_ENDIAN else "<"
    (count,) = struct.unpack_from(order + "I", data, 20)
    entry = struct.Struct(order + "iIIIQ")
    found: list[Entry] = []
    for index in range(_whole(data, _NEW_HEADER, count, _NEW_ENTRY)):
        flags, key, value, _version, hwcap = entry.unpack_from(
            data, _NEW_HEADER + index * _NEW_ENTRY
        )
        _add(found, (_string(data, key), _string(data, value)), flags, hwcap)
    return tuple(found)


def _old(data: bytes, count: int) -> tuple[Entry, ...]:
    strings = _OLD_HEADER + count * _OLD_ENTRY
    entry = struct.Struct("=iII")
    found: list[Entry] = []
    for index in range(_whole(data, _OLD_HEADER, count, _OLD_ENTRY)):
        flags, key, value = entry.unpack_from(data, _OLD_HEADER + index * _OLD_ENTRY)
        _add(found, (_string(data, strings + key), _string(data, strings + value)), flags, 0)
    return tuple(found)


def _whole(data: bytes, header: int, count: int, size: int) -> int:
    """Give how many of the promised entries can be there at all."""
    return min(count, _MAX_ENTRIES, (len(data) - header) // size)


def _add(found: list[Entry], names: tuple[str, str], flags: int, hwcap: int) -> None:
    name, path = names
    if name and "/" not in name and path.startswith("/"):
        found.append(Entry(name, path, flags & 0xFFFFFFFF, hwcap))


def _string(data: bytes, offset: int) -> str:
    """Give the string at an offset, empty if it does not end, is too long or is not printable."""
    if offset >= len(data):
        return ""
    end = data.find(b"\0", offset, offset + _MAX_NAME)
    if end < 0:
        return ""
    try:
        text = data[offset:end].decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""
