# SPDX-License-Identifier: Apache-2.0
"""ContainerEdits as NRI's ContainerAdjustment.

What the runtime would take for something else, or drop without a word, is refused here instead:
the same key twice (a conflict with oneself), a key that begins with `-` (a removal), a hook
without an environment (it would get the container's), text that is not UTF-8.
"""

import functools
import posixpath
from collections.abc import Iterable

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.edits import model
from nri_nvidia.render import shared
from nri_nvidia.ttrpc import wire

_PROPAGATION = frozenset({"private", "rprivate", "shared", "rshared", "slave", "rslave"})
_ADJUST = 1
_MOUNTS, _ENV, _HOOKS, _LINUX = 3, 4, 5, 6
_ARGS = 2
_STAGES = {
    "prestart": 1,
    "createRuntime": 2,
    "createContainer": 3,
    "startContainer": 4,
    "poststart": 5,
    "poststop": 6,
}
"""The numbers of fields (`protos/nri.proto`): of the response, the adjustment, a hook, Hooks."""


def encoded(edits: model.ContainerEdits) -> bytes:
    """Give the whole answer, a CreateContainerResponse; empty edits leave the container alone.

    What containers have in common is encoded once: all mounts, all devices, and of a hook all but
    its last argument, which is a token of its own. Raises Error for edits that NRI cannot carry,
    which is a defect of ours.
    """
    if not edits:
        return b""
    adjust = _mounts(edits.mounts) + _variables(edits.env)
    if edits.hooks:
        adjust += wire.piece(_HOOKS, _encoded_hooks(edits.hooks))
    return wire.piece(_ADJUST, adjust + _linux(edits.devices))


def adjustment(edits: model.ContainerEdits) -> api.ContainerAdjustment:
    """Give the adjustment as a message; raises as `encoded()` does."""
    answer = api.CreateContainerResponse().parse(encoded(edits))
    return answer.adjust


@shared.known
def _mounts(mounts: tuple[model.MountEdit, ...]) -> bytes:
    messages = [_mount(mount) for mount in mounts]
    _unique("mount", (message.destination for message in messages))
    return b"".join([wire.piece(_MOUNTS, bytes(message)) for message in messages])


@functools.lru_cache(maxsize=shared.KEPT)
def _variables(env: tuple[tuple[str, str], ...]) -> bytes:
    _unique("variable", (key for key, _ in env))
    return b"".join([wire.piece(_ENV, bytes(_variable(key, value))) for key, value in env])


@shared.known
def _linux(devices: tuple[model.DeviceEdit, ...]) -> bytes:
    if not devices:
        return b""
    _unique("device", (device.path for device in devices))
    messages = [_device(device) for device in devices]
    return wire.piece(_LINUX, bytes(api.LinuxContainerAdjustment(devices=messages)))


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


def _encoded_hooks(hooks: Iterable[model.HookEdit]) -> bytes:
    found = b""
    for hook in hooks:
        number = _STAGES.get(hook.stage)
        if number is None:
            raise errors.Error(f"hook {hook.path} has an unknown stage, {hook.stage!r}")
        data = _hook(hook.path, hook.args[:-1], hook.env, hook.timeout)
        # Pieces of a message may come in any order, if those of one list keep theirs.
        last = b"".join(wire.piece(_ARGS, _text(part).encode()) for part in hook.args[-1:])
        found += wire.piece(number, data + last)
    return found


@functools.lru_cache(maxsize=shared.KEPT)
def _hook(path: str, args: tuple[str, ...], env: tuple[str, ...], timeout: int) -> bytes:
    if not env:
        raise errors.Error(f"hook {path} has no environment, it would get the container's")
    parts: dict[str, api.OptionalInt] = {}
    if timeout > 0:  # 0 would fail at once
        parts["timeout"] = api.OptionalInt(value=timeout)
    message = api.Hook(
        path=_text(path),
        args=[_text(argument) for argument in args],
        env=[_text(entry) for entry in env],
        **parts,
    )
    return bytes(message)


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
