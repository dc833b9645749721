# SPDX-License-Identifier: Apache-2.0
"""k3s' and RKE2's templates of containerd's configuration: Go templates, not TOML.

They are changed line by line, and only in plain tables; what a template action makes is unknown.
The base template of both has no table of NRI's (k3s `pkg/agent/templates`), so one may be added.
"""

import re

from nri_nvidia import errors
from nri_nvidia.check import containerd
from nri_nvidia.configure import toml

BASE = '{{ template "base" . }}\n'
_HEADER = re.compile(r"^\s*\[")
_NAME = re.escape(containerd.NRI)
_OWN = re.compile(rf"^\s*\[\s*plugins\s*\.\s*[\"']{_NAME}[\"']\s*\]\s*(#.*)?$")
_DISABLE = re.compile(r"^(\s*disable\s*=\s*)(\S+)(.*)$", re.DOTALL)


def enable(path: str, text: str) -> str:
    """Give a template whose configuration has NRI enabled; raises ConfigError where it cannot."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if "disabled_plugins" in line and containerd.NRI in line:
            raise errors.ConfigError(
                f"{path}:{number}: {containerd.NRI} is among disabled_plugins",
                hint="take it out there and repeat; the file was left as it is",
            )
    begin = next((i for i, line in enumerate(lines) if _OWN.match(line)), None)
    if begin is None:
        return _added(text)
    for number in range(begin + 1, len(lines)):
        if _HEADER.match(lines[number]):
            break
        found = _DISABLE.match(lines[number])
        if found is None:
            continue
        if found[2] not in {"true", "false"}:
            raise errors.ConfigError(
                f"{path}:{number + 1}: disable = {found[2]}: neither true nor false",
                hint="write disable = false and repeat; the file was left as it is",
            )
        lines[number] = f"{found[1]}false{found[3]}"
        return "".join(lines)
    lines[begin] = lines[begin].rstrip("\n") + "\n"
    lines.insert(begin + 1, "  disable = false\n")
    return "".join(lines)


def _added(text: str) -> str:
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + gap + toml.block(("plugins", containerd.NRI), {"disable": False})
