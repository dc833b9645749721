# SPDX-License-Identifier: Apache-2.0
"""What was asked, as values."""

import enum

import attrs

from nri_nvidia.request import names


class Capability(enum.StrEnum):
    """A driver capability: it selects files and control nodes (NVIDIA_DRIVER_CAPABILITIES)."""

    COMPAT32 = "compat32"
    COMPUTE = "compute"
    DISPLAY = "display"
    GRAPHICS = "graphics"
    NGX = "ngx"
    UTILITY = "utility"
    VIDEO = "video"


ALL_CAPABILITIES = frozenset(Capability)
DEFAULT_CAPABILITIES = frozenset({Capability.COMPUTE, Capability.UTILITY})


class Source(enum.StrEnum):
    """The channel that a request came through."""

    ENV = "env"
    MOUNT = "mount"
    ANNOTATION = "annotation"
    SHARE = "share"


class Group(enum.StrEnum):
    """Nodes that a container gets only by asking for them (NVIDIA_GDS=enabled and so on)."""

    GDS = "gds"
    MOFED = "mofed"
    GDRCOPY = "gdrcopy"
    NVSWITCH = "nvswitch"


class MigManagement(enum.StrEnum):
    """Which of MIG's two rights over a whole node is asked for: to divide GPUs, or to watch."""

    CONFIG = "config"
    MONITOR = "monitor"


@attrs.frozen(kw_only=True)
class Requirement:
    """What a container requires of node and GPU, as `variable` states it (`conditions`)."""

    variable: str
    text: str


@attrs.frozen(kw_only=True)
class GpuRequest:
    """A container's request for the driver, and for GPUs if `devices` is not empty.

    `devices` is `("all",)`, a list of ids without duplicates in the order given, or empty for
    `none`: driver files and control nodes but no GPU. "Not a GPU container" is None, never a
    GpuRequest. `variable` is what the ids were read from, for messages. `all_capabilities` tells
    that capabilities were not named one by one. `disable_require` is what NVIDIA_DISABLE_REQUIRE
    says and what does not switch the requirements off. `imex_channels` are ids as they were
    written, or `all`. `shares` is the container of the same pod whose GPUs it shares; until these
    are known `devices` says that, in words which name no device.
    """

    source: Source
    devices: tuple[str, ...]
    capabilities: frozenset[Capability] = DEFAULT_CAPABILITIES
    all_capabilities: bool = False
    variable: str = "NVIDIA_VISIBLE_DEVICES"
    legacy_image: bool = False
    imex_channels: tuple[str, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    groups: tuple[Group, ...] = ()
    mig_management: tuple[MigManagement, ...] = ()
    disable_require: str = ""
    all_lists: bool = False
    shares: str = ""

    @property
    def wants_all(self) -> bool:
        """Whether every GPU was asked for."""
        return names.keyword(self.devices) == "all"
