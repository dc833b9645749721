# SPDX-License-Identifier: Apache-2.0
"""An image's ld.so.cache with some libraries more, as ldconfig would have made it.

What it consists of: glibc's sysdeps/generic/dl-cache.h; in which order: elf/cache.c, `compare`.
Little-endian machines only. The image's author has made the file, so each number in it is checked,
and what is not wholly understood raises Unclear: then ldconfig is there to make another one.

This is a part of the script that `install` puts together; what `view` says of imports
holds here too.
"""

from __future__ import annotations

from nri_nvidia.oci.view import words_of

MAGIC, OLD_MAGIC = b"glibc-ld.so.cache1.1", b"ld.so-1.7.0"
HEADER, ROW = 48, 24  # a row: flags, offsets of name and path, OS version, hwcap in two words
OLD_HEADER, OLD_ROW, ALIGNMENT = 16, 12, 8
LITTLE_ENDIAN = 2
EXTENSION, GENERATOR, HWCAPS = 0xEAA42174, 0, 1
IN_HWCAPS, ISA_LEVELS = 1 << 30, 0x3FF  # in a row's last word
HWCAPS_FOLDER = b"glibc-hwcaps"
# As rows may share one string, these bound the memory too: of each row there are two copies.
MAX_ROWS, MAX_STRING, MAX_HWCAPS, MAX_SECTIONS = 16384, 512, 64, 8
MAX_NUMBER = (1 << 31) - 1  # glibc compares numbers in names as C's int
MAKER = b"nri-nvidia"


class Unclear(Exception):  # noqa: N818  no defect, but a reason to have ldconfig do it
    """Raised where it is not certain what ldconfig would make of something; its text says what."""


class Entry:
    """A library that a cache lists.

    `folder` is where it was found, glibc-hwcaps left out; `special` tells that it is from there.
    `row` is what the cache has, empty for a new one.
    """

    __slots__ = ("flags", "folder", "name", "row", "special")

    def __init__(
        self, name: bytes, folder: bytes, flags: int, *, special: bool = False, row: bytes = b""
    ) -> None:
        self.name, self.folder, self.flags = name, folder, flags
        self.special, self.row = special, row


class Cache:
    """The entries of a cache in their order, and what their rows refer to.

    `strings` lie `start` bytes behind the cache's beginning, as do offsets; `hwcaps` are offsets.
    """

    def __init__(
        self, entries: list[Entry], start: int, strings: bytes, hwcaps: list[int]
    ) -> None:
        self.entries, self.start, self.strings, self.hwcaps = entries, start, strings, hwcaps


def parse_cache(data: bytes) -> Cache:
    """Read a cache; offsets in the new format count from its header, the extension's from `data`.

    Before it there may be the old format, which no loader reads that knows the new one.
    """
    begin = 0
    if data[: len(OLD_MAGIC)] == OLD_MAGIC:
        begin = OLD_HEADER + word_at(data, OLD_HEADER - 4) * OLD_ROW
        begin += -begin % ALIGNMENT
    count, length = word_at(data, begin + 20), word_at(data, begin + 24)
    flags, extension = word_at(data, begin + 28), word_at(data, begin + 32)
    start = HEADER + count * ROW
    new = data[begin : begin + start + length]
    if new[: len(MAGIC)] != MAGIC or any(new[36:HEADER]) or flags not in (0, LITTLE_ENDIAN):
        raise Unclear("the cache is of a kind that is not known")
    if count > MAX_ROWS or len(new) != start + length:
        raise Unclear("the cache has too many libraries, or is cut short")
    if not new[start:].isascii() or new[-1:] != b"\0":
        raise Unclear("the cache's names are not plain ones")
    hwcaps = read_hwcaps(data, extension)
    names = [string(new, start, offset) for offset in hwcaps]
    words = memoryview(new)[HEADER:start].cast("I").tolist()
    rows = [new[place : place + ROW] for place in range(HEADER, start, ROW)]
    columns = (words[place::6] for place in (0, 1, 2, 4, 5))
    entries = []
    for row, flags, name, path, low, high in zip(rows, *columns):  # noqa: B905  3.9 has no strict
        text = string(new, start, path)
        folder, _, last = text.rpartition(b"/")
        # Names are mostly the ends of paths; then there is nothing more to look at.
        plain = folder[:1] == b"/" and last != b"" and not low | high | flags >> 16
        if plain and name == path + len(folder) + 1:
            entries.append(Entry(last, folder, flags, row=row))
            continue
        texts = string(new, start, name), text
        entries.append(entry(row, texts, flags, find(names, low, high) if low | high else b""))
    return Cache(entries, start, new[start:], hwcaps)


def word_at(data: bytes, place: int) -> int:
    """Give the 32-bit word at a place."""
    word = data[place : place + 4]
    if len(word) != 4:
        raise Unclear("the cache is cut short")
    return int.from_bytes(word, "little")


def string(data: bytes, start: int, offset: int) -> bytes:
    """Give the text at an offset, which is not to be before `start`."""
    end = data.find(b"\0", offset, offset + MAX_STRING)
    if offset < start or end < 0:
        raise Unclear("the cache refers to what it does not have")
    return data[offset:end]


def read_hwcaps(data: bytes, place: int) -> list[int]:
    """Give the offsets of the names of glibc-hwcaps' directories, from the sections at a place."""
    found: list[int] = []
    if not place:
        return found
    count = word_at(data, place + 4)
    if word_at(data, place) != EXTENSION or count > MAX_SECTIONS:
        raise Unclear("the cache's sections are of a kind that is not known")
    for section in range(place + 8, place + 8 + count * 16, 16):
        tag, flags, offset, size = (word_at(data, section + n) for n in (0, 4, 8, 12))
        content = data[offset : offset + size]
        if flags or len(content) != size or size > MAX_STRING or tag not in (GENERATOR, HWCAPS):
            raise Unclear("the cache has a section of a kind that is not known")
        if tag == HWCAPS:
            if found or size % 4 or size > 4 * MAX_HWCAPS:
                raise Unclear("the cache's list of glibc-hwcaps is wrong")
            found += memoryview(content).cast("I").tolist()
    return found


def find(names: list[bytes], low: int, high: int) -> bytes:
    """Give the directory below glibc-hwcaps that an entry with such words is from.

    Before glibc 2.33 the two words had bits of a processor; ldconfig decides about those.
    """
    if high & ~ISA_LEVELS != IN_HWCAPS or low >= len(names) or not names[low]:
        raise Unclear("the cache has libraries for some processors only")
    return names[low]


def entry(row: bytes, texts: tuple[bytes, bytes], flags: int, hwcaps: bytes) -> Entry:
    """Make an entry of name and path, if the path is one that ldconfig would give it."""
    name, path = texts
    folder, _, last = path.rpartition(b"/")
    whole = last == name
    if hwcaps:
        end = b"/" + HWCAPS_FOLDER + b"/" + hwcaps
        whole, folder = folder.endswith(end) and last != b"", folder[: -len(end)]
    if not whole or not name or b"/" in name or folder[:1] != b"/" or flags >> 16:
        raise Unclear("the cache has an entry that ldconfig would not make")
    return Entry(name, folder, flags, special=hwcaps != b"", row=row)


def rank(name: bytes) -> list[int]:
    """Give what names are sorted by: numbers by their value, above all else (_dl_cache_libcmp)."""
    found: list[int] = []
    value = -1
    for character in name:
        if 48 <= character <= 57:
            value = 10 * max(value, 0) + character - 48
            if value > MAX_NUMBER:
                raise Unclear("a library's name has a number that is too large")
        else:
            found += [256 + value, character] if value >= 0 else [character]
            value = -1
    return [*found, 256 + value] if value >= 0 else found


def check_order(entries: list[Entry], order: dict[bytes, int]) -> None:
    """Raise Unclear unless all are from folders in `order`, and the same names in that order."""
    last = Entry(b"", b"", 0)
    for each in entries:
        if each.folder not in order:
            raise Unclear(f"{each.folder.decode()} is not searched any more")
        same = each.name == last.name and each.flags == last.flags
        if same and not each.special | last.special and order[each.folder] < order[last.folder]:
            raise Unclear("the order of folders is another one")
        last = each


class Ranks(dict):  # type: ignore[type-arg]
    """The ranks of the names that have been asked for."""

    def __missing__(self, name: bytes) -> list[int]:
        self[name] = found = rank(name)
        return found


def place_of(entries: list[Entry], new: Entry, order: dict[bytes, int], ranks: Ranks) -> int:
    """Give where ldconfig puts an entry in a list that is sorted as `compare` has it.

    By names, in descending order, then flags; what is for some processors goes before the others,
    the folder that is searched first before the next.
    """
    own, low, high = ranks[new.name], 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        if ranks[entries[middle].name] > own:
            low = middle + 1
        else:
            high = middle
    while low < len(entries) and ranks[entries[low].name] == own:
        other = entries[low]
        first = other.special or order[other.folder] <= order[new.folder]
        if other.flags < new.flags or (other.flags == new.flags and not first):
            break
        low += 1
    return low


def merge(old: Cache, new: list[Entry], order: dict[bytes, int]) -> bytes:
    """Give the bytes of a cache that lists new libraries among the old ones.

    `order` has the place of each folder that is searched. What the old one lists in the folders of
    the new ones is left out: they say all that is there.
    """
    ours = {each.folder for each in new}
    entries = [each for each in old.entries if each.folder not in ours]
    check_order(entries, order)
    ranks, strings = Ranks(), bytearray(old.strings)
    for each in new:
        path = old.start + len(strings)
        each.row = words_of(each.flags, path + len(each.folder) + 1, path, 0, 0, 0)
        strings += each.folder + b"/" + each.name + b"\0"
        entries.insert(place_of(entries, each, order, ranks), each)
    return render([each.row for each in entries], old, bytes(strings))


def render(rows: list[bytes], old: Cache, strings: bytes) -> bytes:
    """Put a cache together from rows that refer to strings where the old cache had its own."""
    start = HEADER + len(rows) * ROW
    moved = start - old.start
    table = bytearray(b"".join(rows))
    words = memoryview(table).cast("I")
    for place in range(1, len(words), 6):
        words[place] += moved
        words[place + 1] += moved
    strings += b"\0" * (-(start + len(strings)) % 4)
    sections = start + len(strings)
    hwcaps = words_of(*(offset + moved for offset in old.hwcaps))
    behind = sections + (40 if hwcaps else 24)
    extension = words_of(EXTENSION, 2 if hwcaps else 1)
    extension += words_of(GENERATOR, 0, behind + len(hwcaps), len(MAKER))
    extension += words_of(HWCAPS, 0, behind, len(hwcaps)) if hwcaps else b""
    header = MAGIC + words_of(len(rows), len(strings), LITTLE_ENDIAN, sections, 0, 0, 0)
    return b"".join((header, table, strings, extension, hwcaps, MAKER))
