# SPDX-License-Identifier: Apache-2.0
"""What a container gets beside GPUs by asking: IMEX channels, groups of nodes, MIG management."""

import posixpath
import re
from collections.abc import Iterable, Iterator

from nri_nvidia import errors, refusals, resolve
from nri_nvidia.edits import devices, model
from nri_nvidia.host import derived, reach
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import extras
from nri_nvidia.request import model as request_model

_CHANNEL = re.compile(r"(?:channel)?([0-9]{1,7})", re.ASCII)
_CHANNELS = "/dev/nvidia-caps-imex-channels"
# The driver's ids are those of a device number's minor (toolkit `pkg/nvcdi/lib-imex.go`).
_HIGHEST = (1 << 20) - 1
_MOST_LISTED = 16
_MOST_CHANNELS = 2048  # as many as a driver has unless told otherwise
_DRI = "dri"
_NEEDS_DRM = {request_model.Capability.GRAPHICS, request_model.Capability.DISPLAY}
_READ_ONLY = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")

# What each group's nodes are called, and what makes them appear.
_GROUPS = {
    request_model.Group.GDS: ("/dev/nvidia-fs*", "load GPUDirect Storage: modprobe nvidia-fs"),
    request_model.Group.MOFED: (
        "/dev/infiniband/uverbs* or rdma_cm",
        "install the InfiniBand drivers: modprobe ib_uverbs rdma_ucm",
    ),
    request_model.Group.GDRCOPY: ("/dev/gdrdrv", "load GDRCopy's module: modprobe gdrdrv"),
    request_model.Group.NVSWITCH: (
        "/dev/nvidia-nvswitchctl or nvidia-nvswitch*",
        "only nodes whose NVSwitches are driven by their own kernel have them",
    ),
}


def build(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    container: containers.Container,
) -> tuple[model.ContainerEdits, tuple[Reason, ...]]:
    """Give the nodes and mounts, and what should be said of a group that is not there.

    Raises RequestError for a channel that cannot be and HostError for one that is not there: a
    container that counts on it would wait for its peers for ever. A group that is not there is no
    error, as in NVIDIA's own stack: images ask for it wherever they run.
    """
    drm = bool(allocation.assigned) and not _NEEDS_DRM.isdisjoint(request.capabilities)
    if not (drm or request.groups or request.imex_channels or request.mig_management):
        return model.ContainerEdits(), ()
    nodes = [
        *_of_groups(request.groups, inventory),
        *_channels(request, inventory, own_users=container.user_namespace),
        *_management(request, allocation, inventory),
    ]
    taken = {device.path: device for device in container.devices}
    wanted = {*request.groups, *([_DRI] if drm and _has_drm(allocation) else [])}
    mounts, kept = _mounts(wanted, inventory, container.mounts)
    edits = devices.given(nodes, taken).merged(model.ContainerEdits(mounts=mounts))
    return edits, (*_missing(request, inventory, container), *kept)


@derived.kept
def above(inventory: host.Inventory) -> frozenset[str]:
    """Give the places of what comes with groups, and all above: a mount elsewhere is no matter.

    Each also by the name that it has without /var, as `driver.places` tells a mount's.
    """
    found: set[str] = set()
    for mount in inventory.extra_mounts:
        place = mount.destination
        while place not in found:
            found.add(place)
            place = posixpath.dirname(place)
    return frozenset({*found, *(place.removeprefix("/var") for place in found)})


def channel_numbers(request: request_model.GpuRequest) -> frozenset[int]:
    """Give the IMEX channels that are asked for by number, those that can be."""
    if len(request.imex_channels) > _MOST_CHANNELS:
        return frozenset()
    matches = (_CHANNEL.fullmatch(channel) for channel in request.imex_channels)
    return frozenset(int(match[1]) for match in matches if match and int(match[1]) <= _HIGHEST)


def _of_groups(
    groups: Iterable[request_model.Group], inventory: host.Inventory
) -> Iterator[host.DeviceNode]:
    for group in groups:
        yield from (node for name, node in inventory.extra_nodes if name == group)


def _missing(
    request: request_model.GpuRequest, inventory: host.Inventory, container: containers.Container
) -> Iterator[Reason]:
    there = {name for name, _node in inventory.extra_nodes}
    by_variable = extras.groups(container.environment())
    for group in request.groups:
        if group not in there:
            nodes, hint = _GROUPS[group]
            named = refusals.asked(request, extras.name(group))
            asked = f"{extras.variable(group)}=enabled" if group in by_variable else named
            yield Reason(
                code="group-not-there",
                message=f"{asked}: this node has no {nodes}, so nothing is given for it",
                hint=hint,
            )


def _channels(
    request: request_model.GpuRequest, inventory: host.Inventory, *, own_users: bool
) -> Iterator[host.DeviceNode]:
    """Give the nodes of the IMEX channels; `own_users` tells of a user namespace."""
    if "all" in request.imex_channels:
        if not inventory.imex_channels:
            raise _no_channel("all", inventory)
        yield from inventory.imex_channels
        return
    if len(request.imex_channels) > _MOST_CHANNELS:
        raise errors.RequestError(
            f"{len(request.imex_channels)} IMEX channels are named; at most {_MOST_CHANNELS} are "
            "given to one container",
            hint="name those that it uses",
            code="too-many-imex-channels",
        )
    there = {node.path: node for node in inventory.imex_channels}
    for channel in request.imex_channels:
        path = f"{_CHANNELS}/channel{_number(channel)}"
        node = there.get(path) or _to_be_made(path, int(_number(channel)), inventory)
        if node is None:
            raise _no_channel(channel, inventory)
        if own_users and path not in there:
            # There a runtime makes no node but binds the host's.
            raise reach.missing_node(node)
        yield node


def _number(channel: str) -> str:
    """Give the number of a channel as its node's name has it; raises RequestError."""
    match = _CHANNEL.fullmatch(channel)
    if match is None or int(match[1]) > _HIGHEST:
        raise errors.RequestError(
            f"IMEX channel {channel}: no such channel can be: they are numbered from 0 to "
            f"{_HIGHEST}",
            hint="write NVIDIA_IMEX_CHANNELS=0, or a list of numbers",
            code="invalid-imex-channel",
        )
    return match[1]


def _to_be_made(path: str, number: int, inventory: host.Inventory) -> host.DeviceNode | None:
    """Give a channel whose node is not there, if the driver serves it: its numbers are enough."""
    written_so = path.endswith(f"/channel{number}")  # as the driver writes it: not channel00
    if inventory.imex_major < 0 or number >= inventory.imex_count or not written_so:
        return None
    return host.DeviceNode(path=path, host_path=path, major=inventory.imex_major, minor=number)


def _no_channel(channel: str, inventory: host.Inventory) -> errors.HostError:
    numbers = [node.minor for node in inventory.imex_channels]
    listed = ", ".join(map(str, numbers[:_MOST_LISTED]))
    listed += " and more" if len(numbers) > _MOST_LISTED else ""
    asked = f"IMEX channel {channel}"
    if inventory.imex_major < 0 and not numbers:
        message = f"{asked}: this node's driver has no IMEX channels"
        hint = "only GPUs that NVLink joins across nodes have them"
    elif inventory.imex_count and channel != "all":
        message = f"{asked}: this node has the channels 0-{inventory.imex_count - 1}"
        hint = "their number is the module option NVreg_ImexChannelCount"
    else:
        message = f"{asked}: {_CHANNELS} has no such node; it has {listed or 'none'}"
        node = f"{_CHANNELS}/channelN"
        hint = f"make it: mknod -m 666 {node} c {inventory.imex_major} N" * (
            inventory.imex_major >= 0
        )
    return errors.HostError(message, hint=hint, code="imex-channel-missing")


def _management(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    inventory: host.Inventory,
) -> Iterator[host.DeviceNode]:
    """Give the nodes of the rights over MIG, and to divide GPUs those of their instances.

    Raises RequestError where MIG devices were asked for one by one (libnvidia-container
    `cli/configure.c`), HostError where the driver has no such capability.
    """
    if not request.mig_management:
        return
    kinds = " and ".join(f"NVIDIA_MIG_{kind.upper()}_DEVICES" for kind in request.mig_management)
    if not request.wants_all and any(item.mig for item in allocation.assigned):
        raise errors.RequestError(
            f"{kinds}: a container that is given single MIG devices cannot have the right over "
            "all of them",
            hint=f"ask for whole GPUs, or remove {kinds}",
            code="mig-management-with-mig-device",
        )
    known = reach.capability_nodes(inventory)
    for kind in request.mig_management:
        if kind not in known:
            raise errors.HostError(
                f"{kinds}: the kernel lists no MIG capability {kind}: the driver or its GPUs have "
                "no MIG",
                hint="see /proc/driver/nvidia/capabilities/mig",
                code="mig-capability-missing",
            )
        yield known[kind]
    if request_model.MigManagement.CONFIG in request.mig_management:
        for gpu in dict.fromkeys(item.gpu for item in allocation.assigned):
            instances = f"gpu{gpu.minor}/"
            yield from (node for name, node in known.items() if name.startswith(instances))


def _has_drm(allocation: resolve.Allocation) -> bool:
    return any(
        item.gpu.dri_nodes for item in allocation.assigned if item.mig is None or item.mig.gfx
    )


def _mounts(
    groups: set[str], inventory: host.Inventory, own: Iterable[containers.Mount]
) -> tuple[tuple[model.MountEdit, ...], tuple[Reason, ...]]:
    """Give what comes with the groups; a mount of the container's own at its place is kept."""
    given = [mount for mount in inventory.extra_mounts if mount.group in groups]
    if not given:
        return (), ()
    # A runtime makes /dev and /run for the container: what comes from outside counts alone.
    places = {
        posixpath.normpath(mount.destination) for mount in own if mount.source.startswith("/")
    }
    found: list[model.MountEdit] = []
    kept: list[str] = []
    for mount in given:
        above = [place for place in places if _is_at_or_above(place, mount.destination)]
        if not above:
            found.append(
                model.MountEdit(
                    source=mount.source, destination=mount.destination, options=_READ_ONLY
                )
            )
        elif mount.group != _DRI:
            kept.append(f"{mount.destination} ({above[0]})")
    reasons = tuple(
        Reason(
            code="users-mount-kept",
            message=f"the container has a mount of its own for {place}: it is kept, and this "
            "node's is not given",
        )
        for place in kept
    )
    return tuple(found), reasons


def _is_at_or_above(place: str, path: str) -> bool:
    return place == path or path.startswith(place.rstrip("/") + "/")
