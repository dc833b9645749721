# SPDX-License-Identifier: Apache-2.0
"""Edits as a CDI specification (Container Device Interface SPEC.md, 0.5.0)."""

import re
from typing import Any

from nri_nvidia import errors
from nri_nvidia.edits import model
from nri_nvidia.render import oci

KIND = "nvidia.com/gpu"
# hostPath of a device node and names that begin with a digit came with 0.5.0.
VERSION = "0.5.0"
# SPEC.md, "devices": the name.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)


def document(edits: dict[str, model.ContainerEdits]) -> dict[str, Any]:
    """Give a specification with one device a name; raises ConfigError for what is no CDI name."""
    for name in edits:
        if not _NAME.fullmatch(name):
            raise errors.ConfigError(
                f"{name!r} is no name of a CDI device",
                hint="letters, digits and _ . : - only, with a letter or digit at both ends",
            )
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [
            {"name": name, "containerEdits": container_edits(entry)}
            for name, entry in edits.items()
        ],
    }


def container_edits(edits: model.ContainerEdits) -> dict[str, Any]:
    """Give edits in CDI's form; what is empty is left out."""
    form = {
        "env": [f"{key}={value}" for key, value in edits.env],
        "deviceNodes": [_node(device) for device in edits.devices],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": [{"hookName": h.stage, **oci.hook_entry(h)} for h in edits.hooks],
    }
    return {key: value for key, value in form.items() if value}


def _node(device: model.DeviceEdit) -> dict[str, Any]:
    node: dict[str, Any] = {"path": device.path}
    if device.host_path != device.path:
        node["hostPath"] = device.host_path
    return {
        **node,
        "type": device.type,
        "major": device.major,
        "minor": device.minor,
        "fileMode": device.mode,
        "permissions": device.access,
    }


def _mount(mount: model.MountEdit) -> dict[str, Any]:
    return {
        "hostPath": mount.source,
        "containerPath": mount.destination,
        "type": mount.type,
        "options": list(mount.options),
    }
