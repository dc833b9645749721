# SPDX-License-Identifier: Apache-2.0
"""k3s' and RKE2's templates of containerd's configuration: Go templates, not TOML.

They are changed line by line, and only in plain tables; what a template action makes is unknown.
With its actions taken out most are TOML, and then the result is read before and after.
The base template of both has no table of NRI's (k3s `pkg/agent/templates`), so one may be added.
"""

import re
import tomllib
from typing import Any

from nri_nvidia import errors
from nri_nvidia.check import containerd
from nri_nvidia.configure import toml

BASE = '{{ template "base" . }}\n'
_ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_ACTIONS_ALONE = re.compile(r"^[0 \t]+$", re.MULTILINE)
_HEADER = re.compile(r"^\s*\[")
_NAME = re.escape(containerd.NRI)
_PLUGINS = rf"[\"']?plugins[\"']?\s*\.\s*[\"']{_NAME}[\"']"
_OWN = re.compile(rf"^\s*\[\s*{_PLUGINS}\s*\]\s*(#.*)?$")
_WITHIN = re.compile(rf"^\s*\[\s*{_PLUGINS}\s*\.")
_DISABLE = re.compile(r"^(\s*([\"']?)disable(_connections)?\2\s*=\s*)([^\s#]+)(.*)$", re.DOTALL)


def enable(path: str, text: str) -> str:
    """Give a template whose configuration has NRI enabled; raises ConfigError where it cannot."""
    before = _read(text)
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if "disabled_plugins" in line and containerd.NRI in line and line.strip()[0] != "#":
            raise _disabled(f"{path}:{number}")
    begin = next((i for i, line in enumerate(lines) if _OWN.match(line)), None)
    after = _added(text) if begin is None else _changed(path, lines, begin)
    if before is None:
        _require_plain(path, lines)
    else:
        _require_enabled(path, after)
    return after


def _changed(path: str, lines: list[str], begin: int) -> str:
    """Give the lines with what NRI's table, which begins there, says of being disabled."""
    lines, found = list(lines), False
    for number in range(begin + 1, len(lines)):
        if _HEADER.match(lines[number]):
            break
        line = _DISABLE.match(lines[number])
        if line is None:
            continue
        name = f"disable{line[3] or ''}"
        if line[4] not in {"true", "false"}:
            raise errors.ConfigError(
                f"{path}:{number + 1}: {name} = {line[4]}: neither true nor false",
                hint=f"write {name} = false and repeat; the file was left as it is",
            )
        found |= line[3] is None
        lines[number] = f"{line[1]}false{line[5]}"
    if not found:
        end = "\r\n" if lines[begin].endswith("\r\n") else "\n"
        lines[begin] = lines[begin].rstrip("\r\n") + end
        lines.insert(begin + 1, f"  disable = false{end}")
    return "".join(lines)


def _added(text: str) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else end if text.endswith("\n") else end * 2
    added = toml.block(("plugins", containerd.NRI), {"disable": False})
    return text + gap + added.replace("\n", end)


def _read(text: str) -> dict[str, Any] | None:
    """Give what a template says besides its actions, None where that alone is no TOML."""
    plain = _ACTIONS_ALONE.sub("", _ACTION.sub("0", text.replace("\r\n", "\n")))
    try:
        return tomllib.loads(plain)
    except (ValueError, RecursionError):
        return None


def _require_enabled(path: str, text: str) -> None:
    """Refuse a result that containerd would not read, or that does not say what it should."""
    document = _read(text) or {}
    if containerd.NRI in (document.get("disabled_plugins") or ()):
        raise _disabled(path)
    table = toml.table(document, ("plugins", containerd.NRI)) or {}
    if table.get("disable") is not False or table.get("disable_connections", False) is not False:
        raise _refused(path)


def _require_plain(path: str, lines: list[str]) -> None:
    """Refuse what cannot be read and has NRI's name elsewhere than in a table's header."""
    for number, line in enumerate(lines, 1):
        plain = not (_OWN.match(line) or _WITHIN.match(line) or line.lstrip().startswith("#"))
        if plain and containerd.NRI in line:
            raise _refused(f"{path}:{number}")


def _disabled(place: str) -> errors.ConfigError:
    return errors.ConfigError(
        f"{place}: {containerd.NRI} is among disabled_plugins",
        hint="take it out there and repeat; the file was left as it is",
    )


def _refused(place: str) -> errors.ConfigError:
    header = toml.header(("plugins", containerd.NRI))
    return errors.ConfigError(
        f"{place}: what it says of NRI is written in a form that cannot be changed safely",
        hint=f"write it as a table, {header}, and repeat; the file was left as it is",
    )
