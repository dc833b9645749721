# SPDX-License-Identifier: Apache-2.0
"""A finding, and the facts of a node that findings are made of."""

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from nri_nvidia.check import containerd
from nri_nvidia.config import model as config_model
from nri_nvidia.host import model as host


class Severity(enum.StrEnum):
    """How bad it is.

    ERROR: containers lack their GPU, or will. WARNING: it works, and will not always, or not for
    everybody. INFO: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@attrs.frozen(kw_only=True)
class Finding:
    """One thing that is wrong: a stable kebab-case `code`, a sentence, one command to run.

    `detail` is text to put into a file, for a command that edits one.
    """

    code: str
    severity: Severity
    message: str
    command: str
    detail: str = ""


class Listener(enum.StrEnum):
    """What is known of the runtime's NRI socket; a recording may say nothing of runtimes."""

    UNKNOWN = "unknown"
    LISTENING = "listening"
    MISSING = "missing"
    NO_SOCKET = "not-a-socket"
    REFUSED = "refused"


@attrs.frozen(kw_only=True)
class Versions:
    """The versions of programs as they tell them, empty where not known."""

    containerd: str = ""
    runc: str = ""
    systemd: str = ""


@attrs.frozen(kw_only=True)
class Process:
    """A process by its command; `confined` is the AppArmor profile that is enforced on it."""

    pid: int
    arguments: tuple[str, ...]
    confined: str = ""


@attrs.frozen(kw_only=True)
class Holder:
    """A process with the driver's files mounted, one for each mount namespace.

    `engine` is docker or podman where its cgroup tells so, `version` that of the files. `denied`
    are the nodes that it has and may not open. `shadows` are the files that its LD_LIBRARY_PATH
    finds instead of those that it was given.
    """

    pid: int
    container: str
    engine: str = ""
    version: str = ""
    denied: tuple[str, ...] = ()
    shadows: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Stripped:
    """A running container that lacks nodes which the runtime was told to give it."""

    container: str
    pid: int
    nodes: tuple[str, ...]


@attrs.frozen(kw_only=True)
class CdiSpec:
    """A CDI specification for NVIDIA's devices; `missing` are host files that it names in vain.

    `rival` is another of its directory that defines the same kind. `hook` is our hook's program,
    where that is gone.
    """

    path: str
    missing: tuple[str, ...] = ()
    rival: str = ""
    hook: str = ""


@attrs.frozen(kw_only=True)
class CharLink:
    """A link `/dev/char/MAJOR:MINOR` that is not right; one without `leads_to` is missing."""

    path: str
    node: str
    leads_to: str = ""


@attrs.frozen(kw_only=True)
class Others:
    """What else on the node gives containers GPUs, by path."""

    hooks: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    cdi: tuple[CdiSpec, ...] = ()
    docker_default: str = ""


@attrs.frozen(kw_only=True)
class Facts:
    """All that is known of a node.

    `uid` is None on a recorded host, as is what cannot be asked there. `status` is the daemon's
    status document, `status_error` why there is none. `own_plugins` are links to us in the
    runtime's plugin directory, and `unit` tells whether systemd has a unit of ours. `selinux` is
    None without SELinux, else whether containers may use devices. `fabric_switches` tells
    NVSwitches. `ldconfig` is the host's, empty where there is none, None where that is not
    recorded.
    """

    recorded: bool = False
    uid: int | None = None
    settings: config_model.Config = attrs.field(factory=config_model.Config)
    settings_faults: tuple[str, ...] = ()
    runtime: containerd.Settings = attrs.field(factory=containerd.Settings)
    versions: Versions = attrs.field(factory=Versions)
    listener: Listener = Listener.LISTENING
    processes: tuple[Process, ...] = ()
    own_plugins: tuple[str, ...] = ()
    unit: bool = False
    others: Others = attrs.field(factory=Others)
    inventory: host.Inventory | None = None
    inventory_error: host.Problem | None = None
    char_links: tuple[CharLink, ...] = ()
    holders: tuple[Holder, ...] = ()
    stripped: tuple[Stripped, ...] = ()
    ldconfig: str | None = None
    kubelet: bool = False
    selinux: bool | None = None
    fabric_switches: bool = False
    status: Mapping[str, Any] | None = None
    status_error: str = ""

    def running(self, name: str) -> tuple[Process, ...]:
        """Give the processes of a program by the name of its file."""
        return tuple(
            process
            for process in self.processes
            if process.arguments and process.arguments[0].rpartition("/")[2] == name
        )
