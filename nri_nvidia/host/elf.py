# SPDX-License-Identifier: Apache-2.0
"""What the scan needs of an ELF file: class, machine, DT_SONAME and DT_NEEDED.

Only these are read, by pread. Every offset comes from the file and is checked against its size,
and every table has a bound: the files belong to the host, but may be damaged.
"""

import os
import stat
import struct
from collections.abc import Callable, Iterator

import attrs

MACHINE_386 = 3
MACHINE_ARM = 40
MACHINE_X86_64 = 62
MACHINE_PPC64 = 21
MACHINE_AARCH64 = 183

_PT_LOAD = 1
_PT_DYNAMIC = 2
_DT_NULL = 0
_DT_NEEDED = 1
_DT_STRTAB = 5
_DT_SONAME = 14

# Driver libraries have about ten program headers and fifty dynamic entries.
_MAX_HEADERS = 256
_MAX_DYNAMIC = 1 << 16
_MAX_NAME = 1024

# libnvidia-ml has some 2 MB.
_MAX_SEARCHED = 1 << 24

_ReadAt = Callable[[int, int], bytes]
_Segments = list[tuple[int, int, int]]


@attrs.frozen(kw_only=True)
class Elf:
    """A shared object or program. `bits` is 32 or 64, `machine` an EM_ number."""

    bits: int
    machine: int
    soname: str = ""
    needed: tuple[str, ...] = ()


class _DamagedError(Exception):
    """Raised inside this module when an offset or a table cannot be right."""


def holds(path: str, text: bytes) -> bool:
    """Tell whether a regular file of at most 16 MiB has a text in it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_SEARCHED:
            return False
        try:
            return text in file.read(_MAX_SEARCHED)
        except OSError:
            return False


def read(path: str) -> Elf | None:
    """Read a file; None if it is missing, unreadable, not a regular file or not sound ELF."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        return parse(lambda offset, size: os.pread(fd, size, offset), status.st_size)
    except OSError:
        return None
    finally:
        os.close(fd)


def parse(read_at: _ReadAt, size: int) -> Elf | None:
    """Read ELF through `read_at(offset, size)`, of a file of `size` bytes; None if not sound."""
    try:
        return _parse(read_at, size)
    except (_DamagedError, struct.error):
        return None


def _parse(read_at: _ReadAt, size: int) -> Elf:
    def take(offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > size:
            raise _DamagedError
        data = read_at(offset, length)
        if len(data) != length:
            raise _DamagedError
        return data

    ident = take(0, 16)
    if ident[:4] != b"\x7fELF" or ident[4] not in {1, 2} or ident[5] not in {1, 2}:
        raise _DamagedError
    wide = ident[4] == 2
    order = "<" if ident[5] == 1 else ">"
    header = struct.Struct(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"))
    fields = header.unpack(take(16, header.size))
    machine, table, entry_size, count = fields[1], fields[4], fields[8], fields[9]
    loads, dynamic = _segments(take, order, wide, (table, entry_size, count))
    elf = Elf(bits=64 if wide else 32, machine=machine)
    if dynamic is None:
        return elf
    soname, needed, strings = _dynamic(take(*dynamic), order, wide)
    if strings is None:
        return elf
    start = _file_offset(loads, strings)

    def name(offset: int) -> str:
        length = min(_MAX_NAME, size - start - offset)
        raw, end, _rest = take(start + offset, length).partition(b"\0")
        if not end:
            raise _DamagedError
        try:
            return raw.decode("ascii")
        except UnicodeDecodeError:
            raise _DamagedError from None

    return attrs.evolve(
        elf,
        soname="" if soname is None else name(soname),
        needed=tuple(name(offset) for offset in needed),
    )


def _segments(
    take: _ReadAt, order: str, wide: bool, table: tuple[int, int, int]
) -> tuple[_Segments, tuple[int, int] | None]:
    """Give the load segments as (address, offset, file size) and the dynamic one."""
    start, entry_size, count = table
    # p_type, then in 64-bit files p_flags comes second; p_offset, p_vaddr, p_paddr, p_filesz.
    entry = struct.Struct(order + ("IIQQQQ" if wide else "IIIII"))
    if count > _MAX_HEADERS or (count and entry_size < entry.size):
        raise _DamagedError
    loads: _Segments = []
    dynamic: tuple[int, int] | None = None
    for index in range(count):
        fields = entry.unpack(take(start + index * entry_size, entry.size))
        kind = fields[0]
        offset, address, _physical, filled = fields[2:] if wide else fields[1:]
        if kind == _PT_LOAD:
            loads.append((address, offset, filled))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, min(filled, _MAX_DYNAMIC))
    return loads, dynamic


def _dynamic(data: bytes, order: str, wide: bool) -> tuple[int | None, list[int], int | None]:
    """Give the string offsets of SONAME and NEEDED, and the address of the string table."""
    soname: int | None = None
    strings: int | None = None
    needed: list[int] = []
    for tag, value in _entries(data, order, wide):
        if tag == _DT_NULL:
            break
        if tag == _DT_SONAME:
            soname = value
        elif tag == _DT_NEEDED:
            needed.append(value)
        elif tag == _DT_STRTAB:
            strings = value
    return soname, needed, strings


def _entries(data: bytes, order: str, wide: bool) -> Iterator[tuple[int, int]]:
    entry = struct.Struct(order + ("qQ" if wide else "iI"))
    whole = len(data) - len(data) % entry.size
    yield from entry.iter_unpack(data[:whole])


def _file_offset(loads: _Segments, address: int) -> int:
    for start, offset, filled in loads:
        if start <= address < start + filled:
            return address - start + offset
    raise _DamagedError
