# SPDX-License-Identifier: Apache-2.0
"""CUDA forward compatibility: whether an image's own newer CUDA driver is put before the host's.

CUDA images hold user-space parts of a newer driver in /usr/local/cuda/compat. This is looked at
in the clean view of the container's root, as an image that nobody trusts. It is a part of the
script that `install` puts together; what `view` says of imports holds here too.
"""

from __future__ import annotations

import posix

from nri_nvidia.oci.files import READ, is_file, is_there
from nri_nvidia.oci.view import Failure, Suppressed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# CUDA images have LIBRARY_DIR/lib and then LIBRARY_DIR/lib64 in LD_LIBRARY_PATH, which beats
# ld.so.cache. The first leads by way of this link to the libraries that are to be found first; it
# is outside of LIBRARY_DIR, which may be a mount that cannot be written to.
COMPAT_LINK = "/etc/nri-nvidia-compat"
HOST_CUDA = "cuda="  # before a CUDA version, where a host has no driver version to compare
NOTE_SECTION, NOTE_OWNER = b".note.cuda.fwd_compatibility", b"NVIDIA Corporation"
NOTE_LIMIT, SECTIONS_LIMIT, NAMES_LIMIT = 1 << 16, 1 << 10, 1 << 16


def use_compat(
    folder: str,
    host: str,
    library_dir: str,
    parse: Callable[[bytes, str], dict[str, object]],
    chosen: list[str],
) -> str:
    """Add FOLDER to `chosen` if its CUDA driver is newer than the host's, and link it; say why.

    An image may be one that was saved from such a container: an old link goes. Where nothing can
    be written the host's driver is used, by every way alike. Raises OSError.
    """
    if is_there(COMPAT_LINK):
        posix.unlink(COMPAT_LINK)
    version, why = pick(folder, host, parse)
    if version:
        posix.symlink(folder, COMPAT_LINK)
        # In a prepared directory the link is there; else this is the container's own directory.
        if not is_there(f"{library_dir}/lib"):
            with Suppressed(OSError):
                posix.symlink(COMPAT_LINK, f"{library_dir}/lib")
        chosen.append(folder)
    return why


def pick(
    folder: str, host: str, parse: Callable[[bytes, str], dict[str, object]]
) -> tuple[str, str]:
    """Give the version of a directory's CUDA driver if it is to be used, and why or why not."""
    versions = compat_versions(folder)
    if len(versions) > 1:
        return "", f"not used: {folder} holds more than one file libcuda.so.*.*"
    if not versions:
        return "", ""
    what = f"the CUDA driver {versions[0]} of {folder}"
    note = read_note(f"{folder}/libcuda.so.{versions[0]}", parse)
    problem = why_not(versions[0], host, note)
    if problem:
        return "", f"{what} is not used: {problem}"
    return versions[0], f"{what} is used, the host's is {host}"


def compat_versions(folder: str) -> list[str]:
    """Give the versions in the names of files `libcuda.so.*.*` of a directory, two at most."""
    found: list[str] = []
    with Suppressed(OSError):
        for each in posix.scandir(folder):
            name = each.name
            if name.startswith("libcuda.so.") and "." in name[11:] and len(found) < 2:
                found += [name[11:]] if is_file(f"{folder}/{name}") else []
    return found


def why_not(version: str, host: str, note: dict[str, object]) -> str:
    """Give why a CUDA driver is not to be used on a host's, "" if it is.

    With a note of its own it names the driver branches on which it runs, and any later version
    will do; without one it has to be of a later branch. A host such as `cuda=12.4` tells its CUDA
    version alone, and the note has the library's (toolkit, `enable-cuda-compat`).
    """
    if host.startswith(HOST_CUDA):
        own = str(note.get("CUDA Version", ""))
        newer = version_numbers(own) > (version_numbers(host[len(HOST_CUDA) :]) or [1 << 30])
        return "" if newer else f"its CUDA {own or 'is not told, and'} is not newer than {host}"
    ours, theirs = version_numbers(version), version_numbers(host)
    if not ours or not theirs:
        return f"{version if not ours else host} is no version"
    branches = note.get("Driver")
    if isinstance(branches, list) and theirs[0] not in branches:
        return f"it is not made for drivers {theirs[0]}, like the host's {host}"
    newer = ours > theirs if isinstance(branches, list) else ours[0] > theirs[0]
    return "" if newer else f"it is not newer than the host's {host}"


def version_numbers(version: str) -> list[int]:
    """Give the numbers of a version such as 550.54.15; none for anything else."""
    parts = version.split(".")
    plain = all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts)
    return [int(part) for part in parts] if plain else []


def read_note(path: str, parse: Callable[[bytes, str], dict[str, object]]) -> dict[str, object]:
    """Give what a library's ELF note says of forward compatibility; {} without a good one.

    ELF-64 specification, "Section Header" and "Note Section"; the text is JSON.
    """
    with Suppressed(OSError, Failure), open(posix.open(path, READ), "rb") as library:  # noqa: PTH123
        if is_file(library.fileno()):
            return parse(note_text(library.fileno()), path)
    return {}


def note_text(library: int) -> bytes:
    """Give the text of the note in an open file; raises Failure where there is none."""
    header = posix.pread(library, 64, 0)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        raise Failure("not an ELF file of 64 bits")
    at, size = number(header, 40, 8), number(header, 58, 2)
    count, names_at = number(header, 60, 2), number(header, 62, 2)
    if size != 64 or count > SECTIONS_LIMIT or names_at >= count or at >= 1 << 62:
        raise Failure("no section headers")
    table = posix.pread(library, 64 * count, at)
    sections = [table[begin : begin + 64] for begin in range(0, 64 * count, 64)]
    names = content(library, sections[names_at], NAMES_LIMIT)
    for section in sections:
        begin = number(section, 0, 4)
        if names[begin : begin + len(NOTE_SECTION) + 1] == NOTE_SECTION + b"\0":
            note = content(library, section, NOTE_LIMIT)
            name_size, text_size = number(note, 0, 4), number(note, 4, 4)
            if note[12 : 12 + name_size].rstrip(b"\0") == NOTE_OWNER:
                text_at = 12 + (name_size + 3) // 4 * 4
                return note[text_at : text_at + text_size].rstrip(b"\0")
    raise Failure("no note")


def content(library: int, section: bytes, limit: int) -> bytes:
    """Give a section's content, up to a limit."""
    at, size = number(section, 24, 8), number(section, 32, 8)
    return posix.pread(library, min(size, limit), min(at, 1 << 62))


def number(data: bytes, at: int, size: int) -> int:
    """Read a little-endian number."""
    return int.from_bytes(data[at : at + size], "little")
