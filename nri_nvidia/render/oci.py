# SPDX-License-Identifier: Apache-2.0
"""Edits applied to an OCI config.json; unknown keys are kept (OCI runtime spec, config-linux)."""

import copy
from typing import Any

from nri_nvidia.edits import model


def patched(spec: dict[str, Any], edits: model.ContainerEdits) -> dict[str, Any]:
    """Give a copy of a spec with the edits made, as a runtime would make an NRI adjustment.

    A variable, device or mount of the same key is replaced, hooks are appended.
    """
    result = copy.deepcopy(spec)
    if edits.env:
        process = result.setdefault("process", {})
        process["env"] = _env(process.get("env") or [], dict(edits.env))
    if edits.devices:
        linux = result.setdefault("linux", {})
        taken = {device.path for device in edits.devices}
        kept = [d for d in linux.get("devices") or [] if d.get("path") not in taken]
        linux["devices"] = kept + [_device(device) for device in edits.devices]
        resources = linux.setdefault("resources", {})
        rules = [_rule(device) for device in edits.devices]
        old = resources.get("devices") or []
        resources["devices"] = old + [rule for rule in rules if rule not in old]
    if edits.mounts:
        places = {mount.destination for mount in edits.mounts}
        kept = [m for m in result.get("mounts") or [] if m.get("destination") not in places]
        result["mounts"] = kept + [mount_entry(mount) for mount in edits.mounts]
    for hook in edits.hooks:
        hooks = result.setdefault("hooks", {})
        hooks[hook.stage] = [*(hooks.get(hook.stage) or []), hook_entry(hook)]
    return result


def mount_entry(mount: model.MountEdit) -> dict[str, Any]:
    """Give a mount in the spec's form."""
    return {
        "destination": mount.destination,
        "type": mount.type,
        "source": mount.source,
        "options": list(mount.options),
    }


def hook_entry(hook: model.HookEdit) -> dict[str, Any]:
    """Give a hook in the spec's form, without its stage."""
    return {
        "path": hook.path,
        "args": list(hook.args),
        "env": list(hook.env),
        "timeout": hook.timeout,
    }


def _env(entries: list[str], changes: dict[str, str]) -> list[str]:
    result = []
    for entry in entries:
        key, separator, _ = entry.partition("=")
        if separator and key in changes:
            result.append(f"{key}={changes.pop(key)}")
        else:
            result.append(entry)
    return result + [f"{key}={value}" for key, value in changes.items()]


def _device(device: model.DeviceEdit) -> dict[str, Any]:
    return {
        "path": device.path,
        "type": device.type,
        "major": device.major,
        "minor": device.minor,
        "fileMode": device.mode,
        "uid": device.uid,
        "gid": device.gid,
    }


def _rule(device: model.DeviceEdit) -> dict[str, Any]:
    return {
        "allow": True,
        "type": device.type,
        "major": device.major,
        "minor": device.minor,
        "access": device.access,
    }
