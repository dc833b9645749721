# SPDX-License-Identifier: Apache-2.0
"""Whether the nodes that a GPU or MIG device needs can be had, and why not."""

import types
from collections.abc import Iterator, Mapping

from nri_nvidia import errors

from . import derived
from .model import DeviceNode, Gpu, Inventory, MigDevice, Platform, Problem


def name(gpu: Gpu, mig: MigDevice | None = None) -> str:
    """Give what a person calls it: `GPU 2 (0000:17:00.0)`, `MIG device 0:1 (MIG-…)`."""
    if mig:
        return f"MIG device {gpu.index}:{mig.index} ({mig.uuid})"
    return f"GPU {gpu.index} ({gpu.bus_id or gpu.name})"


def out_of_reach(gpu: Gpu, mig: MigDevice | None, inventory: Inventory) -> errors.HostError | None:
    """Give the error for the first node that is needed and cannot be had; None where all can."""
    if gpu.problem:
        return errors.HostError(
            f"{name(gpu, mig)}: {gpu.problem}",
            hint="dmesg shows what befell it; a reset of the GPU or of the node may bring it back",
            code="gpu-not-answering",
        )
    if gpu.node is None and not gpu.nodes:
        if gpu.minor >= 0:
            # The kernel lists the GPU, and no character major for it.
            return unknown_node(f"/dev/nvidia{gpu.minor}", "nvidia")
        return errors.HostError(
            f"{name(gpu, mig)}: the kernel tells no device minor: its file information below "
            "/proc/driver/nvidia/gpus cannot be read or has no line Device Minor",
            hint="dmesg shows what the driver said of it",
            code="device-node-missing",
        )
    known = capability_nodes(inventory)
    nodes = [*([gpu.node] if gpu.node else []), *gpu.nodes]
    for capability in mig_capabilities(gpu, mig):
        if capability not in known:
            return errors.HostError(
                f"{name(gpu, mig)}: the kernel lists no MIG capability {capability}",
                hint="the MIG layout changed meanwhile: nri-nvidia devices shows it now",
                code="mig-capability-missing",
            )
        nodes.append(known[capability])
    return next((missing_node(node) for node in nodes if not node.exists), None)


def left_out(gpu: Gpu, mig: MigDevice | None, problem: errors.Error) -> str:
    """Say that a GPU or MIG device is not given, with its name once."""
    called = name(gpu, mig)
    return f"{called} is left out: {problem.message.removeprefix(f'{called}: ')}"


@derived.kept
def capability_nodes(inventory: Inventory) -> Mapping[str, DeviceNode]:
    """Give the nodes of the MIG tree by their capabilities."""
    return types.MappingProxyType(dict(inventory.caps_nodes))


def mig_capabilities(gpu: Gpu, mig: MigDevice | None) -> tuple[str, ...]:
    """Name the capabilities of the MIG tree that a device needs; the number is the GPU's minor."""
    if mig is None:
        return ()
    instance = f"gpu{gpu.minor}/gi{mig.gi}"
    return f"{instance}/access", f"{instance}/ci{mig.ci}/access"


def problems(inventory: Inventory) -> Iterator[Problem]:
    """Give the nodes that containers with the usual capabilities need and that cannot be had."""
    if not inventory.driven or not inventory.usable:
        return
    control = inventory.control
    needed = (
        (control.ctl, "/dev/nvidiactl", "nvidia"),
        (control.uvm, "/dev/nvidia-uvm", "nvidia-uvm"),
        (control.uvm_tools, "/dev/nvidia-uvm-tools", "nvidia-uvm"),
    )
    for node, path, module in needed if inventory.platform is Platform.PCI else ():
        error = unknown_node(path, module) if node is None else None
        if node and not node.exists:
            error = missing_node(node)
        if error:
            yield _problem(error)
    for gpu in inventory.usable:
        for mig in gpu.mig_devices or (None,):
            error = out_of_reach(gpu, mig, inventory)
            if error:
                yield _problem(error)


def unknown_node(path: str, module: str) -> errors.HostError:
    """Give the error for a node of which the kernel has no number."""
    return errors.HostError(
        f"{path} is needed, and the kernel knows no such device: the module {module} is not "
        "loaded",
        hint=f"load it: modprobe {module}",
        code="kernel-module-not-loaded",
    )


def missing_node(node: DeviceNode) -> errors.HostError:
    """Give the error for a node that is not there, with the command that makes it."""
    make = f"mknod -m 666 {node.host_path} c {node.major} {node.minor}"
    found = node.problem or f"{node.host_path} is missing"
    message, _, command = found.partition("; run: ")
    return errors.HostError(message, hint=f"run: {command or make}", code="device-node-missing")


def _problem(error: errors.Error) -> Problem:
    return Problem(code=error.code, message=error.message, hint=error.hint)
