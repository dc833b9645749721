# SPDX-License-Identifier: Apache-2.0
"""What a host has as CDI specifications, for clients that ask for devices by name.

Such a specification is static: what a container says itself (capabilities, requirements) and who
it is cannot count, so each device brings the files and nodes of every capability; what belongs to
one container alone (its own GPUs in /proc) is left out. The files are mounted one by one, since
nobody tells how long a specification names a prepared directory.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from nri_nvidia import errors, pipeline
from nri_nvidia.edits import model
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.render import cdi
from nri_nvidia.request import container as containers
from nri_nvidia.request import extras, policy
from nri_nvidia.request import model as request_model

VENDOR = "nvidia.com"
IMEX = "imex-channel"
CLASSES = ("gpu", *map(str, request_model.Group), IMEX)
_PROFILE = "--profile"  # names a container's own GPUs to EGL


@attrs.frozen(kw_only=True)
class Made:
    """A specification, and the names that were left out of it, each with why."""

    document: dict[str, Any]
    left_out: tuple[Reason, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The qualified names of its devices."""
        kind, devices = self.document["kind"], self.document["devices"]
        return tuple(f"{kind}={device['name']}" for device in devices)


def make(kind: str, inventory: host.Inventory, rules: pipeline.Policy) -> Made:
    """Give the specification of one of CLASSES.

    Raises HostError where the host has no such device, or the driver is not all there.
    """
    # Whoever may name devices may have them: the engine asks nobody.
    allowed = policy.RequestPolicy(supported_capabilities=rules.request.supported_capabilities)
    inject = attrs.evolve(rules.inject, layout="files")
    rules = attrs.evolve(rules, request=allowed, inject=inject)
    if kind == "gpu":
        return _gpus(inventory, rules)
    wanted = (
        {str(node.minor): str(node.minor) for node in inventory.imex_channels}
        if kind == IMEX
        else {"all": "enabled"}
    )
    variable = (
        "NVIDIA_IMEX_CHANNELS" if kind == IMEX else extras.variable(request_model.Group(kind))
    )
    return _further(
        kind, {name: {variable: value} for name, value in wanted.items()}, inventory, rules
    )


def _gpus(inventory: host.Inventory, rules: pipeline.Policy) -> Made:
    if not inventory.driven or not (
        inventory.usable or inventory.platform is not host.Platform.PCI
    ):
        raise errors.HostError(
            "this node has no NVIDIA GPU with its driver loaded, so there is no CDI device",
            hint="nri-nvidia check says what is missing",
            code="no-cdi-device",
        )
    common = _edits("none", inventory, rules)
    devices: dict[str, model.ContainerEdits] = {}
    left_out: list[Reason] = []
    hooks: tuple[model.HookEdit, ...] = ()
    for name in _names(inventory):
        try:
            whole = _edits(name, inventory, rules)
        except errors.Error as error:
            left_out.append(attrs.evolve(Reason.of(error), message=f"{name}: {error.message}"))
            continue
        # CDI allows no device without edits: under WSL 2 all are the same node.
        own = _beyond(whole, common)
        devices[name] = own or attrs.evolve(common, mounts=(), hooks=())
        hooks = hooks or whole.hooks
    if not devices:
        raise errors.HostError(left_out[-1].message, hint=left_out[-1].hint, code="no-cdi-device")
    common = attrs.evolve(common, hooks=tuple(map(_for_any, hooks or common.hooks)))
    return Made(document=cdi.document(devices, common=common), left_out=tuple(left_out))


def _names(inventory: host.Inventory) -> Iterator[str]:
    """Give the devices' names: `all`, and each GPU or MIG device by index and by UUID."""
    found = ["all"]
    for gpu in inventory.usable:
        if gpu.mig_enabled:
            for mig in gpu.mig_devices:
                found += [f"{gpu.index}:{mig.index}", mig.uuid]
        else:
            found += [str(gpu.index), gpu.uuid]
    return (name for name in dict.fromkeys(found) if cdi.is_name(name))


def _further(
    kind: str,
    wanted: Mapping[str, Mapping[str, str]],
    inventory: host.Inventory,
    rules: pipeline.Policy,
) -> Made:
    """Give the specification of nodes beside GPUs: what they add to `none`."""
    common = _edits("none", inventory, rules)
    devices = {
        name: _beyond(_edits("none", inventory, rules, env), common)
        for name, env in wanted.items()
    }
    devices = {name: edits for name, edits in devices.items() if edits}
    if not devices:
        raise errors.HostError(
            f"this node has no device of the kind {VENDOR}/{kind}",
            hint="nri-nvidia devices lists what it has",
            code="no-cdi-device",
        )
    return Made(document=cdi.document(devices, kind=f"{VENDOR}/{kind}"))


def _edits(
    devices: str,
    inventory: host.Inventory,
    rules: pipeline.Policy,
    env: Mapping[str, str] | None = None,
) -> model.ContainerEdits:
    """Give what a container gets that asks for devices and may have all; raises its refusal."""
    asked = {
        "NVIDIA_VISIBLE_DEVICES": devices,
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "NVIDIA_DISABLE_REQUIRE": "true",
        **(env or {}),
    }
    container = containers.Container(
        env=tuple(f"{key}={value}" for key, value in asked.items()), privileged=True
    )
    plan = pipeline.plan(container, inventory, rules)
    if plan.decision is not pipeline.Decision.INJECT:
        # It names the variable that stands for a container here: nobody has set it.
        message = plan.reasons[-1].message.removeprefix(f"NVIDIA_VISIBLE_DEVICES={devices}: ")
        raise errors.HostError(message, hint=plan.reasons[-1].hint)
    return plan.edits


def _beyond(whole: model.ContainerEdits, common: model.ContainerEdits) -> model.ContainerEdits:
    """Give what a device adds."""
    return model.ContainerEdits(
        env=_without(whole.env, common.env),
        devices=_without(whole.devices, common.devices),
        mounts=_without(whole.mounts, common.mounts),
    )


def _without(entries: tuple[Any, ...], known: Iterable[Any]) -> tuple[Any, ...]:
    kept = set(known)
    return tuple(entry for entry in entries if entry not in kept)


def _for_any(hook: model.HookEdit) -> model.HookEdit:
    """Give a hook without what holds for the GPUs of one container."""
    args = list(hook.args)
    if _PROFILE in args:
        place = args.index(_PROFILE)
        del args[place : place + 2]
    return attrs.evolve(hook, args=tuple(args))
