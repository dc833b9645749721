# SPDX-License-Identifier: Apache-2.0
"""The one place that writes an installation: files below a root, and the manifest of them.

The manifest names a path before the path is made and until it is gone, so that an installation
which is interrupted at any point can be repeated or taken away.
"""

import compileall
import contextlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterable, Iterator

import attrs

from nri_nvidia import errors
from nri_nvidia.install import model

SCHEMA = 1


class Tree:
    """The files of this node, or of a root that a package is made of."""

    def __init__(self, root: str = "/") -> None:
        if not pathlib.Path(root).is_dir():
            raise errors.ConfigError(f"--root {root}: there is no such directory")
        self.root = os.path.realpath(root)

    def place(self, path: str) -> pathlib.Path:
        """Give where a path is; raises ConfigError where links lead out of the root."""
        place = pathlib.Path(self.root, path.lstrip("/"))
        above = os.path.realpath(place.parent)
        if above != self.root and not above.startswith(self.root.rstrip("/") + "/"):
            raise errors.ConfigError(
                f"{path}: leads to {above}, out of {self.root}", hint="remove that link"
            )
        return place

    def manifest(self) -> model.Manifest:
        """Read what was put here; an empty one where nothing was. Raises ConfigError."""
        try:
            document = json.loads(self.place(model.MANIFEST).read_bytes())
        except FileNotFoundError:
            return model.Manifest()
        except ValueError as error:
            raise errors.ConfigError(
                f"{model.MANIFEST}: {error}", hint="put it back from a backup"
            ) from error
        if document.get("schema") != SCHEMA:
            raise errors.ConfigError(
                f"{model.MANIFEST}: schema {document.get('schema')!r}, not {SCHEMA}",
                hint="use the nri-nvidia that wrote it",
            )
        return model.Manifest(
            version=document["version"],
            release=document["release"],
            entries={path: model.Entry(path=path, **told)
                     for path, told in document["entries"].items()},
            directories=tuple(document["directories"]),
        )  # fmt: skip

    def write_manifest(self, manifest: model.Manifest) -> None:
        """Write it at once."""
        entries = {
            path: {"target": entry.target} if entry.target else {"digest": entry.digest}
            for path, entry in sorted(manifest.entries.items())
        }
        document = {
            "schema": SCHEMA,
            "version": manifest.version,
            "release": manifest.release,
            "entries": entries,
            "directories": sorted(manifest.directories),
        }
        self.put(model.File(path=model.MANIFEST, content=json.dumps(document, indent=1).encode()))

    def now(self, path: str) -> model.Entry | None:
        """Give what is at a path as an entry, None for nothing; a directory matches no entry."""
        place = self.place(path)
        if place.is_symlink():
            return model.Entry(path=path, target=str(place.readlink()))
        if place.is_dir():
            return model.Entry(path=path)
        try:
            return model.Entry(path=path, digest=model.digest(place.read_bytes()))
        except FileNotFoundError:
            return None

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Give the directories above paths that are not there, the uppermost first."""
        above = {
            str(each)
            for path in paths
            for each in pathlib.PurePosixPath(path).parents
            if each.name and not self.place(str(each)).exists()
        }
        return sorted(above)

    def put(self, thing: model.File | model.Link) -> None:
        """Put a file or link in the place of what is there, at once."""
        place = self.place(thing.path)
        make(place.parent)
        temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        try:
            write(temporary, thing)
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def put_release(self, release: model.Release) -> None:
        """Put a release in place whole, compiled; one that is there is left."""
        place = self.place(release.directory)
        if place.exists():
            return
        make(place.parent)
        for interrupted in place.parent.glob(".*"):
            shutil.rmtree(interrupted)
        work = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        try:
            for thing in release.files:
                make((work / thing.path).parent)
                write(work / thing.path, thing)
            # Nobody can write there later: the service sees it read-only.
            compileall.compile_dir(
                work, maxlevels=30, quiet=2, stripdir=str(work), prependdir=release.directory
            )
            for each in work.rglob("__pycache__"):
                each.chmod(0o755)
                for compiled in each.iterdir():
                    compiled.chmod(0o644)
            work.rename(place)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise

    def held(self, directory: str) -> Iterator[model.Entry]:
        """Give every file and link below a directory."""
        top = self.place(directory)
        for path in sorted(top.rglob("*")):
            if path.is_symlink() or not path.is_dir():
                entry = self.now(f"{directory}/{path.relative_to(top)}")
                if entry:
                    yield entry

    def remove(self, entries: Iterable[model.Entry]) -> None:
        """Remove files and links."""
        for entry in entries:
            self.place(entry.path).unlink(missing_ok=True)

    def remove_directories(self, directories: Iterable[str]) -> None:
        """Remove directories that are empty, the innermost first; others stay."""
        for each in sorted(directories, reverse=True):
            with contextlib.suppress(OSError):
                self.place(each).rmdir()


def make(folder: pathlib.Path) -> None:
    """Make a directory and those above it, each 0755 whatever the umask."""
    for each in reversed([folder, *folder.parents]):
        if not each.exists():
            each.mkdir()
            each.chmod(0o755)


def write(place: pathlib.Path, thing: model.File | model.Link) -> None:
    """Make a file or link that is not there yet."""
    if isinstance(thing, model.Link):
        place.symlink_to(thing.target)
        return
    with place.open("xb") as file:
        file.write(thing.content)
        os.fchmod(file.fileno(), thing.mode)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), 0, 0)


def entry(thing: model.File | model.Link) -> model.Entry:
    """Give what the manifest says of a file or link."""
    if isinstance(thing, model.Link):
        return model.Entry(path=thing.path, target=thing.target)
    return model.Entry(path=thing.path, digest=thing.digest())


def added(manifest: model.Manifest, entries: Iterable[model.Entry]) -> model.Manifest:
    """Give a manifest with entries more."""
    more = {each.path: each for each in entries}
    return attrs.evolve(manifest, entries={**manifest.entries, **more})


def folders(path: str, top: str) -> Iterator[pathlib.PurePosixPath]:
    """Give the directories above a path that are below another directory."""
    for each in pathlib.PurePosixPath(path).parents:
        if str(each).startswith(f"{top}/"):
            yield each
