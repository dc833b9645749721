# SPDX-License-Identifier: Apache-2.0
"""containerd's configuration file, in the format of 1.7 and in that of 2.x."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs


@attrs.frozen(kw_only=True)
class Options:
    """What a test may want different."""

    snapshotter: str = "overlayfs"
    nri: bool = True
    cdi: bool = True
    nri_registration_timeout: str = "5s"
    nri_request_timeout: str = "2s"
    default_runtime: str = "runc"
    systemd: bool = False
    """Whether containers' cgroups are systemd's to make, as on a node with a kubelet."""
    unified: bool = False
    """Whether cgroups of version 2 are all that it sees, where the machine has both."""
    wrappers: Mapping[str, Path] = attrs.field(factory=dict)
    """Further runtime handlers: name and the program to be called as an OCI runtime."""


class Places(Protocol):
    """Where an engine keeps things."""

    version: str
    directory: Path
    address: Path
    state: Path
    nri_socket: Path
    nri_plugins: Path
    nri_conf: Path
    cdi_specs: Path


class Runtime(Protocol):
    """A runtime handler: its name and its program."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...


def render(
    places: Places, runtimes: Sequence[Runtime], pause: str, options: Options | None = None
) -> str:
    """Return the whole file; `pause` is the reference of the image for pods."""
    options = options or Options()
    old = places.version.startswith("1.")
    runtime = "io.containerd.grpc.v1.cri" if old else "io.containerd.cri.v1.runtime"
    programs = {each.name: each.path for each in runtimes} | dict(options.wrappers)
    tables: dict[str, dict[str, object]] = {
        "": {
            "version": 2 if old else 3,
            "root": places.directory / "root",
            "state": places.state,
            # They look for disks and modules, or lay hands on /opt.
            "disabled_plugins": [
                f"io.containerd.snapshotter.v1.{name}"
                for name in ("aufs", "btrfs", "devmapper", "zfs", "blockfile", "erofs")
            ],
        },
        "grpc": {"address": places.address},
        "ttrpc": {"address": f"{places.address}.ttrpc"},
        "plugins.'io.containerd.internal.v1.opt'": {"path": places.directory / "opt"},
        "plugins.'io.containerd.nri.v1.nri'": {
            "disable": not options.nri,
            "disable_connections": False,
            "socket_path": places.nri_socket,
            "plugin_path": places.nri_plugins,
            "plugin_config_path": places.nri_conf,
            "plugin_registration_timeout": options.nri_registration_timeout,
            "plugin_request_timeout": options.nri_request_timeout,
        },
        f"plugins.'{runtime}'": {
            # Without CAP_SYS_RESOURCE the kernel refuses a pod's negative oom_score_adj.
            "restrict_oom_score_adj": True,
            "enable_cdi": options.cdi,
            "cdi_spec_dirs": [places.cdi_specs],
            **({"sandbox_image": pause} if old else {}),
        },
        # The usual one in /etc would be made, though no pod here has a network of its own.
        f"plugins.'{runtime}'.cni": {"conf_dir": places.directory / "cni"},
        f"plugins.'{runtime}'.containerd": {
            "default_runtime_name": options.default_runtime,
            **({"snapshotter": options.snapshotter} if old else {}),
        },
    }
    if not old:
        tables["plugins.'io.containerd.cri.v1.images'"] = {"snapshotter": options.snapshotter}
        tables["plugins.'io.containerd.cri.v1.images'.pinned_images"] = {"sandbox": pause}
    for name, path in programs.items():
        table = f"plugins.'{runtime}'.containerd.runtimes.'{name}'"
        tables[table] = {"runtime_type": "io.containerd.runc.v2"}
        tables[f"{table}.options"] = {"BinaryName": path, "SystemdCgroup": options.systemd}
    return "\n".join(_table(name, entries) for name, entries in tables.items())


def _table(name: str, entries: Mapping[str, object]) -> str:
    head = f"[{name}]\n" if name else ""
    # For booleans, numbers, strings and lists of strings TOML's notation is JSON's.
    return head + "".join(
        f"{key} = {json.dumps(value, default=str)}\n" for key, value in entries.items()
    )
