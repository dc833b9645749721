# SPDX-License-Identifier: Apache-2.0
"""A simulated host as a value, and the check that refuses impossible ones."""

import re
import uuid

import attrs

from nri_nvidia.host import proc

from . import host_layouts

LAYOUTS = tuple(host_layouts.LAYOUTS)
GROUPS = ("gds", "mofed", "gdrcopy", "nvswitch")
# Hosts that have other things than a PCI host has.
PLATFORMS = ("wsl", "jetson-xavier", "jetson-orin", "jetson-thor")

# A name for deterministic UUIDs, so that a host is the same each time it is built.
_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")


@attrs.frozen(kw_only=True)
class Model:
    """What NVML tells about a model of GPU."""

    name: str
    architecture: str
    compute_capability: str
    memory_bytes: int
    brand: str = "nvidia"


MODELS: dict[str, Model] = {
    "H100": Model(
        name="NVIDIA H100 80GB HBM3",
        architecture="hopper",
        compute_capability="9.0",
        memory_bytes=85520809984,
    ),
    "A100": Model(
        name="NVIDIA A100-SXM4-40GB",
        architecture="ampere",
        compute_capability="8.0",
        memory_bytes=42949672960,
    ),
    "L4": Model(
        name="NVIDIA L4", architecture="ada", compute_capability="8.9", memory_bytes=24152899584
    ),
    "GH200": Model(
        name="NVIDIA GH200 480GB",
        architecture="hopper",
        compute_capability="9.0",
        memory_bytes=102625181696,
    ),
    "RTX4090": Model(
        name="NVIDIA GeForce RTX 4090",
        architecture="ada",
        compute_capability="8.9",
        memory_bytes=25757220864,
        brand="geforce",
    ),
    "T4": Model(
        name="Tesla T4",
        architecture="turing",
        compute_capability="7.5",
        memory_bytes=16106127360,
        brand="tesla",
    ),
}


@attrs.frozen(kw_only=True)
class MigSpec:
    """A MIG device; its NVML index is its place in the GPU's list."""

    gi: int
    ci: int = 0
    profile: str = "1g.10gb"
    memory_bytes: int = 10468982784


@attrs.frozen(kw_only=True)
class GpuSpec:
    """One GPU; `minor` None is its place in the list, `bus` is the bus number of its address.

    An uninitialised GPU shows no UUID in /proc and cannot be described by NVML.
    """

    model: str = "H100"
    minor: int | None = None
    bus: int | None = None
    excluded: bool = False
    initialised: bool = True
    mig_enabled: bool = False
    mig: tuple[MigSpec, ...] = ()


@attrs.frozen(kw_only=True)
class HostSpec:
    """A host.

    `driver` is the loaded module's version, empty for none; `libraries` that of the files on disk,
    None for the same, empty for none. `nvml_order` gives NVML's index of each GPU in PCI order,
    empty for the same order. `missing_nodes` are paths that /dev lacks. With `recorded` everything
    is plain small files: device nodes are lines of `dev.nodes`, libraries are stubs without code.
    With `drm` each GPU has DRM nodes, beside an integrated one's `card0`. `imex_channels` are the
    channels whose nodes are there, `groups` the groups of further nodes (gds, mofed, gdrcopy,
    nvswitch).
    """

    gpus: tuple[GpuSpec, ...] = ()
    driver: str = "550.163.01"
    libraries: str | None = None
    cuda: str = "12.4"
    layout: str = "debian"
    compat32: bool = False
    nvml: bool = True
    nvml_order: tuple[int, ...] = ()
    missing_nodes: tuple[str, ...] = ()
    firmware: bool = True
    sockets: bool = True
    drm: bool = False
    imex_channels: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    graphics: bool = False
    hardware: bool = True
    recorded: bool = False

    @property
    def files_version(self) -> str:
        """The version of the files on disk, empty for none."""
        return self.driver if self.libraries is None else self.libraries


def minor_of(gpu: GpuSpec, place: int) -> int:
    """Give a GPU's minor."""
    return place if gpu.minor is None else gpu.minor


def bus_id_of(gpu: GpuSpec, place: int) -> str:
    """Give a GPU's PCI address in sysfs' form."""
    return f"0000:{0x07 + 8 * place if gpu.bus is None else gpu.bus:02x}:00.0"


def uuid_of(gpu: GpuSpec, place: int) -> str:
    """Give a GPU's UUID, the same each time."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'gpu {bus_id_of(gpu, place)} {place}')}"


def mig_uuid_of(gpu: GpuSpec, place: int, mig: MigSpec) -> str:
    """Give a MIG device's UUID, the same each time."""
    name = f"mig {uuid_of(gpu, place)} {mig.gi} {mig.ci} {mig.profile}"
    return f"MIG-{uuid.uuid5(_NAMESPACE, name)}"


def check(spec: HostSpec) -> tuple[str, ...]:
    """Give a sentence for everything about a host that cannot be; empty for a possible one."""
    found: list[str] = []
    for place, gpu in enumerate(spec.gpus):
        found += [f"GPU {place}: {what}" for what in _gpu_faults(gpu, place)]
    minors = [minor_of(gpu, at) for at, gpu in enumerate(spec.gpus)]
    buses = [bus_id_of(gpu, at) for at, gpu in enumerate(spec.gpus)]
    found += ["two GPUs have the same minor"] * (len(set(minors)) != len(minors))
    found += ["two GPUs have the same PCI address"] * (len(set(buses)) != len(buses))
    if buses != sorted(buses, key=proc.bus_key):
        found.append("the GPUs are not in PCI order")
    if spec.layout not in (*LAYOUTS, *PLATFORMS):
        found.append(f"layout {spec.layout!r} is none of {', '.join(LAYOUTS)}")
    if spec.layout.endswith("-arm") and (spec.compat32 or not spec.recorded):
        found.append("a simulated ARM host is recorded, and 64-bit only")
    for name, version in (("driver", spec.driver), ("libraries", spec.libraries or "")):
        if version and not re.fullmatch(r"\d{3,4}\.\d{2,3}(\.\d{2})?", version):
            found.append(f"{name} {version!r} is no driver version")
    if not spec.hardware and spec.gpus:
        found.append("there are GPUs without hardware")
    if spec.nvml and spec.files_version != spec.driver:
        found.append("NVML cannot answer with libraries that do not fit the module")
    usable = sum(not gpu.excluded for gpu in spec.gpus)
    if spec.nvml_order and sorted(spec.nvml_order) != list(range(usable)):
        found.append(f"nvml_order is no order of {usable} GPUs")
    found += [f"{name!r} is no group of nodes" for name in sorted({*spec.groups} - {*GROUPS})]
    if spec.driver == "" and any(gpu.mig for gpu in spec.gpus):
        found.append("there are MIG devices without a kernel module")
    return tuple(found)


def _gpu_faults(gpu: GpuSpec, place: int) -> list[str]:
    found: list[str] = []
    if gpu.model not in MODELS:
        found.append(f"model {gpu.model!r} is none of {', '.join(MODELS)}")
    if not 0 <= minor_of(gpu, place) < 254:
        found.append("a GPU's minor is between 0 and 253; 254 and 255 are no GPU's")
    if gpu.mig and not gpu.mig_enabled:
        found.append("it has MIG devices, but MIG is off")
    if gpu.mig_enabled and (gpu.excluded or not gpu.initialised):
        found.append("MIG is on, but the driver does not use this GPU")
    if gpu.mig_enabled and gpu.model not in {"H100", "A100"}:
        found.append(f"a {gpu.model} has no MIG")
    pairs = [(mig.gi, mig.ci) for mig in gpu.mig]
    if len(set(pairs)) != len(pairs):
        found.append("two MIG devices have the same instance ids")
    if any(not (0 <= gi < 15 and 0 <= ci < 8) for gi, ci in pairs):
        found.append("instance ids are 0-14 for GPU and 0-7 for compute instances")
    found += [
        f"{mig.profile!r} is no MIG profile"
        for mig in gpu.mig
        if not re.fullmatch(r"(\dc\.)?\dg\.\d+gb(\+(me|gfx|me\.all))?", mig.profile)
    ]
    return found
