# SPDX-License-Identifier: Apache-2.0
"""Changes to an OCI config.json as plain JSON (OCI runtime spec, config.md).

A patch is `{"env": {name: value}, "devices": […], "rules": […], "mounts": […],
"hooks": {stage: […]}}` with the entries in the specification's own form; each key may be missing.

This is also part of a script that runs with nothing of the package, so nothing is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def apply(spec: dict[str, Any], patch: dict[str, Any]) -> None:
    """Make the changes in a spec, as a runtime would make an NRI adjustment.

    A variable, device or mount of the same key is replaced, hooks are appended; unknown keys stay.
    Raises AttributeError or TypeError for what is no config.json.
    """
    if patch.get("env"):
        process = _table(spec, "process")
        process["env"] = _env(process.get("env") or [], dict(patch["env"]))
    if patch.get("devices"):
        linux = _table(spec, "linux")
        linux["devices"] = _joined(linux.get("devices"), patch["devices"], "path")
    if patch.get("rules"):
        resources = _table(_table(spec, "linux"), "resources")
        old = resources.get("devices") or []
        resources["devices"] = old + [rule for rule in patch["rules"] if rule not in old]
    if patch.get("mounts"):
        spec["mounts"] = _joined(spec.get("mounts"), patch["mounts"], "destination")
    for stage, added in patch.get("hooks", {}).items():
        hooks = _table(spec, "hooks")
        hooks[stage] = [*(hooks.get(stage) or []), *added]


def _table(outer: dict[str, Any], key: str) -> dict[str, Any]:
    """Give a table of a table, made where it is missing or null."""
    inner: dict[str, Any] = outer.get(key) or {}
    outer[key] = inner
    return inner


def _joined(old: list[Any] | None, new: list[Any], key: str) -> list[Any]:
    taken = {entry[key] for entry in new}
    return [entry for entry in old or [] if entry.get(key) not in taken] + new


def _env(entries: list[str], changes: dict[str, str]) -> list[str]:
    result = []
    for entry in entries:
        key, separator, _ = entry.partition("=")
        if separator and key in changes:
            result.append(f"{key}={changes.pop(key)}")
        else:
            result.append(entry)
    return result + [f"{key}={value}" for key, value in changes.items()]
