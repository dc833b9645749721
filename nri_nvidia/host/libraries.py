# SPDX-License-Identifier: Apache-2.0
"""The driver's libraries: one version, sound files of this architecture, with what they need."""

from collections.abc import Iterable, Iterator

import attrs

from . import candidates, catalog, elf
from .candidates import Candidate, Survey
from .model import DriverFile, FileKind, Problem
from .root import Root

_KINDS = {64: FileKind.LIBRARY, 32: FileKind.LIBRARY32}


@attrs.frozen(kw_only=True)
class Found:
    """The libraries that were chosen.

    `version` is theirs, or where none fits the loaded module the version that is there instead;
    `directory` is the inner path of the leading library's directory.
    """

    files: tuple[DriverFile, ...] = ()
    version: str = ""
    directory: str = ""
    directories: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


@attrs.frozen(kw_only=True)
class _Chosen:
    """A sound library, with its file as an inner path."""

    stem: str
    real: str
    file: elf.Elf

    @property
    def name(self) -> str:
        return self.file.soname or self.real.rpartition("/")[2]


def find(root: Root, search_paths: tuple[str, ...], module_version: str) -> Found:
    """Choose libraries for a module's version, or the first installed version if there is none.

    Files of another version are never mixed in: NVIDIA's kernel module refuses them.
    """
    seen = candidates.survey(root, search_paths, module_version)
    reader = _Reader(seen, candidates.machines(root, seen))
    leading = [c for c in seen.candidates if c.stem in catalog.LEADING and c.version]
    leading.sort(key=lambda c: catalog.LEADING.index(c.stem))
    sound = [candidate for candidate in leading if reader.read(candidate.real)]
    if module_version and module_version not in {candidate.version for candidate in sound}:
        sound += _telling(reader, module_version)
    versions = tuple(dict.fromkeys(candidate.version for candidate in sound))
    version = module_version if module_version in versions else ""
    if not module_version and versions:
        version = versions[0]
    if not version:
        problems = _no_version(reader, module_version, versions, search_paths)
        shown = versions[0] if versions else ""
        return Found(version=shown, directories=seen.directories, problems=problems)
    found = [candidate for candidate in sound if candidate.version == version]
    homes = {candidate.real.rpartition("/")[0] for candidate in found}
    chosen = tuple(_choose(reader, version, homes))
    files, missing = _files(reader, chosen, version)
    return Found(
        files=files,
        version=version,
        directory=found[0].real.rpartition("/")[0],
        directories=seen.directories,
        problems=(*_others(version, versions), *missing, *_lacking(reader, chosen, version)),
    )


class _Reader:
    """Reads each file once and keeps what is sound and of this host's architecture."""

    def __init__(self, seen: Survey, machines: tuple[int, int]) -> None:
        self.seen = seen
        self._machines = {64: machines[0], 32: machines[1]}
        self._read: dict[str, elf.Elf | None] = {}
        self.unfit: dict[str, str] = {}

    def read(self, real: str) -> elf.Elf | None:
        """Give a file's ELF facts; None, and why in `unfit`, where it is of no use here."""
        if real not in self._read:
            file = elf.read(self.seen.root.on_disk(real))
            if file is None:
                self.unfit[real] = "is empty or damaged"
            elif self._machines[file.bits] != file.machine:
                self.unfit[real] = "is for another architecture"
                file = None
            self._read[real] = file
        return self._read[real]


def _telling(reader: _Reader, version: str) -> Iterator[Candidate]:
    """Give each libnvidia-ml whose name tells no version and whose content has the module's.

    Such a driver is one that we or somebody else gave to this container: its engine's host.
    """
    for candidate in reader.seen.candidates:
        if candidate.stem == catalog.TELLING and not candidate.version:
            path = reader.seen.root.on_disk(candidate.real)
            if reader.read(candidate.real) and elf.holds(path, version.encode()):
                yield attrs.evolve(candidate, version=version)


def _choose(reader: _Reader, version: str, homes: set[str]) -> Iterator[_Chosen]:
    """Give at most one file for each library name and word size, by order of directories."""
    taken: set[tuple[str, int]] = set()
    for candidate in sorted(reader.seen.candidates, key=lambda c: _preference(c, version)):
        if not _acceptable(candidate, version, homes):
            continue
        file = reader.read(candidate.real)
        if file is None or (candidate.stem, file.bits) in taken:
            continue
        if candidate.stem in catalog.NEUTRAL and not _of_driver(file):
            continue
        if not candidate.version and _of_another(file, version):
            continue
        taken.add((candidate.stem, file.bits))
        yield _Chosen(stem=candidate.stem, real=candidate.real, file=file)


def _acceptable(candidate: Candidate, version: str, homes: set[str]) -> bool:
    """Tell whether a library is of a version; `homes` are the directories of its leading ones.

    There a file without a version in its name is: some packages have libGLX_nvidia.so.0 so.
    """
    if candidate.version == version:
        return True
    if not candidate.version and candidate.real.rpartition("/")[0] in homes:
        return True
    # Own versions are small numbers; one from 100 on is that of another driver.
    major = candidate.version.partition(".")[0]
    return candidate.stem in catalog.OWN_VERSION and len(major) < 3


def _preference(candidate: Candidate, version: str) -> tuple[bool, tuple[int, ...]]:
    """Give the key that keeps the order, save that names with the version come first.

    Of own versions the newest does.
    """
    if candidate.stem not in catalog.OWN_VERSION:
        return candidate.version != version, ()
    if candidate.version in {version, ""}:
        return False, ()
    return True, tuple(-int(part) for part in candidate.version.split("."))


def _of_driver(file: elf.Elf) -> bool:
    return any(needed.startswith(catalog.NEUTRAL_MARKS) for needed in file.needed)


def _of_another(file: elf.Elf, version: str) -> bool:
    """Tell whether a library needs a driver's library of another version."""
    needed = (name for name in file.needed if name.partition(".so")[0] in catalog.LIBRARIES)
    return any(candidates.version_of(name) not in {"", version} for name in needed)


def _files(
    reader: _Reader, chosen: tuple[_Chosen, ...], version: str
) -> tuple[tuple[DriverFile, ...], tuple[Problem, ...]]:
    """Label the chosen ones, add what they need of the driver, and report what is not there."""
    problems: dict[str, Problem] = {}
    # Of two files that claim one name the first counts, so it is put in last.
    library = {(one.file.bits, one.name): one for one in reversed(chosen)}
    labels = {key: _labels(one.stem) for key, one in library.items()}
    pending = list(library)
    while pending:
        bits, name = pending.pop()
        for needed in library[bits, name].file.needed:
            key = bits, needed
            if key not in library:
                extra = _needed(reader, key, version)
                if extra is None:
                    if needed.endswith(f".so.{version}"):
                        problems[needed] = _missing(needed, library[bits, name])
                    continue
                library[key] = extra
                labels[key] = set()
            if not labels[bits, name] <= labels[key]:
                labels[key] |= labels[bits, name]
                pending.append(key)
    files = tuple(
        DriverFile(
            kind=_KINDS[bits],
            source=reader.seen.root.reported(library[bits, name].real),
            names=_names(library[bits, name]),
            links=_links(library[bits, name]),
            capabilities=frozenset(labels[bits, name]) or catalog.NEW,
        )
        for bits, name in sorted(library, key=lambda key: (-key[0], key[1]))
    )
    return files, tuple(problems.values())


def _needed(reader: _Reader, key: tuple[int, str], version: str) -> _Chosen | None:
    """Find a file of the driver by the name that another one needs; libc is none of them."""
    bits, name = key
    for directory in reader.seen.directories:
        real = reader.seen.root.resolve(f"{directory}/{name}")
        if real is None or candidates.version_of(real) != version:
            continue
        file = reader.read(real)
        if file is not None and file.bits == bits:
            return _Chosen(stem=name.partition(".so")[0], real=real, file=file)
    return None


def _names(one: _Chosen) -> tuple[str, ...]:
    return tuple(dict.fromkeys((one.name, *catalog.EXTRA_NAMES.get(one.stem, ()))))


def _links(one: _Chosen) -> tuple[str, ...]:
    place = catalog.BACKENDS.get(one.stem)
    return (place,) if place and one.file.bits == 64 else ()


def _labels(stem: str) -> set[str]:
    """Give a library's own capabilities; one that no table knows has those of what needs it."""
    return set(filter(None, [catalog.LIBRARIES.get(stem), catalog.ALSO.get(stem)]))


def _missing(needed: str, by: _Chosen) -> Problem:
    return Problem(
        code="driver-library-missing",
        message=f"{by.name} needs {needed}, which is not among the driver's files",
        hint="reinstall the driver's user-space packages",
    )


def _others(version: str, versions: tuple[str, ...]) -> Iterator[Problem]:
    for other in versions:
        if other != version:
            yield Problem(
                code="driver-second-copy",
                message=f"driver libraries of {version} are used, also found {other}",
                hint=f"remove the files of {other}",
            )


def _damaged(reader: _Reader, chosen: Iterable[_Chosen]) -> Iterator[Problem]:
    """Report the libraries of which there are only files or links of no use, or 32-bit ones."""
    have = {one.stem for one in chosen if one.file.bits == 64}
    for stem, what in sorted(_useless(reader)):
        if stem not in have:
            have.add(stem)
            yield Problem(
                code="driver-library-damaged",
                message=f"{stem} cannot be given to containers: {what}",
                hint="reinstall the driver's user-space packages",
            )


def _useless(reader: _Reader) -> Iterator[tuple[str, str]]:
    shown = reader.seen.root.reported
    for stem, path in reader.seen.broken:
        # A link of the vendor-neutral libraries is not the driver's affair.
        if stem not in catalog.NEUTRAL:
            yield stem, f"{shown(path)} is a link to a file that does not exist"
    for real, why in reader.unfit.items():
        stem = real.rpartition("/")[2].partition(".so")[0]
        if stem in catalog.LIBRARIES and why != "is for another architecture":
            yield stem, f"{shown(real)} {why}"


def _lacking(reader: _Reader, chosen: tuple[_Chosen, ...], version: str) -> tuple[Problem, ...]:
    """Report what is damaged, and leading libraries that are not there at all.

    A driver root is filled file by file, and an installation may be left half done.
    """
    have = {one.stem for one in chosen if one.file.bits == 64}
    lacking = [stem for stem in catalog.LEADING if stem not in have]
    # That a link leads nowhere is then what an upgrade has made of it.
    upgraded = {stem for stem in lacking if _versions_of(reader, stem) - {version}}
    damaged = {problem.message.partition(" ")[0]: problem for problem in _damaged(reader, chosen)}
    return (
        *(problem for stem, problem in damaged.items() if stem not in upgraded),
        *(_absent(reader, stem, version) for stem in lacking if stem not in {*damaged} - upgraded),
    )


def _versions_of(reader: _Reader, stem: str) -> set[str]:
    """Give the versions of a library's 64-bit files that are sound."""
    found = (each for each in reader.seen.candidates if each.stem == stem and each.version)
    return {each.version for each in found if (file := reader.read(each.real)) and file.bits == 64}


def _absent(reader: _Reader, stem: str, version: str) -> Problem:
    """Report a library that is not there, or in other versions only."""
    others = _versions_of(reader, stem) - {version}
    there = f"; what is there of it is {', '.join(sorted(others))}" if others else ""
    upgraded = "reboot or reload the NVIDIA kernel modules if the driver was upgraded, " * bool(
        others
    )
    return Problem(
        # Without NVML a container can still compute.
        code="driver-incomplete" if stem == "libcuda" else "driver-library-missing",
        message=f"{stem} of the driver {version} was not found below {_searched(reader)}{there}",
        hint=f"{upgraded}wait for the driver container, or install the rest of the driver's "
        "user-space packages",
    )


def _searched(reader: _Reader, asked: tuple[str, ...] = ()) -> str:
    """Write where was looked: the root, and the directories that are there."""
    missing = f"none of {', '.join(asked)} is there" if asked else "there is no library directory"
    return f"{reader.seen.root.reported('/')} ({', '.join(reader.seen.directories) or missing})"


def _no_version(
    reader: _Reader, module_version: str, versions: tuple[str, ...], asked: tuple[str, ...]
) -> tuple[Problem, ...]:
    root = reader.seen.root.reported("/")
    if versions:
        found = " and ".join(versions)
        where = f"below {root}" if root != "/" else "on disk"
        return (
            Problem(
                code="driver-version-mismatch",
                message=f"the loaded kernel module is {module_version}, "
                f"but the driver libraries {where} are {found}",
                hint="reboot or reload the NVIDIA kernel modules",
            ),
        )
    wanted = f" {module_version}" if module_version else ""
    problems = tuple(_damaged(reader, ()))
    if not module_version:
        return problems
    return (
        Problem(
            code="driver-libraries-missing",
            message=f"no libcuda or libnvidia-ml of the driver{wanted} was found below "
            f"{_searched(reader, asked)}",
            hint="install the driver's user-space packages, or set host.driver_root "
            "or host.library_search_paths",
        ),
        *problems,
    )
