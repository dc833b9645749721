# SPDX-License-Identifier: Apache-2.0
"""Where driver libraries could be, and what stands there."""

import os
import re

import attrs

from . import catalog, elf, ldcache
from .root import Root

_VERSION = re.compile(r"\.so\.(\d{1,6}(?:\.\d{1,6}){1,3})$")
_CACHE_LIMIT = 1 << 25


@attrs.frozen(kw_only=True)
class Candidate:
    """A name in a library directory that leads to a real file.

    `stem` is the name up to `.so`, `real` the file's inner path, `version` the version in the
    real file's name, empty where it has none.
    """

    stem: str
    real: str
    version: str


@attrs.frozen(kw_only=True)
class Survey:
    """What the library directories hold: candidates in their order, and links to nothing."""

    root: Root
    directories: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()


def survey(root: Root, search_paths: tuple[str, ...], version: str) -> Survey:
    """Look through the library directories; `version` is the module's, empty if unknown."""
    found: list[Candidate] = []
    broken: list[tuple[str, str]] = []
    places = directories(root, search_paths, version)
    seen: set[tuple[str, str]] = set()
    for place in places:
        for name in root.entries(place):
            stem, mark, rest = name.partition(".so")
            if not mark or (rest and not rest.startswith(".")):
                continue
            if stem not in catalog.LIBRARIES and not _is_new(stem, rest, version):
                continue
            real = root.resolve(f"{place}/{name}")
            if real is None:
                broken.append((stem, f"{place}/{name}"))
            elif (stem, real) not in seen:
                seen.add((stem, real))
                found.append(Candidate(stem=stem, real=real, version=version_of(real)))
    return Survey(
        root=root, directories=places, candidates=tuple(found), broken=tuple(sorted(broken))
    )


def _is_new(stem: str, rest: str, version: str) -> bool:
    """Tell a library of the loaded driver's exact version that no table knows (yet)."""
    return bool(version) and rest == f".{version}" and stem not in catalog.OF_THE_HOST


def directories(root: Root, search_paths: tuple[str, ...], version: str) -> tuple[str, ...]:
    """Give the library directories that exist, each once, by its resolved inner path."""
    asked = list(search_paths) or well_known(root, version) + _cached(root)
    found: dict[str, None] = {}
    for path in asked:
        for place in (path, f"{path}/vdpau"):
            real = root.resolve(place)
            if real is not None:
                found.setdefault(real)
    return tuple(found)


def version_of(path: str) -> str:
    """Give the version at the end of a library's file name, empty if there is none."""
    match = _VERSION.search(path)
    return match.group(1) if match else ""


def machines(root: Root, found: Survey) -> tuple[int, int]:
    """Give the ELF machine numbers of the host's 64-bit and 32-bit programs.

    On a recorded host this machine says nothing; there the leading libraries do.
    """
    if not root.recorded:
        return catalog.MACHINES.get(os.uname().machine, catalog.MACHINES["x86_64"])
    pairs = {pair[0]: pair for pair in catalog.MACHINES.values()}
    for candidate in found.candidates:
        if candidate.stem in catalog.LEADING:
            file = elf.read(root.on_disk(candidate.real))
            if file is not None and file.machine in pairs:
                return pairs[file.machine]
    return catalog.MACHINES["x86_64"]


def well_known(root: Root, version: str) -> list[str]:
    """Give the directories to look in without being told, whether they exist or not."""
    places: list[str] = []
    for place in catalog.LIBRARY_DIRECTORIES:
        places.append(place)
        if place in catalog.FLAVOUR_PARENTS:
            places.extend(f"{place}/{name}" for name in _flavours(root, place))
    places += [f"/usr/lib/{name}" for name in root.entries("/usr/lib") if _is_packaged(name)]
    versions = [version] if version else root.entries("/opt/nvidia")
    places += [p.format(version=v) for v in versions for p in catalog.VERSIONED_DIRECTORIES]
    return places


def _flavours(root: Root, parent: str) -> list[str]:
    """Give the flavours below a directory, the one in use first."""
    names = [name for name in root.entries(parent) if "." not in name and name != "vdpau"]
    return sorted(names, key=lambda name: (name != "current", name))


def _is_packaged(name: str) -> bool:
    """Whether a name is that of an old Ubuntu package's own directory, `nvidia-384`."""
    return re.fullmatch(r"nvidia-\d{3}(?:-prime)?", name) is not None


def _cached(root: Root) -> list[str]:
    entries = ldcache.parse(root.data("/etc/ld.so.cache", _CACHE_LIMIT) or b"")
    known = (
        entry
        for entry in entries
        if entry.bits and not entry.special and entry.name.partition(".so")[0] in catalog.LIBRARIES
    )
    places = dict.fromkeys(entry.path.rpartition("/")[0] or "/" for entry in known)
    # CUDA's forward-compatibility directory holds a newer driver's libraries for use in
    # containers and applications; it is no installation of the host's driver.
    return [place for place in places if not place.endswith("/compat")]
