# SPDX-License-Identifier: Apache-2.0
"""ContainerEdits as NRI's ContainerAdjustment.

What the runtime would take for something else, or drop without a word, is refused here instead:
the same key twice (a conflict with oneself), a key that begins with `-` (a removal), a hook
without an environment (it would get the container's), text that is not UTF-8.
"""

import posixpath
from collections.abc import Iterable

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.edits import model

_PROPAGATION = frozenset({"private", "rprivate", "shared", "rshared", "slave", "rslave"})
_STAGES = {
    "prestart": "prestart",
    "createRuntime": "create_runtime",
    "createContainer": "create_container",
    "startContainer": "start_container",
    "poststart": "poststart",
    "poststop": "poststop",
}


def response(edits: model.ContainerEdits) -> api.CreateContainerResponse:
    """Give the whole answer; for empty edits an empty one, which leaves the container alone.

    Raises Error for edits that NRI cannot carry, which is a defect of ours.
    """
    if not edits:
        return api.CreateContainerResponse()
    return api.CreateContainerResponse(adjust=adjustment(edits))


def adjustment(edits: model.ContainerEdits) -> api.ContainerAdjustment:
    """Give the adjustment alone; raises as `response()` does."""
    mounts = [_mount(mount) for mount in edits.mounts]
    _unique("mount", (mount.destination for mount in mounts))
    _unique("variable", (key for key, _ in edits.env))
    _unique("device", (device.path for device in edits.devices))
    parts: dict[str, object] = {}
    if mounts:
        parts["mounts"] = mounts
    if edits.env:
        parts["env"] = [_variable(key, value) for key, value in edits.env]
    if edits.hooks:
        parts["hooks"] = _hooks(edits.hooks)
    if edits.devices:
        devices = [_device(device) for device in edits.devices]
        parts["linux"] = api.LinuxContainerAdjustment(devices=devices)
    return api.ContainerAdjustment(**parts)  # type: ignore[arg-type]


def _mount(mount: model.MountEdit) -> api.Mount:
    if not mount.destination.startswith("/"):
        raise errors.Error(f"mount destination {mount.destination!r} is not absolute")
    options = mount.options
    if mount.type == "bind" and not _PROPAGATION.intersection(options):
        # Without one of these a runtime may apply that of the mount before.
        options = (*options, "rprivate")
    return api.Mount(
        # Runtimes compare destinations byte by byte, so they have to be clean.
        destination=_text("/" + posixpath.normpath(mount.destination).lstrip("/")),
        type=mount.type,
        source=_text(mount.source),
        options=[_text(option) for option in options],
    )


def _variable(key: str, value: str) -> api.KeyValue:
    if not key or "=" in key:
        raise errors.Error(f"{key!r} is not a variable's name")
    return api.KeyValue(key=_text(key), value=_text(value))


def _device(device: model.DeviceEdit) -> api.LinuxDevice:
    if device.type not in {"c", "b", "u", "p"}:
        raise errors.Error(f"device {device.path} has type {device.type!r}, not c, b, u or p")
    # A wrapper without an explicit value would not be sent, and mode, uid or gid 0 be lost.
    return api.LinuxDevice(
        path=_text(device.path),
        type=device.type,
        major=device.major,
        minor=device.minor,
        file_mode=api.OptionalFileMode(value=device.mode),
        uid=api.OptionalUInt32(value=device.uid),
        gid=api.OptionalUInt32(value=device.gid),
    )


def _hooks(hooks: Iterable[model.HookEdit]) -> api.Hooks:
    stages: dict[str, list[api.Hook]] = {}
    for hook in hooks:
        name = _STAGES.get(hook.stage)
        if name is None:
            raise errors.Error(f"hook {hook.path} has an unknown stage, {hook.stage!r}")
        stages.setdefault(name, []).append(_hook(hook))
    return api.Hooks(**stages)


def _hook(hook: model.HookEdit) -> api.Hook:
    if not hook.env:
        raise errors.Error(f"hook {hook.path} has no environment, it would get the container's")
    parts: dict[str, api.OptionalInt] = {}
    if hook.timeout > 0:  # 0 would fail at once
        parts["timeout"] = api.OptionalInt(value=hook.timeout)
    return api.Hook(
        path=_text(hook.path),
        args=[_text(argument) for argument in hook.args],
        env=[_text(entry) for entry in hook.env],
        **parts,
    )


def _unique(what: str, keys: Iterable[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise errors.Error(f"two edits claim {what} {key}")
        if key.startswith("-"):
            raise errors.Error(f"{what} {key!r} begins with a dash, which means removal in NRI")
        seen.add(key)


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise errors.Error(f"{value!r} is not UTF-8, NRI cannot carry it") from None
    return value
