# SPDX-License-Identifier: Apache-2.0
"""Gathers the facts of a node, or of a recorded one. Nothing is changed there."""

import contextlib
import errno
import os
import posixpath
import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from typing import Any

import attrs

from nri_nvidia import errors
from nri_nvidia.check import containerd, containers, model
from nri_nvidia.config import model as config_model
from nri_nvidia.config import place
from nri_nvidia.host import cache
from nri_nvidia.host import model as host
from nri_nvidia.host import options as host_options
from nri_nvidia.host import root as roots
from nri_nvidia.oci import cdifiles

_CDI = cdifiles.DIRECTORIES
_OCI_HOOKS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
_PLUGINS = "/opt/nri/plugins"
_OWN_PLUGIN = re.compile(r"\d\d-nri-nvidia")
_LDCONFIG = (
    "/sbin/ldconfig.real",
    "/sbin/ldconfig",
    "/usr/sbin/ldconfig",
    "/run/current-system/sw/bin/ldconfig",
    "/usr/local/glibc/sbin/ldconfig",
)
_HOST_PATH = re.compile(r'"?hostPath"?\s*:\s*["\']?(/[^"\',\s]+)')
_HOOK = re.compile(r'"(/[^"]*/nri-nvidia-hook)"')
_VERSIONS_FILE = "/versions.json"
_LIMIT = 5
_LISTENS = 0x10000
"""The flag of a listening socket in /proc/net/unix (`__SO_ACCEPTCON`)."""


@attrs.frozen(kw_only=True)
class Where:
    """Which node is looked at, and how it is set up.

    `root` is `/` or a recorded host. `runtime_config` is containerd's file, empty for the first
    that is there of those that are known.
    """

    root: roots.Root = attrs.field(factory=roots.Root)
    settings: config_model.Config = attrs.field(factory=config_model.Config)
    options: host_options.Options = attrs.field(factory=host_options.Options)
    runtime_config: str = ""


def gather(where: Where) -> model.Facts:
    """Look at everything but the daemon; what cannot be seen is left at its default."""
    root = where.root
    versions = _recorded_versions(root) if root.recorded else _told_versions()
    runtime = containerd.load(
        where.runtime_config or _runtime_config(root),
        root.text,
        root.entries,
        replaces=not versions.containerd.startswith(("2", "3")) if versions.containerd else None,
    )
    inventory, error = _inventory(where.options)
    processes = tuple(_processes(root))
    plugins = _plugins(root, str(runtime.nri.get("plugin_path") or _PLUGINS))
    return model.Facts(
        recorded=root.recorded,
        uid=None if root.recorded else os.geteuid(),
        settings=where.settings,
        runtime=runtime,
        versions=versions,
        listener=_listener(root, where.settings.nri.socket),
        processes=processes,
        own_plugins=tuple(path for path in plugins if _OWN_PLUGIN.search(path)),
        unit=any(root.stat(path) is not None for path in place.UNITS),
        others=_others(root, plugins),
        inventory=inventory,
        inventory_error=error,
        char_links=tuple(_char_links(root, inventory)) if inventory else (),
        holders=containers.holders(root, where.settings.inject.library_dir, inventory),
        ldconfig=_ldconfig(root, where.settings.hook.ldconfig),
        kubelet=root.stat("/var/lib/kubelet/config.yaml") is not None
        or any("kubelet" in process.arguments[0] for process in processes),
        selinux=_selinux(root),
        fabric_switches=bool(root.entries("/proc/driver/nvidia-nvswitch/devices")),
    )


def _runtime_config(root: roots.Root) -> str:
    there = (path for path in containerd.PLACES if root.stat(path) is not None)
    return next(there, containerd.DEFAULT_PATH)


def _recorded_versions(root: roots.Root) -> model.Versions:
    """Read what a recording says of programs: `versions.json`, by their names."""
    import json  # noqa: PLC0415 - a recorded host alone has it

    try:
        found = json.loads(root.text(_VERSIONS_FILE) or "{}")
    except ValueError:
        return model.Versions()
    known = [field.name for field in attrs.fields(model.Versions)]
    return model.Versions(**{key: str(found[key]) for key in known if key in found})


def _told_versions() -> model.Versions:
    return model.Versions(
        containerd=_told(["containerd", "--version"], r"\sv?(\d+\.\d+[^\s]*)"),
        runc=_told(["runc", "--version"], r"runc version v?(\S+)"),
        systemd=_told(["systemctl", "--version"], r"systemd (\S+)"),
    )


def _told(command: list[str], pattern: str) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", check=False, timeout=_LIMIT,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(pattern, done.stdout)
    return match[1] if match else ""


def _inventory(
    options: host_options.Options,
) -> tuple[host.Inventory | None, host.Problem | None]:
    """Scan without making what is missing: that is what is to be found."""
    looking = attrs.evolve(options, create_device_nodes=False, dev_char_symlinks=False)
    kept = cache.Cache(looking)
    try:
        kept.refresh_nvml()
        return kept.get(), None
    except errors.Error as error:
        return None, host.Problem(code=error.code, message=error.message, hint=error.hint)


def _listener(root: roots.Root, path: str) -> model.Listener:
    found = root.stat(path)
    if found is None:
        tells = root.text("/proc/net/unix") is not None if root.recorded else _visible(path)
        return model.Listener.MISSING if tells else model.Listener.UNKNOWN
    if not stat.S_ISSOCK(found.st_mode):
        return model.Listener.NO_SOCKET
    if _same(path) in {_same(name) for name in _listening(root)}:
        return model.Listener.LISTENING
    # Another network namespace's sockets are not in the table: then only a connection can tell.
    if not root.recorded and _accepts(path):
        return model.Listener.LISTENING
    return model.Listener.REFUSED


def _visible(path: str) -> bool:
    """Tell whether we may see what is at a path; containerd's directory is root's alone."""
    above = posixpath.dirname(path)
    while above != "/" and not os.path.lexists(above):
        above = posixpath.dirname(above)
    return os.access(above, os.X_OK)


def _listening(root: roots.Root) -> Iterator[str]:
    for line in (root.text("/proc/net/unix") or "").splitlines()[1:]:
        parts = line.split(maxsplit=7)
        with contextlib.suppress(ValueError):
            if len(parts) == 8 and int(parts[3], 16) & _LISTENS:
                yield parts[7]


def _same(path: str) -> str:
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(path)
        except TimeoutError:
            return True
        except OSError as error:
            return error.errno in {errno.EACCES, errno.EAGAIN}  # not known to be dead
        return True


def _processes(root: roots.Root) -> Iterator[model.Process]:
    for name in root.entries("/proc"):
        if name.isdigit():
            line = root.data(f"/proc/{name}/cmdline", 4096) or b""
            arguments = tuple(line.decode("utf-8", "replace").rstrip("\0").split("\0"))
            if arguments[0]:
                yield model.Process(
                    pid=int(name), arguments=arguments, confined=_confined(root, name)
                )


def _confined(root: roots.Root, pid: str) -> str:
    """Give the AppArmor profile enforced on a process; SELinux's label has another form."""
    label = (root.text(f"/proc/{pid}/attr/current") or "").strip("\0\n ")
    return label.removesuffix(" (enforce)") if label.endswith(" (enforce)") else ""


def _plugins(root: roots.Root, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in root.entries(directory)]


def _others(root: roots.Root, plugins: list[str]) -> model.Others:
    hooks = [
        f"{directory}/{name}"
        for directory in _OCI_HOOKS
        for name in root.entries(directory)
        if name.endswith(".json") and "nvidia" in (root.text(f"{directory}/{name}") or "")
    ]
    others = [
        path
        for path in plugins
        if "nvidia" in posixpath.basename(path) and not _OWN_PLUGIN.search(path)
    ]
    return model.Others(
        hooks=tuple(hooks),
        plugins=tuple(others),
        cdi=tuple(_cdi(root)),
        docker_default=_docker_default(root),
    )


def _cdi(root: roots.Root) -> Iterator[model.CdiSpec]:
    for directory in _CDI:
        texts = {
            f"{directory}/{name}": root.text(f"{directory}/{name}") or ""
            for name in sorted(root.entries(directory))
            if name.endswith((".json", ".yaml"))
        }
        firsts: dict[str, str] = {}
        for path, text in texts.items():
            if "nvidia.com/" not in text:
                continue
            named = dict.fromkeys(_HOST_PATH.findall(text))
            missing = tuple(each for each in named if root.stat(each) is None)
            first = firsts.setdefault(cdifiles.kind_of(text), path)
            rival = "" if first == path else first
            gone = "" if root.recorded else _hook_that_is_gone(root, text)
            yield model.CdiSpec(path=path, missing=missing, rival=rival, hook=gone)


def _hook_that_is_gone(root: roots.Root, text: str) -> str:
    """Give the program of our hook that a specification names and that is not there.

    It is below /run: a reboot takes it away, and only the daemon's start brings it back.
    """
    named = dict.fromkeys(_HOOK.findall(text))
    return next((path for path in named if root.stat(path) is None), "")


def _docker_default(root: roots.Root) -> str:
    found = re.search(
        r'"default-runtime"\s*:\s*"([^"]*)"', root.text("/etc/docker/daemon.json") or ""
    )
    return found[1] if found else ""


def _char_links(root: roots.Root, inventory: host.Inventory) -> Iterator[model.CharLink]:
    """Compare each link with its node, by name: a recording has no numbers to compare."""
    seen: set[str] = set()
    for node in inventory.nodes:
        path = f"/dev/char/{node.major}:{node.minor}"
        if not node.exists or path in seen:
            continue
        seen.add(path)
        try:
            target = os.readlink(root.on_disk(path))  # noqa: PTH115 - a name, not a Path
        except OSError as error:
            if error.errno == errno.ENOENT:
                yield model.CharLink(path=path, node=node.path)
            continue
        if posixpath.normpath(posixpath.join("/dev/char", target)) != node.path:
            yield model.CharLink(path=path, node=node.path, leads_to=target)


def _ldconfig(root: roots.Root, configured: str) -> str | None:
    if root.recorded and not configured and root.stat("/sbin") is None:
        return None
    places = (configured,) if configured else _LDCONFIG
    return next((path for path in places if root.stat(path) is not None), "")


def _selinux(root: roots.Root) -> bool | None:
    """Tell whether SELinux lets containers use devices; None where it does not enforce."""
    if (root.text("/sys/fs/selinux/enforce") or "").strip() != "1":
        return None
    allowed: Any = (root.text("/sys/fs/selinux/booleans/container_use_devices") or "").split()
    return bool(allowed) and allowed[0] == "1"
