# SPDX-License-Identifier: Apache-2.0
"""The daemon's state as the documented JSON of `nri-nvidia status --json`."""

import os
from typing import Any

import attrs

import nri_nvidia
from nri_nvidia.daemon import decider, hostwatch, ledger, readiness, upgrades
from nri_nvidia.host import model as host
from nri_nvidia.request import rules

SCHEMA = 1


async def document(
    state: decider.Decider,
    watch: hostwatch.HostWatch,
    started: float,
    further: host.Problem | None = None,
) -> dict[str, Any]:
    """Give the whole state. Times are Unix seconds, durations milliseconds, memory bytes.

    `further` is a problem of a part beside these.
    """
    findings: list[dict[str, str]] = []
    seen = await readiness.look(state, watch)
    inventory = seen.inventory
    if seen.fault:
        findings.append(_finding(seen.fault.code, seen.fault.message, seen.fault.hint))
    findings += [
        _finding(fault.code, fault.message, fault.hint)
        for fault in (state.connection.trouble, state.fault, state.place.fault, *state.troubles)
        if fault
    ]
    findings += [attrs.asdict(problem) for problem in inventory.problems] if inventory else []
    findings += [attrs.asdict(problem) for problem in watch.module_problems]
    findings += [attrs.asdict(each) for each in (state.volume_problem, further) if each]
    findings += [attrs.asdict(state.records.problem)] if state.records.problem else []
    holders = state.ledger.entries.values()
    findings += [attrs.asdict(problem) for problem in upgrades.problems(holders, inventory)]
    connection = state.connection
    lacking = readiness.missing(state, seen)
    return {
        "schema": SCHEMA,
        "version": nri_nvidia.__version__,
        "pid": os.getpid(),
        "since": started,
        "runtime": {
            "registered": connection.since > 0,
            "off": not connection.wanted,
            "since": connection.since or None,
            "name": connection.runtime.name if connection.runtime else None,
            "version": connection.runtime.version if connection.runtime else None,
            "registrations": connection.registrations,
            "request_timeout": connection.runtime.request_timeout if connection.runtime else None,
        },
        "ready": not lacking,
        "not_ready": [attrs.asdict(reason) for reason in lacking],
        "driver": _driver(inventory),
        "policy": _policy(state.rules.request.access),
        "gpus": _gpus(inventory, state.ledger),
        "containers": [_entry(entry, inventory) for entry in holders],
        "missed": [_named(container) for container in state.ledger.missed.values()],
        "decisions": [_decided(decided) for decided in state.ledger.decisions],
        "counts": dict(state.ledger.counts),
        "hooks": dict(state.ledger.tallies.hooks),
        "findings": findings,
    }


def _finding(code: str, message: str, hint: str) -> dict[str, str]:
    return {"code": code, "message": message, "hint": hint}


def _policy(access: rules.Access) -> dict[str, Any]:
    return {
        "preset": str(access.preset),
        "exclusive": access.exclusive,
        "rules": [str(rule) for rule in access.rules],
    }


def _driver(inventory: host.Inventory | None) -> dict[str, Any]:
    if inventory is None:
        return {"loaded": None, "version": None, "libraries_version": None, "cuda_version": None}
    return {
        "loaded": inventory.driven,
        "version": inventory.driver_version or None,
        "libraries_version": inventory.libraries_version or None,
        "cuda_version": inventory.cuda_version or None,
        "nvml": inventory.nvml_state,
        "layout": inventory.layout,
    }


def _gpus(inventory: host.Inventory | None, books: ledger.Ledger) -> list[dict[str, Any]]:
    holders: dict[int, list[dict[str, Any]]] = {}
    for entry in books.entries.values():
        whole = {**_named(entry.container), "mig": None}
        for held in entry.held:
            holder = {**whole, "mig": held.mig} if held.mig else whole
            holders.setdefault(held.minor, []).append(holder)
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid or None,
            "minor": gpu.minor,
            "bus_id": gpu.bus_id,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "excluded": gpu.excluded,
            "problem": gpu.problem or None,
            "mig_enabled": gpu.mig_enabled,
            "mig_devices": [attrs.asdict(mig) for mig in gpu.mig_devices],
            "containers": holders.get(gpu.minor, []),
        }
        for gpu in (inventory.gpus if inventory else ())
    ]


def _named(container: Any) -> dict[str, Any]:
    return {
        "id": container.id,
        "namespace": container.namespace,
        "pod": container.pod,
        "name": container.name,
    }


def _entry(entry: ledger.Entry, inventory: host.Inventory | None) -> dict[str, Any]:
    return {
        **_named(entry.container),
        "since": entry.since or None,
        "gpus": [held.mig or held.uuid for held in entry.held],
        "capabilities": list(entry.capabilities),
        "driver_version": entry.driver_version or None,
        "stale": upgrades.is_stale(entry, inventory),
        "adopted": entry.adopted,
        "hook": entry.hook or None,
        "hook_notes": list(entry.notes),
        "door": entry.door,
        "shares": entry.shares,
        "shared_from": entry.shared_from or None,
    }


def _decided(decided: ledger.Decided) -> dict[str, Any]:
    plan = decided.plan
    return {
        **_named(decided.container),
        "time": decided.time,
        "decision": str(plan.decision),
        "reasons": [attrs.asdict(reason) for reason in plan.reasons],
        "asked": list(plan.request.devices) if plan.request else [],
        "gpus": [item.mig.uuid if item.mig else item.gpu.uuid for item in plan.assigned],
        "policy_rule": str(plan.rule) if plan.rule else None,
        "duration_ms": round(decided.duration_ms, 3),
    }
