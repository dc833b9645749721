# SPDX-License-Identifier: Apache-2.0
"""An OCI config.json as the neutral view of a container."""

import json
from collections.abc import Iterator
from typing import Any, TypeVar

from nri_nvidia import errors
from nri_nvidia.config import reading
from nri_nvidia.oci import document
from nri_nvidia.request import container as containers

T = TypeVar("T")

_CRI = "io.kubernetes.cri."
_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    type(None): "missing",
}


def read(path: str) -> dict[str, Any]:
    """Read a config.json as strictly as the runtime does; raises RequestError when it is none."""

    def constant(name: str) -> float:
        raise ValueError(f"{name} is no number of JSON's")

    try:
        spec = json.loads(
            reading.text(path), object_pairs_hook=document.members, parse_constant=constant
        )
    except document.Refused as refused:
        raise errors.RequestError(f"{path}: {refused}") from refused
    except OSError as error:
        raise errors.RequestError(f"{path or repr(path)}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise errors.RequestError(f"{path}: not JSON: {error}") from error
    if not isinstance(spec, dict):
        raise errors.RequestError(f"{path}: not an OCI config.json: a JSON object is needed")
    return spec


def container(spec: dict[str, Any]) -> containers.Container:
    """Give the container that a spec describes; raises RequestError where its form is another.

    Keys may be missing or null; what is there must be of the specification's type, since a list
    of variables that is none would else be a container that asks for nothing.
    """
    process, linux = _table(spec, "process"), _table(spec, "linux")
    # What the edits are added to: `render.patch` takes their form for granted.
    _list(_table(linux, "resources"), "devices", dict)
    annotations = {str(key): str(value) for key, value in _table(spec, "annotations").items()}
    return containers.Container(
        name=annotations.get(f"{_CRI}container-name") or annotations.get("nerdctl/name") or "",
        pod=annotations.get(f"{_CRI}sandbox-name", ""),
        namespace=annotations.get(f"{_CRI}sandbox-namespace", ""),
        pod_uid=annotations.get(f"{_CRI}sandbox-uid", ""),
        annotations=annotations,
        # A CRI runtime may copy a pod's annotations there, and nothing tells them apart.
        pod_annotations=annotations if any(key.startswith(_CRI) for key in annotations) else {},
        env=_list(process, "env", str),
        mounts=tuple(map(_mount, _list(spec, "mounts", dict))),
        devices=tuple(map(_device, _list(linux, "devices", dict))),
        hooks=tuple(_hooks(_table(spec, "hooks"))),
        privileged=is_privileged(process.get("capabilities")),
        user_namespace=any(
            _text(namespace, "type") == "user" for namespace in _list(linux, "namespaces", dict)
        ),
    )


def _mount(entry: dict[str, Any]) -> containers.Mount:
    return containers.Mount(
        source=_text(entry, "source", ""),
        destination=_text(entry, "destination"),
        type=_text(entry, "type", ""),
        options=_list(entry, "options", str),
    )


def _device(entry: dict[str, Any]) -> containers.Device:
    return containers.Device(
        path=_text(entry, "path"),
        # `u` is another name of `c` (OCI config-linux.md, mknod(1)).
        type=(_text(entry, "type", "") or "c").replace("u", "c"),
        major=_number(entry, "major"),
        minor=_number(entry, "minor"),
    )


def _hooks(stages: dict[str, Any]) -> Iterator[containers.Hook]:
    for stage in stages:
        for hook in _list(stages, stage, dict):
            yield containers.Hook(
                stage=stage, path=_text(hook, "path"), args=_list(hook, "args", str)
            )


def _table(outer: dict[str, Any], key: str) -> dict[str, Any]:
    found = outer.get(key)
    return {} if found is None else _of(found, dict, key)


def _list(outer: dict[str, Any], key: str, kind: type[T]) -> tuple[T, ...]:
    found = outer.get(key)
    entries = [] if found is None else _of(found, list, key)
    return tuple(_of(entry, kind, f"{key}[{at}]") for at, entry in enumerate(entries))


def _text(outer: dict[str, Any], key: str, default: str | None = None) -> str:
    found = outer.get(key)
    return default if found is None and default is not None else _of(found, str, key)


def _number(outer: dict[str, Any], key: str) -> int:
    found = outer.get(key)
    return -1 if found is None else _of(found, int, key)


def _of(value: object, kind: type[T], where: str) -> T:
    """Give a value of the type that the specification has there; raises RequestError."""
    if isinstance(value, kind):
        return value
    raise errors.RequestError(
        f"not an OCI config.json: {where} is {_KINDS.get(type(value), 'a number')}, where "
        f"{_KINDS[kind]} belongs",
        hint="the OCI runtime specification, config.md, gives its form",
    )


def is_privileged(capabilities: Any) -> bool:
    """Tell CAP_SYS_ADMIN in the bounding set, NVIDIA's measure of a privileged container.

    Specs from 1.0.0-rc1 to before rc5 hold one flat list (toolkit `image/privileged.go`).
    """
    found = capabilities.get("bounding") if isinstance(capabilities, dict) else capabilities
    # A text that merely holds the name is no list of rights.
    return isinstance(found, list) and "CAP_SYS_ADMIN" in found
