# SPDX-License-Identifier: Apache-2.0
"""The command line: the parser and the one place that turns errors into messages.

Exit status: 0 done, 1 failed or refused, 2 wrong use, 3 the daemon is not running.
"""

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Container, Sequence
from typing import Any, NoReturn

import nri_nvidia
from nri_nvidia import errors
from nri_nvidia.cli import output

VERBS = {
    "run": "be the daemon: give containers their GPUs",
    "status": "what the daemon is connected to, who holds which GPU, the last decisions",
    "explain": "what was decided over one container, and why",
    "check": "what is wrong with this node, and what to do",
    "config": "the settings in force and where each comes from; checks a file of settings",
    "plan": "what one container would get on a host, with nothing running",
    "cdi": "this node's devices as CDI specifications: generate, list, validate",
    "configure": "enable it in containerd, docker, CRI-O, nerdctl or podman: show, apply, undo",
    "docker-args": "what a plain docker is told on its command line to give a container GPUs",
    "devices": "the GPUs, device nodes and driver files of this node",
    "install": "put it on this node: environment, commands, service, settings; or upgrade it",
    "uninstall": "take away what install put there; the settings stay",
    "completion": "a script by which a shell completes this command: bash, zsh, fish",
}
EXAMPLES = {
    "run": ("run --log-level debug", "the daemon in a terminal, until Ctrl-C"),
    "status": ("status --watch", "who holds which GPU, anew all the time"),
    "explain": ("explain default/pod-1/demo", "why it has the GPUs that it has, or none"),
    "check": ("check", "the first thing to do after installing, and when something is wrong"),
    "config": ("config --check my.toml", "what is wrong with a file, before it is put in place"),
    "plan": ("plan --env NVIDIA_VISIBLE_DEVICES=0", "what such a container would get here"),
    "cdi": ("cdi generate --output /etc/cdi", "for docker run --device nvidia.com/gpu=0"),
    "configure": ("configure containerd", "shows what would change; --apply does it"),
    "docker-args": ("docker-args 0,1", "the arguments for the first two GPUs"),
    "devices": ("devices", "index, UUID and node of each GPU, and the driver's files"),
    "install": ("install --dry-run", "what would be put where; without the option it is done"),
    "uninstall": ("uninstall --dry-run", "what would be removed"),
    "completion": (
        "completion bash >/etc/bash_completion.d/nri-nvidia",
        "for all users; install does it, too",
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser that says of wrong use how the verb is used which was meant, to programs as well.

    argparse's own has what a verb does not know told by the parser of the whole command.
    """

    _given: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse, and raise SystemExit for what is not known."""
        self._given = list(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and raise SystemExit."""
        if "--json" in self._given:
            hint = f"{self.prog} --help shows how it is used"
            _print_error(errors.Error(message, hint=hint, code="wrong-use"))
        super().error(message)


class NotRunningError(errors.Error):
    """Raised when the daemon cannot be reached."""

    code = "daemon-not-running"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; give its exit status."""
    _have_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given and os.environ.get("NRI_PLUGIN_SOCKET"):
        # A runtime that starts its plugins gives no arguments.
        given = ["run"]
    options = argparse.Namespace()
    try:
        return _run(given, options)
    except NotRunningError as error:
        return complain(error, 3, options)
    except errors.ConfigError as error:
        return complain(error, 2, options)
    except errors.Error as error:
        return complain(error, 1, options)
    except BrokenPipeError:
        # The reader left (`… | head`).
        _forget_output()
        return 1
    except OSError as error:
        said = errors.Error(error.strerror or str(error))
        if error.filename:
            return complain(errors.Error(f"{error.filename}: {said}"), 1, options)
        _forget_output()  # no file by name: it is the output itself that cannot be written
        return complain(said, 1)
    except KeyboardInterrupt:
        return 130


def parser(chosen: Container[str] = VERBS) -> argparse.ArgumentParser:
    """Give the parser with the options of the chosen verbs, those of all if none are named.

    A verb's module is imported when it is chosen: `plan` must not pay for the daemon's imports.
    """
    whole = _Parser(
        prog="nri-nvidia",
        description=nri_nvidia.__doc__,
        epilog="nri-nvidia VERB --help has more of each. "
        "Exit status: 0 done, 1 failed or refused, 2 wrong use, 3 daemon not running.",
    )
    whole.add_argument("--version", action="version", version=nri_nvidia.__version__)
    verbs = whole.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        own = verbs.add_parser(name, help=summary, description=f"{summary}.")
        if name in chosen:
            module = importlib.import_module(f"nri_nvidia.cli.{name.replace('-', '_')}")
            module.add_arguments(own)
            own.set_defaults(main=module.main)
            words, meaning = EXAMPLES[name]
            own.epilog = own.epilog or f"Example: nri-nvidia {words} ({meaning})."
    return whole


def _run(given: list[str], options: argparse.Namespace) -> int:
    chosen = next((word for word in given if not word.startswith("-")), "")
    if chosen == "run":
        # To look through all of it takes part of the start. The daemon resumes once it serves.
        importlib.import_module("nri_nvidia.daemon.collector").hold()
    parser({chosen}).parse_args(given, options)
    status: int = options.main(options)
    sys.stdout.flush()
    return status


def complain(error: errors.Error, status: int, options: argparse.Namespace | None = None) -> int:
    """Say what went wrong, to programs as well if `options` are of one that reads JSON.

    Gives the exit status back. A program has the error in one place, whichever verb it was, and
    never an empty document.
    """
    first, *more = error.message.split("\n")
    lines = [f"nri-nvidia: {first}", *more, *_indented(error.hint)]
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{errors.printable(line)}\n" for line in lines))
    if getattr(options, "json", False):
        _print_error(error)
    return status


def _print_error(error: errors.Error) -> None:
    with contextlib.suppress(OSError):
        output.print_json({"error": error_document(error)})
        sys.stdout.flush()


def error_document(error: errors.Error) -> dict[str, str]:
    """Give an error as programs read it."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _have_standard_streams() -> None:
    """Fill the places of closed standard streams.

    Else the next file or socket would get such a place, and whatever is said go into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not end the output.
        sys.stdout.reconfigure(errors="backslashreplace")


def _indented(hint: str) -> list[str]:
    return [f"  {line}" for line in hint.split("\n")] if hint else []


def _forget_output() -> None:
    """Let what could not be written go: Python would complain again when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
