# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia devices`: what a host has, as a decision would see it."""

import argparse
from collections.abc import Iterator
from typing import Any

import attrs

from nri_nvidia.cli import output, settings
from nri_nvidia.host import cache, model, query, record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    settings.add_host(parser)
    settings.add_config(parser)
    parser.add_argument("--json", action="store_true", help="print the whole inventory as JSON")
    parser.add_argument("--list", action="store_true", help="print one host path a line")
    parser.add_argument(
        "--record", metavar="DIR", help="write a recording of this host there, for `--host DIR`"
    )


def main(options: argparse.Namespace) -> int:
    """Print the inventory; 1 when a GPU cannot be used as things are."""
    config = settings.config(options.config)
    kept = cache.Cache(settings.host(config, options.host))
    answer = kept.refresh_nvml()
    if options.record is not None:
        output.print_lines(_recorded(kept, answer, options.record))
        return 0
    found = kept.get()
    if options.json:
        output.print_json(document(found))
    elif options.list:
        output.print_lines(_paths(found))
    else:
        output.print_lines(text(found, "" if found.nvml_state == "ok" else answer.reason))
    return 0 if found.driven and not found.problems else 1


def _recorded(kept: cache.Cache, answer: query.Answer, directory: str) -> list[str]:
    written = record.record(kept.options, answer.report, directory)
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


def text(inventory: model.Inventory, nvml: str) -> list[str]:
    """Give an inventory as lines; `nvml` says why NVML gave no answer."""
    lines = [*output.host(inventory), f"driver: {_driver(inventory)}"]
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
            "excluded" if gpu.excluded else "MIG" if gpu.mig_enabled else "",
        )
        for gpu in inventory.gpus
    ]
    if rows:
        lines += [
            "",
            *output.columns([("GPU", "UUID", "MINOR", "BUS ID", "MODEL", "MEMORY"), *rows]),
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
            "" if node.exists else "missing",
        )
        for node in _nodes(inventory)
    ]
    lines += ["", "nodes:", *output.columns(nodes, "  ")] if nodes else []
    lines += ["", f"driver files: {len(inventory.files)} (--list shows them)"]
    for problem in inventory.problems:
        lines += ["", f"problem: {problem.message} [{problem.code}]"]
        lines += [f"  {problem.hint}"] if problem.hint else []
    return lines


def _driver(inventory: model.Inventory) -> str:
    absent = "of unknown version" if inventory.driven else "not loaded"
    return inventory.driver_version or absent


def _nodes(inventory: model.Inventory) -> Iterator[model.DeviceNode]:
    control = inventory.control
    for node in (control.ctl, control.uvm, control.uvm_tools, control.modeset):
        if node:
            yield node
    for gpu in inventory.gpus:
        if gpu.node:
            yield gpu.node
    yield from {node: None for gpu in inventory.gpus for node in gpu.nodes}
    for _, node in inventory.caps_nodes:
        yield node


def _paths(inventory: model.Inventory) -> Iterator[str]:
    yield from (node.host_path for node in _nodes(inventory) if node.exists)
    yield from sorted({file.source for file in inventory.files})
