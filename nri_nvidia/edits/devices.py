# SPDX-License-Identifier: Apache-2.0
"""Device nodes: the GPUs', their MIG capabilities' and the control nodes."""

from collections.abc import Iterable, Iterator

from nri_nvidia import errors, resolve
from nri_nvidia.edits import model
from nri_nvidia.host import model as host
from nri_nvidia.request import model as request_model

_NEEDS_UVM = {request_model.Capability.COMPUTE, request_model.Capability.VIDEO}


def build(
    capabilities: frozenset[request_model.Capability],
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    in_spec: frozenset[str],
) -> model.ContainerEdits:
    """Give the nodes that are not in the spec yet.

    Which control node a capability needs follows libnvidia-container (`nvc_driver_mount`). Raises
    HostError for a node that is needed and missing; none is left out silently.
    """
    nodes = [
        *_control_nodes(capabilities, inventory),
        *_gpu_nodes(allocation.assigned, inventory),
    ]
    edits = {}
    for node in nodes:
        if node.path in in_spec:
            continue
        if not node.exists:
            raise errors.HostError(
                node.problem or f"{node.host_path}: the device node is missing on this node",
                hint="" if node.problem else _how_to_make(node),
                code="device-node-missing",
            )
        edits[node.path] = model.DeviceEdit(
            path=node.path,
            host_path=node.host_path,
            major=node.major,
            minor=node.minor,
            mode=node.mode,
            uid=node.uid,
            gid=node.gid,
        )
    return model.ContainerEdits(devices=tuple(edits.values()))


def _control_nodes(
    capabilities: frozenset[request_model.Capability], inventory: host.Inventory
) -> Iterator[host.DeviceNode]:
    if not inventory.driver_version:
        return
    control = inventory.control
    yield _known(control.ctl, "/dev/nvidiactl", "nvidia")
    if capabilities & _NEEDS_UVM:
        yield _known(control.uvm, "/dev/nvidia-uvm", "nvidia-uvm")
        yield _known(control.uvm_tools, "/dev/nvidia-uvm-tools", "nvidia-uvm")
    if request_model.Capability.DISPLAY in capabilities:
        yield _known(control.modeset, "/dev/nvidia-modeset", "nvidia-modeset")


def _known(node: host.DeviceNode | None, path: str, module: str) -> host.DeviceNode:
    if node is None:
        raise errors.HostError(
            f"{path} is needed, and the kernel knows no such device: the module {module} is not "
            "loaded",
            hint=f"load it: modprobe {module}",
            code="kernel-module-not-loaded",
        )
    return node


def _gpu_nodes(
    assigned: Iterable[resolve.Assigned], inventory: host.Inventory
) -> Iterator[host.DeviceNode]:
    caps = dict(inventory.caps_nodes)
    for item in assigned:
        if item.gpu.node is None:
            raise errors.HostError(
                f"GPU {item.gpu.index} ({item.gpu.bus_id}): the kernel tells no device minor",
                hint="dmesg shows what the driver said of it",
                code="device-node-missing",
            )
        yield item.gpu.node
        if item.mig is None:
            continue
        instance = f"gpu{item.gpu.minor}/gi{item.mig.gi}"
        for capability in (f"{instance}/access", f"{instance}/ci{item.mig.ci}/access"):
            node = caps.get(capability)
            if node is None:
                raise errors.HostError(
                    f"{item.mig.uuid}: the kernel lists no MIG capability {capability}",
                    hint="the MIG layout changed meanwhile: nri-nvidia devices shows it now",
                    code="mig-capability-missing",
                )
            yield node


def _how_to_make(node: host.DeviceNode) -> str:
    return f"make it: mknod -m 666 {node.host_path} c {node.major} {node.minor}"
