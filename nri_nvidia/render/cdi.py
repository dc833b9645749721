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
    found = {
        "cdiVersion": version([*edits], [*edits.values(), shared]),
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": container_edits(entry)}
            for name, entry in edits.items()
        ],
    }
    return {**found, **({"containerEdits": container_edits(shared)} if shared else {})}


def is_name(text: str) -> bool:
    """Tell what may be the name of a CDI device."""
    return _NAME.fullmatch(text) is not None


def version(names: list[str], edits: list[model.ContainerEdits]) -> str:
    """Give the lowest version whose readers know all that is used (SPEC.md, "Version history").

    0.3.0 is the lowest that engines read; a mount's type came with 0.4.0, a node's hostPath and
    names that begin with a digit with 0.5.0.
    """
    moved = any(node.host_path != node.path for each in edits for node in each.devices)
    if moved or any(name[0].isdigit() for name in names):
        return "0.5.0"
    return "0.4.0" if any(each.mounts for each in edits) else "0.3.0"


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


# What each kind of entry must have and may have; the type that each member is of.
_TEXTS = ("list of texts", lambda v: isinstance(v, list) and all(isinstance(e, str) for e in v))
_TEXT = ("text", lambda v: isinstance(v, str) and bool(v))
_NUMBER = ("whole number", lambda v: isinstance(v, int) and not isinstance(v, bool))
_ENTRIES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "deviceNodes": (
        ("path",),
        {"path": _TEXT, "hostPath": _TEXT, "type": _TEXT, "permissions": _TEXT, "major": _NUMBER,
         "minor": _NUMBER, "fileMode": _NUMBER, "uid": _NUMBER, "gid": _NUMBER},
    ),
    "mounts": (
        ("hostPath", "containerPath"),
        {"hostPath": _TEXT, "containerPath": _TEXT, "type": _TEXT, "options": _TEXTS},
    ),
    "hooks": (
        ("hookName", "path"),
        {"hookName": _TEXT, "path": _TEXT, "args": _TEXTS, "env": _TEXTS, "timeout": _NUMBER},
    ),
}  # fmt: skip
_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)


def faults(document: Any) -> list[str]:
    """Say what keeps a document from being a specification (SPEC.md); empty if nothing does."""
    if not isinstance(document, dict):
        return ["not a JSON object"]
    wrong = []
    if document.get("cdiVersion") not in _VERSIONS:
        wrong.append(
            f"cdiVersion {document.get('cdiVersion')!r} is none of {', '.join(_VERSIONS)}"
        )
    if not _KIND.fullmatch(str(document.get("kind"))):
        wrong.append(f"kind {document.get('kind')!r} is not like vendor.com/class")
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        return [*wrong, "it has no list of devices"]
    seen: set[str] = set()
    for place, device in enumerate(devices):
        name = device.get("name") if isinstance(device, dict) else None
        if not isinstance(name, str) or not is_name(name):
            wrong.append(f"devices[{place}]: {name!r} is no name of a device")
            continue
        if name in seen:
            wrong.append(f"devices[{place}]: {name} is there twice")
        seen.add(name)
        wrong += _edit_faults(f"device {name}", device.get("containerEdits"), may_be_empty=False)
    shared = document.get("containerEdits", {})
    return wrong + _edit_faults("containerEdits", shared, may_be_empty=True)


def _edit_faults(where: str, edits: Any, *, may_be_empty: bool) -> list[str]:
    if not isinstance(edits, dict):
        return [f"{where}: its edits are not an object"]
    if not may_be_empty and not any(edits.values()):
        return [f"{where}: it has no edits"]
    wrong = []
    env = edits.get("env", [])
    if not _TEXTS[1](env) or not all("=" in entry for entry in env):
        wrong.append(f"{where}: env is not a list of KEY=VALUE")
    for member, (needed, known) in _ENTRIES.items():
        entries = edits.get(member, [])
        if not isinstance(entries, list):
            wrong.append(f"{where}: {member} is not a list")
            continue
        for place, entry in enumerate(entries):
            at = f"{where}: {member}[{place}]"
            wrong += [f"{at}: {fault}" for fault in _entry_faults(entry, needed, known)]
    return wrong


def _entry_faults(entry: Any, needed: tuple[str, ...], known: dict[str, Any]) -> list[str]:
    if not isinstance(entry, dict):
        return ["not an object"]
    wrong = [f"{key} is missing" for key in needed if key not in entry]
    for key, value in entry.items():
        if key in known and not known[key][1](value):
            wrong.append(f"{key} is not a {known[key][0]}")
    return wrong
