# SPDX-License-Identifier: Apache-2.0
"""The nodes of the driver: which there should be by the kernel's tables, and how they stand."""

import re
from collections.abc import Iterable, Mapping

import attrs

from . import proc
from .model import ControlNodes, DeviceNode, ExtraMount
from .nodes import Directory, Status, Wanted, parse_listed
from .options import Options

# Minors of the `nvidia` major that are no GPU's, and those of `nvidia-uvm` (fixed by the driver).
_CTL_MINOR = 255
_MODESET_MINOR = 254
_UVM_MINOR = 0
_UVM_TOOLS_MINOR = 1

IMEX_DIRECTORY = "/dev/nvidia-caps-imex-channels"
# The driver's own default (`ImexChannelCount` of its parameters); older ones do not tell theirs.
_IMEX_COUNT = 2048

_GDRCOPY_MINOR = 0
_BY_PATH = "/dev/dri/by-path"
# What GPUDirect Storage needs beside its nodes (toolkit `internal/discover/gds.go`).
GDS_FILES = ("/run/udev", "/etc/cufile.json")

# Nodes which a container gets only by asking (NVIDIA_GDS=enabled and so on).
_ON_REQUEST = (
    ("gds", "/dev", re.compile(r"nvidia-fs\d*")),
    ("mofed", "/dev/infiniband", re.compile(r"uverbs\d+|rdma_cm")),
    ("gdrcopy", "/dev", re.compile("gdrdrv")),
    ("nvswitch", "/dev", re.compile(r"nvidia-nvswitch(?:\d+|ctl)")),
)


@attrs.frozen(kw_only=True)
class Tables:
    """The kernel's numbers: majors by name, rights of the driver's own nodes, MIG capabilities.

    `modeset` tells whether nvidia_modeset is loaded. `imex_count` is how many IMEX channels the
    driver serves, 0 where it has none.
    """

    directory: Directory
    majors: Mapping[str, int]
    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    modeset: bool = False
    imex_count: int = 0
    capabilities: Mapping[str, proc.Capability] = attrs.field(factory=dict)
    mig_minors: Mapping[str, int] = attrs.field(factory=dict)


def tables(options: Options) -> Tables:
    """Read the tables of a host."""
    system, dev = options.system, options.dev
    given = proc.parameters(system)
    majors = proc.majors(system)
    return Tables(
        directory=Directory(root=dev, create=options.create_device_nodes, listed=_listed(options)),
        majors=majors,
        modeset="nvidia-modeset" in majors or proc.module_loaded(system, "nvidia_modeset"),
        mode=given.get("devicefilemode", 0o666) & 0o777,
        uid=given.get("devicefileuid", 0),
        gid=given.get("devicefilegid", 0),
        imex_count=given.get("imexchannelcount", _IMEX_COUNT)
        if "nvidia-caps-imex-channels" in majors
        else 0,
        capabilities=proc.capabilities(system),
        mig_minors=proc.mig_minors(system),
    )


def _listed(options: Options) -> dict[str, Status]:
    """Give the nodes that a recorded host's `dev.nodes` lists, as the dev root names them."""
    if not options.recorded:
        return {}
    listed = parse_listed(options.system.text("/dev.nodes") or "")
    top = options.dev.reported("/").rstrip("/")
    return {
        path.removeprefix(top): status
        for path, status in listed.items()
        if path.startswith(f"{top}/")
    }


def gpu(known: Tables, minor: int) -> DeviceNode | None:
    """Give a GPU's node by its minor, None where the minor or the driver's major is unknown."""
    if minor < 0:
        return None
    return _own(known, f"/dev/nvidia{minor}", minor, "nvidia-modprobe -c {minor}")


def control(known: Tables) -> ControlNodes:
    """Give the nodes that are no GPU's."""
    return ControlNodes(
        ctl=_own(known, "/dev/nvidiactl", _CTL_MINOR, ""),
        modeset=_modeset(known),
        uvm=_uvm(known, "/dev/nvidia-uvm", _UVM_MINOR),
        uvm_tools=_uvm(known, "/dev/nvidia-uvm-tools", _UVM_TOOLS_MINOR),
    )


def caps(known: Tables, names: Iterable[str]) -> tuple[tuple[str, DeviceNode], ...]:
    """Give the capability nodes that exist in /proc, and those of the names given.

    /proc lists the minors of thousands of capabilities that no instance stands for; nodes are
    wanted for instances that exist, which /proc or NVML tells.
    """
    major = known.majors.get("nvidia-caps")
    if major is None:
        return ()
    all_names = {*known.capabilities, *names}
    all_names.update(name for name in ("config", "monitor") if name in known.mig_minors)
    found: list[tuple[str, DeviceNode]] = []
    for name in sorted(all_names):
        capability = known.capabilities.get(name)
        if capability is None and name in known.mig_minors:
            capability = proc.Capability(minor=known.mig_minors[name])
        if capability is None:
            continue
        wanted = Wanted(
            path=f"/dev/nvidia-caps/nvidia-cap{capability.minor}",
            major=major,
            minor=capability.minor,
            mode=capability.mode,
        )
        found.append((name, known.directory.find(wanted)))
    return tuple(found)


def mig_gpus(known: Tables) -> frozenset[int]:
    """Give the minors of the GPUs on which /proc shows MIG instances."""
    matches = (re.match(r"gpu(\d+)/gi", name) for name in known.capabilities)
    return frozenset(int(match.group(1)) for match in matches if match)


def imex_channels(known: Tables) -> tuple[DeviceNode, ...]:
    """Give the IMEX channel nodes that exist, by number."""
    names = known.directory.names(IMEX_DIRECTORY)
    # The kernel's names have no leading zeros.
    numbers = sorted(int(n[7:]) for n in names if re.fullmatch(r"channel(?:0|[1-9]\d{0,8})", n))
    nodes = (known.directory.existing(f"{IMEX_DIRECTORY}/channel{n}") for n in numbers)
    return tuple(node for node in nodes if node)


def imex_channel(known: Tables, number: int) -> DeviceNode | None:
    """Give a channel's node, made where it is missing and may be; None for one never served."""
    major = known.majors.get("nvidia-caps-imex-channels")
    if major is None or not 0 <= number < known.imex_count:
        return None
    path = f"{IMEX_DIRECTORY}/channel{number}"
    return known.directory.find(_of_driver(known, path, major, number, ""))


def on_request(known: Tables) -> tuple[tuple[str, DeviceNode], ...]:
    """Give the nodes of the groups that are given only on request, with their group."""
    found: list[tuple[str, DeviceNode]] = []
    for group, directory, pattern in _ON_REQUEST:
        for name in known.directory.names(directory):
            if not pattern.fullmatch(name):
                continue
            node = known.directory.existing(f"{directory}/{name}")
            if node is not None:
                found.append((group, node))
    major = known.majors.get("gdrdrv")
    if major is not None and "gdrcopy" not in dict(found):
        # Its module announces no device; the node is what its installation makes by a script.
        node = known.directory.find(Wanted(path="/dev/gdrdrv", major=major, minor=_GDRCOPY_MINOR))
        found += [("gdrcopy", node)] if node.exists else []
    return tuple(found)


def extra_mounts(
    known: Tables, options: Options, found: Iterable[tuple[str, DeviceNode]]
) -> tuple[ExtraMount, ...]:
    """Give what comes with the nodes of a group, where there is one of its nodes.

    What GPUDirect Storage reads is a driver container's or the host's own. The links by which
    programs find a GPU's DRM nodes are udev's; theirs lead to names beside them, so the directory
    is right in every container, and a link to a node not given is to none.
    """
    mounts: dict[str, ExtraMount] = {}
    for path in GDS_FILES if any(group == "gds" for group, _node in found) else ():
        for root in (options.driver, options.system):
            real = root.resolve(path)
            if real and path not in mounts:
                source = root.reported(real)
                mounts[path] = ExtraMount(group="gds", source=source, destination=path)
    dev = known.directory.root
    links = ExtraMount(group="dri", source=dev.reported(_BY_PATH), destination=_BY_PATH)
    return (*mounts.values(), *([links] if dev.entries(_BY_PATH) else []))


def dri(known: Tables, names: Iterable[str]) -> tuple[DeviceNode, ...]:
    """Give the DRM nodes of a GPU that exist; entries of sysfs without a node are no nodes."""
    nodes = (known.directory.existing(f"/dev/dri/{name}") for name in names)
    return tuple(node for node in nodes if node)


def _own(known: Tables, path: str, minor: int, command: str) -> DeviceNode | None:
    major = known.majors.get("nvidia")
    if major is None:
        return None
    wanted = _of_driver(known, path, major, minor, command.format(minor=minor))
    return known.directory.find(wanted)


def _of_driver(known: Tables, path: str, major: int, minor: int, command: str) -> Wanted:
    """Give a node with the rights that the driver's parameters ask for."""
    return Wanted(
        path=path,
        major=major,
        minor=minor,
        mode=known.mode,
        uid=known.uid,
        gid=known.gid,
        command=command,
    )


def _modeset(known: Tables) -> DeviceNode | None:
    # Its module has no major of its own: the node is worth making only where the module is there.
    if not known.modeset and known.directory.status("/dev/nvidia-modeset") is None:
        return None
    return _own(known, "/dev/nvidia-modeset", _MODESET_MINOR, "nvidia-modprobe -m")


def _uvm(known: Tables, path: str, minor: int) -> DeviceNode | None:
    major = known.majors.get("nvidia-uvm")
    if major is None:
        return None
    wanted = Wanted(path=path, major=major, minor=minor, command="nvidia-modprobe -u -c 0")
    return known.directory.find(wanted)
