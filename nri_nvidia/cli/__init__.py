# SPDX-License-Identifier: Apache-2.0
"""The command line: the parser and the one place that turns errors into messages.

Exit status: 0 done, 1 failed or refused, 2 wrong use, 3 the daemon is not running.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import nri_nvidia
from nri_nvidia import errors

VERBS = {
    "run": "be the daemon: give containers their GPUs",
    "status": "what the daemon is connected to, who holds which GPU, the last decisions",
    "plan": "what one container would get on a host, with nothing running",
    "devices": "the GPUs, device nodes and driver files of this node",
}


class NotRunningError(errors.Error):
    """Raised when the daemon cannot be reached."""

    code = "daemon-not-running"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; give its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given and os.environ.get("NRI_PLUGIN_SOCKET"):
        # A runtime that starts its plugins gives no arguments.
        given = ["run"]
    try:
        return _run(given)
    except NotRunningError as error:
        return _complain(error, 3)
    except errors.ConfigError as error:
        return _complain(error, 2)
    except errors.Error as error:
        return _complain(error, 1)
    except BrokenPipeError:
        # The reader left (`… | head`); Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _run(given: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="nri-nvidia",
        description=nri_nvidia.__doc__,
        epilog="Exit status: 0 done, 1 failed or refused, 2 wrong use, 3 daemon not running.",
    )
    parser.add_argument("--version", action="version", version=nri_nvidia.__version__)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    chosen = next((word for word in given if not word.startswith("-")), "")
    # A verb's module is imported when it is chosen: `plan` must not pay for the daemon's imports.
    for name, summary in VERBS.items():
        own = verbs.add_parser(name, help=summary, description=summary)
        if name == chosen:
            module = importlib.import_module(f"nri_nvidia.cli.{name}")
            module.add_arguments(own)
            own.set_defaults(main=module.main)
    options = parser.parse_args(given)
    status: int = options.main(options)
    sys.stdout.flush()
    return status


def _complain(error: errors.Error, status: int) -> int:
    sys.stderr.write(f"nri-nvidia: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"  {error.hint}\n")
    return status
