# SPDX-License-Identifier: Apache-2.0
"""Device nodes: the GPUs', their MIG capabilities', DRM and control nodes."""

from collections.abc import Iterable, Iterator, Mapping

import attrs

from nri_nvidia import errors, resolve
from nri_nvidia.edits import model
from nri_nvidia.host import derived, reach
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model

_NEEDS_UVM = {request_model.Capability.COMPUTE, request_model.Capability.VIDEO}
_NEEDS_DRM = {request_model.Capability.GRAPHICS, request_model.Capability.DISPLAY}
_OF_ALL = 0o666


def build(
    capabilities: frozenset[request_model.Capability],
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    in_spec: Iterable[containers.Device],
) -> model.ContainerEdits:
    """Give the nodes that are not in the spec yet.

    Which control node a capability needs follows libnvidia-container (`nvc_driver_mount`). Raises
    HostError for a node that is needed and missing, RequestError for one whose place in the spec
    another device has; none is left out silently.
    """
    taken = {device.path: device for device in in_spec}
    if taken.keys().isdisjoint(_paths(inventory)):
        return _untaken(inventory, capabilities, allocation.assigned)
    return _build(capabilities, allocation.assigned, inventory, taken)


@derived.kept
def _untaken(
    inventory: host.Inventory,
    capabilities: frozenset[request_model.Capability],
    assigned: tuple[resolve.Assigned, ...],
) -> model.ContainerEdits:
    """Give the nodes for a container whose spec holds none of them, as nearly all are."""
    return _build(capabilities, assigned, inventory, {})


@derived.kept
def _paths(inventory: host.Inventory) -> frozenset[str]:
    control = inventory.control
    gpus = (node for gpu in inventory.gpus for node in (gpu.node, *gpu.dri_nodes))
    caps = (node for _name, node in inventory.caps_nodes)
    more = (node for gpu in inventory.gpus for node in gpu.nodes)
    nodes = (control.ctl, control.uvm, control.uvm_tools, control.modeset, *gpus, *caps, *more)
    return frozenset(node.path for node in nodes if node)


def _build(
    capabilities: frozenset[request_model.Capability],
    assigned: tuple[resolve.Assigned, ...],
    inventory: host.Inventory,
    taken: Mapping[str, containers.Device],
) -> model.ContainerEdits:
    nodes = [*_control_nodes(capabilities, inventory), *_gpu_nodes(assigned, inventory)]
    if capabilities & _NEEDS_DRM:
        nodes += map(_opened, _drm_nodes(assigned))
    return given(nodes, taken)


def _without_modeset(
    capabilities: frozenset[request_model.Capability], control: host.ControlNodes
) -> tuple[Reason, ...]:
    """Say where graphics lacks a node that some of its programs look for, and others do not."""
    display, graphics = request_model.Capability.DISPLAY, request_model.Capability.GRAPHICS
    if display in capabilities or graphics not in capabilities:
        return ()
    if _may_set_modes(capabilities, control):
        return ()
    return (
        Reason(
            code="modeset-left-out",
            message="/dev/nvidia-modeset is not on this node: graphics is given without it, and "
            "Vulkan may find no GPU",
            hint="load it: modprobe nvidia-modeset",
        ),
    )


def _may_set_modes(
    capabilities: frozenset[request_model.Capability], control: host.ControlNodes
) -> bool:
    """Tell whether graphics has the modeset node: where it is there, as in the toolkit's CDI."""
    there = control.modeset is not None and control.modeset.exists
    return there and request_model.Capability.GRAPHICS in capabilities


def given(
    nodes: Iterable[host.DeviceNode], taken: Mapping[str, containers.Device]
) -> model.ContainerEdits:
    """Give nodes but those that the spec has; raises as `build` does."""
    edits = {}
    for node in nodes:
        if node.path in taken:
            _require_same(node, taken[node.path])
            continue
        if not node.exists:
            raise reach.missing_node(node)
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


def possible(
    request: request_model.GpuRequest, inventory: host.Inventory
) -> tuple[frozenset[request_model.Capability], tuple[Reason, ...]]:
    """Give the capabilities whose nodes are looked for, and what is said of one left out.

    Many images ask for all capabilities, and servers have no use for the modeset node: where
    display is not asked for by name it is done without.
    """
    display, modeset = request_model.Capability.DISPLAY, inventory.control.modeset
    if inventory.platform is not host.Platform.PCI:
        return request.capabilities, ()
    if not request.all_capabilities or display not in request.capabilities:
        return request.capabilities, _without_modeset(request.capabilities, inventory.control)
    if modeset and modeset.exists:
        return request.capabilities, ()
    return request.capabilities - {display}, (
        Reason(
            code="display-left-out",
            message="all capabilities were asked for, and display is not among those of this "
            "node: /dev/nvidia-modeset is not there",
            hint="load it: modprobe nvidia-modeset; or name the capabilities that are needed",
        ),
    )


def shared(
    capabilities: frozenset[request_model.Capability], assigned: Iterable[resolve.Assigned]
) -> tuple[Reason, ...]:
    """Say what a container in a user namespace cannot use: there a node keeps the host's rights.

    Its users are none of the host's, so neither are its groups those that a DRM node belongs to.
    """
    nodes = _drm_nodes(assigned) if capabilities & _NEEDS_DRM else ()
    closed = [node for node in nodes if node.mode & 0o006 != 0o006]
    if not closed:
        return ()
    return (
        Reason(
            code="drm-nodes-closed",
            message=f"{', '.join(node.path for node in closed)}: a container in a user namespace "
            "sees them with this node's own rights, which give others no access",
            hint='let others read and write them (udev: MODE="0666"), or run the container '
            "without a user namespace (hostUsers: true)",
        ),
    )


def groups_needed(nodes: Iterable[model.DeviceEdit]) -> tuple[Reason, ...]:
    """Say which groups besides root the nodes are for, where they keep the host's rights.

    So it is on a Jetson, and where the module's option NVreg_DeviceFileGID is set.
    """
    closed = [node for node in nodes if node.gid and node.mode & 0o006 != 0o006]
    if not closed:
        return ()
    first = f"{closed[0].path} ({closed[0].mode:04o}, group {closed[0].gid})"
    more = f" and {len(closed) - 1} more nodes" if closed[1:] else ""
    groups = ", ".join(str(gid) for gid in sorted({node.gid for node in closed}))
    return (
        Reason(
            code="groups-needed",
            message=f"{first}{more} can be opened by root and members of a group alone: a process "
            f"of another user needs the supplementary group {groups}",
            hint=f"securityContext.supplementalGroups: [{groups}]",
        ),
    )


def require_own_paths(nodes: Iterable[model.DeviceEdit]) -> None:
    """Raise HostError for nodes that a container in a user namespace cannot be given.

    There a runtime makes no node but binds that of the same path, so one below another dev root
    would be a different one or none (runc, "bind mount device nodes in a user namespace").
    """
    for node in nodes:
        if node.host_path != node.path:
            raise errors.HostError(
                f"{node.path} is {node.host_path} on this node: a container in a user namespace "
                "can be given devices of the host's own /dev alone",
                hint="set host.dev_root to /, or run the container without a user namespace "
                "(hostUsers: true)",
                code="user-namespace-dev-root",
            )


def _require_same(node: host.DeviceNode, device: containers.Device) -> None:
    same = (device.major, device.minor) == (node.major, node.minor)
    if device.major < 0 or (same and device.type == "c"):
        return
    kind = "" if device.type == "c" else f"{device.type} "
    raise errors.RequestError(
        f"{node.path} in the container's spec is the device {kind}{device.major}:{device.minor}, "
        f"the driver's is {node.major}:{node.minor}: a program would not find it",
        hint="remove that device from the container, or let what gave it give the right one",
        code="device-path-taken",
    )


def _control_nodes(
    capabilities: frozenset[request_model.Capability], inventory: host.Inventory
) -> Iterator[host.DeviceNode]:
    if not inventory.driver_version or inventory.platform is not host.Platform.PCI:
        return
    control = inventory.control
    yield _known(control.ctl, "/dev/nvidiactl", "nvidia")
    if capabilities & _NEEDS_UVM:
        yield _known(control.uvm, "/dev/nvidia-uvm", "nvidia-uvm")
        yield _known(control.uvm_tools, "/dev/nvidia-uvm-tools", "nvidia-uvm")
    if request_model.Capability.DISPLAY in capabilities:
        yield _known(control.modeset, "/dev/nvidia-modeset", "nvidia-modeset")
    elif _may_set_modes(capabilities, control) and control.modeset:
        yield control.modeset


def _drm_nodes(assigned: Iterable[resolve.Assigned]) -> Iterator[host.DeviceNode]:
    """Give the DRM nodes of the GPUs given, and of those of which a MIG device can do graphics."""
    for item in assigned:
        if item.mig is None or item.mig.gfx:
            yield from item.gpu.dri_nodes


def _opened(node: host.DeviceNode) -> host.DeviceNode:
    """Give a group's node as one for all.

    On a host DRM nodes belong to a group (video, render), which the toolkit makes a further group
    of the container's process (`internal/edits/device.go`). A runtime takes no groups from NRI,
    so the container's own node is for all: whoever may reach it is in that container.
    """
    closed = node.gid != 0 and node.mode & 0o006 != 0o006
    return attrs.evolve(node, mode=node.mode | _OF_ALL) if closed else node


def _known(node: host.DeviceNode | None, path: str, module: str) -> host.DeviceNode:
    if node is None:
        raise reach.unknown_node(path, module)
    return node


def _gpu_nodes(
    assigned: Iterable[resolve.Assigned], inventory: host.Inventory
) -> Iterator[host.DeviceNode]:
    caps = reach.capability_nodes(inventory)
    for item in assigned:
        problem = reach.out_of_reach(item.gpu, item.mig, inventory)
        names = reach.mig_capabilities(item.gpu, item.mig)
        known = item.gpu.node or item.gpu.nodes
        if problem and (not known or not caps.keys() >= set(names)):
            raise problem
        # One that is only missing may be in the spec already; `build` looks at that.
        if item.gpu.node:
            yield item.gpu.node
        yield from item.gpu.nodes
        yield from (caps[name] for name in names)
