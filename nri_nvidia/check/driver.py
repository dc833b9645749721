# SPDX-License-Identifier: Apache-2.0
"""Findings about the driver and its nodes, and about containers that hold them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nri_nvidia.check import runtime
from nri_nvidia.check.model import Facts, Finding, Holder, Severity, Stripped
from nri_nvidia.host import model as host

_ERRORS = frozenset(
    {
        "bad-configuration",
        "device-node-missing",
        "driver-incomplete",
        "driver-libraries-missing",
        "driver-library-damaged",
        "driver-not-loaded",
        "driver-version-mismatch",
        "hook-interpreter-unfit",
        "hook-late",
        "hook-not-in-place",
        "host-scan-failed",
        "host-scan-late",
        "kernel-module-not-loaded",
        "mig-capability-missing",
    }
)
"""The problems of a scan or of the daemon that keep containers from getting a working GPU."""
_COMMANDS = {
    "driver-version-mismatch": "reboot",
    "driver-libraries-missing": "ls -l /usr/lib*/*nvidia* /usr/lib/*-linux-gnu/libcuda.so*",
    "driver-library-missing": "apt-get install --reinstall libcuda1 libnvidia-ml1",
    "driver-library-damaged": "apt-get install --reinstall libcuda1 libnvidia-ml1",
    "gpu-not-answering": "dmesg | grep -i -e nvrm -e xid",
}
_SECOND = "kernel-module-not-loaded"
_HINTED = re.compile(r"(?:^|; |: )((?:modprobe|mknod|ln|rm|nvidia-modprobe|dmesg)\b.*)$")
# runc(1) release notes: the rule of a device without a link is dropped from what systemd is told.
_LOSING_RUNC = ((1, 1, 3), (1, 1, 6))
_LOSING_SYSTEMD = 240


def findings(facts: Facts) -> Iterator[Finding]:
    """Give what is wrong with the driver, causes before their consequences."""
    inventory = facts.inventory
    if facts.inventory_error:
        yield of_problem(facts.inventory_error)
    if inventory is None:
        return
    if not inventory.hardware:
        yield Finding(
            code="no-gpu",
            severity=Severity.INFO,
            message="this node has no NVIDIA GPU: containers that ask for all get none, and those "
            "that name one are refused",
            command="lspci -d 10de:",
        )
    for problem in sorted(inventory.problems, key=lambda p: p.code == _SECOND):
        yield _adjusted(of_problem(problem), facts)
    yield from _links(facts)
    yield from _fabric(facts)
    yield from _persistence(facts, inventory)
    yield from _stale(facts, inventory)
    yield from _stripped(facts)
    yield from _denied(facts)
    yield from _shadowed(facts)


def of_problem(problem: host.Problem, command: str = "nri-nvidia devices") -> Finding:
    """Give a problem of a scan, or of the daemon's own, as a finding.

    `command` shows more of it, where none is known that mends it.
    """
    hinted = _HINTED.search(problem.hint) or _HINTED.search(problem.message)
    command = _COMMANDS.get(problem.code) or (hinted[1] if hinted else command)
    hint = f"; {problem.hint}" if problem.hint and not hinted else ""
    return Finding(
        code=problem.code,
        severity=Severity.ERROR if problem.code in _ERRORS else Severity.WARNING,
        message=f"{problem.message}{hint}",
        command=command,
    )


def _adjusted(finding: Finding, facts: Facts) -> Finding:
    """Make no error of a node that the daemon makes when it is asked for."""
    if finding.code != "device-node-missing" or not facts.settings.host.create_device_nodes:
        return finding
    return Finding(
        code=finding.code,
        severity=Severity.WARNING,
        message=f"{finding.message} (the daemon makes it when a container asks for it)",
        command=finding.command,
    )


def _links(facts: Facts) -> Iterator[Finding]:
    """Give the links that are missing where runc and systemd need them (see host.char_links)."""
    loses = _loses(facts)
    for link in facts.char_links:
        right = f"ln -sfn {_target(link.node)} {link.path}"
        if link.leads_to:
            yield Finding(
                code="dev-char-link-wrong",
                severity=Severity.WARNING,
                message=f"{link.path} leads to {link.leads_to}, which is not {link.node}: "
                "containers may lose that device at a daemon-reload of systemd",
                command=right,
            )
        elif loses is not False:
            yield Finding(
                code="dev-char-link-missing",
                severity=Severity.ERROR if loses else Severity.WARNING,
                message=f"there is no {link.path} for {link.node}: with runc 1.1.3 to 1.1.6 or a "
                "systemd before 240 containers lose that device at a daemon-reload",
                command=right,
            )


def _target(node: str) -> str:
    return f"../{node.removeprefix('/dev/')}"


def _loses(facts: Facts) -> bool | None:
    """Tell whether this node's runc or systemd needs the links; None where it is not known."""
    if not facts.runtime.systemd_cgroup:
        return False
    runc = runtime.numbers(facts.versions.runc)
    systemd = runtime.major(facts.versions.systemd)
    first, last = _LOSING_RUNC
    if (runc and first <= runc[:3] <= last) or 0 < systemd < _LOSING_SYSTEMD:
        return True
    return False if runc and systemd else None


def _fabric(facts: Facts) -> Iterator[Finding]:
    if facts.fabric_switches and not facts.running("nv-fabricmanager"):
        yield Finding(
            code="fabric-manager-missing",
            severity=Severity.ERROR,
            message="this node has NVSwitches and no nv-fabricmanager runs: CUDA says that the "
            "system is not yet initialised (802), with all devices there",
            command="systemctl start nvidia-fabricmanager",
        )


def _persistence(facts: Facts, inventory: host.Inventory) -> Iterator[Finding]:
    resident = any(gpu.bus_id for gpu in inventory.usable) and inventory.driver_version
    if resident and facts.processes and not facts.running("nvidia-persistenced"):
        yield Finding(
            code="persistence-off",
            severity=Severity.INFO,
            message="nvidia-persistenced does not run: a GPU that nobody uses is put to sleep, "
            "and the first program that opens it waits for seconds",
            command="systemctl start nvidia-persistenced",
        )


def _stale(facts: Facts, inventory: host.Inventory) -> Iterator[Finding]:
    loaded = inventory.driver_version
    for holder in facts.holders:
        if loaded and holder.version not in {"", loaded}:
            yield Finding(
                code="stale-driver",
                severity=Severity.ERROR,
                message=f"{_who(facts, holder)} holds the driver's files of {holder.version}, and "
                f"the loaded module is {loaded}, which refuses them",
                command=recreate(_known(facts, holder.container), holder.container, holder.engine),
            )


def _stripped(facts: Facts) -> Iterator[Finding]:
    for found in facts.stripped:
        yield Finding(
            code="adjustment-not-applied",
            severity=Severity.ERROR,
            message=f"{_who(facts, found)} was to get {', '.join(found.nodes)} and does not have "
            "it: another NRI plugin, or a validator of the runtime, took it out",
            command=f"crictl inspect {found.container[:12]}",
        )


def _denied(facts: Facts) -> Iterator[Finding]:
    for holder in facts.holders:
        if holder.denied:
            yield Finding(
                code="device-permission-lost",
                severity=Severity.ERROR,
                message=f"{_who(facts, holder)} has {', '.join(holder.denied)} "
                "and may not open it: its cgroup has lost the rule, at a daemon-reload or an "
                "update of its resources",
                command=recreate(_known(facts, holder.container), holder.container, holder.engine),
            )


def _shadowed(facts: Facts) -> Iterator[Finding]:
    for holder in facts.holders:
        if holder.shadows:
            yield Finding(
                code="library-path-shadows-driver",
                severity=Severity.ERROR,
                message=f"in {_who(facts, holder)} LD_LIBRARY_PATH finds "
                f"{', '.join(holder.shadows)} before the host's driver, which is "
                f"{holder.version}",
                command=f"nri-nvidia explain {holder.container[:12]}"
                if holder.container
                else f"tr '\\0' '\\n' < /proc/{holder.pid}/environ",
            )


def recreate(known: Mapping[str, Any] | None, container: str, engine: str = "") -> str:
    """Give the command after which a container is made anew by whoever wants it to be there."""
    if known and known["pod"]:
        return f"kubectl -n {known['namespace'] or 'default'} delete pod {known['pod']}"
    if not container:
        return "nri-nvidia status"
    # docker writes a container's configuration anew at each start, podman once.
    command = {"docker": "docker restart", "podman": "podman rm -f"}.get(engine, "crictl rm -f")
    return f"{command} {container[:12]}"


def _known(facts: Facts, container: str) -> Mapping[str, Any] | None:
    """Give what the daemon knows of a container."""
    told = facts.status["containers"] if facts.status else ()
    return next((entry for entry in told if entry["id"] == container), None)


def _who(facts: Facts, holder: Holder | Stripped) -> str:
    known = _known(facts, holder.container)
    if known is None:
        return f"the container of process {holder.pid}"
    parts = (known["namespace"], known["pod"], known["name"])
    return f"container {'/'.join(part for part in parts if part)} (process {holder.pid})"
