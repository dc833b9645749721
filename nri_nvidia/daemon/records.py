# SPDX-License-Identifier: Apache-2.0
"""The decisions on disk, a file each, so that they outlive the daemon and can be read without it.

A file is written beside its place and moved there, so it is whole or absent. Its name is made
from the container's id, which may be any text. Nothing here knows the event loop.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from nri_nvidia import resolve
from nri_nvidia.daemon import ledger, recordshape
from nri_nvidia.render import document as documents

logger = logging.getLogger(__name__)

SCHEMA = 1
"""The version of a record; one of another version is left alone and not shown."""
DIRECTORY = "decisions"
"""The directory's name beside the control socket."""
_KEPT = 512
_LONGEST = 1 << 20
_MOST_HELD = 32
"""Records that wait to be written together; each may take a megabyte."""
_SUFFIX, _ASIDE = ".json", ".damaged"
_KEPT_ASIDE = 8


@attrs.frozen(kw_only=True)
class Summary:
    """What a record is found by. `live` tells a container that was created and has not ended."""

    id: str
    namespace: str = ""
    pod: str = ""
    name: str = ""
    time: float = 0.0
    live: bool = True

    @property
    def display(self) -> str:
        """Give `namespace/pod/container`, as far as these are known."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part)


def document(decided: ledger.Decided, *, missed: bool = False) -> dict[str, Any]:
    """Give a decision as a record: the JSON of `plan`, with whose it is and when it was made.

    Times are Unix seconds, durations milliseconds. `missed` tells a container that was created
    without us: the decision is then what it would have got when it was found.
    """
    container, plan = decided.container, decided.plan
    found = documents.plan(plan)
    if plan.request is None:
        found["request"] = None
    else:
        found["request"] |= {
            "variable": plan.request.variable,
            "shares": plan.request.shares,
            "requirements": [f"{e.variable}: {e.text}" for e in plan.request.requirements],
        }
    places = _places(plan.assigned)
    for item, gpu in zip(plan.assigned, found["gpus"], strict=True):
        gpu |= {"name": item.gpu.name, "container_index": places[item]}
    return {
        "schema": SCHEMA,
        "id": container.id,
        "namespace": container.namespace,
        "pod": container.pod,
        "name": container.name,
        "door": "runtime" if ledger.is_unknown_to_nri(container.id) else "nri",
        "time": decided.time,
        "duration_ms": round(decided.duration_ms, 3),
        "missed": missed,
        "rule": ledger.rule(plan),
        "policy_rule": str(plan.rule) if plan.rule else None,
        "shares": plan.shares,
        "ended": None,
        **found,
        "hook": None,
    }


def _places(assigned: Sequence[resolve.Assigned]) -> dict[resolve.Assigned, int]:
    """Give the index of each device inside: NVML and CUDA count what they see, in PCI order."""
    ordered = sorted(
        assigned, key=lambda item: (item.gpu.bus_id, item.mig.index if item.mig else -1)
    )
    return {item: place for place, item in enumerate(ordered)}


def match(query: str, known: Iterable[Summary]) -> tuple[Summary, ...]:
    """Give the containers that a query may mean, the newest first.

    It is a container's id or the beginning of one, `namespace/pod/container`, `pod/container`, or
    the name of a container or a pod. Of containers with the same names, which are one recreated,
    only the newest is meant, unless by its id.
    """
    if not query:
        return ()
    known = sorted(known, key=lambda summary: (summary.live, summary.time), reverse=True)
    exact = [summary for summary in known if summary.id == query]
    if exact:
        return tuple(exact[:1])
    named: dict[str, Summary] = {}
    for summary in known:
        if query in {
            summary.display,
            f"{summary.pod}/{summary.name}",
            f"{summary.namespace}/{summary.pod}",
            summary.name,
            summary.pod,
        }:
            named.setdefault(summary.display, summary)
    if named:
        return tuple(named.values())
    return tuple(summary for summary in known if summary.id.startswith(query))


class Store:
    """The records of one directory. Not for several threads at once, nor several daemons."""

    def __init__(self, directory: pathlib.Path, *, kept: int = _KEPT) -> None:
        self._directory = directory
        self._kept = kept
        self._held: dict[str, Mapping[str, Any]] | None = None
        self.known: dict[str, Summary] = {}

    def load(self) -> None:
        """Read what a daemon of before has left; a record that is not whole is set aside."""
        for path in self._paths():
            if path.suffix == _ASIDE:
                continue
            found = _read(path)
            if found is None and path.suffix == _SUFFIX:
                self._set_aside(path)
            elif found is None:
                _remove(path)
            elif found["schema"] == SCHEMA:
                self.known[found["id"]] = summary(found)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Write what is changed inside once at its end; raises the first OSError then.

        A container's decision, its hook's report and often its end come within a moment, and a
        record is written as a whole.
        """
        self._held = {}
        try:
            yield
        finally:
            held, self._held = self._held, None
            self._write_all(held)

    def read(self, container_id: str) -> dict[str, Any] | None:
        """Give a record, None if there is none."""
        if self._held and container_id in self._held:
            return dict(self._held[container_id])
        found = _read(self._path(container_id))
        return found if found and found["schema"] == SCHEMA else None

    def put(self, record: Mapping[str, Any]) -> None:
        """Keep a record in place of an earlier one of that container; raises OSError."""
        if self._held is None:
            self._write(record)
        else:
            self._held[record["id"]] = record
            if len(self._held) >= _MOST_HELD:
                held, self._held = self._held, {}
                self._write_all(held)
        self.known[record["id"]] = summary(record)
        while len(self.known) > self._kept:
            self._drop(min(self.known.values(), key=_worth))

    def change(self, container_id: str, changes: Mapping[str, Any]) -> None:
        """Change keys of a record, if it is there; raises OSError."""
        found = self.read(container_id) if container_id in self.known else None
        if found:
            self.put({**found, **changes})

    def end(self, container_id: str, at: float) -> None:
        """Note that a container has ended, once; raises OSError."""
        known = self.known.get(container_id)
        if known and known.live:
            self.change(container_id, {"ended": at})

    def keep_only(self, container_ids: Iterable[str]) -> None:
        """Note that NRI's runtime has no containers but these; raises OSError."""
        now, existing = time.time(), frozenset(container_ids)
        for container_id in [known for known in self.known if known not in existing]:
            if not ledger.is_unknown_to_nri(container_id):
                self.end(container_id, now)

    def _write_all(self, held: Mapping[str, Mapping[str, Any]]) -> None:
        """Write records. One that cannot be is forgotten, the others are written all the same."""
        first: OSError | None = None
        for container_id, record in held.items():
            try:
                self._write(record)
            except OSError as error:
                self.known.pop(container_id, None)
                first = first or error
        if first:
            raise first

    def _write(self, record: Mapping[str, Any]) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        text = json.dumps(record)
        if len(text) > _LONGEST:
            text = json.dumps({**record, "edits": None})
        _write(self._path(record["id"]), text)

    def _set_aside(self, path: pathlib.Path) -> None:
        """Keep a damaged record for a person to look at, the newest few of them."""
        aside = path.with_suffix(_ASIDE)
        logger.warning("%s is no whole record of a decision: it is %s now", path, aside.name)
        with contextlib.suppress(OSError):
            path.replace(aside)
        others = [each for each in self._paths() if each.suffix == _ASIDE]
        for old in sorted(others, key=_changed)[:-_KEPT_ASIDE]:
            _remove(old)

    def _path(self, container_id: str) -> pathlib.Path:
        name = hashlib.sha256(container_id.encode("utf-8", "surrogatepass")).hexdigest()
        return self._directory / f"{name[:32]}{_SUFFIX}"

    def _paths(self) -> list[pathlib.Path]:
        try:
            return [path for path in self._directory.iterdir() if path.is_file()]
        except OSError:
            return []

    def _drop(self, known: Summary) -> None:
        del self.known[known.id]
        if self._held:
            self._held.pop(known.id, None)
        _remove(self._path(known.id))


def _worth(known: Summary) -> tuple[bool, bool, float]:
    """Give by what a record is kept for longer than others; any user can make many of his own."""
    return not ledger.is_of_user(known.id), known.live, known.time


def each(directory: pathlib.Path, take: Callable[[dict[str, Any]], None]) -> None:
    """Hand every record of a directory on; nothing is changed there, so no daemon is disturbed."""
    with contextlib.suppress(OSError):
        for path in directory.glob(f"*{_SUFFIX}"):
            found = _read(path)
            if found and found["schema"] == SCHEMA:
                take(found)


def summary(record: Mapping[str, Any]) -> Summary:
    """Give what a record is found by."""
    return Summary(
        id=record["id"],
        namespace=record["namespace"],
        pod=record["pod"],
        name=record["name"],
        time=record["time"],
        live=record["ended"] is None and record["decision"] in {"inject", "ignore"},
    )


def _read(path: pathlib.Path) -> dict[str, Any] | None:
    """Give a record of any version; None for what is none."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LONGEST))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("schema"), int):
        return None
    return found if found["schema"] != SCHEMA or recordshape.is_whole(found) else None


def _changed(path: pathlib.Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _write(path: pathlib.Path, text: str) -> None:
    beside = path.with_suffix(".new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
        beside.replace(path)
    except OSError:
        _remove(beside)
        raise


def _remove(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
