# SPDX-License-Identifier: Apache-2.0
"""Edits as a CDI specification (Container Device Interface SPEC.md)."""

import re
from collections.abc import Mapping
from typing import Any

from nri_nvidia import errors
from nri_nvidia.edits import model
from nri_nvidia.render import oci

KIND = "nvidia.com/gpu"
# SPEC.md, "devices": the name.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)


def document(
    edits: Mapping[str, model.ContainerEdits],
    *,
    common: model.ContainerEdits | None = None,
    kind: str = KIND,
) -> dict[str, Any]:
    """Give a specification with one device a name; raises ConfigError for what is no CDI name.

    `common` is what every container gets that is given any of them.
    """
    for name in edits:
        if not is_name(name):
            raise errors.ConfigError(
                f"{name!r} is no name of a CDI device",
                hint="letters, digits and _ . : - only, with a letter or digit at both ends",
            )
    shared = common or model.ContainerEdits()
    found: dict[str, Any] = {
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": container_edits(entry)}
            for name, entry in edits.items()
        ],
    }
    if shared:
        found["containerEdits"] = container_edits(shared)
    return {"cdiVersion": lowest(found), **found}


def is_name(text: str) -> bool:
    """Tell what may be the name of a CDI device."""
    return _NAME.fullmatch(text) is not None


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
        # Else engines take the user and group that the container's process is of.
        "uid": device.uid,
        "gid": device.gid,
    }


def _mount(mount: model.MountEdit) -> dict[str, Any]:
    return {
        "hostPath": mount.source,
        "containerPath": mount.destination,
        "type": mount.type,
        "options": list(mount.options),
    }


VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Those that engines read, from old to new."""


def lowest(document: Mapping[str, Any]) -> str:
    """Give the lowest of VERSIONS whose readers know all that a document uses.

    By SPEC.md, "Version history": a mount's type came with 0.4.0, a node's hostPath and names that
    begin with a digit with 0.5.0, annotations and dots in a class with 0.6.0, intelRdt and
    additionalGids with 0.7.0, netDevices with 1.1.0. The document has the form of one.
    """
    devices = document["devices"]
    edits = [each.get("containerEdits") or {} for each in (*devices, document)]
    # To engines an empty intelRdt is one.
    rdt = [each["intelRdt"] for each in edits if each.get("intelRdt") is not None]
    used = {key for each in edits for key, value in each.items() if value}
    nodes = [node for each in edits for node in each.get("deviceNodes") or ()]
    needs = {
        "1.1.0": "netDevices" in used
        or any(each.get("schemata") is not None or each.get("enableMonitoring") for each in rdt),
        "0.7.0": bool(rdt) or "additionalGids" in used,
        "0.6.0": any(each.get("annotations") for each in (document, *devices))
        or "." in str(document["kind"]).partition("/")[2],
        "0.5.0": any(each["name"][:1].isdigit() for each in devices)
        or any(node.get("hostPath") for node in nodes),
        "0.4.0": any(mount.get("type") for each in edits for mount in each.get("mounts") or ()),
    }
    return next((version for version, needed in needs.items() if needed), VERSIONS[0])
