# SPDX-License-Identifier: Apache-2.0
"""The host as values: what a scan finds, and all that a decision may look at.

GPUs and nodes keep their hashes: what follows from some of them is found by them (`derived`).
"""

import enum
from collections.abc import Iterator

import attrs


class Platform(enum.StrEnum):
    """What a GPU is on a host.

    PCI: a PCI device with a node of its own, driven by the nvidia module. WSL: one node for all,
    /dev/dxg, behind which Windows has the driver. TEGRA: a part of the processor, with the nodes
    and files that the board's lists name.
    """

    PCI = "pci"
    WSL = "wsl"
    TEGRA = "tegra"


@attrs.frozen(kw_only=True, cache_hash=True)
class DeviceNode:
    """A character device. `path` is where it stands below the dev root, e.g. `/dev/nvidia0`.

    `mode` holds permission bits only. `exists` is False when the numbers are known but the node is
    not there and could not (or may not) be made; `problem` then says why, as a sentence.
    """

    path: str
    host_path: str
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    exists: bool = True
    problem: str = ""


@attrs.frozen(kw_only=True, cache_hash=True)
class MigDevice:
    """One MIG device: a compute instance in a GPU instance.

    `index` is NVML's MIG index on its GPU; `gi` and `ci` are instance ids.
    """

    index: int
    uuid: str
    gi: int
    ci: int
    profile: str = ""
    memory_bytes: int = 0
    gfx: bool = False


@attrs.frozen(kw_only=True, cache_hash=True)
class Gpu:
    """One GPU.

    `index` is its place in PCI order among the GPUs that are not excluded, -1 for an excluded one.
    `bus_id` has sysfs' form, `0000:07:00.0`. `uuid` is empty while the driver has not initialised
    the GPU (it shows `GPU-????????-…`). `node` is None when no minor is known. `dri_nodes` are its
    DRM nodes (`/dev/dri/card1`, `/dev/dri/renderD129`), which graphics needs. `nodes` are further
    ones without which it is of no use. Where a GPU is no PCI device (`Platform`), it has these
    alone, and `bus_id` may be empty.
    `problem` is why it is given to nobody, as half a sentence: NVML answers, and not for this GPU.
    """

    index: int
    uuid: str
    minor: int
    bus_id: str
    name: str = ""
    node: DeviceNode | None = None
    excluded: bool = False
    brand: str = ""
    architecture: str = ""
    compute_capability: str = ""
    memory_bytes: int = 0
    mig_enabled: bool = False
    mig_devices: tuple[MigDevice, ...] = ()
    dri_nodes: tuple[DeviceNode, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    problem: str = ""


class FileKind(enum.StrEnum):
    """What a driver file is, which decides where it goes in a container.

    LISTED is a file or directory that has the same path in a container as on the host.
    """

    LIBRARY = "library"
    LIBRARY32 = "library32"
    BINARY = "binary"
    FIRMWARE = "firmware"
    SOCKET = "socket"
    CONFIG = "config"
    LISTED = "listed"
    XORG = "xorg"


@attrs.frozen(kw_only=True)
class DriverFile:
    """A file of the driver.

    `source` is the real file on the host (links resolved, as seen from the daemon, so below the
    driver root). `names` are the file names under which a container must find it: for a library
    its SONAME first, then other names that programs open (`libcuda.so`). `links` are paths below
    a library directory of an image (`/usr/lib64`) at which it is looked for besides, where the
    image has a use for it. For a kind that keeps its own place (firmware, sockets) `destination`
    is the whole container path and `names` is empty. `capabilities` are the names of the driver
    capabilities that select it; empty means always. `identity` changes when the file is another
    one under the same name; empty on a recorded host.
    """

    kind: FileKind
    source: str
    identity: str = ""
    names: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    destination: str = ""
    capabilities: frozenset[str] = frozenset()
    directory: bool = False


@attrs.frozen(kw_only=True)
class ControlNodes:
    """The nodes that are not a GPU's; None where the kernel does not know the device at all."""

    ctl: DeviceNode | None = None
    uvm: DeviceNode | None = None
    uvm_tools: DeviceNode | None = None
    modeset: DeviceNode | None = None


@attrs.frozen(kw_only=True, cache_hash=True)
class ExtraMount:
    """A file or directory that belongs to a group of nodes: NVIDIA's (`gds`), or `dri`."""

    group: str
    source: str
    destination: str


@attrs.frozen(kw_only=True)
class Problem:
    """Something that the scan found wrong; it becomes a reason only where it matters."""

    code: str
    message: str
    hint: str = ""


@attrs.frozen(kw_only=True)
class Inventory:
    """The NVIDIA side of one host at one moment.

    `driver_version` is that of the loaded kernel module, empty when there is none.
    `libraries_version` is that of the user-space files which were chosen, empty when none were
    found. `nvml_state` is `ok`, `absent` (not asked yet, or did not answer) or `mismatch` (NVML's
    order of GPUs is not PCI order, so an index means nothing). `caps_nodes` maps a capability path
    of the MIG tree (`gpu0/gi1/access`, `config`, `monitor`) to its node. `imex_channels` are the
    channel nodes that exist, `imex_major` is -1 where the kernel has none; channels below
    `imex_count` can be given though their node is missing (0 where nodes may not be made).
    `extra_nodes` are the nodes that a container gets only by asking, each with its group: `gds`,
    `mofed`, `gdrcopy`, `nvswitch`; `extra_mounts` are what comes with them, and with DRM nodes.
    `preset` names the kind of host and `preset_reason` says, as half a sentence, why it was taken;
    `driver_root` and `dev_root` are where the driver's files and nodes are.
    """

    driver_version: str = ""
    libraries_version: str = ""
    cuda_version: str = ""
    hardware: bool = False
    gpus: tuple[Gpu, ...] = ()
    control: ControlNodes = ControlNodes()
    caps_nodes: tuple[tuple[str, DeviceNode], ...] = ()
    imex_major: int = -1
    imex_channels: tuple[DeviceNode, ...] = ()
    imex_count: int = 0
    extra_nodes: tuple[tuple[str, DeviceNode], ...] = ()
    extra_mounts: tuple[ExtraMount, ...] = ()
    files: tuple[DriverFile, ...] = ()
    nvml_state: str = "absent"
    layout: str = ""
    platform: Platform = Platform.PCI
    preset: str = ""
    preset_reason: str = ""
    driver_root: str = "/"
    dev_root: str = "/"
    with_all_lists: "Inventory | None" = None
    problems: tuple[Problem, ...] = ()

    @property
    def driven(self) -> bool:
        """Whether there is a driver; elsewhere than on a PCI host it is not the nvidia module."""
        return bool(self.driver_version) or self.platform is not Platform.PCI

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """The GPUs that a container can ask for, by index."""
        return tuple(gpu for gpu in self.gpus if not gpu.excluded)

    @property
    def nodes(self) -> Iterator[DeviceNode]:
        """Every node that a container may be given."""
        control = self.control
        for node in (control.ctl, control.uvm, control.uvm_tools, control.modeset):
            if node is not None:
                yield node
        for gpu in self.gpus:
            if gpu.node is not None:
                yield gpu.node
            yield from gpu.nodes
            yield from gpu.dri_nodes
        yield from (node for _name, node in self.caps_nodes)
        yield from self.imex_channels
        yield from (node for _group, node in self.extra_nodes)
