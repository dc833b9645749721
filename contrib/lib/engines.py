# SPDX-License-Identifier: Apache-2.0
"""containerd, runc, crun, docker, podman and other programs: private, and fit for this libc."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import packages
from packages import Apt, Package, SetupError

SCHEMA = 1
PLACES = (
    "usr/bin",
    "usr/sbin",
    "usr/libexec/docker/cli-plugins",
    "sbin",
    "usr/share/docker.io/contrib",
)
TELL_NO_VERSION = ("dockerd-rootless.sh", "newuidmap", "newgidmap")


class Wanted(NamedTuple):
    """A program to have: which package, and which of its versions count."""

    name: str
    kind: str
    package: str
    programs: tuple[str, ...]
    pattern: str
    required: bool = True
    long: bool = False
    """Whether only the long tests need it."""
    own: bool = False
    """Whether that of this machine's own release will do: fewer libraries come with it."""


WANTED = (
    Wanted("containerd-1.7", "engine", "containerd",
           ("containerd", "containerd-shim-runc-v2", "ctr"), r"1\.7\."),
    Wanted("containerd-2", "engine", "containerd",
           ("containerd", "containerd-shim-runc-v2", "ctr"), r"2\."),
    Wanted("runc", "runtime", "runc", ("runc",), r""),
    # The oldest runc still met: Debian 12's, and the one that loses devices on a daemon-reload.
    Wanted("runc-1.1.5", "runtime", "runc", ("runc",), r"1\.1\.5", required=False),
    Wanted("crun", "runtime", "crun", ("crun",), r""),
    # Makes a file system whose files can share what they hold.
    Wanted("btrfs-progs", "tool", "btrfs-progs", ("mkfs.btrfs",), r"", own=True),
    # The oldest docker that is met, which knows no CDI, and two whose CDI is to be switched on.
    Wanted("docker-20", "client", "docker.io", ("dockerd",), r"20\.10\.", long=True),
    Wanted("docker-26", "client", "docker.io", ("dockerd",), r"26\.", long=True),
    Wanted("docker-28", "client", "docker.io", ("dockerd",), r"28\.", long=True),
    Wanted("docker-cli", "client", "docker-cli", ("docker",), r"28\.", long=True),
    Wanted("docker-buildx", "client", "docker-buildx", ("docker-buildx",), r"", long=True),
    Wanted("docker-compose", "client", "docker-compose", ("docker-compose",), r"2\.", long=True),
    Wanted("podman-4", "client", "podman", ("podman",), r"4\.3\.", long=True),
    Wanted("podman", "client", "podman", ("podman",), r"[45]\.", long=True),
    Wanted("conmon", "client", "conmon", ("conmon",), r"", long=True),
    # Debian 12's, whose --device takes paths alone, and one that takes CDI's names.
    Wanted("buildah-1.28", "client", "buildah", ("buildah",), r"1\.28\.", long=True),
    Wanted("buildah", "client", "buildah", ("buildah",), r"1\.", long=True),
    # A docker of a user's own, and what its namespaces need.
    Wanted("docker-rootless", "client", "docker.io", ("dockerd-rootless.sh",), r"28\.", long=True),
    Wanted("rootlesskit", "client", "rootlesskit", ("rootlesskit",), r"2\.", long=True),
    Wanted("slirp4netns", "client", "slirp4netns", ("slirp4netns",), r"", own=True, long=True),
    Wanted("uidmap", "client", "uidmap", ("newuidmap", "newgidmap"), r"", own=True, long=True),
    # Judges metrics and alert rules; a package of its own since Debian 13, of 2.53 and later.
    Wanted("promtool", "client", "promtool", ("promtool",), r"", long=True),
    # Asks a daemon for its metrics, and answers what each panel of the dashboard asks.
    Wanted("prometheus", "client", "prometheus", ("prometheus",), r"", long=True),
)  # fmt: skip


def provide(apt: Apt, directory: Path, *, update: bool, long: bool) -> list[str]:
    """Unpack what is missing and write engines.json; return a line a program.

    What is for long tests alone is fetched with `long`, and kept where it is there.
    """
    records = []
    for wanted in WANTED:
        record = None if update and (long or not wanted.long) else known(directory / wanted.name)
        if record is None and (long or not wanted.long):
            record = unpack(apt, wanted, directory / wanted.name)
        if record:
            records.append(record)
    document = {
        "schema": SCHEMA,
        "engines": [each for each in records if each["kind"] == "engine"],
        "runtimes": [each for each in records if each["kind"] == "runtime"],
        "clients": [each for each in records if each["kind"] == "client"],
        "tools": [each for each in records if each["kind"] == "tool"],
    }
    packages.write(directory / "engines.json", document)
    return [f"{each['name']}: {each['version']} ({each['suite']})" for each in records]


def known(place: Path) -> dict[str, Any] | None:
    """Return a piece's record if it was made by this version of the script, at this very place.

    The place counts because an interpreter's path is written into a program.
    """
    try:
        record = json.loads((place / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if record.get("schema") != SCHEMA or record.get("bin") != str(place / "bin"):
        return None
    return record if isinstance(record, dict) else None


def unpack(apt: Apt, wanted: Wanted, place: Path) -> dict[str, Any] | None:
    """Fetch and unpack the newest version that counts; None if no suite has an optional one."""
    offered = [
        each
        for each in apt.versions(wanted.package)
        if re.match(wanted.pattern, each.upstream)
        and (each.suite == apt.release or not wanted.own)
    ]
    package = packages.newest(offered)
    if package is None:
        if wanted.required:
            raise SetupError(f"no suite of the mirror offers {wanted.package} {wanted.pattern}")
        print(f"{wanted.name}: not offered by the mirror, left out")
        return None
    with packages.Staged(place) as work:
        packages.unpack(apt.fetch([package])[0], work / "package")
        (work / "bin").mkdir()
        for program in wanted.programs:
            places = [work / "package" / name / program for name in PLACES]
            found = next(path for path in places if path.exists()).resolve()
            found.rename(work / "bin" / program)
        shutil.rmtree(work / "package")
    make_runnable(apt, package, wanted, place)
    record = {
        "schema": SCHEMA,
        "name": wanted.name,
        "kind": wanted.kind,
        "version": package.upstream,
        "package": package.version,
        "suite": package.suite,
        "bin": str(place / "bin"),
        "path": str(place / "bin" / wanted.programs[0]),
    }
    packages.write(place / "record.json", record)
    return record


def make_runnable(apt: Apt, package: Package, wanted: Wanted, place: Path) -> None:
    """Give programs that do not start here the libraries of the release they come from.

    The dynamic linker and the search path are written into the program, since a runtime
    executes itself again by /proc/self/exe and so cannot be started through ld.so.
    """
    programs = [place / "bin" / name for name in wanted.programs]
    if all(starts(program) for program in programs):
        return
    libraries = place / "libraries"
    with packages.Staged(libraries) as work:
        packages.skeleton(work)
        closure = apt.closure([package.name], package.suite)
        needed = [each for each in closure if each.name.startswith("lib")]
        for archive in apt.fetch(needed):
            packages.unpack(archive, work)
    patchelf = unpacked_patchelf(apt, place.parent / "patchelf")
    for program in programs:
        interpreter = Path(packages.run([patchelf, "--print-interpreter", program]).strip())
        linker = next(path for path in libraries.rglob(interpreter.name) if not path.is_dir())
        search = ":".join(sorted({str(path.parent) for path in libraries.rglob("*.so.*")}))
        packages.run([
            patchelf, "--set-interpreter", linker, "--force-rpath", "--set-rpath", search, program,
        ])  # fmt: skip
        if not starts(program):
            raise SetupError(f"{program} of {package.suite} does not start on this machine")


def starts(program: Path) -> bool:
    """Return whether the program gets as far as telling its version, or its usage."""
    other = {
        "containerd-shim-runc-v2": "-v",
        "docker-buildx": "version",
        "docker-compose": "version",
    }
    options = other.get(program.name, "--version")
    # crun makes its state's directory even then, in /run unless this is set.
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "XDG_RUNTIME_DIR": state}
        done = subprocess.run(
            [program, options], check=False, capture_output=True, env=environment
        )
    if program.name in TELL_NO_VERSION:
        return done.returncode not in {126, 127}
    return done.returncode == 0


def unpacked_patchelf(apt: Apt, place: Path) -> Path:
    """Return this release's own patchelf."""
    if not place.exists():
        with packages.Staged(place) as work:
            packages.unpack(apt.fetch([apt.only("patchelf", apt.release)])[0], work)
    return place / "usr/bin/patchelf"
