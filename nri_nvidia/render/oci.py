# SPDX-License-Identifier: Apache-2.0
"""Edits as changes to an OCI config.json (OCI runtime spec, config-linux)."""

import copy
import functools
import json
from typing import Any

from nri_nvidia.edits import model
from nri_nvidia.render import patch, shared


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


def encoded(edits: model.ContainerEdits) -> bytes:
    """Give `document(edits)` as JSON; what containers have in common is written once."""
    hooks: dict[str, list[bytes]] = {}
    for hook in edits.hooks:
        hooks.setdefault(hook.stage, []).append(_hook(hook))
    written = b", ".join(
        b"%b: [%b]" % (_json(stage), b", ".join(each)) for stage, each in hooks.items()
    )
    return b'{"env": %b, %b, "mounts": %b, "hooks": {%b}}' % (
        _json(dict(edits.env)),
        _devices(edits.devices),
        _mounts(edits.mounts),
        written,
    )


@shared.known
def _devices(devices: tuple[model.DeviceEdit, ...]) -> bytes:
    nodes, rules = _json(list(map(_device, devices))), _json(list(map(_rule, devices)))
    return b'"devices": %b, "rules": %b' % (nodes, rules)


@shared.known
def _mounts(mounts: tuple[model.MountEdit, ...]) -> bytes:
    return _json(list(map(mount_entry, mounts)))


def _hook(hook: model.HookEdit) -> bytes:
    """Write a hook, of which containers have all in common but the last argument, a token."""
    if len(hook.args) < 2:
        return _json(hook_entry(hook))
    begin, end = _around(hook.path, hook.args[:-1], hook.env, hook.timeout)
    return b"%b, %b%b" % (begin, _json(hook.args[-1]), end)


@functools.lru_cache(maxsize=shared.KEPT)
def _around(
    path: str, args: tuple[str, ...], env: tuple[str, ...], timeout: int
) -> tuple[bytes, bytes]:
    """Write what stands before and behind the last argument."""
    begin = b'{"path": %b, "args": %b' % (_json(path), _json(args)[:-1])
    return begin, b'], "env": %b, "timeout": %b}' % (_json(env), _json(timeout))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


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
