# SPDX-License-Identifier: Apache-2.0
"""What all plugins of a runtime together change in a new container, held against what we gave.

NRI 0.10 and later shows it to plugins that ask (ValidateContainerAdjustment), and makes no
container that one of them rejects. Plugins come one after the other, and each may take away or
replace what those before it have set, or give a GPU where we gave none.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.edits import model, present
from nri_nvidia.render import nri as render
from nri_nvidia.request import container as containers
from nri_nvidia.ttrpc import wire

from . import convert

_VENDOR = re.compile(r"(?:[^/=]+\.)?nvidia\.com/", re.ASCII)
"""How the names of NVIDIA's CDI devices begin; its tools have vendors below nvidia.com, too."""
_REMOVED = "-"


class AlteredError(errors.PolicyError):
    """Raised when a container is refused for what other plugins made of our decision."""

    code = "adjustment-altered"


@attrs.frozen(kw_only=True)
class Proposed:
    """What a runtime is about to do. `own` is how it calls us, `consulted` how it calls all.

    `container` is as it was before any plugin. `owners` has by kind and key who set or took away
    what; of hooks the key is empty.
    """

    container: containers.Container
    own: str
    adjust: api.ContainerAdjustment
    owners: Mapping[tuple[int, str], str]
    consulted: tuple[str, ...] = ()

    def who(self, kind: int, key: str) -> str:
        """Name who set or took away something; where the runtime does not tell, who may have."""
        owner = self.owners.get((kind, key), "").lstrip(_REMOVED)
        others = ", ".join(name for name in self.consulted if name != self.own)
        if owner and owner != self.own:
            return f"plugin {errors.printable(owner, 100)}"
        return f"another plugin ({errors.printable(others, 200)})" if others else "the runtime"


def read(data: bytes, own: str) -> Proposed:
    """Read a ValidateContainerAdjustmentRequest; raises RemoteProtocolError."""
    wire.check(api.ValidateContainerAdjustmentRequest, data)
    message = api.ValidateContainerAdjustmentRequest().parse(data)
    container = convert.container(message.container, convert.pod(message.pod))
    return Proposed(
        container=container,
        own=own,
        adjust=message.adjust,
        owners=dict(_owners(message.owners.owners.get(container.id))),
        consulted=tuple(f"{each.index}-{each.name}" for each in message.plugins),
    )


def _owners(found: api.FieldOwners | None) -> Iterator[tuple[tuple[int, str], str]]:
    if found is None:
        return
    for number, owner in found.simple.items():
        yield (number, ""), owner
    for number, entries in found.compound.items():
        for key, owner in entries.owners.items():
            yield (number, key), owner


def altered(given: model.ContainerEdits, proposed: Proposed) -> Iterator[str]:
    """Say what of our edits is gone or another, and what hides it; nothing where all is as given.

    A device, mount or variable of the same content counts as ours, whoever claims it.
    """
    ours, theirs = render.adjustment(given), proposed.adjust
    for kind, what, mine, found in (
        (api.Field.DEVICES, "device", ours.linux.devices, theirs.linux.devices),
        (api.Field.MOUNTS, "mount", ours.mounts, theirs.mounts),
        (api.Field.ENV, "variable", ours.env, theirs.env),
    ):
        there = {_key(entry): entry for entry in found}
        for entry in mine:
            key = _key(entry)
            if there.get(key) != entry:
                done = "changed" if key in there else "took away"
                yield f"{proposed.who(kind, key)} {done} the {what} {key}"
    for hook in (hook for stage in _stages(ours.hooks) for hook in stage):
        if not any(hook in stage for stage in _stages(theirs.hooks)):
            yield f"{proposed.who(api.Field.OCI_HOOKS, '')} took away the hook {hook.path}"
    yield from _hidden(ours, proposed)


def _hidden(ours: api.ContainerAdjustment, proposed: Proposed) -> Iterator[str]:
    """Say who mounts something inside of what we mount: it comes later, and is what is seen."""
    mine = {mount.destination for mount in ours.mounts}
    for mount in proposed.adjust.mounts:
        place = posixpath.normpath(mount.destination)
        over = next((each for each in mine if place.startswith(f"{each}/")), "")
        if over and mount.destination not in mine:
            who = proposed.who(api.Field.MOUNTS, mount.destination)
            yield f"{who} mounts {mount.source} at {mount.destination}, over the driver's files"


def has_more(given: model.ContainerEdits, proposed: Proposed) -> bool:
    """Tell whether there are nodes or device rules of others, for which the host matters."""
    linux, mine = proposed.adjust.linux, {device.path for device in given.devices}
    return bool(linux.resources.devices) or any(each.path not in mine for each in linux.devices)


def added(
    given: model.ContainerEdits, proposed: Proposed, named: Callable[[str, int, int], str]
) -> Iterator[str]:
    """Say who gives NVIDIA devices besides us.

    `named` is asked with type, major and minor of a node or rule, -1 for any; it gives what that
    is of the driver, empty for nothing.
    """
    mine = {device.path for device in given.devices}
    adjust = proposed.adjust
    for device in adjust.linux.devices:
        if device.path in mine or device.path.startswith(_REMOVED):
            continue
        what = named(device.type, device.major, device.minor)
        if what or present.is_node(device.path):
            who = proposed.who(api.Field.DEVICES, device.path)
            yield f"{who} gives {device.path}{f' ({what})' if what else ''}"
    placed = {mount.destination for mount in given.mounts}
    for mount in adjust.mounts:
        if mount.destination not in placed and present.is_node(mount.source):
            who = proposed.who(api.Field.MOUNTS, mount.destination)
            yield f"{who} mounts {mount.source} at {mount.destination}"
    for cdi in adjust.cdi_devices:
        if _VENDOR.match(cdi.name):
            yield f"{proposed.who(api.Field.CDI_DEVICES, cdi.name)} gives {cdi.name}"
    for stage in _stages(adjust.hooks):
        for hook in stage:
            if present.is_injector(hook.path):
                yield f"{proposed.who(api.Field.OCI_HOOKS, '')} adds the hook {hook.path}"
    yield from _allowed(adjust.linux.resources.devices, given, proposed, named)


def _allowed(
    rules: Iterable[bytes],
    given: model.ContainerEdits,
    proposed: Proposed,
    named: Callable[[str, int, int], str],
) -> Iterator[str]:
    """Say what of the driver further device rules open: a node can be made inside."""
    mine = {(device.type, device.major, device.minor) for device in given.devices}
    for data in rules:
        allow, kind, major, minor = _rule(data)
        if not allow or (kind, major, minor) in mine:
            continue
        if what := named(kind, major, minor):
            # The runtime keeps no owner of a rule.
            who = proposed.who(api.Field.UNSET, "")
            yield f"{who} allows {kind or 'a'} {_star(major)}:{_star(minor)} ({what})"


def _rule(data: bytes) -> tuple[bool, str, int, int]:
    """Read a LinuxDeviceCgroup; a number that is absent is any, -1."""
    allow, kind, numbers = False, "", {3: -1, 4: -1}
    for number, value in wire.fields(data):
        if number == 1:
            allow = bool(value)
        elif number == 2:
            kind = wire.text(value)
        elif number in numbers:
            numbers[number] = convert.optional(value)
    return allow, kind, numbers[3], numbers[4]


def _star(number: int) -> str:
    return "*" if number < 0 else str(number)


def _key(entry: Any) -> str:
    """Give that by which a runtime tells entries of a kind apart."""
    match entry:
        case api.LinuxDevice():
            return entry.path
        case api.Mount():
            return entry.destination
        case _:
            return str(entry.key)


def _stages(hooks: api.Hooks) -> tuple[list[api.Hook], ...]:
    return (
        hooks.prestart,
        hooks.create_runtime,
        hooks.create_container,
        hooks.start_container,
        hooks.poststart,
        hooks.poststop,
    )
