# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia status`: the daemon's state at a glance."""

import argparse
import shutil
import sys
import time
from typing import Any

from nri_nvidia import cli, errors
from nri_nvidia.cli import daemon, output, statustext

_BEGIN, _END = "\033[?7l\033[2J", "\033[?7h\n"
"""Lines are not wrapped meanwhile: one that is too long would push the first ones out of sight."""
_HOME = "\033[H"
_END_OF_LINE, _END_OF_SCREEN = "\033[K", "\033[J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    daemon.add_arguments(parser)
    parser.add_argument(
        "--ready",
        action="store_true",
        help="only say whether a container created now gets a working GPU (exit status 0), and "
        "else why not (1)",
    )
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_pause,
        const=2.0,
        help="show it again every two or so many seconds, in place, until interrupted",
    )
    parser.add_argument("--json", action="store_true", help="print the whole state as JSON")


def _pause(told: str) -> float:
    try:
        seconds = float(told)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{told} is not a number of seconds from 0.1 to 3600")
    return seconds


def main(options: argparse.Namespace) -> int:
    """Print the state; 1 when the daemon is not registered with a runtime, and should be."""
    if options.watch is not None:
        if options.ready or options.json:
            raise errors.ConfigError(
                "--watch shows a text: give neither --ready nor --json with it"
            )
        return _watch(options)
    document = daemon.status(options)
    if options.ready:
        return _ready(document, as_json=options.json)
    if options.json:
        output.print_json(document)
    else:
        print("\n".join(statustext.text(output.plain(document), time.time())))
    runtime = document["runtime"]
    return 0 if runtime["registered"] or runtime.get("off") else 1


def _ready(document: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        output.print_json({key: document[key] for key in ("schema", "ready", "not_ready")})
        return 0 if document["ready"] else 1
    lines = ["ready"] if document["ready"] else []
    for reason in document["not_ready"]:
        lines.append(f"not ready: {reason['message']} [{reason['code']}]")
        lines += [f"  {reason['hint']}"] if reason["hint"] else []
    output.print_lines(lines)
    return 0 if document["ready"] else 1


def _watch(options: argparse.Namespace) -> int:
    """Show the state again and again until interrupted, also while the daemon is away."""
    in_place = sys.stdout.isatty()
    try:
        if in_place:
            sys.stdout.write(_BEGIN)
        while True:
            lines = _lines(options)
            if in_place:
                size = shutil.get_terminal_size()
                shown = [f"{line}{_END_OF_LINE}" for line in lines[: size.lines - 1]]
                sys.stdout.write(f"{_HOME}{chr(10).join(shown)}{_END_OF_SCREEN}")
            else:
                sys.stdout.write("\n".join([*lines, "", ""]))
            sys.stdout.flush()
            time.sleep(options.watch)
    except KeyboardInterrupt:
        if in_place:
            sys.stdout.write(_END)
        return 0


def _lines(options: argparse.Namespace) -> list[str]:
    try:
        return statustext.text(output.plain(daemon.status(options)), time.time())
    except cli.NotRunningError as error:
        return [errors.printable(error.message), f"  {errors.printable(error.hint)}"]
