# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia cdi`: this node as CDI specifications, and what is wrong with those there."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import attrs

from nri_nvidia import errors, pipeline
from nri_nvidia.cli import output, settings, shared
from nri_nvidia.config import model as config_model
from nri_nvidia.host import cache
from nri_nvidia.oci import cdifiles, install
from nri_nvidia.render import cdispec

_WRITES = "nri-nvidia cdi generate --output /etc/cdi writes one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    verbs = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    making = verbs.add_parser("generate", help="print or write a specification of this host")
    shared.add_host(making)
    shared.add_config(making)
    making.add_argument(
        "--kind",
        metavar="CLASS",
        action="append",
        choices=cdispec.CLASSES,
        help=f"{', '.join(cdispec.CLASSES)}; may be repeated (default: gpu)",
    )
    making.add_argument(
        "--output",
        metavar="PATH",
        help="a directory, such as /etc/cdi or /var/run/cdi, made if missing, or a file whose "
        "name ends in .json (default, and -: print it)",
    )
    listing = verbs.add_parser("list", help="the devices that engines find by name")
    checking = verbs.add_parser("validate", help="check specifications, also against this host")
    checking.add_argument(
        "files", metavar="FILE", nargs="*", help="default: all that engines read"
    )
    for each in (listing, checking):
        each.add_argument(
            "--spec-dir",
            metavar="DIR",
            action="append",
            help=f"may be repeated (default: {', '.join(cdifiles.DIRECTORIES)})",
        )
        each.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    """Do it; 1 when a specification is not as it should be."""
    match options.action:
        case "generate":
            return _generate(options)
        case "list":
            return _list(options)
        case _:
            return _validate(options)


def _generate(options: argparse.Namespace) -> int:
    kinds = list(dict.fromkeys(options.kind or ["gpu"]))
    into = "" if options.output in {None, "-"} else options.output
    # Engines read a file of ours by no other end of its name.
    directory = into != "" and not into.endswith(".json")
    if into.lower().endswith((".yaml", ".yml", ".json")) and directory:
        raise errors.ConfigError(
            f"--output {into}: a specification is written as JSON, and engines read it by a name "
            "that ends in .json alone",
            hint=f"--output {into.rpartition('.')[0]}.json, or a directory such as /etc/cdi",
        )
    if len(kinds) > 1 and not directory:
        raise errors.ConfigError(
            f"{len(kinds)} kinds are as many specifications", hint="name a directory by --output"
        )
    if not directory and os.path.lexists(into):
        _refuse_foreign(into, f"{cdispec.VENDOR}/{kinds[0]}")
    config = settings.config(options.config)
    rules = config.rules(interpreter=settings.interpreter(config))
    host = cache.Cache(settings.host(config, options.host))
    host.refresh_nvml()
    made = [cdispec.make(kind, host.get(), rules) for kind in kinds]
    for each in made:
        for reason in each.left_out:
            _say(f"left out: {reason}")
    if not into:
        output.print_json(made[0].document)
        return 0
    if options.host is None:
        _have_hook(config, rules)
    for kind, each in zip(kinds, made, strict=True):
        path = f"{into.rstrip('/')}/{cdifiles.name_of(kind)}" if directory else into
        cdifiles.write(path, each.document)
        print(f"{path}: {', '.join(each.names)}")
        for rival in _rivals(path):
            _say(f"{rival} defines the same kind; engines take neither of two such devices")
    return 0


def _refuse_foreign(path: str, kind: str) -> None:
    """Refuse to write over what is no specification, or one of other devices."""
    there = cdifiles.read(path).kind
    if there == kind:
        return
    what = f"has the devices of {there}, and not {kind}" if there else "is no CDI specification"
    raise errors.HostError(
        f"{path} is there, and {what}: it is left as it is",
        hint="name another file, or a directory such as /etc/cdi",
    )


def _have_hook(config: config_model.Config, rules: pipeline.Policy) -> None:
    """Put the hook in place that the specification names; without it no container would start."""
    hook = rules.inject.hook
    if hook is None:
        return
    if os.geteuid() == 0:
        install.install(config.hook.directory, hook.interpreter)
    elif not Path(hook.script).exists():
        _say(f"{hook.script} is not there yet: run this as root, or start nri-nvidia")


def _rivals(path: str) -> tuple[str, ...]:
    beside = cdifiles.found([os.path.dirname(path) or "."])  # noqa: PTH120 - a text
    return cdifiles.rivals(cdifiles.read(path), beside)


def _list(options: argparse.Namespace) -> int:
    directories = options.spec_dir or cdifiles.DIRECTORIES
    files = cdifiles.found(directories)
    if not files:
        _say(f"there is no specification in {', '.join(directories)} ({_WRITES})")
    if options.json:
        output.print_json({"files": [_shown(file) for file in files]})
        return 0
    names = dict.fromkeys(name for file in files for name in file.names)
    if names:
        output.print_lines(names)
    for file in files:
        kind = f" ({file.kind})" if file.kind else ""
        for fault in [*([file.fault] if file.fault else []), *_rivalry(file, files)]:
            _say(f"{file.path}{kind}: {fault}")
    return 0


def _validate(options: argparse.Namespace) -> int:
    directories = options.spec_dir or cdifiles.DIRECTORIES
    there = cdifiles.found(directories)
    files = tuple(map(cdifiles.read, options.files)) if options.files else there
    if not files:
        raise errors.HostError(
            f"there is no specification in {', '.join(directories)}",
            hint=_WRITES,
        )
    results = {file.path: (file, _faults(file, there)) for file in files}
    if options.json:
        found = [{**_shown(file), "faults": faults} for file, faults in results.values()]
        output.print_json({"files": found})
    else:
        for path, (file, faults) in results.items():
            fine = f"good, {len(file.names)} devices"
            output.print_lines(f"{path}: {fault}" for fault in faults or [fine])
        for path, (file, _) in results.items():
            stale = file.document and any(cdifiles.missing(file.document))
            if kind := cdifiles.class_of(path) if stale else "":
                directory = os.path.dirname(path) or "."  # noqa: PTH120 - a text
                _say(f"nri-nvidia cdi generate --kind {kind} --output {directory} writes it again")
    return 1 if any(faults for _, faults in results.values()) else 0


def _faults(file: cdifiles.File, others: tuple[cdifiles.File, ...]) -> list[str]:
    faults = [file.fault] if file.fault else []
    faults += cdifiles.missing(file.document) if file.document else []
    return faults + _rivalry(file, others)


def _rivalry(file: cdifiles.File, others: tuple[cdifiles.File, ...]) -> list[str]:
    return [
        f"{rival} defines the same kind; engines take neither of two such devices"
        for rival in cdifiles.rivals(file, others)
    ]


def _shown(file: cdifiles.File) -> dict[str, Any]:
    found = attrs.asdict(file)
    del found["document"]
    return {**found, "names": list(file.names)}


def _say(text: str) -> None:
    sys.stderr.write(f"nri-nvidia: {errors.printable(text)}\n")
