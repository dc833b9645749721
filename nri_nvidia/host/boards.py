# SPDX-License-Identifier: Apache-2.0
"""Hosts that are no PCI host, each made into an Inventory: WSL (`wsl`) and Jetson (`tegra`)."""

from collections.abc import Iterable

import attrs

from . import devices, presets, proc, reach, tegra, wsl
from .model import ControlNodes, DeviceNode, Gpu, Inventory, Platform, Problem
from .nodes import Directory
from .options import Options
from .report import Report, ReportGpu


def scan(options: Options, choice: presets.Choice, nvml: Report | None) -> Inventory:
    """Look at such a host by settled options; the files are not identified yet."""
    known = devices.tables(options)
    if choice.preset.platform is Platform.WSL:
        found = _wsl(options, known.directory, nvml)
    else:
        found = _tegra(options, known, nvml)
    found = _of(found, choice.preset, nvml)
    if found.with_all_lists:
        more = _of(found.with_all_lists, choice.preset, nvml)
        found = attrs.evolve(found, with_all_lists=more)
    unreachable = tuple(dict.fromkeys(reach.problems(found)))
    return attrs.evolve(found, problems=(*found.problems, *unreachable))


def _of(found: Inventory, preset: presets.Preset, nvml: Report | None) -> Inventory:
    return attrs.evolve(
        found,
        cuda_version=nvml.cuda_version if nvml else "",
        nvml_state="ok" if nvml else "absent",
        layout=preset.name,
        platform=preset.platform,
    )


def _wsl(options: Options, dev: Directory, nvml: Report | None) -> Inventory:
    found = wsl.find(options.driver, dev, nvml)
    version = nvml.driver_version if nvml else ""
    return Inventory(
        driver_version=version,
        libraries_version=version,
        hardware=bool(found.gpus),
        gpus=found.gpus,
        files=found.files,
        problems=found.problems,
    )


def _tegra(options: Options, known: devices.Tables, nvml: Report | None) -> Inventory:
    root = options.driver
    lists = tegra.read(root)
    found = _by_lists(options, known, lists.base, nvml)
    if lists.everything == lists.base:
        return found
    more = _by_lists(options, known, lists.everything, nvml)
    return attrs.evolve(found, with_all_lists=more)


def _by_lists(
    options: Options,
    known: devices.Tables,
    entries: tuple[tegra.Entry, ...],
    nvml: Report | None,
) -> Inventory:
    root = options.driver
    told = nvml.driver_version if nvml else ""
    version = proc.module_version(options.system) or told or tegra.release(root)
    listed = tegra.nodes(entries, known.directory)
    return Inventory(
        driver_version=version,
        libraries_version=version,
        hardware=True,
        gpus=_gpus(options, known, listed, nvml),
        files=tegra.files(entries, root),
        problems=() if entries else (_without_lists(options),),
    )


def _gpus(
    options: Options,
    known: devices.Tables,
    listed: tuple[DeviceNode, ...],
    nvml: Report | None,
) -> tuple[Gpu, ...]:
    """Give the processor's GPU as index 0 and those on the PCI bus behind it.

    Nodes of the PCI ones and of none are theirs alone; what is left of the lists is the first
    one's, and what of that has nothing to do with the nvidia module is needed by all (`nvmap`).
    """
    pci = [gpu for gpu in proc.gpus(options.system) if gpu.minor >= 0 and not gpu.excluded]
    own = next((gpu for gpu in pci if tegra.is_own(gpu)), None)
    others = [gpu for gpu in pci if gpu is not own]
    described = {gpu.bus_id: gpu for gpu in (nvml.gpus if nvml else ())}
    integrated = described.get(own.bus_id if own else "")
    theirs = {f"/dev/nvidia{gpu.minor}" for gpu in others}
    nodes = {node.path: node for node in listed if node.path not in theirs}
    if own and (node := devices.gpu(known, own.minor)) and node.exists:
        nodes[node.path] = node
    first = Gpu(
        index=0,
        uuid=(integrated.uuid if integrated else "") or (own.uuid if own else ""),
        minor=own.minor if own else -1,
        bus_id=own.bus_id if own else "",
        name=integrated.name if integrated else tegra.model(options.system),
        nodes=tuple(nodes.values()),
        problem="" if nodes else f"no node that the lists in {tegra.DIRECTORY} name is there",
    )
    common = tuple(n for n in nodes.values() if not n.path.startswith("/dev/nvidia"))
    control = devices.control(known) if others else ControlNodes()
    controls = (control.ctl, control.uvm, control.uvm_tools, control.modeset)
    beside = (*common, *(node for node in controls if node and node.exists))
    discrete = tuple(
        _described(
            Gpu(
                index=index,
                uuid=gpu.uuid,
                minor=gpu.minor,
                bus_id=gpu.bus_id,
                name=gpu.name,
                node=devices.gpu(known, gpu.minor),
                nodes=_once(beside),
            ),
            described.get(gpu.bus_id),
        )
        for index, gpu in enumerate(others, 1)
    )
    return _described(first, integrated), *discrete


def _described(gpu: Gpu, told: ReportGpu | None) -> Gpu:
    if told is None:
        return gpu
    return attrs.evolve(
        gpu,
        name=told.name or gpu.name,
        brand=told.brand,
        architecture=told.architecture,
        compute_capability=told.compute_capability,
        memory_bytes=told.memory_bytes,
    )


def _once(nodes: Iterable[DeviceNode]) -> tuple[DeviceNode, ...]:
    return tuple({node.path: node for node in nodes}.values())


def _without_lists(options: Options) -> Problem:
    place = options.driver.reported(tegra.DIRECTORY)
    return Problem(
        code="driver-libraries-missing",
        message=f"no list of what belongs to this board's GPU was found: {place} holds no "
        "devices.csv, drivers.csv or l4t.csv",
        hint="install JetPack's container packages (nvidia-container, nvidia-l4t-init)",
    )
