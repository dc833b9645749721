# SPDX-License-Identifier: Apache-2.0
"""The daemon's state as lines of 80 columns, but for the names of containers, which end them.

A name is never cut: it is what one copies into the next command.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from nri_nvidia.cli import output

WIDTH = 80
_DECISIONS = 10
_RED, _GREEN, _YELLOW, _BOLD = "31", "32", "33", "1"
_COLOURS = {"inject": _GREEN, "ignore": "", "deny": _YELLOW, "error": _RED}


def text(document: dict[str, Any], now: float) -> list[str]:
    """Give the whole state as lines; `now` is Unix time in seconds."""
    return [
        *_head(document, now),
        "",
        *_devices(document, now),
        *_missed(document),
        *_decisions(document, now),
        *_counts(document),
        *_findings(document),
    ]


def name(entry: Mapping[str, Any]) -> str:
    """Give the name that a person knows a container by."""
    parts = [entry["namespace"], entry["pod"], entry["name"]]
    return "/".join(part for part in parts if part) or entry["id"][:12]


def _head(document: dict[str, Any], now: float) -> Iterator[str]:
    runtime, driver = document["runtime"], document["driver"]
    if runtime["registered"]:
        since = output.ago(now - runtime["since"])
        yield f"runtime: {runtime['name']} {runtime['version']}, registered since {since}"
    elif runtime.get("off"):
        yield "runtime: NRI is off (nri.enabled); containers come by nri-nvidia-runtime and CDI"
    else:
        last = f" (last with {runtime['name']} {runtime['version']})" if runtime["name"] else ""
        yield output.paint("runtime: not registered", _RED) + last
    if not driver["loaded"]:
        yield "driver: not loaded" if driver["loaded"] is False else "driver: not known yet"
    else:
        cuda = f", CUDA {driver['cuda_version']}" if driver["cuda_version"] else ""
        nvml = "" if driver["nvml"] == "ok" else f", NVML {driver['nvml']}"
        yield f"driver: {driver['version'] or 'loaded'}{cuda}{nvml}"
    yield from _policy(document.get("policy") or {})
    if document["ready"]:
        yield "ready: " + output.paint("yes", _GREEN)
        return
    for reason in document["not_ready"]:
        yield from _wrapped(f"ready: {output.paint('no', _RED)}: ", reason["message"], 2)


def _policy(policy: Mapping[str, Any]) -> Iterator[str]:
    """Name what of policy is not NVIDIA's own behaviour."""
    preset, count = policy.get("preset"), len(policy.get("rules", ()))
    told = [preset] if preset and preset != "compatible" else []
    told += ["GPUs are exclusive"] if policy.get("exclusive") else []
    told += [f"{count} rule{'s' if count > 1 else ''}"] if count else []
    if told:
        yield f"policy: {', '.join(told)}"


def _devices(document: dict[str, Any], now: float) -> Iterator[str]:
    gpus = document["gpus"]
    if not gpus:
        yield "no GPU on this node"
        return
    held = {entry["id"]: entry for entry in document["containers"]}
    rows = [("GPU", "UUID", "MINOR", "BUS ID", "MEMORY", "MODEL")]
    rows += [
        (
            "-" if gpu["index"] < 0 else str(gpu["index"]),
            (gpu["uuid"] or "not initialised")[:12],
            str(gpu["minor"]),
            gpu["bus_id"],
            output.size(gpu["memory_bytes"]),
            gpu["name"],
        )
        for gpu in gpus
    ]
    head, *table = output.columns(rows)
    yield output.paint(head, _BOLD)
    for gpu, line in zip(gpus, table, strict=True):
        free = not (gpu["containers"] or gpu["mig_devices"] or gpu["excluded"] or gpu["problem"])
        yield f"{line}  free" if free and len(line) + 6 <= WIDTH else line
        yield from _holders(gpu, held, now)
        if free and len(line) + 6 > WIDTH:
            yield "     free"


def _holders(gpu: dict[str, Any], held: Mapping[str, Any], now: float) -> Iterator[str]:
    """Give who holds a GPU, and below each MIG device who holds that."""
    of_mig: dict[str, list[Any]] = {}
    for container in gpu["containers"]:
        of_mig.setdefault(container["mig"] or "", []).append(held[container["id"]])
    whole = [_holder(entry, now) for entry in of_mig.pop("", [])]
    if whole:
        yield from output.columns(whole, "     ")
    for mig in gpu["mig_devices"]:
        place = f"{gpu['index']}:{mig['index']}"
        memory = output.size(mig["memory_bytes"])
        yield "  ".join(
            part for part in (f"{place:<3}", mig["uuid"], mig["profile"], memory) if part
        )
        holders = [_holder(entry, now) for entry in of_mig.pop(mig["uuid"], [])]
        yield from output.columns(holders, "     ") if holders else ["     free"]
    for uuid, entries in of_mig.items():
        yield f"     {uuid}, which is not there any more"
        yield from output.columns([_holder(entry, now) for entry in entries], "     ")
    if gpu["excluded"]:
        yield "     excluded by the driver"
    elif gpu["problem"]:
        yield from _wrapped("     ", output.paint(gpu["problem"], _RED), 5)


def _holder(entry: Mapping[str, Any], now: float) -> tuple[str, ...]:
    since = output.ago(now - entry["since"]) if entry["since"] else "from before"
    capabilities = ",".join(entry["capabilities"]) or "-"
    if len(capabilities) > 30:
        capabilities = f"{len(entry['capabilities'])} capabilities"
    stale = output.paint(f"stale {entry['driver_version']} ", _RED) if entry["stale"] else ""
    how = "shared by" if entry.get("shared_from") else "held by"
    return (how, since, capabilities, f"{stale}{name(entry)}")


def _missed(document: dict[str, Any]) -> Iterator[str]:
    if document["missed"]:
        yield ""
        yield output.paint(
            "created while the daemon was away, without the GPU they asked for:", _RED
        )
        for entry in document["missed"]:
            yield f"  {name(entry)} ({entry['id'][:12]})"


def _decisions(document: dict[str, Any], now: float) -> Iterator[str]:
    last = document["decisions"][-_DECISIONS:]
    if not last:
        return
    yield ""
    yield output.paint("last decisions:", _BOLD)
    table = output.columns(
        [
            (
                f"{output.ago(now - entry['time'])} ago",
                entry["decision"],
                f"{entry['duration_ms']:.1f} ms",
                f"asked {','.join(entry['asked']) or 'none'}"[:24],
                name(entry),
            )
            for entry in last
        ],
        "  ",
    )
    for entry, line in zip(last, table, strict=True):
        yield output.paint(line, _COLOURS[entry["decision"]])
        if entry["reasons"]:
            reason = entry["reasons"][-1]
            yield from _wrapped("    ", f"{reason['message']} [{reason['code']}]", 4)


def _counts(document: dict[str, Any]) -> Iterator[str]:
    counts = document["counts"]
    hooks = document["hooks"]
    if not counts:
        return
    told = [f"{counts[key]} {key}" for key in _COLOURS if counts.get(key)]
    told += [f"hooks {hooks[key]} {key}" for key in ("ok", "failed") if hooks.get(key)]
    yield ""
    yield f"since the start: {', '.join(told)}"


def _findings(document: dict[str, Any]) -> Iterator[str]:
    if not document["findings"]:
        return
    yield ""
    yield output.paint("findings:", _YELLOW)
    for finding in document["findings"]:
        yield from _wrapped("  ", f"{finding['message']} [{finding['code']}]", 2)
        if finding["hint"]:
            yield from _wrapped("    ", finding["hint"], 4)


def _wrapped(head: str, told: str, indent: int) -> list[str]:
    """Give a text in lines; a word that is longer than a line, as a path, is left whole."""
    return textwrap.wrap(
        told,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
