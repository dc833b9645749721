# SPDX-License-Identifier: Apache-2.0
"""What is done to engines' configuration is recorded; what was there can be had back.

What was done for an engine is recorded in `RECORDS/ENGINE.json`, for a user elsewhere: for each
file where its former content is kept (beside it), and the digests of that and of what we left.
Only a file that is still as we left it is put back.

Each step is recorded before it is made, so that one which was interrupted is told from what was
done; `alone` keeps two from working at once.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

from nri_nvidia import errors
from nri_nvidia.configure import model, places

RECORDS = "/var/lib/nri-nvidia/configured"
_SUFFIX = ".before-nri-nvidia"


class Disk(places.Places):
    """The files of this node, or of one whose `/` is another directory."""

    def __init__(self, root: str = "/", records: str = RECORDS) -> None:
        super().__init__(root)
        self._records = records

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Let nobody else configure meanwhile; raises ConfigError where that cannot be."""
        try:
            with self.alone(f"{self._records}/.lock"):
                yield
        finally:
            # What is empty then says nothing; both are ours.
            with contextlib.suppress(OSError):
                self._place(self._records).rmdir()
                self._place(self._records).parent.rmdir()

    def check(self, changes: tuple[model.File | model.Link, ...]) -> None:
        """See whether changes may be made where they are meant to be; raises ConfigError."""
        for change in changes:
            if isinstance(change, model.File):
                self._own_data(change.path)

    def apply(self, engine: str, changes: tuple[model.File | model.Link, ...]) -> list[str]:
        """Make changes and record them; give what is to be told. Raises ConfigError."""
        self.check(changes)
        record = self._record(engine)
        known = {entry["path"]: entry for entry in record["entries"]}
        for change in changes:
            now = self.text(change.path) if isinstance(change, model.File) else change.before
            if now != change.before:
                raise errors.ConfigError(
                    f"{change.path}: changed while it was looked at; nothing was done",
                    hint="repeat the command",
                )
        return [told for change in changes for told in self._change(engine, record, known, change)]

    def _change(
        self,
        engine: str,
        record: dict[str, Any],
        known: dict[str, Any],
        change: model.File | model.Link,
    ) -> list[str]:
        path = change.path
        before = known.get(path)
        data = None if isinstance(change, model.Link) else self._own_data(path)
        keeps = before is None or not self._as_left(before)
        if before is None or (keeps and not self._as_before(before)):
            # Where it has changed since, the way back leads to how it is now.
            entry = self._former(change, data)
        else:
            entry = before
        made = [each for each in self._missing(path) if each not in record["directories"]]
        self._write_record(
            engine, {**known, path: {**entry, **_left(change)}}, [*record["directories"], *made]
        )
        try:
            if keeps and data is not None:
                self._write(entry["backup"], data, like=path)
            self._make_directories(path)
            if isinstance(change, model.Link):
                self._put_link(path, change.target)
            else:
                self._write(path, change.after.encode())
        except OSError as error:
            self._drop(entry["backup"] if entry is not before else "", made)
            if known:
                with contextlib.suppress(errors.ConfigError):
                    self._write_record(engine, known, record["directories"])
            else:
                self._forget(engine)
            raise errors.ConfigError(
                f"{path}: cannot be written: {error.strerror}; it was left as it is",
                hint=f"--undo takes back what was done for {engine} before" if known else "",
            ) from error
        known[path] = {**entry, **_left(change)}
        record["directories"] += made
        return [f"{path}: as it was in {entry['backup']}"] if keeps and entry["backup"] else []

    def _drop(self, backup: str, made: list[str]) -> None:
        """Take away what was made for a change that could not be, as far as that can be."""
        with contextlib.suppress(OSError):
            if backup:
                self._place(backup).unlink()
        for directory in made:
            with contextlib.suppress(OSError):
                self._place(directory).rmdir()

    def undoing(
        self, engine: str, *, leaving: bool = False
    ) -> tuple[model.File | model.Link, ...]:
        """Give what `undo` would change; raises ConfigError where it would do nothing.

        With `leaving` what was changed since is left as it is.
        """
        record = self._record(engine)
        if not record["entries"]:
            self._forget(engine)
            raise errors.ConfigError(
                f"nothing is recorded that nri-nvidia configured for {engine}",
                hint=f"it records what it does in {self._records}",
            )
        ours, stay = self._parted(record["entries"])
        altered = [entry["path"] for entry in stay if not self._is_gone(entry)]
        if altered and not leaving:
            kept = [entry["backup"] for entry in stay
                    if entry["path"] in altered and entry["backup"]]  # fmt: skip
            raise errors.ConfigError(
                f"{', '.join(altered)}: changed since nri-nvidia wrote it; nothing was undone",
                hint=f"take our part out by hand; as it was: {', '.join(kept) or 'not there'}; "
                f"then nri-nvidia configure {engine} --undo --leave-changed",
            )
        found: list[model.File | model.Link] = []
        for entry in ours:
            path = entry["path"]
            if "target" in entry:
                found.append(model.Link(path=path, before=self.link(path), target=entry["was"]))
            else:
                was = self._before(entry).decode() if entry["backup"] else ""
                found.append(model.File(path=path, before=self.text(path), after=was))
        return tuple(found)

    def undo(self, engine: str, *, leaving: bool = False) -> list[str]:
        """Put back what was there, and remove what was made; raises ConfigError.

        Give what is to be told of what stays: files that were changed since, where `leaving`, and
        the former content of those and of what somebody removed.
        """
        self.undoing(engine, leaving=leaving)
        record = self._record(engine)
        ours, stay = self._parted(record["entries"])
        for entry in reversed(ours):
            path = entry["path"]
            self._sweep(path)
            if "target" in entry and entry["was"]:
                self._put_link(path, entry["was"])
            elif not entry["backup"]:
                self._place(path).unlink(missing_ok=True)
            elif self._own_data(path) != (data := self._before(entry)):
                self._write(path, data)
        # Only now: what ends before can be begun again.
        for entry in ours:
            if entry["backup"]:
                self._sweep(entry["backup"])
                self._place(entry["backup"]).unlink(missing_ok=True)
        for directory in sorted(record["directories"], reverse=True):
            with contextlib.suppress(OSError):
                self._place(directory).rmdir()  # stays if something else is in it now
        self._forget(engine)
        return [self._told(entry) for entry in stay]

    def _parted(self, entries: list[Any]) -> tuple[list[Any], list[Any]]:
        """Part what can be undone from what somebody has changed or removed since."""
        ours = [entry for entry in entries if self._undoable(entry)]
        return ours, [entry for entry in entries if entry not in ours]

    def _is_gone(self, entry: dict[str, Any]) -> bool:
        return not os.path.lexists(self._place(entry["path"]))

    def _told(self, entry: dict[str, Any]) -> str:
        now = "is not there any more" if self._is_gone(entry) else "left as it is"
        was = f"; as it was: {entry['backup']}" if entry["backup"] else ""
        return f"{entry['path']}: {now}{was}"

    def _forget(self, engine: str) -> None:
        path = f"{self._records}/{engine}.json"
        self._sweep(path)
        with contextlib.suppress(NotADirectoryError):
            self._place(path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._place(self._records).rmdir()

    def _former(self, change: model.File | model.Link, data: bytes | None) -> dict[str, str]:
        """Say how a place is before it is changed for the first time, and where that is kept."""
        if isinstance(change, model.Link):
            return {"path": change.path, "backup": "", "was": change.before or ""}
        backup = "" if data is None else self._backup_of(change.path)
        return {"path": change.path, "backup": backup, "former": _digest(data or b"")}

    def _before(self, entry: dict[str, Any]) -> bytes:
        """Give what was in a file; an undo that was interrupted has put it back already."""
        there = self._own_data(entry["path"])
        if there is not None and _digest(there) == entry["former"]:
            return there
        data = self._own_data(entry["backup"])
        if data is None or _digest(data) != entry["former"]:
            raise errors.ConfigError(
                f"{entry['backup']}: is not as nri-nvidia kept {entry['path']} there;"
                " nothing was undone",
                hint="take our part out by hand, or put that file back",
            )
        return data

    def _backup_of(self, path: str) -> str:
        """Give where a file's content is kept, beside it, with its mode and owner.

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
                return backup
            number += 1

    def _as_left(self, entry: dict[str, Any]) -> bool:
        if "target" in entry:
            place = self._place(entry["path"])
            return place.is_symlink() and str(place.readlink()) == entry["target"]
        data = self._own_data(entry["path"])
        return data is not None and _digest(data) == entry["sha256"]

    def _undoable(self, entry: dict[str, Any]) -> bool:
        """Tell whether a file is as we left it, or as it was before (an interrupted change)."""
        try:
            return self._as_left(entry) or self._as_before(entry)
        except errors.ConfigError:
            return False  # it is of another kind now

    def _as_before(self, entry: dict[str, Any]) -> bool:
        if "target" in entry:
            return bool((self.link(entry["path"]) or "") == entry["was"])
        if not entry["backup"]:
            return not os.path.lexists(self._place(entry["path"]))
        data = self._own_data(entry["path"])
        return data is not None and bool(_digest(data) == entry["former"])

    def _record(self, engine: str) -> dict[str, Any]:
        path = f"{self._records}/{engine}.json"
        data = self._own_data(path)
        try:
            found = json.loads(data) if data is not None else {}
            return {"entries": list(found.get("entries", ())),
                    "directories": list(found.get("directories", ()))}  # fmt: skip
        except (ValueError, AttributeError) as error:
            raise errors.ConfigError(
                f"{path}: no record of nri-nvidia's", hint="move it away and repeat"
            ) from error

    def _write_record(self, engine: str, known: dict[str, Any], directories: list[str]) -> None:
        path = f"{self._records}/{engine}.json"
        record = {"entries": list(known.values()), "directories": directories}
        try:
            self._make_directories(path)
            self._write(path, (json.dumps(record, indent=2) + "\n").encode())
        except OSError as error:
            raise errors.ConfigError(
                f"{self._records}: cannot be written, where what is done is recorded: "
                f"{error.strerror}; nothing more was changed"
            ) from error


def _left(change: model.File | model.Link) -> dict[str, str]:
    if isinstance(change, model.Link):
        return {"target": change.target}
    return {"sha256": _digest(change.after.encode())}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
