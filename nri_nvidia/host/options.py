# SPDX-License-Identifier: Apache-2.0
"""Where a scan looks, and what it may do there."""

import os

import attrs

from .root import Root, Trace


@attrs.frozen(kw_only=True)
class Options:
    """Where a host's NVIDIA side is found.

    `root` is where /proc and /sys are read, `driver_root` where the driver's user-space files live
    as if it were `/`, `dev_root` the same for /dev; an empty one is for the preset to say
    (`presets.settle`). `preset` is `auto` or the name of one. `library_search_paths` are
    directories below the driver root; if any is given, they replace the well-known ones and
    ld.so.cache.
    `create_device_nodes` lets a scan make missing nodes; on a recorded host it only means that
    they count as made. `dev_char_symlinks` lets root's scan make missing links
    `/dev/char/MAJOR:MINOR` (see `char_links`), never on a recorded host. `nvml_timeout` is in
    seconds, `nvml_refresh` is the age in seconds at which its answer is asked for again when it is
    needed. `nvml_environment` is added to the environment of the process that asks NVML.
    `load_modules` lets the daemon load the driver's kernel modules by `modprobe` (empty: the
    kernel's own), each within `modules_timeout` seconds; no scan does.
    `trace` notes what a scan looks at.
    """

    root: str = "/"
    driver_root: str = ""
    dev_root: str = ""
    preset: str = "auto"
    library_search_paths: tuple[str, ...] = ()
    create_device_nodes: bool = True
    dev_char_symlinks: bool = True
    nvml_timeout: float = 10.0
    nvml_refresh: float = 600.0
    nvml_environment: tuple[tuple[str, str], ...] = ()
    load_modules: bool = False
    modprobe: str = ""
    modules_timeout: float = 60.0
    recorded: bool = False
    trace: Trace | None = attrs.field(default=None, eq=False)

    @classmethod
    def for_recorded(cls, directory: str, *, create_device_nodes: bool = True) -> "Options":
        """Give options for a tree that records another host; nothing is ever written there.

        Paths in its Inventory are those that the recorded host itself would use.
        """
        return cls(
            root=os.path.realpath(directory),
            create_device_nodes=create_device_nodes,
            recorded=True,
        )

    def below(self, path: str) -> str:
        """Give the path on this machine of one below `root`."""
        return os.path.normpath(f"{self.root}/{path}")

    @property
    def system(self) -> Root:
        """Where /proc and /sys are."""
        return self.at(self.root)

    @property
    def driver(self) -> Root:
        """Where the driver's files are; of settled options."""
        return self.at(self.driver_root or self.root)

    @property
    def dev(self) -> Root:
        """Where /dev is; of settled options."""
        return self.at(self.dev_root or self.root)

    def at(self, directory: str) -> Root:
        """Give another directory as a root of this host."""
        return Root(directory, self.recorded, self.root, self.trace)
