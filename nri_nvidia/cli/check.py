# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia check`: what is wrong with this node, and one command for each."""

import argparse
from collections.abc import Sequence
from typing import Any

import attrs

from nri_nvidia import cli, errors
from nri_nvidia.check import containerd, containers, gather, model, report
from nri_nvidia.cli import daemon, output, settings, shared
from nri_nvidia.config import model as config_model
from nri_nvidia.host import root as roots

SCHEMA = 1
_COLOURS = {model.Severity.ERROR: "31", model.Severity.WARNING: "33", model.Severity.INFO: "36"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    shared.add_host(parser)
    daemon.add_arguments(parser)
    parser.add_argument(
        "--containerd-config",
        metavar="FILE",
        default="",
        help=f"containerd's configuration (default: {containerd.DEFAULT_PATH}, else that of k3s, "
        "rke2 or k0s)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(options: argparse.Namespace) -> int:
    """Print the findings; 1 when one of them is an error."""
    found = report.findings(facts(options))
    if options.json:
        output.print_json(document(found))
    else:
        print("\n".join(text(found)))
    return 1 if any(f.severity is model.Severity.ERROR for f in found) else 0


def facts(options: argparse.Namespace) -> model.Facts:
    """Gather all that can be known, with the daemon's own word where it answers."""
    faults: tuple[str, ...] = ()
    config = config_model.Config()
    try:
        config = settings.config(options.config)
    except config_model.Invalid as error:
        faults, config = error.faults, error.rest or config
    except errors.ConfigError as error:
        faults = (str(error),)
    recorded = options.host is not None
    where = gather.Where(
        root=roots.Root(options.host, recorded=True) if recorded else roots.Root(),
        settings=config,
        options=settings.host(config, options.host),
        runtime_config=options.containerd_config,
    )
    named = options.containerd_config
    if named and where.root.stat(named) is None:
        raise errors.ConfigError(
            f"--containerd-config {named}: no such file{' in that recording' if recorded else ''}",
            hint="leave it out, and the usual places are looked at: "
            + ", ".join(containerd.PLACES),
        )
    gathered = attrs.evolve(gather.gather(where), settings_faults=faults)
    if recorded:
        return gathered
    try:
        status = daemon.status(_asked(options, config))
    except cli.NotRunningError as error:
        return attrs.evolve(gathered, status_error=error.message)
    told = status["runtime"]
    if told["name"] == "containerd" and not gathered.versions.containerd:
        # It need not be on our PATH, and what runs counts more than what lies there.
        known = attrs.evolve(gathered.versions, containerd=str(told["version"]))
        gathered = attrs.evolve(gathered, versions=known)
    lost: tuple[model.Stripped, ...] = ()
    if gathered.inventory is not None:
        served = [entry for entry in status["containers"] if entry["door"] == "nri"]
        lost = containers.stripped(where.root, served, gathered.inventory)
    return attrs.evolve(gathered, status=status, stripped=lost)


def _asked(options: argparse.Namespace, config: config_model.Config) -> argparse.Namespace:
    """Give the options by which the daemon is asked: faults of its settings are a finding here."""
    try:
        socket = daemon.socket(options)
    except errors.ConfigError:
        socket = config.control.socket
    return argparse.Namespace(socket=socket, config=None)


def document(found: Sequence[model.Finding]) -> dict[str, Any]:
    """Give the findings as JSON; further keys may be added to it, none taken away."""
    return {
        "schema": SCHEMA,
        "findings": [
            {**attrs.asdict(finding), "severity": str(finding.severity)} for finding in found
        ],
    }


def text(found: Sequence[model.Finding]) -> list[str]:
    """Give the findings as lines: what is wrong, and what to do."""
    if not found:
        return ["nothing is wrong"]
    lines: list[str] = []
    for finding in found:
        severity = output.paint(f"{finding.severity}:", _COLOURS[finding.severity])
        lines.append(f"{severity} {output.plain(finding.message)} [{finding.code}]")
        lines.append(f"  run: {output.plain(finding.command)}")
        lines += [f"  | {output.plain(line)}" for line in finding.detail.splitlines()]
    counts = dict.fromkeys(model.Severity, 0)
    for finding in found:
        counts[finding.severity] += 1
    told = [
        f"{count} {severity}{'s' if count > 1 and severity is not model.Severity.INFO else ''}"
        for severity, count in counts.items()
        if count
    ]
    return [*lines, "", ", ".join(told)]
