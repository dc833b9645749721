# SPDX-License-Identifier: Apache-2.0
"""Findings about the daemon itself, others that give GPUs, and what guards the node."""

import posixpath
import re
from collections.abc import Iterator

from nri_nvidia import pipeline
from nri_nvidia.check import driver, runtime
from nri_nvidia.check.model import Facts, Finding, Process, Severity
from nri_nvidia.config import place
from nri_nvidia.host import model as host
from nri_nvidia.oci import cdifiles
from nri_nvidia.request import container as containers

_OURS = re.compile(r"(?:^|/)(\d\d-)?nri-nvidia$")
_ANY_POD = containers.Container(
    id="any",
    namespace="default",
    pod="any",
    name="any",
    env=("NVIDIA_VISIBLE_DEVICES=all",),
    privileged=False,
)
"""What nobody was asked about. Rules may still treat other namespaces otherwise."""
_LOG = "journalctl -u nri-nvidia -n 50"


def settings(facts: Facts) -> Iterator[Finding]:
    """Give the faults of our own settings, which others may come of."""
    for fault in facts.settings_faults:
        yield Finding(
            code="settings-wrong",
            severity=Severity.ERROR,
            message=fault,
            command=f"nri-nvidia config --check {fault.partition(':')[0] or place.FILE}",
        )


def daemon(facts: Facts) -> Iterator[Finding]:
    """Give what is wrong with the daemon."""
    if facts.uid not in {None, 0}:
        yield Finding(
            code="not-root",
            severity=Severity.WARNING,
            message="only root sees all: the daemon was not asked, and other users' containers "
            "were not looked at",
            command="sudo nri-nvidia check",
        )
    yield from _copies(facts)
    yield from _not_running(facts)
    yield from _hook(facts)


def _copies(facts: Facts) -> Iterator[Finding]:
    running = [process for process in facts.processes if is_ours(process)]
    if len(running) > 1:
        pids = ", ".join(str(process.pid) for process in running)
        yield Finding(
            code="two-daemons",
            severity=Severity.ERROR,
            message=f"{len(running)} nri-nvidia run on this node (processes {pids}): started by "
            "systemd and by the runtime, or by hand as well",
            command="systemctl disable --now nri-nvidia"
            if facts.own_plugins
            else f"kill {running[-1].pid}",
        )
    elif facts.own_plugins and running and not _launched(running[0]):
        yield Finding(
            code="two-daemons",
            severity=Severity.ERROR,
            message=f"nri-nvidia runs, and {facts.own_plugins[0]} has the runtime start another "
            "at its next start",
            command=f"rm {facts.own_plugins[0]}",
        )


def is_ours(process: Process) -> bool:
    """Tell a daemon of ours by its command, as a person, systemd or a runtime starts it."""
    arguments = process.arguments
    for number, argument in enumerate(arguments[:2]):
        match = _OURS.search(argument)
        if match:
            return bool(match[1]) or arguments[number + 1 : number + 2] == ("run",)
    return arguments[1:4] == ("-m", "nri_nvidia", "run")


def _launched(process: Process) -> bool:
    return any((match := _OURS.search(a)) and match[1] for a in process.arguments[:2])


def _not_running(facts: Facts) -> Iterator[Finding]:
    if facts.recorded or facts.uid != 0:
        return
    if facts.status is None:
        yield Finding(
            code="daemon-not-running",
            severity=Severity.ERROR,
            message=f"{facts.status_error}: {_without_it(facts)}",
            command=_start(facts),
        )
        return
    told = facts.status["runtime"]
    if not (told["registered"] or told.get("off")):
        yield Finding(
            code="not-registered",
            severity=Severity.ERROR,
            message="the daemon runs and is not registered with a runtime: containers are "
            "created without their GPUs",
            command=_LOG,
        )
    missed = facts.status["missed"]
    if missed:
        names = ", ".join(_name(entry) for entry in missed[:5])
        more = f" and {len(missed) - 5} more" if len(missed) > 5 else ""
        yield Finding(
            code="containers-missed",
            severity=Severity.ERROR,
            message=f"created while the daemon was away, without the GPU they asked for: "
            f"{names}{more}",
            command=driver.recreate(missed[0], missed[0]["id"]),
        )
    for each in facts.status["findings"]:
        yield driver.of_problem(
            host.Problem(code=each["code"], message=each["message"], hint=each["hint"]), _LOG
        )


def _without_it(facts: Facts) -> str:
    """Say what becomes of containers without the daemon."""
    refused = "those of nri-nvidia-runtime that ask for a GPU are refused"
    if not facts.settings.nri.enabled:
        return refused.replace("those", "containers")
    return f"containers are created without their GPUs, and {refused}"


def _start(facts: Facts) -> str:
    """Give what starts the daemon; without a unit, what puts it on the node and starts it."""
    if facts.own_plugins:
        return runtime.restart(facts)
    return "systemctl enable --now nri-nvidia" if facts.unit else "nri-nvidia install"


def _name(entry: dict[str, str]) -> str:
    parts = [entry["namespace"], entry["pod"], entry["name"]]
    return "/".join(part for part in parts if part) or entry["id"][:12]


def _hook(facts: Facts) -> Iterator[Finding]:
    hook = facts.settings.hook
    if not hook.enabled or "ldcache" not in hook.steps or facts.ldconfig != "":
        return
    where = hook.ldconfig or "/sbin/ldconfig"
    yield Finding(
        code="ldconfig-missing",
        severity=Severity.ERROR if hook.on_error == "fail" else Severity.WARNING,
        message=f"there is no {where} on this host: containers get the driver's files, and ld.so "
        "finds them only where the image has a cache of its own to add them to",
        command="ls -l /sbin/ldconfig* /usr/sbin/ldconfig*",
        detail='[hook]\nldconfig = "/path/of/ldconfig"' if hook.ldconfig else "",
    )


def others(facts: Facts) -> Iterator[Finding]:
    """Give what else on the node gives containers GPUs."""
    found = facts.others
    for path in found.plugins:
        yield Finding(
            code="other-nri-plugin",
            severity=Severity.WARNING,
            message=f"{path} is another NRI plugin for GPUs: one of the two fails a container "
            "that both serve",
            command=f"ls -l {path}",
        )
    for path in found.hooks:
        yield Finding(
            code="other-hook",
            severity=Severity.WARNING,
            message=f"{path} has podman and CRI-O run NVIDIA's hook: containers that they create "
            "have two owners, and lose what the hook gave at a daemon-reload",
            command=f"mv {path} {path}.off",
        )
    for spec in found.cdi:
        if spec.rival:
            foreign = spec.rival if cdifiles.class_of(spec.path) else spec.path
            yield Finding(
                code="cdi-spec-twice",
                severity=Severity.WARNING,
                message=f"{spec.rival} and {spec.path} define the same kind: engines take "
                "neither of two such devices, and containers that name one fail",
                command=f"rm {foreign}",
            )
        if spec.hook:
            yield Finding(
                code="cdi-hook-missing",
                severity=Severity.ERROR,
                message=f"{spec.path} names the hook {spec.hook}, which is not there, as after a "
                "reboot without the daemon: containers that use it fail",
                command=_write_cdi(facts, spec.path),
            )
        if spec.missing:
            yield Finding(
                code="cdi-spec-stale",
                severity=Severity.WARNING,
                message=f"{spec.path} names {len(spec.missing)} files that are not there, e.g. "
                f"{spec.missing[0]}: it is of another driver, and containers that use it fail",
                command=_write_cdi(facts, spec.path)
                if cdifiles.class_of(spec.path)
                else f"rm {spec.path}",
            )
        elif not (spec.rival or spec.hook):
            yield Finding(
                code="cdi-spec-present",
                severity=Severity.INFO,
                message=f"{spec.path} gives GPUs to containers that name its devices",
                command=f"head {spec.path}",
            )
    if found.docker_default.startswith("nvidia"):
        yield Finding(
            code="docker-default-nvidia",
            severity=Severity.INFO,
            message=f"docker's default runtime is {found.docker_default}: its containers get "
            "their GPUs from that one",
            command="docker info --format '{{.DefaultRuntime}}'",
        )


def _write_cdi(facts: Facts, path: str) -> str:
    """Give what writes a specification of ours again."""
    directory, kind = posixpath.dirname(path), cdifiles.class_of(path)
    if not kind:  # a file that a person named
        return f"nri-nvidia cdi generate --output {path}"
    if facts.settings.cdi.keep and directory == facts.settings.cdi.directory:
        return "systemctl restart nri-nvidia"
    return f"nri-nvidia cdi generate --kind {kind} --output {directory}"


def guards(facts: Facts) -> Iterator[Finding]:
    """Give what of the node's guards is in the way, and what is not guarded at all."""
    if facts.selinux is False:
        yield Finding(
            code="selinux-denies-devices",
            severity=Severity.WARNING,
            message="SELinux enforces, and its boolean container_use_devices is off: containers "
            "with the usual label may not open GPUs",
            command="setsebool -P container_use_devices on",
        )
    for process in facts.processes:
        if process.confined and is_ours(process):
            yield Finding(
                code="apparmor-confines",
                severity=Severity.WARNING,
                message=f"AppArmor's profile {process.confined} is enforced on the daemon "
                f"(process {process.pid}): what it denies there is not shown to us",
                command="dmesg | grep -i 'apparmor=.DENIED'",
            )
    if facts.kubelet and pipeline.asks(_ANY_POD, facts.settings.rules(interpreter="")):
        yield Finding(
            code="every-pod-can-take-all-gpus",
            severity=Severity.WARNING,
            message="every pod of this node can take all GPUs, by NVIDIA_VISIBLE_DEVICES=all in "
            "its spec or image (this is how NVIDIA's own stack behaves)",
            command="$EDITOR /etc/nri-nvidia/config.toml && systemctl reload nri-nvidia",
            detail='policy = "strict"  # above all tables',
        )
