# SPDX-License-Identifier: Apache-2.0
"""A private apt: signed package lists and archives of several Debian releases, installed nowhere.

apt itself checks every signature and hash, with the machine's own Debian keyring. Its state lies
in one directory of ours, so the system's package database is neither read nor written. The
mirror is the one the machine already uses; no host is named here.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

RELEASES = ("bookworm", "trixie", "sid")
"""The releases looked into, from old to new."""
SUITES = ("bookworm", "bookworm-backports", "trixie", "trixie-backports", "sid")
COMPONENTS = "main contrib non-free non-free-firmware"
FOREIGN = {"amd64": ("i386", "contrib non-free")}
"""The architecture of 32-bit programs by the machine's own, and what is looked into for it."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FRESH = 12 * 3600
"""Seconds for which package lists are not asked for again."""


class SetupError(Exception):
    """Raised when a step cannot go on; the text says what to do."""


class Package(NamedTuple):
    """One version of one binary package."""

    name: str
    version: str
    suite: str
    architecture: str

    def archive(self, directory: Path) -> Path | None:
        """Return the package's archive in a directory, named as apt names it, if it is there.

        A colon of the version is quoted; the architecture may be `all`.
        """
        stem = f"{self.name}_{self.version.replace(':', '%3a')}"
        places = (directory / f"{stem}_{each}.deb" for each in (self.architecture, "all"))
        return next((place for place in places if place.exists()), None)

    @property
    def upstream(self) -> str:
        """The version without epoch, Debian's suffix and marks: `1.7.24~ds1-6` is 1.7.24."""
        return re.sub(r"^\d+:", "", self.version).split("-")[0].split("~")[0].split("+")[0]


def run(
    arguments: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    source: IO[bytes] | None = None,
) -> str:
    """Run a program and return what it printed; its complaint becomes a SetupError."""
    done = subprocess.run(
        arguments, check=False, capture_output=True, text=True, env=env, cwd=cwd, stdin=source
    )
    if done.returncode:
        told = (done.stderr.strip() or done.stdout.strip())[-2000:]
        command = " ".join(map(str, arguments))
        raise SetupError(f"{command}\nexited with {done.returncode}: {told}")
    return done.stdout


def newest(packages: Iterable[Package]) -> Package | None:
    """Return the highest version by Debian's ordering, None of none."""

    def compare(one: Package, other: Package) -> int:
        if one.version == other.version:
            return 0
        greater = ["dpkg", "--compare-versions", one.version, "gt", other.version]
        return 1 if subprocess.run(greater, check=False).returncode == 0 else -1

    return max(packages, key=functools.cmp_to_key(compare), default=None)


class Apt:
    """apt with all of its state below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.archives = directory / "archives"
        self.architecture = run(["dpkg", "--print-architecture"]).strip()
        self.release = own_release()
        self.fetched = 0
        """Bytes of archives fetched by this run."""
        self._ready = False

    def versions(self, *names: str) -> list[Package]:
        """Return every version that the suites offer, each with the suite that has it."""
        found = []
        for line in self._apt("apt-cache", "madison", *names).splitlines():
            package, version, source = (part.strip() for part in line.split("|"))
            if source.endswith("Packages"):
                _, suite, architecture, _ = source.split()
                name = package.partition(":")[0]
                found.append(Package(name, version, suite.split("/")[0], architecture))
        return found

    def only(self, name: str, suite: str) -> Package:
        """Return the package as one suite has it."""
        found = newest(each for each in self.versions(name) if each.suite == suite)
        if found is None:
            raise SetupError(f"{suite} has no package {name}")
        return found

    def closure(self, names: Sequence[str], suite: str, source: str = "") -> list[Package]:
        """Return the packages with all they depend on, as an empty system would install them.

        With a source line only that suite is looked at, and not just preferred.
        """
        only = []
        if source:
            (self.directory / "one.list").write_text(source, encoding="utf-8")
            only = ["-o", f"Dir::Etc::SourceList={self.directory / 'one.list'}"]
        told = self._apt(
            "apt-get",
            "install",
            "-s",
            "-qq",
            "--no-install-recommends",
            "-t",
            suite,
            *only,
            *names,
        )
        pattern = re.compile(r"^Inst (\S+?)(?::\S+)? \((\S+) ", re.MULTILINE)
        own = self.architecture
        return [Package(match[1], match[2], suite, own) for match in pattern.finditer(told)]

    def fetch(self, packages: Sequence[Package]) -> list[Path]:
        """Return the packages' archives, downloading what is not there yet.

        A download is verified by apt and moved into place when whole.
        """
        self.archives.mkdir(parents=True, exist_ok=True)
        wanted = [each for each in packages if each.archive(self.archives) is None]
        if wanted:
            with tempfile.TemporaryDirectory(dir=self.directory, prefix="partial-") as partial:
                names = [f"{each.name}:{each.architecture}={each.version}" for each in wanted]
                self._apt("apt-get", "download", "-qq", *names, cwd=partial)
                for archive in Path(partial).glob("*.deb"):
                    self.fetched += archive.stat().st_size
                    archive.rename(self.archives / archive.name)
        return [self._archive(each) for each in packages]

    def _archive(self, package: Package) -> Path:
        found = package.archive(self.archives)
        if found is None:
            raise SetupError(f"apt did not give {package.name} {package.version}")
        return found

    def suite(self, names: Sequence[str], suite: str, architecture: str = "") -> list[Package]:
        """Return those of the packages that one suite has, each in its newest version there.

        They are the machine's own architecture's unless another is named.
        """
        best: dict[str, Package] = {}
        wanted = architecture or self.architecture
        for each in self.versions(*(f"{name}:{wanted}" for name in names)):
            if each.suite == suite and newest([best.get(each.name, each), each]) == each:
                best[each.name] = each
        return list(best.values())

    def sizes(self, chosen: Sequence[Package]) -> dict[str, int]:
        """Return the bytes of each package's archive; all are of one architecture."""
        names = [f"{each.name}:{each.architecture}={each.version}" for each in chosen]
        told = self._apt("apt-cache", "show", *names)
        names = re.findall(r"^Package: (\S+)$", told, re.MULTILINE)
        sizes = re.findall(r"^Size: (\d+)$", told, re.MULTILINE)
        return dict(zip(names, map(int, sizes), strict=True))

    def line(self, suite: str) -> str:
        """Return the line of sources.list by which a suite is reached."""
        self._prepare()
        for line in (self.directory / "sources.list").read_text(encoding="utf-8").splitlines():
            if f" {suite} " in line:
                return f"{line}\n"
        raise SetupError(f"the mirror does not offer {suite}: known are {', '.join(SUITES)}")

    def _apt(self, *arguments: str, cwd: str | None = None) -> str:
        self._prepare()
        return run(arguments, env=self._environment(), cwd=cwd)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "APT_CONFIG": str(self.directory / "apt.conf"),
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }

    def _prepare(self) -> None:
        """Write the configuration and fetch the lists, once a run and once in FRESH seconds."""
        if self._ready:
            return
        self._ready = True
        sources = self.directory / "sources.list"
        self._configure()  # with the paths of this checkout, which may be a copy of another
        known = sources.exists() and f" {COMPONENTS}\n" in sources.read_text(encoding="utf-8")
        if known and time.time() - sources.stat().st_mtime < FRESH:
            return
        base = mirror(self.release)
        lines = [self._update(base, suite, self.architecture, COMPONENTS) for suite in SUITES]
        if self.architecture in FOREIGN:
            lines += [self._update(base, suite, *FOREIGN[self.architecture]) for suite in RELEASES]
        if not any(f" {self.release} " in line for line in lines):
            raise SetupError(
                f"the machine's mirror does not give {self.release}'s package lists: "
                "does `apt-get update` work here?"
            )
        sources.write_text("".join(lines), encoding="utf-8")
        run(["apt-cache", "gencaches"], env=self._environment())  # each question costs 1 s without

    def _update(self, base: str, suite: str, architecture: str, components: str) -> str:
        """Fetch one suite's lists and return its source line, "" where the mirror lacks it."""
        options = f"[arch={architecture} signed-by={KEYRING}]"
        line = f"deb {options} {base} {suite} {components}\n"
        one = self.directory / "one.list"
        one.write_text(line, encoding="utf-8")
        command = ["apt-get", "update", "-qq", "-o", f"Dir::Etc::SourceList={one}"]
        command += ["-o", "APT::Get::List-Cleanup=false"]
        done = subprocess.run(
            command, env=self._environment(), check=False, capture_output=True, text=True
        )
        one.unlink()
        if done.returncode:
            said = [each for each in done.stderr.splitlines() if each.startswith("E:")]
            print(f"packages: {suite} {architecture} is left out: {'; '.join(said[:1])}")
            return ""
        return line

    def _configure(self) -> None:
        state = self.directory
        for path in (state / "lists/partial", state / "cache/archives/partial"):
            path.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        settings = {
            "Dir::Etc::SourceList": state / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State::Lists": state / "lists",
            "Dir::State::status": state / "status",
            "Dir::Cache": state / "cache",
            "APT::Sandbox::User": "root",
            "APT::Architecture": self.architecture,
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        text = "".join(f'{key} "{value}";\n' for key, value in settings.items())
        text += f'APT::Architectures {{ "{self.architecture}"; }};\n'
        if self.architecture in FOREIGN:
            text += f'APT::Architectures:: "{FOREIGN[self.architecture][0]}";\n'
        (state / "apt.conf").write_text(text, encoding="utf-8")


def own_release() -> str:
    """Return the code name of the Debian that this machine runs."""
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    match = re.search(r"^VERSION_CODENAME=(\S+)$", text, re.MULTILINE)
    if match is None or match[1] not in RELEASES:
        raise SetupError(f"this is neither of Debian {', '.join(RELEASES)}: see /etc/os-release")
    return match[1]


def mirror(release: str) -> str:
    """Return the address of the repository that the machine's apt uses for its release.

    Both formats of apt's sources are understood, since apt itself is asked.
    """
    with tempfile.TemporaryDirectory() as empty:
        told = run([
            "apt-get", "-o", f"Dir::State::Lists={empty}", "indextargets", "--no-release-info",
            "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages",
        ])  # fmt: skip
    for line in told.splitlines():
        name, _, address = line.partition(" ")
        if name in {release, "stable", "oldstable", "unstable"} and address:
            return address
    raise SetupError(f"apt has no source for {release}: look into /etc/apt/sources.list.d")


def skeleton(tree: Path) -> None:
    """Make the directories of a merged-/usr Debian root, with their links, and nothing else."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (tree / name).is_symlink():
            (tree / name).symlink_to(f"usr/{name}")
    for name in (
        "dev",
        "etc",
        "proc",
        "sys",
        "tmp",
        "run",
        "var/tmp",
        "var/cache/ldconfig",
        "root",
    ):
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    (tree / "var/tmp").chmod(0o1777)


def unpack(archive: Path, tree: Path) -> None:
    """Unpack an archive's files, going through the links of a merged /usr."""
    tree.mkdir(parents=True, exist_ok=True)
    tar("--fsys-tarfile", archive, "-x", "--keep-directory-symlink", "-C", tree)


def members(archive: Path) -> list[str]:
    """Return the absolute paths of an archive's files and links."""
    listed = tar("--fsys-tarfile", archive, "-t").splitlines()
    return [line.removeprefix(".") for line in listed if not line.endswith("/")]


def control(archive: Path, member: str) -> str:
    """Return one of an archive's control files."""
    return tar("--ctrl-tarfile", archive, "-x", "-O", f"./{member}")


def tar(part: str, archive: Path, *options: str | Path) -> str:
    """Put one of the two tars inside an archive through tar, with its options."""
    with subprocess.Popen(["dpkg-deb", part, archive], stdout=subprocess.PIPE) as deb:
        told = run(["tar", "-f", "-", *options], source=deb.stdout)
    if deb.returncode:
        raise SetupError(f"{archive} is damaged: remove it and run contrib/setup again")
    return told


def write(path: Path, document: object) -> None:
    """Write a JSON document so that a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.rename(path)


class Staged:
    """A directory that is built beside its place and takes it when whole."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.work = place.with_name(f".{place.name}.partial")

    def __enter__(self) -> Path:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        return self.work

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            shutil.rmtree(self.place, ignore_errors=True)
            self.work.rename(self.place)
        else:
            shutil.rmtree(self.work, ignore_errors=True)
