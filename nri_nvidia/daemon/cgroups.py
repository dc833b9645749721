# SPDX-License-Identifier: Apache-2.0
"""Whether a container's cgroup is there: its runtime makes it, and removes it at the end."""

import os
import posixpath

ROOT = "/sys/fs/cgroup"


def exists(path: str, root: str = ROOT) -> bool:
    """Tell whether a cgroup that config.json names is there, in cgroup 2 or any hierarchy of 1.

    `path` is as `linux.cgroupsPath` has it; see `place`.
    """
    inside = place(path)
    if not inside:
        return False
    try:
        hierarchies = [entry.path for entry in os.scandir(root) if entry.is_dir()]
    except OSError:
        return False
    return any(os.path.isdir(top + inside) for top in (root, *hierarchies))  # noqa: PTH112


def place(path: str) -> str:
    """Give where a cgroup is below its hierarchy's top, from `/`; empty where that is not known.

    It is a path from `/`, or `SLICE:PREFIX:NAME` for a scope that systemd makes (runc,
    docs/systemd.md): each dash in a slice's name puts it below another one.
    """
    if path.startswith("/"):
        names = path.split("/")
        return posixpath.normpath(path) if ".." not in names and path.strip("/") else ""
    parts = path.split(":")
    if len(parts) != 3 or not parts[2] or "/" in path or ".." in path:
        return ""
    scope = "-".join(part for part in parts[1:] if part)
    return _slice(parts[0] or "system.slice") + f"/{scope}.scope"


def _slice(name: str) -> str:
    stem = name.removesuffix(".slice")
    if stem == "-":
        return ""
    words = stem.split("-")
    return "".join(f"/{'-'.join(words[: n + 1])}.slice" for n in range(len(words)))
