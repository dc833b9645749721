# SPDX-License-Identifier: Apache-2.0
"""Inventories for tests of decisions."""

import attrs

from nri_nvidia.host import model

UUIDS = [f"GPU-{i:x}{i:x}c0ffee-0000-4000-8000-{i:012x}" for i in range(16)]


def node(path, minor, major=195, **more):
    return model.DeviceNode(path=path, host_path=path, major=major, minor=minor, **more)


def gpu(number, *, minor=None, **more):
    minor = number if minor is None else minor
    values = {
        "index": number,
        "uuid": UUIDS[number],
        "minor": minor,
        "bus_id": f"0000:{number + 7:02x}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "node": node(f"/dev/nvidia{minor}", minor),
    }
    return model.Gpu(**{**values, **more})


def library(name, *capabilities, kind=model.FileKind.LIBRARY, source=None, names=None):
    return model.DriverFile(
        kind=kind,
        source=source or f"/usr/lib/x86_64-linux-gnu/{name}.550.163.01",
        names=(name,) if names is None else names,
        capabilities=frozenset(capabilities),
    )


FILES = (
    library("libcuda.so.1", "compute", names=("libcuda.so.1", "libcuda.so")),
    library("libnvidia-ml.so.1", "utility"),
    library("libnvidia-encode.so.1", "video"),
    library("libGLX_nvidia.so.0", "graphics"),
    library("libcuda.so.1", "compute", kind=model.FileKind.LIBRARY32, source="/usr/lib32/libcuda"),
    library("nvidia-smi", "utility", kind=model.FileKind.BINARY, source="/usr/bin/nvidia-smi"),
    model.DriverFile(
        kind=model.FileKind.SOCKET,
        source="/run/nvidia-persistenced/socket",
        destination="/run/nvidia-persistenced/socket",
        capabilities=frozenset({"utility"}),
    ),
    model.DriverFile(
        kind=model.FileKind.FIRMWARE,
        source="/usr/lib/firmware/nvidia/550.163.01/gsp_tu10x.bin",
        destination="/lib/firmware/nvidia/550.163.01/gsp_tu10x.bin",
    ),
)

CONTROL = model.ControlNodes(
    ctl=node("/dev/nvidiactl", 255),
    uvm=node("/dev/nvidia-uvm", 0, 511),
    uvm_tools=node("/dev/nvidia-uvm-tools", 1, 511),
    modeset=node("/dev/nvidia-modeset", 254),
)

EIGHT = model.Inventory(
    driver_version="550.163.01",
    libraries_version="550.163.01",
    cuda_version="12.4",
    hardware=True,
    gpus=tuple(gpu(i) for i in range(8)),
    control=CONTROL,
    files=FILES,
    nvml_state="ok",
    layout="debian",
)


def with_gpus(*gpus, **more):
    return attrs.evolve(EIGHT, gpus=gpus, **more)


def mig_host():
    """Build a host whose GPU 0 is in MIG mode with two devices; GPU 1 is whole."""
    devices = tuple(
        model.MigDevice(
            index=i, uuid=f"MIG-0000000{i}-1111-4222-8333-444444444444", gi=i + 1, ci=0
        )
        for i in range(2)
    )
    caps = [("gpu0/gi1/access", 12), ("gpu0/gi1/ci0/access", 13)]
    caps += [("gpu0/gi2/access", 21), ("gpu0/gi2/ci0/access", 22)]
    return with_gpus(
        gpu(0, mig_enabled=True, mig_devices=devices),
        gpu(1),
        caps_nodes=tuple(
            (cap, node(f"/dev/nvidia-caps/nvidia-cap{minor}", minor, 508)) for cap, minor in caps
        ),
    )


def mig(gi, ci=0, index=0, **more):
    """Give a MIG device."""
    uuid = f"MIG-0000000{index}-1111-4222-8333-4444444444{gi:02x}"
    return model.MigDevice(index=index, uuid=uuid, gi=gi, ci=ci, **more)
