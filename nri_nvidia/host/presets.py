# SPDX-License-Identifier: Apache-2.0
"""What kinds of hosts there are, and which of them this one is.

A preset says where a kind of host keeps the driver. An ordinary host needs none: every known place
is looked at. What a preset decides is which root the driver is below, and what a GPU is there at
all (`model.Platform`). One that the configuration names narrows the look to its own places.
"""

import re

import attrs

from . import catalog, nodes, proc, tegra, wsl
from .model import Platform
from .options import Options
from .root import Root

AUTO = "auto"
# Where NVIDIA's operator mounts the file system of its driver container.
OPERATOR_ROOT = "/run/nvidia/driver"
_OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")
_LINE = re.compile(r"""([A-Z_]+)=["']?([^"'\n]*)["']?""")
_MULTIARCH = tuple(f"/usr/lib/{triplet}" for triplet in catalog.TRIPLETS)


@attrs.frozen(kw_only=True)
class Preset:
    """A kind of host.

    `libraries` are directories below the driver root; `{version}` stands for the driver's, `*` at
    the end for each directory there (Debian's flavours, `current` first). `ids`
    are the names of distributions in os-release (ID, then ID_LIKE) that are of this kind.
    """

    name: str
    title: str
    platform: Platform = Platform.PCI
    driver_root: str = "/"
    libraries: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Choice:
    """A preset and why it was taken, as the second half of a sentence."""

    preset: Preset
    why: str
    configured: bool = False


GENERIC = Preset(name="generic", title="a host of no known kind")

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="debian",
            title="Debian",
            libraries=(*(f"{place}/nvidia/*" for place in _MULTIARCH), *_MULTIARCH),
            ids=("debian",),
        ),
        Preset(name="ubuntu", title="Ubuntu", libraries=_MULTIARCH, ids=("ubuntu",)),
        Preset(
            name="rhel",
            title="RHEL, Fedora and their kin",
            libraries=("/usr/lib64", "/usr/lib64/nvidia", "/usr/lib", "/usr/lib/nvidia"),
            ids=(
                "rhel",
                "fedora",
                "centos",
                "rocky",
                "almalinux",
                "ol",
                "amzn",
                "azurelinux",
                "mariner",
            ),
        ),
        Preset(
            name="suse",
            title="SUSE",
            libraries=("/usr/lib64", "/usr/X11R6/lib64", "/usr/lib", "/usr/X11R6/lib"),
            ids=("suse", "sles", "sled", "sl-micro", "opensuse"),
        ),
        Preset(
            name="nixos",
            title="NixOS",
            libraries=("/run/opengl-driver/lib", "/run/opengl-driver-32/lib"),
            ids=("nixos",),
        ),
        Preset(
            name="talos",
            title="Talos Linux",
            libraries=(
                "/usr/local/glibc/usr/lib64",
                "/usr/local/glibc/usr/lib",
                "/usr/local/glibc/lib",
            ),
            ids=("talos",),
        ),
        Preset(
            name="cos",
            title="Container-Optimized OS",
            libraries=("/home/kubernetes/bin/nvidia/lib64", "/var/lib/nvidia/lib64"),
            ids=("cos",),
        ),
        Preset(
            name="flatcar",
            title="Flatcar",
            libraries=(*catalog.VERSIONED_DIRECTORIES, "/usr/lib64"),
            ids=("flatcar", "coreos"),
        ),
        Preset(
            name="bottlerocket",
            title="Bottlerocket",
            libraries=("/usr/lib/nvidia/tesla", "/usr/lib/nvidia/tesla/{version}"),
            ids=("bottlerocket",),
        ),
        Preset(name="operator", title="NVIDIA's driver container", driver_root=OPERATOR_ROOT),
        Preset(name="jetson", title="NVIDIA Jetson", platform=Platform.TEGRA),
        Preset(name="wsl", title="WSL 2", platform=Platform.WSL),
        GENERIC,
    )
}
NAMES = (AUTO, *PRESETS)
EVIDENCE = (*_OS_RELEASE, OPERATOR_ROOT, wsl.NODE, tegra.RELEASE)
"""Paths by whose presence or content the choice is made."""


def settle(options: Options) -> tuple[Options, Choice]:
    """Fill in what the options leave to the preset, and tell which one that is.

    What the options say stands. Of /dev the host's own is taken where it has the driver's node,
    since a container in a user namespace can be given no other; else the driver root's.
    """
    choice = choose(options)
    preset = choice.preset
    # Where the host has the driver itself, the operator's directory may be a link to the root.
    own = options.system.resolve(preset.driver_root) or preset.driver_root
    driver_root = options.driver_root or options.below(own)
    paths = options.library_search_paths
    if choice.configured and not paths:
        version = proc.module_version(options.system) or "current"
        places = (place.format(version=version) for place in preset.libraries)
        root = options.at(driver_root)
        paths = tuple(path for place in places for path in _expanded(root, place))
    settled = attrs.evolve(options, driver_root=driver_root, library_search_paths=paths)
    return attrs.evolve(settled, dev_root=options.dev_root or _dev_root(settled)), choice


def _expanded(root: Root, place: str) -> tuple[str, ...]:
    parent, star, _rest = place.partition("/*")
    if not star:
        return (place,)
    names = sorted(root.entries(parent), key=lambda name: (name != "current", name))
    return tuple(f"{parent}/{name}" for name in names if "." not in name)


def _dev_root(options: Options) -> str:
    for directory in (options.root, options.driver_root):
        root = options.at(directory)
        if _has_node(options, root, "/dev/nvidiactl"):
            return directory
    return options.root


def _has_node(options: Options, root: Root, path: str) -> bool:
    """Whether a node is there, or on a recorded host in its list of nodes."""
    if root.stat(path) is not None:
        return True
    text = options.system.text("/dev.nodes") if options.recorded else None
    return root.reported(path) in nodes.parse_listed(text or "")


def choose(options: Options) -> Choice:
    """Give the preset that the options name, else the one that the host's files show."""
    if options.preset != AUTO:
        return Choice(preset=PRESETS[options.preset], why="host.preset names it", configured=True)
    system = options.system
    if _has_node(options, system, wsl.NODE) and not proc.module_version(system):
        return Choice(preset=PRESETS["wsl"], why=f"{wsl.NODE} is there, and no NVIDIA module")
    board = _tegra(options)
    if board:
        return Choice(preset=PRESETS["jetson"], why=board)
    if system.stat(f"{OPERATOR_ROOT}/usr") is not None:
        return Choice(
            preset=PRESETS["operator"],
            why=f"{OPERATOR_ROOT} holds the file system of a driver container",
        )
    return _by_distribution(system)


def _tegra(options: Options) -> str:
    """Say what shows that the board's lists are what counts here; nothing if it is none."""
    listed = (
        nodes.parse_listed(options.system.text("/dev.nodes") or "") if options.recorded else {}
    )
    dev = nodes.Directory(root=options.system, create=False, listed=listed)
    processor, integrated = tegra.signs(options.system, dev)
    known = bool(proc.gpus(options.system))
    if not tegra.is_tegra(tegra=bool(processor), nvml=known, integrated=bool(integrated)):
        return ""
    return f"{integrated or processor} shows a GPU that is a part of the processor"


def _by_distribution(system: Root) -> Choice:
    for path in _OS_RELEASE:
        text = system.text(path)
        if text is None:
            continue
        said = {match[1]: match[2] for match in _LINE.finditer(text)}
        for key in ("ID", "ID_LIKE"):
            for name in said.get(key, "").lower().split():
                for preset in PRESETS.values():
                    if name in preset.ids or any(name.startswith(f"{i}-") for i in preset.ids):
                        return Choice(preset=preset, why=f"{path} says {key}={said[key]}")
        return Choice(
            preset=GENERIC, why=f"{path} names none of the known ({said.get('ID', 'no ID')})"
        )
    return Choice(preset=GENERIC, why=f"there is no {_OS_RELEASE[0]}")


def empty_container(options: Options) -> str:
    """Give half a sentence about a driver container's empty directory, nothing without one."""
    root = options.system
    if root.stat(OPERATOR_ROOT) is None or root.entries(OPERATOR_ROOT):
        return ""
    return f"{root.reported(OPERATOR_ROOT)} is empty: a driver container is not ready, or left"
