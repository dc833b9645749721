# SPDX-License-Identifier: Apache-2.0
"""Who holds GPUs by nri-nvidia-runtime, and when each of them has ended.

No runtime tells that here, so a process is watched that ends with the container: the one that
started the caller (containerd's shim, conmon), or the caller itself where it stays (`runc run`).
That needs neither the runtime's state nor its namespaces, and holds for a creation that fails
later. Such a process may outlive the container, as a pod's shim does; so whoever asks who holds
what has the containers' cgroups looked at, too. Both are kept with the record of the decision, for
a daemon to come.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from nri_nvidia import errors
from nri_nvidia.daemon import adoption, cgroups, ledger, recorder, records
from nri_nvidia.host import model as host
from nri_nvidia.request import container as containers

logger = logging.getLogger(__name__)

_MOST_OF_USERS = 256
"""Containers of other users than root that are shown: each has a descriptor here."""
_LONGEST = 4096
"""Bytes of a process's line in /proc: some fifty numbers and a short name."""
_KEY = "watched"
"""The member of a record that names the process and the cgroup."""
_MADE = (0.2, 2.0)
"""Seconds after which a runtime has made the cgroup: mostly, and on a busy node."""


@attrs.frozen(kw_only=True)
class Process:
    """A process, told from a later one of its number by `start`, in ticks since boot."""

    pid: int
    start: int


class Holders:
    """Watches processes on the event loop; `on_end` is awaited with the id of what has ended."""

    def __init__(
        self,
        books: ledger.Ledger,
        kept: recorder.Recorder,
        on_end: Callable[[str], Awaitable[None]],
    ) -> None:
        self._books = books
        self._kept = kept
        self._on_end = on_end
        self._watched: dict[str, int] = {}
        self._cgroups: dict[str, str] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def hold(self, container_id: str, pid: int, *, stays: bool, cgroup: str) -> None:
        """Note that a container came from this process, and have it forgotten in time.

        `cgroup` is that of its config.json, empty if it is not to be looked at.
        """
        self._unwatch(container_id)
        if not self._books.came_by(container_id, "runtime"):
            return
        if ledger.is_of_user(container_id):
            self._make_room()
        caller, its_parent = _seen(pid)
        if pid > 0 and caller is None:
            self._ended(container_id)  # who has left has no container made
            return
        found = caller if stays else process(its_parent)
        # The first process outlives all: a container that it started is shown until the next one
        # of its name.
        if found and found.pid > 1 and self._watch(container_id, found):
            self._kept.noted(container_id, {_KEY: {**attrs.asdict(found), "cgroup": cgroup}})
        for delay in _MADE if cgroup else ():
            asyncio.get_running_loop().call_later(delay, self._expect, container_id, cgroup)

    def look(self) -> None:
        """Forget the containers whose cgroups were there and are not any more."""
        for container_id, cgroup in list(self._cgroups.items()):
            if not cgroups.exists(cgroup):
                self._ended(container_id)

    def _make_room(self) -> None:
        """Forget users' oldest containers where there are too many, which end none of them."""
        of_users = [key for key in self._books.entries if ledger.is_of_user(key)]
        for container_id in of_users[:-_MOST_OF_USERS]:
            self._ended(container_id)

    async def adopt(self) -> None:
        """Take in what a daemon of before has left and what still runs; the rest has ended."""
        try:
            left = await self._kept.ask(_left) or {}
        except errors.HostError as error:
            logger.warning("who holds GPUs by nri-nvidia-runtime is not known: %s", error)
            return
        for container_id, record in left.items():
            if container_id in self._watched:
                continue
            known = _process(record.get(_KEY))
            if known and process(known.pid) == known and self._watch(container_id, known):
                self._books.adopt(adoption.entry(_container(record), host.Inventory(), record))
                self._books.came_by(container_id, "runtime")
                self._expect(container_id, str(record[_KEY].get("cgroup") or ""))
            else:
                await self._on_end(container_id)
        self._make_room()

    def close(self) -> None:
        """Watch no more."""
        for container_id in list(self._watched):
            self._unwatch(container_id)

    def _watch(self, container_id: str, found: Process) -> bool:
        with contextlib.suppress(OSError):
            watched = os.pidfd_open(found.pid)
            self._watched[container_id] = watched
            asyncio.get_running_loop().add_reader(watched, self._ended, container_id)
            return True
        return False

    def _expect(self, container_id: str, cgroup: str) -> None:
        """Take the end of a cgroup for the container's, if this one can be seen from here."""
        if container_id in self._books.entries and cgroups.exists(cgroup):
            self._cgroups[container_id] = cgroup

    def _unwatch(self, container_id: str) -> None:
        self._cgroups.pop(container_id, None)
        watched = self._watched.pop(container_id, None)
        if watched is not None:
            asyncio.get_running_loop().remove_reader(watched)
            os.close(watched)

    def _ended(self, container_id: str) -> None:
        self._unwatch(container_id)
        task = asyncio.ensure_future(self._on_end(container_id))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)


def process(pid: int) -> Process | None:
    """Give what tells a process from others, None where there is none."""
    return _seen(pid)[0]


def _seen(pid: int) -> tuple[Process | None, int]:
    """Give a process, None where there is none, and its parent's number, 0 where not known.

    Read are the fields from the third on (proc(5), /proc/pid/stat): the second may hold blanks.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(descriptor, _LONGEST).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)
    except OSError:
        return None, 0
    return Process(pid=pid, start=int(fields[19])), int(fields[1])


def _left(store: records.Store) -> dict[str, dict[str, Any]]:
    found = {
        key: store.read(key)
        for key, known in store.known.items()
        if known.live and ledger.is_unknown_to_nri(key)
    }
    return {key: rec for key, rec in found.items() if rec and rec["decision"] == "inject"}


def _process(value: Any) -> Process | None:
    try:
        return Process(pid=int(value["pid"]), start=int(value["start"]))
    except (TypeError, ValueError, LookupError):
        return None


def _container(record: dict[str, Any]) -> containers.Container:
    return containers.Container(
        id=record["id"],
        name=record["name"],
        pod=record["pod"],
        namespace=record["namespace"],
    )
