# SPDX-License-Identifier: Apache-2.0
"""What keeps a document from being a CDI specification that engines read (CDI SPEC.md)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nri_nvidia.render import cdi

_TEXTS = ("list of texts", lambda v: isinstance(v, list) and all(isinstance(e, str) for e in v))
_TEXT = ("text", lambda v: isinstance(v, str) and bool(v))
_NUMBER = ("whole number", lambda v: isinstance(v, int) and not isinstance(v, bool))
_VARIABLES = ("list of KEY=VALUE", lambda v: _TEXTS[1](v) and all(e.find("=") > 0 for e in v))
_STAGES = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)
_STAGE = (f"stage: {', '.join(_STAGES)}", lambda v: v in _STAGES)
_NODE = ("type of a node: b, c, u, p", lambda v: v in ("", "b", "c", "u", "p"))
_ACCESS = (
    "combination of r, w, m",
    lambda v: isinstance(v, str) and (v == "none" or {*v} <= {*"rwm"}),
)
# What each kind of entry must have and may have; what each member has to be.
_ENTRIES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "deviceNodes": (
        ("path",),
        {"path": _TEXT, "hostPath": _TEXT, "type": _NODE, "permissions": _ACCESS,
         "major": _NUMBER, "minor": _NUMBER, "fileMode": _NUMBER, "uid": _NUMBER, "gid": _NUMBER},
    ),
    "netDevices": (("hostInterfaceName", "name"), {"hostInterfaceName": _TEXT, "name": _TEXT}),
    "mounts": (
        ("hostPath", "containerPath"),
        {"hostPath": _TEXT, "containerPath": _TEXT, "type": _TEXT, "options": _TEXTS},
    ),
    "hooks": (
        ("hookName", "path"),
        {"hookName": _STAGE, "path": _TEXT, "args": _TEXTS, "env": _VARIABLES, "timeout": _NUMBER},
    ),
}  # fmt: skip
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_DOCUMENT = {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}
_DEVICE = {"name", "annotations", "containerEdits"}
_EDITS = {"env", *_ENTRIES, "intelRdt", "additionalGids"}


def faults(document: Any) -> list[str]:
    """Say what is wrong with a document, each with its place; empty for a specification.

    Engines refuse a file with a key that they do not know, and one of a version that is lower
    than what it uses. Null is as good as nothing to them.
    """
    if not isinstance(document, dict):
        return ["not a JSON object"]
    wrong = [*_unknown("", document, _DOCUMENT)]
    version = str(document.get("cdiVersion")).removeprefix("v")
    if version not in cdi.VERSIONS:
        wrong.append(
            f"cdiVersion {document.get('cdiVersion')!r} is none of {', '.join(cdi.VERSIONS)}"
        )
    if not _KIND.fullmatch(str(document.get("kind"))):
        wrong.append(f"kind {document.get('kind')!r} is not like vendor.com/class")
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        return [*wrong, "it has no list of devices"]
    wrong += _device_faults(devices)
    common = document.get("containerEdits")
    if common is not None:
        wrong += _edit_faults("containerEdits", common, may_be_empty=True)
    if not wrong and cdi.VERSIONS.index(version) < cdi.VERSIONS.index(cdi.lowest(document)):
        wrong.append(f"cdiVersion {version}: what it uses needs {cdi.lowest(document)}")
    return wrong


def _device_faults(devices: list[Any]) -> Iterator[str]:
    seen: set[str] = set()
    for place, device in enumerate(devices):
        name = device.get("name") if isinstance(device, dict) else None
        if not isinstance(name, str) or not cdi.is_name(name):
            yield f"devices[{place}]: {name!r} is no name of a device"
            continue
        if name in seen:
            yield f"devices[{place}]: {name} is there twice"
        seen.add(name)
        yield from _unknown(f"device {name}: ", device, _DEVICE)
        yield from _edit_faults(f"device {name}", device.get("containerEdits"), may_be_empty=False)


def _edit_faults(where: str, edits: Any, *, may_be_empty: bool) -> Iterator[str]:
    if not isinstance(edits, dict):
        yield f"{where}: its edits are not an object"
        return
    if not may_be_empty and not any(edits.values()):
        yield f"{where}: it has no edits"
    yield from _unknown(f"{where}: ", edits, _EDITS)
    edits = {key: value for key, value in edits.items() if value is not None}
    if not _VARIABLES[1](edits.get("env", [])):
        yield f"{where}: env is not a {_VARIABLES[0]}"
    if not isinstance(edits.get("intelRdt", {}), dict):
        yield f"{where}: intelRdt is not an object"
    for member, (needed, known) in _ENTRIES.items():
        entries = edits.get(member, [])
        if not isinstance(entries, list):
            yield f"{where}: {member} is not a list"
            continue
        for place, entry in enumerate(entries):
            at = f"{where}: {member}[{place}]"
            yield from (f"{at}: {fault}" for fault in _entry_faults(entry, needed, known))


def _entry_faults(entry: Any, needed: tuple[str, ...], known: dict[str, Any]) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield "not an object"
        return
    yield from (f"{key} is missing" for key in needed if entry.get(key) is None)
    yield from _unknown("", entry, known)
    for key, (what, fits) in known.items():
        if entry.get(key) is not None and not fits(entry[key]):
            yield f"{key} is not a {what}"


def _unknown(
    where: str, table: Mapping[str, Any], known: "set[str] | Mapping[str, Any]"
) -> Iterator[str]:
    yield from (f"{where}{key!r} is no key of CDI's" for key in table if key not in known)
