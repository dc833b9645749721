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
        process["env"] = _env(_list(process, "env"), dict(patch["env"]))
    if patch.get("devices"):
        linux = _table(spec, "linux")
        linux["devices"] = _joined(_list(linux, "devices"), patch["devices"], "path")
    if patch.get("rules"):
        resources = _table(_table(spec, "linux"), "resources")
        old = _list(resources, "devices")
        resources["devices"] = old + [rule for rule in patch["rules"] if rule not in old]
    if patch.get("mounts"):
        spec["mounts"] = _joined(_list(spec, "mounts"), patch["mounts"], "destination")
    for stage, added in patch.get("hooks", {}).items():
        hooks = _table(spec, "hooks")
        hooks[stage] = _list(hooks, stage) + added


def _table(outer: dict[str, Any], key: str) -> dict[str, Any]:
    """Give a table of a table, made where it is missing or null."""
    inner: dict[str, Any] | None = outer.get(key)
    if inner is None:
        inner = outer[key] = {}
    if not isinstance(inner, dict):
        raise TypeError(f"{key} is no object")
    return inner


def _list(outer: dict[str, Any], key: str) -> list[Any]:
    """Give a list of a table, empty where it is missing or null; 0 and "" are no list."""
    found = outer.get(key)
    if found is None or isinstance(found, list):
        return found or []
    raise TypeError(f"{key} is no list")


def _joined(old: list[Any], new: list[Any], key: str) -> list[Any]:
    taken = {entry[key] for entry in new}
    for entry in old:
        if not isinstance(entry, dict):
            raise TypeError(f"an entry of a list is no object: {entry!r:.80}")
    return [entry for entry in old if entry.get(key) not in taken] + new


def _env(entries: list[str], changes: dict[str, str]) -> list[str]:
    result = []
    for entry in entries:
        key, separator, _ = entry.partition("=")
        if separator and key in changes:
            result.append(f"{key}={changes.pop(key)}")
        else:
            result.append(entry)
    return result + [f"{key}={value}" for key, value in changes.items()]
