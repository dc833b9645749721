# SPDX-License-Identifier: Apache-2.0
"""Asking the running daemon, over its control socket.

What one question needs is imported alone, here and in what this imports: an operator, or a script
of theirs, asks often. protos/control.proto has the messages, of which each has one field of use.
"""

import argparse
import json
import os
from typing import Any

from nri_nvidia import cli, errors
from nri_nvidia.cli import shared, unary
from nri_nvidia.config import place, reading
from nri_nvidia.ttrpc import errors as wire_errors
from nri_nvidia.ttrpc import wire

_LIMIT = 10
"""Seconds for an answer."""
_STATUS = "/control.v1.Control/Status"
_EXPLAIN = "/control.v1.Control/Explain"
_JSON = 1
"""The field of both answers that holds the document."""
_CONTAINER = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which daemon is meant."""
    shared.add_config(parser)
    parser.add_argument("--socket", metavar="PATH", help="the daemon's control socket")


def socket(options: argparse.Namespace) -> str:
    """Give the control socket: the one named, else the configured one.

    Of settings with faults only one in the socket's own name is raised (model.Invalid): the
    daemon may well run with older ones.
    """
    if options.socket:
        return str(options.socket)
    path = shared.file(options.config)
    if path is None:
        return place.CONTROL_SOCKET
    try:
        text = reading.text(path)
    except (OSError, ValueError):
        text = ""
    else:
        if found := place.control_socket(text):
            return found
    return _judged(path, text)


def status(options: argparse.Namespace) -> Any:
    """Give the status document; raises NotRunningError."""
    return _ask(options, _STATUS, b"")


def explain(options: argparse.Namespace, container: str) -> Any:
    """Give what the daemon knows of a container; raises NotRunningError."""
    return _ask(options, _EXPLAIN, wire.piece(_CONTAINER, container.encode(errors="replace")))


def _ask(options: argparse.Namespace, route: str, message: bytes) -> Any:
    path = socket(options)
    try:
        answer = dict(wire.fields(unary.call(path, route, message, _LIMIT)))
        return json.loads(wire.text(answer.get(_JSON, b"")))
    except TimeoutError as error:
        raise _mute(path, f"nothing was said for {_LIMIT} s") from error
    except (unary.Unanswered, wire_errors.ProtocolError, ValueError) as error:
        raise _mute(path, str(error)) from error
    except PermissionError as error:
        raise cli.NotRunningError(
            f"{path}: the daemon may not be asked: {error.strerror}",
            hint="ask as root, or as a member of the group that control.group names",
        ) from error
    except OSError as error:
        raise cli.NotRunningError(
            f"{path}: no daemon answers: {error.strerror or error}",
            hint=_hint(options),
        ) from error


def _mute(path: str, said: str) -> errors.Error:
    return cli.NotRunningError(
        f"{path}: the daemon did not answer: {said}",
        hint="its log says why: journalctl -u nri-nvidia",
    )


def _hint(options: argparse.Namespace) -> str:
    """Say what to do where nobody answers; with faults in its settings no daemon starts."""
    path = None if options.socket else shared.file(options.config)
    try:
        if path is not None:
            _judged(path, "")
    except errors.ConfigError as error:
        return f"it does not start with such settings, mend them first: {error.message}"
    start = "start it: systemctl start nri-nvidia, or nri-nvidia run"
    if not any(os.path.lexists(unit) for unit in place.UNITS):
        start = "no service of it is installed: nri-nvidia install, or nri-nvidia run by hand"
    return f"{start}; root may ask it, and the members of control.group"


def _judged(path: str, text: str) -> str:
    """Say all that is wrong with settings that name no control socket."""
    from nri_nvidia.config import load  # noqa: PLC0415

    source = load.Text(name=path, toml=text) if text else load.read(path)
    return load.load([source]).control.socket
