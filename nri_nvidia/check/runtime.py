# SPDX-License-Identifier: Apache-2.0
"""Findings about the container runtime: whether NRI is on, and whether anybody listens there."""

import re
from collections.abc import Iterator

from nri_nvidia.check import containerd
from nri_nvidia.check.model import Facts, Finding, Listener, Severity

_OLDEST = (1, 7)
_RUNTIMES = ("containerd", "k3s", "rke2", "crio", "dockerd")
_LEAST_TIMEOUT = 1.0
"""Seconds: a look at a host takes milliseconds, on a busy node much more."""
_SERVICES = {"k3s": "k3s", "rke2": "rke2-server", "k0s": "k0sworker"}
"""The units of those that bring a containerd of their own, by a part of its file's path."""


def findings(facts: Facts) -> Iterator[Finding]:
    """Give what keeps containers from reaching us, causes before their consequences."""
    if not facts.settings.nri.enabled:  # containers are to come by other doors alone
        yield from _nvidia_runtime(facts)
        return
    yield from _unreadable(facts)
    yield from _too_old(facts)
    off = [*_misplaced(facts), *_off(facts)]
    yield from off
    if not off:
        yield from _socket(facts)
    yield from _timeout(facts)
    yield from _nvidia_runtime(facts)


def major(version: str) -> int:
    """Give the first number of a version, 0 where there is none."""
    return numbers(version)[0] if numbers(version) else 0


def numbers(version: str) -> tuple[int, ...]:
    """Give the numbers that a version begins with; distributions decorate it at will."""
    match = re.match(r"v?(\d{1,6}(?:\.\d{1,6})*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()


def _config(facts: Facts) -> str:
    return facts.runtime.files[0] if facts.runtime.files else containerd.DEFAULT_PATH


def restart(facts: Facts) -> str:
    """Give the command that restarts the runtime."""
    parts = _config(facts).split("/")
    unit = next((unit for part, unit in _SERVICES.items() if part in parts), "containerd")
    return f"systemctl restart {unit}"


def _unreadable(facts: Facts) -> Iterator[Finding]:
    for fault in facts.runtime.faults:
        yield Finding(
            code="containerd-config-unreadable",
            severity=Severity.ERROR,
            message=f"{fault}; containerd does not start with it, or starts without it",
            command="containerd config dump",
        )


def _too_old(facts: Facts) -> Iterator[Finding]:
    found = numbers(facts.versions.containerd)
    if found and found < _OLDEST:
        yield Finding(
            code="runtime-too-old",
            severity=Severity.ERROR,
            message=f"containerd is {facts.versions.containerd}, and NRI came with 1.7",
            command="apt-get install containerd",
        )


def _misplaced(facts: Facts) -> Iterator[Finding]:
    for place in facts.runtime.misplaced:
        yield Finding(
            code="nri-settings-misplaced",
            severity=Severity.ERROR,
            message=f"{place}: settings of NRI at a place where containerd does not read them; "
            f'its table is [plugins."{containerd.NRI}"]',
            command=f"$EDITOR {place.partition(':')[0]} && {restart(facts)}",
            detail=_snippet(facts),
        )


def _off(facts: Facts) -> Iterator[Finding]:
    table = facts.runtime.nri
    path = _config(facts)
    disable = table.get("disable")
    if containerd.NRI in facts.runtime.disabled:
        yield Finding(
            code="nri-off",
            severity=Severity.ERROR,
            message=f"NRI is switched off: disabled_plugins in {path} names {containerd.NRI}",
            command=f"{_switch_on(path)} && {restart(facts)}",
        )
    elif disable is True or (disable is not False and _off_by_default(facts)):
        said = "sets disable = true" if disable is True else "does not switch it on"
        version = f" {facts.versions.containerd}" if facts.versions.containerd else " 1.7"
        why = "" if disable is True else f", and in containerd{version} it is off by default"
        yield Finding(
            code="nri-off",
            severity=Severity.ERROR,
            message=f"NRI is switched off: {path} {said}{why}{_or_none_wanted(facts)}",
            command=f"{_switch_on(path)} && {restart(facts)}",
            detail=_snippet(facts),
        )
    if table.get("disable_connections") is True and not facts.own_plugins:
        yield Finding(
            code="nri-connections-off",
            severity=Severity.ERROR,
            message=f"{path} sets disable_connections = true: containerd takes no plugin but "
            "those that it starts itself",
            command=f"{_switch_on(path)} && {restart(facts)}",
            detail=_snippet(facts, "disable_connections = false"),
        )


def _or_none_wanted(facts: Facts) -> str:
    """Say what else may be meant, on a node that is not Kubernetes'."""
    if facts.kubelet:
        return ""
    return " (docker, podman, nerdctl and ctr need none: nri.enabled = false then)"


def _switch_on(path: str) -> str:
    """Give what switches NRI on in a file."""
    other = "" if path in containerd.PLACES else f" --config {path}"
    return f"nri-nvidia configure containerd{other} --apply"


def _off_by_default(facts: Facts) -> bool:
    """Tell by containerd's version, else by its file's: version 3 came with containerd 2."""
    version = facts.versions.containerd
    if version:
        return major(version) < 2
    if facts.listener is Listener.LISTENING:
        return False  # a newer containerd reads the older form as well
    return 0 < facts.runtime.version < 3


def _snippet(facts: Facts, line: str = "disable = false") -> str:
    """Give the lines to have in the file; the table's name is the same in versions 2, 3 and 4."""
    quote = "'" if facts.runtime.version > 2 else '"'
    head = "" if facts.runtime.version > 1 else "version = 2\n\n"
    return f"{head}[plugins.{quote}{containerd.NRI}{quote}]\n  {line}"


def _socket(facts: Facts) -> Iterator[Finding]:
    ours = facts.settings.nri.socket
    theirs = facts.runtime.nri.get("socket_path")
    if isinstance(theirs, str) and theirs and _same(theirs) != _same(ours):
        yield Finding(
            code="nri-socket-differs",
            severity=Severity.ERROR,
            message=f"containerd's NRI socket is {theirs} ({_config(facts)}), and nri.socket is "
            f"{ours}",
            command="$EDITOR /etc/nri-nvidia/config.toml && systemctl reload nri-nvidia",
            detail=f'[nri]\nsocket = "{theirs}"',
        )
        return
    if facts.listener in {Listener.LISTENING, Listener.UNKNOWN}:
        return
    runs = any(facts.running(name) for name in _RUNTIMES)
    if facts.processes and not runs:
        there = bool(facts.versions.containerd or facts.runtime.files)
        absent = (
            ", and no containerd was found here, neither program nor configuration: install it, "
            "or set nri.enabled = false where none of its containers are to be served"
        )
        yield Finding(
            code="runtime-not-running",
            severity=Severity.ERROR,
            message=f"no container runtime with NRI is running, so nobody serves {ours}"
            f"{'' if there else absent}",
            command="systemctl start containerd" if there else "apt-get install containerd",
        )
    elif facts.listener is Listener.REFUSED:
        yield Finding(
            code="nri-socket-refused",
            severity=Severity.ERROR,
            message=f"{ours} is there and nobody listens at it: it is left from a runtime that "
            "ended, or that runs now without NRI",
            command=restart(facts),
        )
    elif facts.listener is Listener.NO_SOCKET:
        yield Finding(
            code="nri-socket-missing",
            severity=Severity.ERROR,
            message=f"{ours} is there and is not a socket",
            command=f"rm -r {ours} && {restart(facts)}",
        )
    else:
        yield Finding(
            code="nri-socket-missing",
            severity=Severity.ERROR,
            message=f"there is no NRI socket {ours}: containerd was not restarted since NRI was "
            "switched on, or serves it elsewhere",
            command=restart(facts),
        )


def _same(path: str) -> str:
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _timeout(facts: Facts) -> Iterator[Finding]:
    """Give the time limits of NRI that are too short, by configuration or as the runtime told."""
    told = facts.status["runtime"].get("request_timeout") if facts.status else None
    if told is not None and told < _LEAST_TIMEOUT and not _limit(facts, "plugin_request_timeout"):
        yield Finding(
            code="request-timeout-short",
            severity=Severity.WARNING,
            message=f"the runtime gives its plugins {told:g} s for an answer: on a busy node it "
            "drops them, and creates containers without them",
            command=f"$EDITOR {_config(facts)} && {restart(facts)}",
            detail=_snippet(facts, 'plugin_request_timeout = "2s"'),
        )
    for key in ("plugin_request_timeout", "plugin_registration_timeout"):
        limit = _limit(facts, key)
        if limit is not None and limit < _LEAST_TIMEOUT:
            yield Finding(
                code="request-timeout-short",
                severity=Severity.WARNING,
                message=f"{_config(facts)} sets {key} to {limit:g} s: on a busy node containerd "
                "drops its plugins, and creates containers without them",
                command=f"$EDITOR {_config(facts)} && {restart(facts)}",
                detail=_snippet(facts, f'{key} = "2s"'),
            )


def _limit(facts: Facts, key: str) -> float | None:
    return containerd.seconds(facts.runtime.nri.get(key))


def _nvidia_runtime(facts: Facts) -> Iterator[Finding]:
    runtimes = facts.runtime.runtimes
    default = facts.runtime.default_runtime
    if _is_nvidia(default, runtimes.get(default, "")):
        yield Finding(
            code="default-runtime-nvidia",
            severity=Severity.ERROR,
            message=f"containerd's default runtime is {default} ({_config(facts)}): it gives "
            "GPUs by itself, behind NRI, so each container has two owners",
            command=f"$EDITOR {_config(facts)} && {restart(facts)}",
            detail='default_runtime_name = "runc"',
        )
        return
    others = [name for name, program in runtimes.items() if _is_nvidia(name, program)]
    if others:
        yield Finding(
            code="nvidia-runtime-class",
            severity=Severity.INFO,
            message=f"containerd has the runtime {', '.join(others)}: pods whose runtime class "
            "names it get their GPUs twice, from it and from here",
            command="kubectl get runtimeclass",
        )


def _is_nvidia(name: str, program: str) -> bool:
    return "nvidia-container-runtime" in program or (not program and name.startswith("nvidia"))
