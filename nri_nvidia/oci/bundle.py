# SPDX-License-Identifier: Apache-2.0
"""An OCI config.json as the neutral view of a container."""

import json
import pathlib
from typing import Any

from nri_nvidia import errors
from nri_nvidia.request import container as containers

_CRI = "io.kubernetes.cri."


def read(path: str) -> dict[str, Any]:
    """Read a config.json; raises RequestError when it is not one."""
    try:
        spec = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise errors.RequestError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise errors.RequestError(f"{path}: not JSON: {error}") from error
    if not isinstance(spec, dict):
        raise errors.RequestError(f"{path}: not an OCI config.json: a JSON object is needed")
    return spec


def container(spec: dict[str, Any]) -> containers.Container:
    """Give the container that a spec describes; raises RequestError where its form is another."""
    try:
        return _container(spec)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.RequestError(
            f"not an OCI config.json: {type(error).__name__}: {error}",
            hint="the OCI runtime specification, config.md, gives its form",
        ) from error


def _container(spec: dict[str, Any]) -> containers.Container:
    annotations = {str(k): str(v) for k, v in (spec.get("annotations") or {}).items()}
    process = spec.get("process") or {}
    linux = spec.get("linux") or {}
    return containers.Container(
        name=annotations.get(f"{_CRI}container-name") or annotations.get("nerdctl/name") or "",
        pod=annotations.get(f"{_CRI}sandbox-name", ""),
        namespace=annotations.get(f"{_CRI}sandbox-namespace", ""),
        pod_uid=annotations.get(f"{_CRI}sandbox-uid", ""),
        annotations=annotations,
        # A CRI runtime may copy a pod's annotations there, and nothing tells them apart.
        pod_annotations=annotations if any(key.startswith(_CRI) for key in annotations) else {},
        env=tuple(str(entry) for entry in process.get("env") or ()),
        mounts=tuple(
            containers.Mount(
                source=mount.get("source") or "",
                destination=mount["destination"],
                type=mount.get("type") or "",
                options=tuple(mount.get("options") or ()),
            )
            for mount in spec.get("mounts") or ()
        ),
        devices=tuple(
            containers.Device(
                path=device["path"],
                type=device.get("type") or "c",
                major=int(device.get("major", -1)),
                minor=int(device.get("minor", -1)),
            )
            for device in linux.get("devices") or ()
        ),
        hooks=tuple(
            containers.Hook(stage=stage, path=hook["path"], args=tuple(hook.get("args") or ()))
            for stage, hooks in (spec.get("hooks") or {}).items()
            for hook in hooks or ()
        ),
        privileged=is_privileged(process.get("capabilities")),
        user_namespace=any(
            namespace["type"] == "user" for namespace in linux.get("namespaces") or ()
        ),
    )


def is_privileged(capabilities: Any) -> bool:
    """Tell CAP_SYS_ADMIN in the bounding set, NVIDIA's measure of a privileged container.

    Specs from 1.0.0-rc1 to before rc5 hold one flat list (toolkit `image/privileged.go`).
    """
    if isinstance(capabilities, list):
        return "CAP_SYS_ADMIN" in capabilities
    if not isinstance(capabilities, dict):
        return False
    return "CAP_SYS_ADMIN" in (capabilities.get("bounding") or ())
