# SPDX-License-Identifier: Apache-2.0
"""The kernel's side of a simulated host: /proc, /sys, /dev and NVML's document."""

import json
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from . import host_spec
from .host_spec import GpuSpec, HostSpec

# 195 is NVIDIA's own number; the others stand for dynamic ones and have no driver behind them, so
# that opening a node answers ENXIO where the device cgroup lets it.
MAJORS = {"nvidia": 195, "nvidia-uvm": 511, "nvidia-caps": 508, "nvidia-caps-imex-channels": 507}
DRI_MAJOR = 226

# The nodes of each group as name, major, minor. InfiniBand's major is the kernel's own, rdma_cm is
# a misc device; the others' are dynamic.
GROUPS = {
    "gds": (("nvidia-fs0", 506, 0), ("nvidia-fs1", 506, 1)),
    "mofed": (("infiniband/rdma_cm", 10, 58), ("infiniband/uverbs0", 231, 192)),
    "gdrcopy": (("gdrdrv", 505, 0),),
    "nvswitch": (("nvidia-nvswitch0", 504, 0), ("nvidia-nvswitchctl", 504, 255)),
}
_GROUP_MAJORS = {"gds": "nvidia-fs", "gdrcopy": "gdrdrv", "nvswitch": "nvidia-nvswitch"}

Node = tuple[str, int, int, int, int, int]

_PARAMS = """\
ResmanDebugLevel: 4294967295
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
"""

_CAPS_PER_GI = 9
_CAPS_PER_GPU = 15 * _CAPS_PER_GI


def write(top: pathlib.Path, spec: HostSpec) -> None:
    """Write what the kernel shows."""
    files = dict(_hardware(spec))
    if spec.driver:
        files.update(_module(spec))
    files["proc/devices"] = _devices(spec)
    files["proc/sys/kernel/osrelease"] = "6.1.0-18-amd64\n"
    if spec.nvml and spec.driver:
        document = json.dumps(nvml_document(spec), indent=1, sort_keys=True)
        files["nvml.json"] = f"{document}\n"
    for path, text in files.items():
        put(top / path, text.encode())
    if "gds" in spec.groups:
        put(top / "etc/cufile.json", b"{}\n")
        put(top / "run/udev/data/c506:0", b"")
    for at, gpu in enumerate(spec.gpus) if spec.drm and spec.driver else ():
        _write_links(top / "dev/dri/by-path", host_spec.bus_id_of(gpu, at), at)
    write_nodes(top, spec, dict(nodes(spec)) if spec.driver else {})


def put(path: pathlib.Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def nodes(spec: HostSpec) -> Iterator[tuple[str, Node]]:
    """Give the nodes that the host's /dev holds, as path and numbers."""
    yield from (entry for entry in _all_nodes(spec) if entry[0] not in spec.missing_nodes)


def nvml_document(spec: HostSpec) -> dict[str, Any]:
    """Give what NVML says of the host."""
    usable = [(at, gpu) for at, gpu in enumerate(spec.gpus) if not gpu.excluded]
    order = spec.nvml_order or tuple(range(len(usable)))
    told: list[dict[str, Any]] = []
    errors: list[str] = []
    for index, (at, gpu) in sorted(zip(order, usable, strict=True), key=lambda pair: pair[0]):
        if gpu.initialised:
            told.append(described(gpu, at, index))
        else:
            errors.append(f"GPU {index}: Unknown Error")
    document = {"driver_version": spec.driver, "cuda_version": spec.cuda, "gpus": told}
    return {**document, "errors": errors} if errors else document


def cap_minor(gpu_minor: int, gi: int, ci: int | None) -> int:
    """Give the minor of an instance's capability node, in the driver's own scheme."""
    base = 3 + gpu_minor * _CAPS_PER_GPU + gi * _CAPS_PER_GI
    return base if ci is None else base + 1 + ci


def described(gpu: GpuSpec, at: int, index: int) -> dict[str, Any]:
    """Give what NVML says of the GPU at this place, as GPU `index`."""
    model = host_spec.MODELS[gpu.model]
    return {
        "index": index,
        "uuid": host_spec.uuid_of(gpu, at),
        "minor": host_spec.minor_of(gpu, at),
        "bus_id": f"0000{host_spec.bus_id_of(gpu, at)}".upper(),
        "name": model.name,
        "brand": model.brand,
        "architecture": model.architecture,
        "compute_capability": model.compute_capability,
        "memory_bytes": model.memory_bytes,
        "mig_enabled": gpu.mig_enabled,
        "mig_devices": [
            {
                "index": number,
                "uuid": host_spec.mig_uuid_of(gpu, at, mig),
                "gi": mig.gi,
                "ci": mig.ci,
                "profile": mig.profile,
                "memory_bytes": mig.memory_bytes,
                "gfx": "+gfx" in mig.profile,
            }
            for number, mig in enumerate(gpu.mig)
        ],
    }


def _hardware(spec: HostSpec) -> Iterator[tuple[str, str]]:
    for at, gpu in enumerate(spec.gpus):
        top = f"sys/bus/pci/devices/{host_spec.bus_id_of(gpu, at)}"
        yield f"{top}/vendor", "0x10de\n"
        yield f"{top}/class", "0x030200\n"
        if spec.drm:
            yield f"{top}/drm/card{at + 1}/dev", f"{DRI_MAJOR}:{at + 1}\n"
            yield f"{top}/drm/renderD{at + 129}/dev", f"{DRI_MAJOR}:{at + 129}\n"


def _module(spec: HostSpec) -> Iterator[tuple[str, str]]:
    yield "sys/module/nvidia/version", f"{spec.driver}\n"
    top = "proc/driver/nvidia"
    line = (
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {spec.driver}  Tue Apr  8 12:41:17 2025"
    )
    yield f"{top}/version", f"{line}\nGCC version:  gcc version 12.2.0\n"
    yield f"{top}/params", _PARAMS
    yield f"{top}/registry", 'Binary: ""\n'
    for at, gpu in enumerate(spec.gpus):
        yield f"{top}/gpus/{host_spec.bus_id_of(gpu, at)}/information", _information(gpu, at)
        yield from _capability_files(gpu, at)
    if any(gpu.mig_enabled for gpu in spec.gpus):
        yield f"{top}/capabilities/mig/config", _access(1, 0o400)
        yield f"{top}/capabilities/mig/monitor", _access(2, 0o444)
        yield "proc/driver/nvidia-caps/mig-minors", _mig_minors(spec)


def _information(gpu: GpuSpec, at: int) -> str:
    uuid = host_spec.uuid_of(gpu, at)
    if not gpu.initialised or gpu.excluded:
        uuid = "GPU-????????-????-????-????-????????????"
    return (
        f"Model: \t\t {host_spec.MODELS[gpu.model].name}\n"
        "IRQ:   \t\t 40\n"
        f"GPU UUID: \t {uuid}\n"
        "Bus Type: \t PCIe\n"
        f"Bus Location: \t {host_spec.bus_id_of(gpu, at)}\n"
        f"Device Minor: \t {host_spec.minor_of(gpu, at)}\n"
        f"GPU Excluded:\t {'Yes' if gpu.excluded else 'No'}\n"
    )


def _capability_files(gpu: GpuSpec, at: int) -> Iterator[tuple[str, str]]:
    minor = host_spec.minor_of(gpu, at)
    for mig in gpu.mig:
        top = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{mig.gi}"
        yield f"{top}/access", _access(cap_minor(minor, mig.gi, None), 0o444)
        yield f"{top}/ci{mig.ci}/access", _access(cap_minor(minor, mig.gi, mig.ci), 0o444)


def _access(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def _mig_minors(spec: HostSpec) -> str:
    lines = ["config 1", "monitor 2"]
    for at, gpu in enumerate(spec.gpus):
        minor = host_spec.minor_of(gpu, at)
        for gi in range(15) if gpu.mig_enabled else ():
            lines.append(f"gpu{minor}/gi{gi}/access {cap_minor(minor, gi, None)}")
            lines += [
                f"gpu{minor}/gi{gi}/ci{ci}/access {cap_minor(minor, gi, ci)}" for ci in range(8)
            ]
    return "\n".join(lines) + "\n"


def _devices(spec: HostSpec) -> str:
    lines = ["Character devices:", "  1 mem", "  5 /dev/tty", " 10 misc"]
    if spec.driver:
        majors = {number: name for name, number in MAJORS.items()}
        if int(spec.driver.split(".")[0]) < 550:
            majors[MAJORS["nvidia"]] = "nvidia-frontend"
        for group in spec.groups:
            if group in _GROUP_MAJORS:
                majors[GROUPS[group][0][1]] = _GROUP_MAJORS[group]
        lines += [f"{number:3} {majors[number]}" for number in sorted(majors)]
        lines.append("195 nvidia-modeset")
    return "\n".join([*lines, "", "Block devices:", "  8 sd", ""])


def _all_nodes(spec: HostSpec) -> Iterator[tuple[str, Node]]:
    nvidia, uvm, caps = MAJORS["nvidia"], MAJORS["nvidia-uvm"], MAJORS["nvidia-caps"]
    yield "/dev/nvidiactl", ("c", nvidia, 255, 0o666, 0, 0)
    yield "/dev/nvidia-modeset", ("c", nvidia, 254, 0o666, 0, 0)
    yield "/dev/nvidia-uvm", ("c", uvm, 0, 0o666, 0, 0)
    yield "/dev/nvidia-uvm-tools", ("c", uvm, 1, 0o666, 0, 0)
    if any(gpu.mig_enabled for gpu in spec.gpus):
        yield "/dev/nvidia-caps/nvidia-cap1", ("c", caps, 1, 0o400, 0, 0)
        yield "/dev/nvidia-caps/nvidia-cap2", ("c", caps, 2, 0o444, 0, 0)
    for at, gpu in enumerate(spec.gpus):
        minor = host_spec.minor_of(gpu, at)
        if not gpu.excluded:
            yield f"/dev/nvidia{minor}", ("c", nvidia, minor, 0o666, 0, 0)
        wanted = {cap_minor(minor, mig.gi, ci) for mig in gpu.mig for ci in (None, mig.ci)}
        for cap in sorted(wanted):
            yield f"/dev/nvidia-caps/nvidia-cap{cap}", ("c", caps, cap, 0o444, 0, 0)
        if spec.drm:
            yield f"/dev/dri/card{at + 1}", ("c", DRI_MAJOR, at + 1, 0o660, 0, 44)
            yield f"/dev/dri/renderD{at + 129}", ("c", DRI_MAJOR, at + 129, 0o660, 0, 106)
    if spec.drm:
        yield "/dev/dri/card0", ("c", DRI_MAJOR, 0, 0o660, 0, 44)
        yield "/dev/dri/renderD128", ("c", DRI_MAJOR, 128, 0o660, 0, 106)
    channels = MAJORS["nvidia-caps-imex-channels"]
    for number in spec.imex_channels:
        path = f"/dev/nvidia-caps-imex-channels/channel{number}"
        yield path, ("c", channels, number, 0o666, 0, 0)
    for group in spec.groups:
        for name, major, minor in GROUPS[group]:
            yield f"/dev/{name}", ("c", major, minor, 0o666, 0, 0)


def _write_links(directory: pathlib.Path, bus_id: str, at: int) -> None:
    """Make udev's links to a GPU's DRM nodes."""
    directory.mkdir(parents=True, exist_ok=True)
    for kind, name in (("card", f"card{at + 1}"), ("render", f"renderD{at + 129}")):
        (directory / f"pci-{bus_id}-{kind}").symlink_to(f"../{name}")


def write_nodes(top: pathlib.Path, spec: HostSpec, wanted: dict[str, Node]) -> None:
    """Make the nodes, or where that is not allowed list them in `dev.nodes`."""
    (top / "dev").mkdir(parents=True, exist_ok=True)
    if not spec.recorded:
        try:
            for path, node in wanted.items():
                make_node(top / path.lstrip("/"), node)
        except PermissionError:
            pass
        else:
            return
    lines = (
        f"{t} {ma} {mi} {mode:04o} {u} {g} {p}" for p, (t, ma, mi, mode, u, g) in wanted.items()
    )
    put(top / "dev.nodes", "".join(f"{line}\n" for line in lines).encode())


def make_node(path: pathlib.Path, node: Node) -> None:
    """Make one character device; needs CAP_MKNOD."""
    _type, major, minor, mode, uid, gid = node
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    os.chown(path, uid, gid)
    path.chmod(mode)
