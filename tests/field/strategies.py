# SPDX-License-Identifier: Apache-2.0
"""Nodes of all kinds, as inventories."""

import attrs
from hypothesis import strategies as st

from nri_nvidia.host import model
from nri_nvidia.request import extras
from nri_nvidia.request import model as request_model
from nri_nvidia.testing import host_kernel
from tests import inventories


@st.composite
def hosts(draw):
    """Draw a node: 1-8 GPUs with minors in any order, dynamic majors, some divided by MIG.

    Some have DRM nodes, whose numbers are not the GPUs'; some have nodes that are given on request.
    """
    count = draw(st.integers(1, 8))
    minors = draw(st.permutations(range(count)))
    uvm, caps_major = draw(st.lists(st.integers(200, 511), min_size=2, max_size=2, unique=True))
    drm = draw(st.one_of(st.none(), st.permutations(range(count))))
    gpus, caps = [], []
    for index, minor in enumerate(minors):
        migs = draw(st.integers(0, 3)) if draw(st.booleans()) else 0
        gpus.append(
            inventories.gpu(
                index,
                minor=minor,
                mig_enabled=bool(migs),
                mig_devices=tuple(mig(index, number) for number in range(migs)),
                dri_nodes=() if drm is None else drm_nodes(drm[index]),
            )
        )
        for number in range(migs):
            first = 3 + 135 * minor + 9 * (number + 1)
            paths = (f"gi{number + 1}/access", f"gi{number + 1}/ci0/access")
            for offset, path in enumerate(paths):
                node = cap_node(first + offset, caps_major)
                caps.append((f"gpu{minor}/{path}", node))
    control = model.ControlNodes(
        ctl=inventories.node("/dev/nvidiactl", 255),
        uvm=inventories.node("/dev/nvidia-uvm", 0, uvm),
        uvm_tools=inventories.node("/dev/nvidia-uvm-tools", 1, uvm),
        modeset=inventories.node("/dev/nvidia-modeset", 254),
    )
    groups = draw(st.sets(st.sampled_from(sorted(host_kernel.GROUPS))))
    channels = draw(st.sets(st.integers(0, 2047), max_size=4))
    return attrs.evolve(
        inventories.EIGHT,
        gpus=tuple(gpus),
        control=control,
        caps_nodes=tuple(caps),
        extra_nodes=tuple(
            (group, inventories.node(f"/dev/{name}", minor, 600 + major))
            for group in sorted(groups)
            for name, major, minor in host_kernel.GROUPS[group]
        ),
        imex_major=599,
        imex_count=draw(st.sampled_from([0, 2048])),
        imex_channels=tuple(
            inventories.node(f"/dev/nvidia-caps-imex-channels/channel{number}", number, 599)
            for number in sorted(channels)
        ),
    )


def drm_nodes(place):
    """Make a GPU's two DRM nodes with the rights that udev gives them."""
    return tuple(
        inventories.node(f"/dev/dri/{name}{first + place}", first + place, 226, mode=0o660, gid=44)
        for name, first in (("card", 1), ("renderD", 129))
    )


@st.composite
def further(draw, inventory):
    """Draw variables that ask for nodes beside GPUs, all of which this node can give."""
    env = draw(
        st.sets(st.sampled_from([f"{extras.variable(g)}=enabled" for g in request_model.Group]))
    )
    most = inventory.imex_count - 1
    channels = [node.minor for node in inventory.imex_channels]
    wanted = st.integers(0, most) if most > 0 else st.sampled_from(channels or [None])
    chosen = [str(n) for n in draw(st.sets(wanted, max_size=3)) if n is not None]
    return sorted(env) + ([f"NVIDIA_IMEX_CHANNELS={','.join(chosen)}"] if chosen else [])


def mig(gpu, number):
    """Make a GPU's MIG device."""
    return model.MigDevice(
        index=number,
        uuid=f"MIG-{gpu:08x}-0000-4000-8000-{number:012x}",
        gi=number + 1,
        ci=0,
        profile="1g.10gb",
    )


def cap_node(minor, major):
    """Make a capability's node with the rights that the driver gives it."""
    path = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return model.DeviceNode(path=path, host_path=path, major=major, minor=minor, mode=0o444)


@st.composite
def asks(draw, inventory):
    """Draw a value of NVIDIA_VISIBLE_DEVICES that this node can give."""
    names = ["all", "none"]
    for gpu in inventory.gpus:
        names += [str(gpu.index), gpu.uuid, gpu.uuid[:12], gpu.bus_id]
        names += [device.uuid for device in gpu.mig_devices]
        names += [f"{gpu.index}:{device.index}" for device in gpu.mig_devices]
    chosen = draw(st.lists(st.sampled_from(names[2:]), min_size=1, max_size=4))
    return draw(st.sampled_from([*names[:2], ",".join(chosen)]))


CAPABILITIES = st.sampled_from(
    ["compute", "utility", "compute,utility", "video", "graphics", "display", "all", "", ","]
)
