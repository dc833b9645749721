# SPDX-License-Identifier: Apache-2.0
"""Edits as changes to an OCI config.json (OCI runtime spec, config-linux)."""

import copy
from typing import Any

from nri_nvidia.edits import model
from nri_nvidia.render import patch


def patched(spec: dict[str, Any], edits: model.ContainerEdits) -> dict[str, Any]:
    """Give a copy of a spec with the edits made; see `patch.apply`."""
    result = copy.deepcopy(spec)
    patch.apply(result, document(edits))
    return result


def document(edits: model.ContainerEdits) -> dict[str, Any]:
    """Give edits as the plain JSON that `patch.apply` takes."""
    hooks: dict[str, list[dict[str, Any]]] = {}
    for hook in edits.hooks:
        hooks.setdefault(hook.stage, []).append(hook_entry(hook))
    return {
        "env": dict(edits.env),
        "devices": [_device(device) for device in edits.devices],
        "rules": [_rule(device) for device in edits.devices],
        "mounts": [mount_entry(mount) for mount in edits.mounts],
        "hooks": hooks,
    }


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
