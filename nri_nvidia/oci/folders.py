# SPDX-License-Identifier: Apache-2.0
"""What ldconfig would find: the folders that it searches, and the driver's libraries in them.

How it searches is glibc's elf/ldconfig.c. What is not certain raises Unclear, OSError or Failure:
then ldconfig is run.

This is a part of the script that `install` puts together; what `view` says of imports
holds here too.
"""

from __future__ import annotations

import posix

from nri_nvidia.oci.cache import Entry, Unclear, merge, parse_cache
from nri_nvidia.oci.files import READ, REGULAR, is_directory, is_there, kind_of, read
from nri_nvidia.oci.view import Suppressed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE, CACHE_LIMIT = "/etc/ld.so.cache", 8 << 20  # some 90 000 libraries
BLANKS = " \f\r\t\v"
MAX_CONF, MAX_FILES, MAX_DEPTH, MAX_FOLDERS, MAX_NAMES = 1 << 16, 64, 8, 128, 4096
MAX_LINES = 1024
MAX_LIBRARIES = 256  # a driver has some seventy; ldconfig reads more in less time than this
# Flags in a cache by the ELF class and machine that a machine's ldconfig takes (readelflib.c).
KINDS = {"x86_64": {(2, 62): 0x303, (1, 3): 0x3}, "aarch64": {(2, 183): 0xA03}}
HEAD, MAX_DYNAMIC = 4096, 1 << 16
SHARED_OBJECT, LOAD, DYNAMIC, NEEDED, STRING_TABLE, SONAME = 3, 1, 2, 1, 5, 14
C_LIBRARIES = (b"libc.so.6\0", b"libm.so.6\0")
# Directories among the driver's files that no ldconfig takes for those of a kind of processor.
PLAIN_FOLDERS = frozenset(("gbm", "vdpau", "nvidia", "xorg"))


def extended(conf: str, ours: list[str], machine: str) -> tuple[bytes | None, str]:
    """Give the image's cache with the libraries of our folders, or None and why it takes ldconfig.

    `conf` is the configuration that ldconfig would be given, and lists our folders too.
    """
    try:
        return extend(conf, ours, machine), ""
    except Exception as error:  # noqa: BLE001  whatever it is, there is ldconfig
        return None, str(error)


def extend(conf: str, ours: list[str], machine: str) -> bytes:
    """Do what `extended` says; raises where that gives None."""
    listed = search(conf, ours)
    old = parse_cache(read_cache())
    check_folders(listed, ours, old.entries, machine)
    found = [each for folder in ours for each in libraries(folder, machine)]
    return merge(old, found, {path.encode(): place for place, path in enumerate(listed)})


def read_cache() -> bytes:
    """Read the image's cache; a link there is not followed, so that its time is its own."""
    if not is_there(CACHE):
        raise Unclear(f"the image has no {CACHE}")
    if posix.lstat(CACHE).st_mode & 0o170000 != REGULAR:
        raise Unclear(f"{CACHE} is not a regular file")
    return read(CACHE, CACHE_LIMIT)


def search(conf: str, ours: list[str]) -> list[str]:
    """Give the folders that a configuration lists, in order, each by its first name."""
    root = posix.stat("/").st_dev
    found: dict[tuple[int, int], str] = {}
    for number, path in enumerate(lines_of(conf, "/etc", [MAX_FILES], 0)):
        with Suppressed(FileNotFoundError, NotADirectoryError):
            status = posix.stat(path)
            if status.st_dev != root and path not in ours:
                raise Unclear(f"{path} is not on the image's file system")
            found.setdefault((status.st_dev, status.st_ino), path)
        if len(found) > MAX_FOLDERS or number > MAX_LINES:
            raise Unclear("too many folders are listed")
    listed = list(found.values())
    if not set(ours).issubset(listed):
        raise Unclear("the driver's folders are listed by another name")
    return listed


def lines_of(conf: str, folder: str, files: list[int], depth: int) -> Iterator[str]:
    """Give the folders that a configuration file names; `files` holds how many may follow it."""
    if depth > MAX_DEPTH or not conf.isascii() or "\0" in conf:
        raise Unclear("the configuration is not a plain one")
    for line in conf.split("\n"):
        text = line.partition("#")[0].lstrip(BLANKS)
        word, after = text[:7], text[7:8]
        if word == "include" and after in (" ", "\t"):
            for pattern in text[8:].replace("\t", " ").split():
                yield from included(pattern, folder, files, depth)
        elif text and not (text[:5].lower() == "hwcap" and text[5:6] in (" ", "\t")):
            path = text.rstrip(BLANKS).rstrip("/")
            if text[0] != "/" or "=" in text:
                raise Unclear(f"{text!r} is not the path of a folder")
            if path:
                yield path


def included(pattern: str, folder: str, files: list[int], depth: int) -> Iterator[str]:
    """Give the folders that the files name which fit a pattern."""
    place, _, last = (pattern if pattern[0] == "/" else f"{folder}/{pattern}").rpartition("/")
    first, star, end = last.partition("*")
    if any(character in place + first + end for character in "*?[\\"):
        raise Unclear(f"{pattern!r} is not a plain pattern")
    names = [last]
    if star:
        files[0] -= 1  # it takes as long as a file, also where nothing fits
        fit = [n for n in names_in(place or "/") if n.startswith(first) and n.endswith(end)]
        names = sorted(n for n in fit if len(n) > len(last) - 2 and (first or n[0] != "."))
    for name in names:
        files[0] -= 1
        if files[0] < 0:
            raise Unclear("too many files are included")
        path = f"{place}/{name}"
        if kind_of(path):
            yield from lines_of(read(path, MAX_CONF).decode("latin-1"), place, files, depth + 1)


def names_in(folder: str) -> list[str]:
    """Give the names in a directory; none where there is no such directory."""
    found: list[str] = []
    with Suppressed(FileNotFoundError, NotADirectoryError):
        for each in posix.scandir(folder):
            found.append(each.name)
            if len(found) > MAX_NAMES:
                raise Unclear(f"{folder} has too many names")
    return found


def check_folders(listed: list[str], ours: list[str], old: list[Entry], machine: str) -> None:
    """Raise Unclear unless the cache lists what these folders have.

    It does where it is not older than a folder (images keep whole seconds only) and has something
    of it. Other folders are read: a runtime has made a mount point in many of them, or they have
    been named since, as CUDA's base images name the driver's; mostly there are no libraries.
    """
    made = second_of(CACHE)
    known: dict[str, dict[bytes, int]] = {}
    for each in old:
        entries = known.setdefault(each.folder.decode(), {})
        if not each.special and each.name[:2] != b"ld":
            entries[each.name] = each.flags
    for folder in listed:
        if folder in ours or not is_directory(folder):
            continue
        hwcaps = f"{folder}/glibc-hwcaps"
        below = [f"{hwcaps}/{name}" for name in names_in(hwcaps)]
        if is_directory(hwcaps) and max(map(second_of, [hwcaps, *below])) > made:
            raise Unclear(f"{hwcaps} is newer than {CACHE}")
        if folder not in known or second_of(folder) > made:
            found = {each.name: each.flags for each in libraries(folder, machine, driver=False)}
            if found != known.get(folder, {}) or (below and folder not in known):
                raise Unclear(f"{CACHE} has other libraries than {folder}")


def second_of(path: str) -> int:
    """Give the second of a file's last change."""
    return posix.stat(path).st_mtime_ns // 10**9


def is_library(name: str) -> bool:
    """Whether ldconfig looks at a file of this name (_dl_is_dso)."""
    return name[:3] in ("lib", "ld-", "ld.") and ".so" in name


def libraries(folder: str, machine: str, *, driver: bool = True) -> list[Entry]:
    """Give the entries that ldconfig makes of a folder, of the driver's or else of the image's.

    Raises Unclear where there is something else than the driver has.
    """
    found: dict[str, int] = {}
    looked = 0
    for number, each in enumerate(posix.scandir(folder)):
        name = each.name
        if driver and each.is_dir() and name not in PLAIN_FOLDERS:
            raise Unclear(f"{folder}/{name} may be for some processors only")
        if number > MAX_NAMES:
            raise Unclear(f"{folder} has too many names")
        if not is_library(name) or each.is_dir():
            continue
        plain = name.replace(".", "").replace("-", "").replace("_", "").replace("+", "")
        looked += 1
        if not plain.isalnum() or not name.isascii():
            raise Unclear(f"{name!r} may be a temporary file")
        if looked > MAX_LIBRARIES:
            raise Unclear(f"{folder} has too many libraries to read them")
        if name[:2] == "ld":
            # A loader is in two folders of many an image; no program looks for it in the cache.
            if driver:
                raise Unclear(f"{folder} has a loader")
            continue
        soname, flags = read_elf(f"{folder}/{name}", KINDS[machine])
        soname = soname or name
        if each.is_symlink() and name.endswith(".so") and soname.startswith(name):
            soname = name  # the link that compilers use is listed by its own name
        if found.setdefault(soname, flags) != flags:
            raise Unclear(f"{folder} has {soname} of two kinds")
    return [Entry(name.encode(), folder.encode(), flags) for name, flags in found.items()]


def read_elf(path: str, kinds: dict[tuple[int, int], int]) -> tuple[str, int]:
    """Give a library's SONAME, empty if it has none, and its flags in a cache."""
    file = posix.open(path, READ)
    try:
        head = posix.pread(file, HEAD, 0)
        kind = (head[4], int.from_bytes(head[18:20], "little"))
        if head[:4] != b"\x7fELF" or head[5] != 1 or head[16] != SHARED_OBJECT or head[17]:
            raise Unclear(f"{path} is not a shared library")
        segments = read_segments(head, wide=kind[0] == 2)
        offset, size = next((s[1], s[3]) for s in segments if s[0] == DYNAMIC)
        words = words_at(file, offset, size if size <= MAX_DYNAMIC else 0, wide=kind[0] == 2)
        tags, values = words[::2], words[1::2]
        tags = tags[: tags.index(0)]
        table = values[tags.index(STRING_TABLE)]
        start = next(s[1] - s[2] for s in segments if s[0] == LOAD and 0 <= table - s[2] < s[3])
        start += table
        if kind[0] == 1:
            needed = [place for place, tag in enumerate(tags) if tag == NEEDED]
            check_needed(file, [start + values[place] for place in needed])
        if SONAME not in tags:
            return "", kinds[kind]
        start += values[tags.index(SONAME)]
        text, end, _ = posix.pread(file, 256, start).partition(b"\0")
        if not end or not text or b"/" in text:
            raise Unclear(f"{path} has no plain SONAME")
        return text.decode("ascii"), kinds[kind]
    finally:
        posix.close(file)


def check_needed(file: int, places: list[int]) -> None:
    """Raise Unclear unless one of the names of needed libraries is one of glibc's.

    Of 32-bit libraries without any ldconfig's releases make different things.
    """
    size = len(C_LIBRARIES[0])
    if not any(posix.pread(file, size, place) in C_LIBRARIES for place in places):
        raise Unclear("a 32-bit library needs none of glibc's")


def words_at(file: int, offset: int, size: int, *, wide: bool) -> list[int]:
    """Read the words at a place of an ELF file."""
    data = posix.pread(file, size, offset)
    return memoryview(data).cast("Q" if wide else "I").tolist()


def read_segments(head: bytes, *, wide: bool) -> list[tuple[int, int, int, int]]:
    """Give kind, offset, address and size in the file of each segment."""
    size, names = (56, (32, 40, 54)) if wide else (32, (28, 32, 42))
    start = int.from_bytes(head[names[0] : names[1]], "little")
    each, count = (int.from_bytes(head[names[2] + n : names[2] + n + 2], "little") for n in (0, 2))
    table = head[start : start + size * count]
    if each != size or len(table) != size * count or not count:
        raise Unclear("a library's segments are not where they usually are")
    words = memoryview(table).cast("Q" if wide else "I").tolist()
    if wide:  # type and flags share the first word
        kinds = [word & 0xFFFFFFFF for word in words[::7]]
        columns = kinds, words[1::7], words[2::7], words[4::7]
    else:
        columns = words[::8], words[1::8], words[2::8], words[4::8]
    return list(zip(*columns))  # noqa: B905  Python 3.9 has no other
