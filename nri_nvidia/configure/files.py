# SPDX-License-Identifier: Apache-2.0
"""The one place that reads and writes engines' configuration; what was there can be had back.

What was done for an engine is recorded in `RECORDS/ENGINE.json`, for a user elsewhere: for each
file where its former content is kept (beside it), and the digests of that and of what we left.
Only a file that is still as we left it is put back.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import secrets
import stat
from typing import Any

from nri_nvidia import errors
from nri_nvidia.configure import model

RECORDS = "/var/lib/nri-nvidia/configured"
_SUFFIX = ".before-nri-nvidia"
_LIMIT = 4 << 20


class Disk:
    """The files of this node, or of one whose `/` is another directory."""

    def __init__(self, root: str = "/", records: str = RECORDS) -> None:
        if not pathlib.Path(root).is_dir():
            raise errors.ConfigError(f"--root {root}: there is no such directory")
        self._root = os.path.realpath(root)
        self._records = records

    def text(self, path: str) -> str | None:
        """Give a file's text, None where there is none; raises ConfigError for what is no text."""
        data = self._data(path)
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise errors.ConfigError(
                f"{path}:{line}: not UTF-8", hint="mend it; it was left as it is"
            ) from error

    def names(self, directory: str) -> tuple[str, ...]:
        """Give the sorted names in a directory, none where there is no directory."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return tuple(sorted(each.name for each in self._place(directory).iterdir()))
        return ()

    def link(self, path: str) -> str | None:
        """Give where a link leads, None where there is nothing; raises ConfigError for others."""
        place = self._place(path)
        if place.is_symlink():
            return str(place.readlink())
        if place.exists():
            raise errors.ConfigError(f"{path}: is there and is no link", hint="move it away")
        return None

    def apply(self, engine: str, changes: tuple[model.File | model.Link, ...]) -> list[str]:
        """Make changes and record them; give what is to be told. Raises ConfigError or OSError."""
        record = self._record(engine)
        known = {entry["path"]: entry for entry in record["entries"]}
        for change in changes:
            now = self.text(change.path) if isinstance(change, model.File) else change.before
            if now != change.before:
                raise errors.ConfigError(
                    f"{change.path}: changed while it was looked at; nothing was done",
                    hint="repeat the command",
                )
        # Where it cannot be recorded nothing is begun.
        self._write_record(engine, record)
        told: list[str] = []
        try:
            for change in changes:
                told += self._change(engine, record, known, change)
        finally:
            if not record["entries"]:
                self._forget(engine)
        return told

    def _change(
        self,
        engine: str,
        record: dict[str, Any],
        known: dict[str, Any],
        change: model.File | model.Link,
    ) -> list[str]:
        told = []
        before = known.get(change.path)
        # Where it has changed since, the way back leads to how it is now.
        entry = before if before and self._as_left(before) else None
        backup = ""
        try:
            if entry is None:
                entry = self._former(change)
                backup = entry["backup"]
                if backup:
                    told.append(f"{change.path}: as it was in {backup}")
            made = self._make_directories(change.path)
            known[change.path] = {**entry, **_left(change)}
            record["directories"] += [each for each in made if each not in record["directories"]]
            record["entries"] = list(known.values())
            # Recorded first: what is interrupted between the two is told from what was done.
            self._write_record(engine, record)
            if isinstance(change, model.Link):
                self._put_link(change.path, change.target)
            else:
                self._write(change.path, change.after.encode())
        except OSError as error:
            self._drop(engine, record, known, {change.path: before}, backup)
            raise errors.ConfigError(
                f"{change.path}: cannot be written: {error.strerror}; it was left as it is",
                hint=f"--undo takes back what was done for {engine} before" if known else "",
            ) from error
        return told

    def _drop(
        self,
        engine: str,
        record: dict[str, Any],
        known: dict[str, Any],
        before: dict[str, Any],
        backup: str,
    ) -> None:
        """Forget a change that could not be made, as far as that can be."""
        known.update(before)
        record["entries"] = [entry for entry in known.values() if entry]
        for path in [path for path, entry in before.items() if not entry]:
            del known[path]
        with contextlib.suppress(OSError):
            self._write_record(engine, record)
            if backup:
                self._place(backup).unlink()

    def undoing(self, engine: str) -> tuple[model.File | model.Link, ...]:
        """Give what `undo` would change; raises ConfigError where it would do nothing."""
        record = self._record(engine)
        if not record["entries"]:
            raise errors.ConfigError(
                f"nothing is recorded that nri-nvidia configured for {engine}",
                hint=f"it records what it does in {self._records}",
            )
        altered = [entry["path"] for entry in record["entries"] if not self._undoable(entry)]
        if altered:
            kept = [entry["backup"] for entry in record["entries"]
                    if entry["path"] in altered and entry["backup"]]  # fmt: skip
            raise errors.ConfigError(
                f"{', '.join(altered)}: changed since nri-nvidia wrote it; nothing was undone",
                hint=f"take our part out by hand; as it was: {', '.join(kept) or 'not there'}",
            )
        found: list[model.File | model.Link] = []
        for entry in record["entries"]:
            path = entry["path"]
            if "target" in entry:
                found.append(model.Link(path=path, before=self.link(path), target=entry["was"]))
            else:
                was = self._kept(entry).decode() if entry["backup"] else ""
                found.append(model.File(path=path, before=self.text(path), after=was))
        return tuple(found)

    def undo(self, engine: str) -> None:
        """Put back what was there, and remove what was made; raises ConfigError."""
        self.undoing(engine)
        record = self._record(engine)
        for entry in reversed(record["entries"]):
            if "target" in entry and entry["was"]:
                self._put_link(entry["path"], entry["was"])
            elif not entry["backup"]:
                self._place(entry["path"]).unlink(missing_ok=True)
            elif self._data(entry["path"]) != (data := self._kept(entry)):
                self._write(entry["path"], data)
        # Only now: what ends before can be begun again.
        for entry in record["entries"]:
            if entry["backup"]:
                self._place(entry["backup"]).unlink()
        for directory in sorted(record["directories"], reverse=True):
            with contextlib.suppress(OSError):
                self._place(directory).rmdir()  # stays if something else is in it now
        self._forget(engine)

    def _forget(self, engine: str) -> None:
        self._place(f"{self._records}/{engine}.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._place(self._records).rmdir()

    def _former(self, change: model.File | model.Link) -> dict[str, str]:
        """Keep how a place is before it is changed for the first time."""
        if isinstance(change, model.Link):
            return {"path": change.path, "backup": "", "was": change.before or ""}
        data = self._data(change.path)
        backup = "" if data is None else self._back_up(change.path, data)
        return {"path": change.path, "backup": backup, "former": _digest(data or b"")}

    def _kept(self, entry: dict[str, Any]) -> bytes:
        data = self._data(entry["backup"])
        if data is None or _digest(data) != entry["former"]:
            raise errors.ConfigError(
                f"{entry['backup']}: is not as nri-nvidia kept {entry['path']} there;"
                " nothing was undone",
                hint="take our part out by hand, or put that file back",
            )
        return data

    def _place(self, path: str) -> pathlib.Path:
        """Give where a path is; what leads out of the root by links is refused."""
        place = pathlib.Path(self._root, path.lstrip("/"))
        if place == pathlib.Path(self._root):
            return place
        inside = os.path.realpath(place.parent)
        if self._root != "/" and not f"{inside}/".startswith(f"{self._root}/"):
            raise errors.ConfigError(
                f"{path}: leads to {inside}, out of {self._root}", hint="name the file by --config"
            )
        return place

    def _data(self, path: str) -> bytes | None:
        place = self._place(path)
        if place.is_symlink():
            # A link may be another program's way to swap files: it is told, not followed.
            raise errors.ConfigError(
                f"{path}: is a link to {place.readlink()}",
                hint="name the file itself by --config, or replace the link by a file",
            )
        try:
            if not stat.S_ISREG(place.stat().st_mode):
                raise errors.ConfigError(f"{path}: is no file")
            with place.open("rb") as file:
                data = file.read(_LIMIT + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(data) > _LIMIT:
            raise errors.ConfigError(f"{path}: larger than {_LIMIT >> 20} MiB")
        return data

    def _back_up(self, path: str, data: bytes) -> str:
        """Keep a file's content beside it, with its mode and owner; gives the place.

        A drop-in's goes to the records: CRI-O reads all files of such a directory, whatever their
        names, and containerd those of the user's pattern.
        """
        beside = path
        if os.path.dirname(path).endswith(".d"):  # noqa: PTH120
            beside = f"{self._records}/{path.strip('/').replace('/', '-')}"
        number = 0
        while True:
            backup = f"{beside}{_SUFFIX}{f'.{number}' if number else ''}"
            if not os.path.lexists(self._place(backup)):
                self._write(backup, data, like=path)
                return backup
            number += 1

    def _make_directories(self, path: str) -> list[str]:
        made: list[str] = []
        directory = os.path.dirname(path)  # noqa: PTH120 - a path below the root
        while not self._place(directory).exists():
            made.append(directory)
            directory = os.path.dirname(directory)  # noqa: PTH120
        for each in reversed(made):
            self._place(each).mkdir()
            self._place(each).chmod(0o755)
        return made

    def _write(self, path: str, data: bytes, *, like: str = "") -> None:
        """Put a file in place at once, with the mode, owner and labels of the one there."""
        place = self._place(path)
        model_of = self._place(like or path)
        temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                if model_of.exists():
                    found = model_of.stat()
                    os.fchown(file.fileno(), found.st_uid, found.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
                    _copy_labels(model_of, file.fileno())
                else:
                    os.fchmod(file.fileno(), 0o644)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)

    def _put_link(self, path: str, target: str) -> None:
        place = self._place(path)
        temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        temporary.symlink_to(target)
        temporary.replace(place)

    def _as_left(self, entry: dict[str, Any]) -> bool:
        if "target" in entry:
            place = self._place(entry["path"])
            return place.is_symlink() and str(place.readlink()) == entry["target"]
        data = self._data(entry["path"])
        return data is not None and _digest(data) == entry["sha256"]

    def _undoable(self, entry: dict[str, Any]) -> bool:
        """Tell whether a file is as we left it, or as it was before (an interrupted change)."""
        if self._as_left(entry):
            return True
        if "target" in entry:
            return bool((self.link(entry["path"]) or "") == entry["was"])
        if not entry["backup"]:
            return not os.path.lexists(self._place(entry["path"]))
        data = self._data(entry["path"])
        return data is not None and bool(_digest(data) == entry["former"])

    def _record(self, engine: str) -> dict[str, Any]:
        path = f"{self._records}/{engine}.json"
        data = self._data(path)
        try:
            found = json.loads(data) if data is not None else {}
            return {"entries": list(found.get("entries", ())),
                    "directories": list(found.get("directories", ()))}  # fmt: skip
        except (ValueError, AttributeError) as error:
            raise errors.ConfigError(
                f"{path}: no record of nri-nvidia's", hint="move it away and repeat"
            ) from error

    def _write_record(self, engine: str, record: dict[str, Any]) -> None:
        path = f"{self._records}/{engine}.json"
        self._make_directories(path)
        self._write(path, (json.dumps(record, indent=2) + "\n").encode())


def _left(change: model.File | model.Link) -> dict[str, str]:
    if isinstance(change, model.Link):
        return {"target": change.target}
    return {"sha256": _digest(change.after.encode())}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _copy_labels(source: pathlib.Path, descriptor: int) -> None:
    for name in os.listxattr(source):
        # A file system may refuse what it takes from others: SELinux then labels by the place.
        with contextlib.suppress(OSError):
            os.setxattr(descriptor, name, os.getxattr(source, name))
