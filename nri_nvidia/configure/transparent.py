# SPDX-License-Identifier: Apache-2.0
"""Every client of one containerd served, or BuildKit in docker: our runtime is found as `runc`.

A shim looks for `runc` on the PATH that it has from containerd, unless a client or the CRI's
configuration names another program; BuildKit in docker looks for it on dockerd's. So a directory
of ours with a link of that name comes first on the PATH of that unit. Where the link leads
nowhere, as after removal, the next `runc` is found.
"""

import posixpath
import re
import shlex

from nri_nvidia import errors
from nri_nvidia.check import containerd as known
from nri_nvidia.configure import model

DIRECTORY = "/usr/local/lib/nri-nvidia/transparent"
_SYSTEM = "/etc/systemd/system"
_UNITS = (
    _SYSTEM,
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILE = re.compile(r"^\s*EnvironmentFile\s*=\s*-?(/\S+)\s*$")
_COMMAND = re.compile(r"^\s*ExecStart\s*=\s*(.*?)\s*$")
_ENVIRONMENT = re.compile(r"^\s*Environment\s*=\s*(.*)$")


def propose(tree: model.Tree, options: model.Options) -> model.Proposal:
    """Give the link and the drop-in of the unit."""
    unit = options.unit
    if "/" in unit or not unit.endswith(".service"):
        raise errors.ConfigError(f"--unit {unit}: no service of systemd's", hint="NAME.service")
    # One for each unit, so that one can be undone without the other.
    directory = f"{DIRECTORY}/{unit.removesuffix('.service')}"
    drop_in = f"{_SYSTEM}/{unit}.d/{model.DROP_IN}.conf"
    path = _without(_path(tree, unit, drop_in))
    text = (
        "# Written by nri-nvidia configure: what this finds as runc is nri-nvidia-runtime.\n"
        f'[Service]\nEnvironment="PATH={directory}:{path}"\n'
    )
    notes = [] if _fragment(tree, unit) else [f"{unit}: there is no such unit among systemd's"]
    changes = (
        model.Link(
            path=f"{directory}/runc", before=tree.link(f"{directory}/runc"), target=options.runtime
        ),
        model.File(path=drop_in, before=tree.text(drop_in), after=text),
    )
    return model.Proposal(
        changes=changes,
        notes=tuple(notes),
        then=("systemctl daemon-reload", f"systemctl restart {unit.removesuffix('.service')}"),
    )


def option(tree: model.Tree, unit: str, *names: str) -> tuple[str, str]:
    """Give the value of an option that a unit starts its program with, and the file that has it.

    Both are empty where there is none. Files of variables that the unit names count as well.
    """
    found: list[tuple[str, str]] = []
    for place in _places(tree, unit):
        for line in _lines(tree, place):
            command = _COMMAND.match(line)
            if command is not None:
                # An empty one takes back those before it (systemd.service(5)).
                found = [*found, (place, command[1])] if command[1] else []
            for file in _variables(tree, line):
                values = (tree.text(file) or "").splitlines()
                said = [each for each in values if not each.lstrip().startswith("#")]
                found += [(file, each) for each in said]
    pattern = re.compile(rf"(?:^|[\s\"'=])--?(?:{'|'.join(names)})[=\s]\s*[\"']?([^\s\"'$]+)")
    hits = [(hit[1], place) for place, text in found if (hit := pattern.search(text))]
    return hits[-1] if hits else ("", "")


def _places(tree: model.Tree, unit: str) -> list[str]:
    """Give the files of a unit that are there, in the order in which systemd reads them.

    Drop-ins of all services count as well; of two by one name that of the unit itself is read.
    """
    fragment = _fragment(tree, unit)
    named = {
        name: f"{directory}/{part}.d/{name}"
        for part in ("service", unit)
        for directory in reversed(_UNITS)
        for name in tree.names(f"{directory}/{part}.d")
        if name.endswith(".conf")
    }
    return [*([fragment] if fragment else []), *(named[name] for name in sorted(named))]


def _lines(tree: model.Tree, place: str) -> list[str]:
    """Give a unit's lines; what ends in a backslash goes on in the next (systemd.syntax(7))."""
    return re.sub(r"\\\r?\n", " ", tree.text(place) or "").splitlines()


def _path(tree: model.Tree, unit: str, own: str) -> str:
    """Give the PATH that the unit sets by itself, else systemd's usual one."""
    path = _PATH
    for place in _places(tree, unit):
        for line in _lines(tree, place) if place != own else ():
            _refuse_file(tree, unit, line)
            found = _ENVIRONMENT.match(line)
            if found is None:
                continue
            assigned = _assigned(found[1])
            if assigned and posixpath.basename(place) > posixpath.basename(own):
                # Of a unit's own file the name does not matter.
                _refuse_later(place, own)
            path = assigned or (path if found[1].strip() else _PATH)
    return path


def _refuse_later(place: str, own: str) -> None:
    if place.endswith(".conf"):
        raise errors.ConfigError(
            f"{place}: sets PATH, and is read after {own}",
            hint="give it a name that comes before that one, and repeat",
        )


def _variables(tree: model.Tree, line: str) -> list[str]:
    """Give the files of variables that a line of a unit names; it may name them by a pattern."""
    found = _FILE.match(line)
    return known.matching(found[1], tree.names) if found else []


def _refuse_file(tree: model.Tree, unit: str, line: str) -> None:
    """Refuse a unit whose EnvironmentFile sets PATH: systemd lets that win over Environment."""
    for file in _variables(tree, line):
        if re.search(r"^\s*PATH\s*=", tree.text(file) or "", re.MULTILINE):
            raise errors.ConfigError(
                f"{unit}: PATH is set in {file}, which wins over a drop-in",
                hint="move that line to Environment= in the unit, and repeat",
            )


def _assigned(words: str) -> str:
    try:
        pairs = [word.partition("=") for word in shlex.split(words)]
    except ValueError:
        return ""
    return next((value for name, _, value in reversed(pairs) if name == "PATH"), "")


def _fragment(tree: model.Tree, unit: str) -> str:
    there = (f"{directory}/{unit}" for directory in _UNITS)
    return next((path for path in there if tree.text(path) is not None), "")


def _without(path: str) -> str:
    parts = path.split(":")
    return ":".join(each for each in parts if not posixpath.normpath(each).startswith(DIRECTORY))
