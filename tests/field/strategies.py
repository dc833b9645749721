# SPDX-License-Identifier: Apache-2.0
"""Nodes of all kinds, as inventories."""

import attrs
from hypothesis import strategies as st

from nri_nvidia.host import model
from tests import inventories


@st.composite
def hosts(draw):
    """Draw a node: 1-8 GPUs with minors in any order, dynamic majors, some divided by MIG."""
    count = draw(st.integers(1, 8))
    minors = draw(st.permutations(range(count)))
    uvm, caps_major = draw(st.lists(st.integers(200, 511), min_size=2, max_size=2, unique=True))
    gpus, caps = [], []
    for index, minor in enumerate(minors):
        migs = draw(st.integers(0, 3)) if draw(st.booleans()) else 0
        gpus.append(
            inventories.gpu(
                index,
                minor=minor,
                mig_enabled=bool(migs),
                mig_devices=tuple(mig(index, number) for number in range(migs)),
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
    return attrs.evolve(
        inventories.EIGHT, gpus=tuple(gpus), control=control, caps_nodes=tuple(caps)
    )


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
