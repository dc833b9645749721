# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia devices`: what a host has, as a decision would see it."""

import argparse
from collections.abc import Collection, Iterator
from typing import Any

import attrs

from nri_nvidia import cli, errors
from nri_nvidia.cli import daemon, output, settings, shared
from nri_nvidia.host import cache, model, record

_TITLES = ("GPU", "UUID", "MINOR", "BUS ID", "MODEL", "MEMORY", "ARCH", "BRAND")
_MOST_NODES = 64
_LATER = " (the daemon makes it when a container asks for it)"
_KINDS = (
    model.FileKind.BINARY,
    model.FileKind.LIBRARY,
    model.FileKind.LIBRARY32,
    model.FileKind.SOCKET,
    model.FileKind.FIRMWARE,
    model.FileKind.CONFIG,
    model.FileKind.LISTED,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    shared.add_host(parser)
    daemon.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the whole inventory as JSON")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--list", action="store_true", help="print one host path a line")
    only.add_argument(
        "--free", action="store_true", help="print what no container holds, as the daemon knows"
    )
    only.add_argument(
        "--record", metavar="DIR", help="write a recording of this host there, for `--host DIR`"
    )


def main(options: argparse.Namespace) -> int:
    """Print the inventory; 1 when a GPU cannot be used as things are, or none is free."""
    if options.free:
        return _print_free(options)
    config = settings.config(options.config)
    kept = cache.Cache(settings.host(config, options.host))
    answer = kept.refresh_nvml()
    if options.record is not None:
        written = record.record(kept.options, answer.report, options.record)
        if options.json:
            output.print_json(attrs.asdict(written))
        else:
            output.print_lines(_recorded(written))
        return 0
    found, made = _look(kept)
    trouble = _trouble(found)
    if options.json:
        told = {"error": cli.error_document(trouble)} if trouble else {}
        output.print_json({**document(found), **told})
    elif options.list:
        output.print_lines(_paths(found, made))
    else:
        nvml = "" if found.nvml_state == "ok" else answer.reason
        output.print_lines(text(found, nvml, made))
    if trouble and (options.json or options.list):
        return cli.complain(trouble, 1)
    return 1 if trouble else 0


def _look(kept: cache.Cache) -> tuple[model.Inventory, frozenset[str]]:
    """Give what a host has, and the paths of nodes that its daemon would make.

    On a recorded host those are missing; on this one the look itself makes them, as a decision.
    """
    found = kept.get()
    if not kept.options.recorded:
        return found, frozenset()
    there = cache.Cache(attrs.evolve(kept.options, create_device_nodes=False)).get()
    made = _existing(found) - _existing(there)
    return attrs.evolve(there, problems=found.problems), made


def _existing(inventory: model.Inventory) -> frozenset[str]:
    return frozenset(node.path for node in inventory.nodes if node.exists)


def _trouble(inventory: model.Inventory) -> errors.Error | None:
    """Give what first keeps containers from a GPU here, None where nothing does."""
    for problem in inventory.problems:
        return errors.HostError(problem.message, hint=problem.hint, code=problem.code)
    if inventory.driven:
        return None
    if inventory.hardware:
        return errors.HostError(
            "the NVIDIA driver is not loaded on this node",
            hint="load it: modprobe nvidia; dmesg says why if that fails",
            code="driver-not-loaded",
        )
    return errors.HostError(
        "this node has no NVIDIA GPU",
        hint="lspci -d 10de: shows what NVIDIA devices the PCI bus has",
        code="no-gpu-on-node",
    )


def _recorded(written: record.Recording) -> list[str]:
    counts = f"{written.files} files, {written.links} links, {written.nodes} device nodes"
    return [
        f"recorded in {written.directory}: {counts}",
        "It holds the kernel's and the distribution's texts about the driver, UUIDs and PCI",
        "addresses of the GPUs, and names of the driver's files; of other files no content.",
        f"try it: nri-nvidia plan --host {written.directory} --env NVIDIA_VISIBLE_DEVICES=all",
    ]


def document(inventory: model.Inventory) -> dict[str, Any]:
    """Give an inventory as JSON, its own field names as keys; sets are sorted lists."""
    return attrs.asdict(inventory, value_serializer=_plain)


def _plain(_: Any, __: Any, value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, frozenset) else value


def text(inventory: model.Inventory, nvml: str, made: Collection[str] = ()) -> list[str]:
    """Give an inventory as lines; `nvml` says why NVML gave no answer.

    `made` are the paths of nodes that are missing and will be made.
    """
    lines = [*settings.kind(inventory), f"driver: {_driver(inventory)}"]
    if inventory.libraries_version and inventory.libraries_version != inventory.driver_version:
        lines.append(f"driver files: {inventory.libraries_version}")
    lines += [f"CUDA: {inventory.cuda_version}"] if inventory.cuda_version else []
    lines += [f"NVML: {inventory.nvml_state}, {nvml}"] if nvml else []
    rows = [
        (
            "-" if gpu.excluded else str(gpu.index),
            gpu.uuid or ("not initialised" if gpu.bus_id else "-"),
            str(gpu.minor) if gpu.minor >= 0 else "-",
            gpu.bus_id or "-",
            gpu.name,
            output.size(gpu.memory_bytes),
            gpu.compute_capability or "-",
            gpu.brand or "-",
            _state(gpu),
        )
        for gpu in inventory.gpus
    ]
    if rows:
        lines += [
            "",
            *output.columns([_TITLES, *rows]),
        ]
    else:
        lines.append("GPUs: none" if inventory.hardware else "GPUs: none on this node")
    for gpu in inventory.gpus:
        lines += [
            f"  {gpu.index}:{mig.index}  {mig.uuid}  {mig.profile}  gi {mig.gi} ci {mig.ci}"
            for mig in gpu.mig_devices
        ]
    nodes = [
        (
            node.path,
            f"{node.major}:{node.minor}",
            f"{node.mode:04o}",
            "" if node.exists else f"missing{_LATER if node.path in made else ''}",
        )
        for node in dict.fromkeys(inventory.nodes)
    ]
    more = len(nodes) - _MOST_NODES
    nodes = nodes[:_MOST_NODES]
    lines += ["", "nodes:", *output.columns(nodes, "  ")] if nodes else []
    lines += [f"  and {more} more (--list shows them)"] if more > 0 else []
    lines += ["", f"driver files: {len(inventory.files)} (--list shows them)"]
    for problem in inventory.problems:
        lines += ["", f"problem: {problem.message} [{problem.code}]"]
        lines += [f"  {problem.hint}"] if problem.hint else []
    return lines


def _driver(inventory: model.Inventory) -> str:
    absent = "of unknown version" if inventory.driven else "not loaded"
    return inventory.driver_version or absent


def _state(gpu: model.Gpu) -> str:
    if gpu.excluded:
        return "excluded"
    return "not answering" if gpu.problem else "MIG" if gpu.mig_enabled else ""


def _paths(inventory: model.Inventory, made: Collection[str]) -> Iterator[str]:
    """Give the paths of all that a container may be given, nodes first, then files by kind."""
    nodes = (node.host_path for node in inventory.nodes if node.exists or node.path in made)
    files = sorted(inventory.files, key=lambda file: (_KINDS.index(file.kind), file.source))
    extra = (mount.source for mount in inventory.extra_mounts)
    yield from dict.fromkeys((*nodes, *(file.source for file in files), *extra))


def _print_free(options: argparse.Namespace) -> int:
    if options.host:
        raise errors.ConfigError("--free asks the daemon of this node, and --host is another one")
    status = daemon.status(options)
    if not (status["runtime"]["registered"] or status["runtime"].get("off")):
        raise errors.Error(
            "the daemon is not registered with a runtime: which containers run is not known",
            hint="nri-nvidia status says why",
            code="not-registered",
        )
    found = free(status["gpus"])
    if options.json:
        output.print_json(found)
    elif found:
        rows = [(f["id"], f["uuid"], f["name"], output.size(f["memory_bytes"])) for f in found]
        output.print_lines(output.columns([("GPU", "UUID", "MODEL", "MEMORY"), *rows]))
    else:
        output.print_lines(["no GPU is free"])
    return 0 if found else 1


def free(gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the GPUs and MIG devices of a daemon's status that no container holds.

    `id` and `uuid` are what NVIDIA_VISIBLE_DEVICES takes. Where a GPU in MIG mode is held as a
    whole, none of its devices is free.
    """
    found: list[dict[str, Any]] = []
    for gpu in gpus:
        held = [holder["mig"] for holder in gpu["containers"]]
        if gpu["excluded"] or gpu["problem"] or None in held:
            continue
        if not gpu["mig_enabled"]:
            found.append(_free(str(gpu["index"]), gpu, gpu["name"]))
        for mig in gpu["mig_devices"]:
            if mig["uuid"] not in held:
                name = f"{gpu['name']} MIG {mig['profile']}".rstrip()
                found.append(_free(f"{gpu['index']}:{mig['index']}", mig, name))
    return found


def _free(number: str, device: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        "id": number,
        "uuid": device["uuid"] or "",
        "name": name,
        "memory_bytes": device["memory_bytes"],
    }
