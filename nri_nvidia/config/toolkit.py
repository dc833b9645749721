# SPDX-License-Identifier: Apache-2.0
"""From NVIDIA's settings (/etc/nvidia-container-runtime/config.toml) to ours.

The keys are those of the NVIDIA Container Toolkit's configuration. Each that is not taken is
named with the reason: nothing that somebody once set is dropped in silence.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from nri_nvidia.config import load, model

DEFAULT_PATH = "/etc/nvidia-container-runtime/config.toml"
_CLI = "nvidia-container-cli"
_RUNTIME = "nvidia-container-runtime"
_MODES = f"{_RUNTIME}.modes"


@attrs.frozen(kw_only=True)
class Left:
    """A key that was not taken."""

    key: str
    value: Any
    reason: str

    def __str__(self) -> str:
        """Give it as a line."""
        return f"{self.key} = {json.dumps(self.value, default=str)}: {self.reason}"


@attrs.frozen(kw_only=True)
class Imported:
    """Our settings by `group.key`, and what was left."""

    settings: Mapping[str, Any]
    left: tuple[Left, ...]


class _NotTaken(Exception):  # noqa: N818 - no fault, and goes no further than this module
    """Raised with the reason why a value has no counterpart."""


def read(text: load.Text) -> Imported:
    """Give what a file of NVIDIA's means here; raises Invalid where it is no TOML."""
    try:
        document = tomllib.loads(text.toml)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise model.Invalid((f"{text.name}: not valid TOML: {error}",)) from error
    settings: dict[str, Any] = {}
    left = []
    for key, value in _leaves(document):
        try:
            settings |= _taken(key, value)
        except _NotTaken as reason:
            left.append(Left(key=key, value=value, reason=str(reason)))
    return Imported(settings=settings, left=tuple(left))


def toml(settings: Mapping[str, Any]) -> str:
    """Give settings as a file that has them and nothing else."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def _leaves(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _taken(key: str, value: Any) -> dict[str, Any]:
    """Give our settings for one of theirs, checked as if they were read from a file of ours."""
    if key in _REASONS:
        raise _NotTaken(_REASONS[key])
    take = _KEYS.get(key)
    if take is None:
        raise _NotTaken("no key of NVIDIA's that is known here")
    found = take(value)
    try:
        load.load([load.Text(name=key, toml=toml(found), lined=False)])
    except model.Invalid as error:
        wrong = error.faults[0].split(": ", 2)[-1]
        raise _NotTaken(f"no value that {', '.join(found)} can have: {wrong}") from error
    return found


def _as(key: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {key: value}


def _names(key: str) -> Callable[[Any], dict[str, Any]]:
    """Take a comma list as a list."""

    def take(value: Any) -> dict[str, Any]:
        if not isinstance(value, str):
            return {key: value}
        return {key: [name.strip() for name in value.split(",") if name.strip()]}

    return take


def _root(value: Any) -> dict[str, Any]:
    return {} if value in {"", "/"} else {"host.driver_root": value}


def _ldconfig(value: Any) -> dict[str, Any]:
    path = str(value)
    if not path.startswith("@"):
        raise _NotTaken("means the container's own ldconfig, which is never run: only the host's")
    if path[1:] in {"/sbin/ldconfig", "/sbin/ldconfig.real"}:
        return {}  # the host's is found, also where it is a script around the real one
    return {"hook.ldconfig": path[1:]}


def _compat(value: Any) -> dict[str, Any]:
    known = {"ldconfig": "always", "hook": "always", "mount": "always", "disabled": "never"}
    if value not in known:
        raise _NotTaken(f"none of {', '.join(known)}")
    return {"inject.cuda_compat": known[value]}


def _no_compat(value: Any) -> dict[str, Any]:
    return {"inject.cuda_compat": "never"} if value else {}


def _level(value: Any) -> dict[str, Any]:
    level = {"warn": "warning", "trace": "debug", "fatal": "error", "panic": "error"}
    return {"log.level": level.get(str(value), value)}


def _mode(value: Any) -> dict[str, Any]:
    if value == "csv":
        return {"host.preset": "jetson"}
    if value in {"auto", "legacy", "jit-cdi"}:
        return {}
    raise _NotTaken("requests by variables are served in one way, CDI names in them besides")


def _runtimes(value: Any) -> dict[str, Any]:
    if isinstance(value, list) and set(value) <= {"runc", "crun", "docker-runc"}:
        return {}
    raise _NotTaken(
        "nri-nvidia-runtime takes the first runc or crun on PATH, or what the first line of "
        "/etc/nri-nvidia/runtime names"
    )


_KEYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "disable-require": _as("request.disable_require"),
    "swarm-resource": _names("request.swarm_resources"),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": _as(
        "request.accept_env_when_unprivileged"
    ),
    "accept-nvidia-visible-devices-as-volume-mounts": _as("request.accept_volume_mounts"),
    "supported-driver-capabilities": _names("request.supported_capabilities"),
    f"{_CLI}.root": _root,
    f"{_CLI}.ldconfig": _ldconfig,
    f"{_CLI}.load-kmods": _as("host.load_modules"),
    f"{_RUNTIME}.log-level": _level,
    f"{_RUNTIME}.mode": _mode,
    f"{_RUNTIME}.runtimes": _runtimes,
    f"{_MODES}.cdi.annotation-prefixes": _as("request.annotation_prefixes"),
    f"{_MODES}.legacy.cuda-compat-mode": _compat,
    "features.disable-cuda-compat-lib-hook": _no_compat,
    "features.ignore-imex-channel-requests": _as("request.ignore_imex_channels"),
}
_NO_PROGRAM = "no such program is run"
_REASONS = {
    f"{_CLI}.path": _NO_PROGRAM,
    f"{_CLI}.environment": _NO_PROGRAM,
    f"{_CLI}.debug": "the daemon's log goes to the journal; log.level says how much",
    f"{_CLI}.ldcache": "the driver root's own is read, and host.library_search_paths besides",
    f"{_CLI}.no-pivot": "nothing is pivoted: the hook has a mount namespace of its own",
    f"{_CLI}.no-cgroups": "devices are in the container's specification, and so the runtime's",
    f"{_CLI}.user": "nothing is run as another user",
    "nvidia-ctk.path": _NO_PROGRAM,
    f"{_RUNTIME}.debug": "the daemon's log goes to the journal; log.level says how much",
    f"{_MODES}.csv.mount-spec-path": "the lists are read at their usual place below the root",
    f"{_MODES}.csv.compat-container-root": "inject.cuda_compat_dir is where images have it",
    f"{_MODES}.cdi.default-kind": "names without a kind are GPUs",
    f"{_MODES}.cdi.spec-dirs": "CDI names are served from what the host has, by no file",
    f"{_MODES}.jit-cdi.nvcdi-feature-flags": "has no counterpart",
    f"{_MODES}.jit-cdi.nvcdi-disable-hooks": "hook.steps says what the one hook does",
    f"{_RUNTIME}-hook.path": _NO_PROGRAM,
    f"{_RUNTIME}-hook.skip-mode-detection": "there is one way for all containers",
    "features.allow-cuda-compat-libs-from-container": "see inject.cuda_compat",
    "features.allow-ldconfig-from-container": "the container's ldconfig is never run",
    "features.allow-unknown-oci-spec-fields": "unknown fields are kept, always",
    "features.disable-imex-channel-creation": "see host.create_device_nodes",
    "features.no-additional-gids-for-device-nodes": "NRI can add no groups, so none are added",
}
