# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia status`: the daemon's state at a glance."""

import argparse
import time
from typing import Any

from nri_nvidia.cli import daemon, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    daemon.add_arguments(parser)
    parser.add_argument(
        "--ready",
        action="store_true",
        help="only say whether a container created now gets a working GPU (exit status 0), and "
        "else why not (1)",
    )
    parser.add_argument("--json", action="store_true", help="print the whole state as JSON")


def main(options: argparse.Namespace) -> int:
    """Print the state; 1 when the daemon is not registered with a runtime."""
    document = daemon.status(daemon.socket(options))
    if options.ready:
        return _ready(document, as_json=options.json)
    if options.json:
        output.print_json(document)
    else:
        print("\n".join(text(output.plain(document), time.time())))
    return 0 if document["runtime"]["registered"] else 1


def _ready(document: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        output.print_json({key: document[key] for key in ("schema", "ready", "not_ready")})
        return 0 if document["ready"] else 1
    lines = ["ready"] if document["ready"] else []
    for reason in document["not_ready"]:
        lines.append(f"not ready: {reason['message']} [{reason['code']}]")
        lines += [f"  {reason['hint']}"] if reason["hint"] else []
    output.print_lines(lines)
    return 0 if document["ready"] else 1


def text(document: dict[str, Any], now: float) -> list[str]:
    """Give the state as lines."""
    lines = [_runtime(document["runtime"], now), _driver(document["driver"]), ""]
    lines += _gpus(document["gpus"]) or ["no GPU on this node"]
    if document["missed"]:
        lines += ["", "created while the daemon was away, without the GPU they asked for:"]
        lines += [f"  {_name(entry)} ({entry['id'][:12]})" for entry in document["missed"]]
    if document["decisions"]:
        lines += ["", "last decisions:"]
        rows = [_decision(entry, now) for entry in document["decisions"][-10:]]
        lines += output.columns(rows, "  ")
    if document["findings"]:
        lines += ["", "findings:"]
        for finding in document["findings"]:
            lines.append(f"  {finding['message']} [{finding['code']}]")
            lines += [f"    {finding['hint']}"] if finding["hint"] else []
    return lines


def _runtime(runtime: dict[str, Any], now: float) -> str:
    if not runtime["registered"]:
        before = f" (last with {runtime['name']} {runtime['version']})" if runtime["name"] else ""
        return output.paint("runtime: not registered", "31") + before
    since = output.ago(now - runtime["since"])
    return f"runtime: {runtime['name']} {runtime['version']}, registered since {since}"


def _driver(driver: dict[str, Any]) -> str:
    if not driver["loaded"]:
        return "driver: not loaded" if driver["loaded"] is False else "driver: not known yet"
    cuda = f", CUDA {driver['cuda_version']}" if driver["cuda_version"] else ""
    nvml = "" if driver["nvml"] == "ok" else f", NVML {driver['nvml']}"
    return f"driver: {driver['version']}{cuda}{nvml}"


def _gpus(gpus: list[dict[str, Any]]) -> list[str]:
    rows = []
    for gpu in gpus:
        holders = [_name(c) + (f" ({c['mig']})" if c["mig"] else "") for c in gpu["containers"]]
        free = "excluded by the driver" if gpu["excluded"] else gpu["problem"] or "free"
        index = "-" if gpu["index"] < 0 else str(gpu["index"])
        rows.append(
            (index, (gpu["uuid"] or "")[:12], gpu["bus_id"], gpu["name"], (holders or [free])[0])
        )
        rows += [("", "", "", "", holder) for holder in holders[1:]]
    return output.columns([("GPU", "UUID", "BUS ID", "MODEL", "HELD BY"), *rows]) if rows else []


def _decision(entry: dict[str, Any], now: float) -> tuple[str, ...]:
    asked = ",".join(entry["asked"]) or "none"
    reason = entry["reasons"][-1]["message"] if entry["reasons"] else f"asked {asked}"
    took = f"{entry['duration_ms']:.1f} ms"
    return (
        output.ago(now - entry["time"]) + " ago",
        entry["decision"],
        took,
        _name(entry),
        reason,
    )


def _name(entry: dict[str, Any]) -> str:
    parts = [entry["namespace"], entry["pod"], entry["name"]]
    return "/".join(part for part in parts if part) or entry["id"][:12]
