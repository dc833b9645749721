# SPDX-License-Identifier: Apache-2.0
"""What `nri-nvidia explain` is told of one container: its record, and how it is with it now."""

from typing import Any

import attrs

from nri_nvidia import errors
from nri_nvidia.daemon import decider, hostwatch, ledger, records, upgrades
from nri_nvidia.host import model as host


async def document(
    state: decider.Decider, watch: hostwatch.HostWatch, query: str
) -> dict[str, Any]:
    """Give the explanation where one container is meant, else those that may be, or none."""
    books = state.ledger
    try:
        known = await state.records.ask(lambda store: dict(store.known)) or {}
    except errors.Error:
        known = {}  # what is in memory can be told without the disk
    found = records.match(query, {**_remembered(books), **known}.values())
    explanation: dict[str, Any] | None = None
    if len(found) == 1:
        chosen = found[0].id
        record = None
        if chosen in known:
            record = await state.records.ask(lambda store: store.read(chosen))
        record = record or _unrecorded(books, chosen)
        explanation = record and {**record, **await _now(books, watch, chosen)}
    return {
        "schema": records.SCHEMA,
        "candidates": [attrs.asdict(summary) for summary in found],
        "explanation": explanation,
    }


async def _now(books: ledger.Ledger, watch: hostwatch.HostWatch, container: str) -> dict[str, Any]:
    """Give what changes: whether it runs with a GPU, and whether with another driver's files."""
    inventory: host.Inventory | None
    try:
        inventory = await watch.inventory(2.0)
    except errors.Error:
        inventory = watch.last
    entry = books.entries.get(container)
    return {
        "holds": entry is not None,
        "stale": entry is not None and upgrades.is_stale(entry, inventory),
        "loaded_driver": inventory.driver_version if inventory else None,
    }


def _remembered(books: ledger.Ledger) -> dict[str, records.Summary]:
    """Give the containers that are known without a record: found running, or not written."""
    named = [(decided.container, decided.time) for decided in books.decisions]
    named += [(entry.container, entry.since) for entry in books.entries.values()]
    named += [(container, 0.0) for container in books.missed.values()]
    return {
        container.id: records.Summary(
            id=container.id,
            namespace=container.namespace,
            pod=container.pod,
            name=container.name,
            time=time,
            live=container.id in books.entries or container.id in books.missed,
        )
        for container, time in named
    }


def _unrecorded(books: ledger.Ledger, container: str) -> dict[str, Any] | None:
    """Give what memory has of a container without a record."""
    for decided in reversed(books.decisions):
        if decided.container.id == container:
            return {**records.document(decided), "edits": None}
    entry = books.entries.get(container)
    named = entry.container if entry else books.missed.get(container)
    if named is None:
        return None
    what = (
        "it was given its GPUs before this daemon started, and the record of that is gone"
        if entry
        else "it was created while nri-nvidia was away, and what it asked for is not kept"
    )
    return {
        "schema": records.SCHEMA,
        "id": named.id,
        "namespace": named.namespace,
        "pod": named.pod,
        "name": named.name,
        "door": entry.door if entry else "nri",
        "time": (entry.since if entry else 0.0) or None,
        "duration_ms": None,
        "missed": entry is None,
        "rule": "not-recorded",
        "policy_rule": None,
        "ended": None,
        "decision": "inject" if entry else "ignore",
        "reasons": [{"code": "not-recorded", "message": what, "hint": ""}],
        "request": None,
        "gpus": [_held(held) for held in entry.held] if entry else [],
        "driver_version": entry.driver_version if entry else "",
        "edits": None,
        "hook": None,
    }


def _held(held: ledger.Held) -> dict[str, Any]:
    return {
        "index": held.index,
        "uuid": held.uuid,
        "minor": held.minor,
        "bus_id": "",
        "mig": {"uuid": held.mig} if held.mig else None,
        "name": "",
        "container_index": None,
    }
