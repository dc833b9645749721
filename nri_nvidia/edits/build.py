# SPDX-License-Identifier: Apache-2.0
"""All contributions to one container, merged in a fixed order."""

import functools
import posixpath
from collections.abc import Mapping

import attrs

from nri_nvidia import resolve
from nri_nvidia.edits import (
    compat,
    devices,
    driver,
    fabric,
    hooks,
    inside,
    model,
    options,
    volume,
)
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model


@attrs.frozen(kw_only=True)
class Built:
    """The edits, what should be said of them, and the directory that would have served better.

    `cuda_compat` says whether a newer CUDA driver of the image may be used.
    """

    edits: model.ContainerEdits
    reasons: tuple[Reason, ...] = ()
    unprepared: volume.Volume | None = None
    cuda_compat: compat.Choice | None = None


def build(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    container: containers.Container,
    inject: options.InjectOptions,
    *,
    ready: Mapping[str, str],
    token: str = "",
) -> Built:
    """Give the edits and what should be said of them; raises HostError or RequestError.

    `ready` are the prepared directories by name, for the layout `volume`.
    """
    possible, left_out = devices.possible(request, inventory)
    nodes = devices.build(possible, allocation, inventory, container.devices)
    further, missing = fabric.build(request, allocation, inventory, container)
    nodes = nodes.merged(further) if further else nodes
    left_out += devices.groups_needed(nodes.devices)
    if container.user_namespace:
        devices.require_own_paths(nodes.devices)
        left_out += devices.shared(possible, allocation.assigned)
    wanted: volume.Volume | None = None
    whole: model.MountEdit | None = None
    if inject.layout == "volume":
        wanted = volume.wanted(request.capabilities, inventory)
    if wanted:
        whole = volume.mount(wanted, ready, container.mounts, inject.library_dir)
    files, noted = driver.build(
        request.capabilities, inventory, container.mounts, inject.library_dir, whole
    )
    if wanted and whole:
        programs = wanted.programs
        names: tuple[tuple[str, str], ...] = ()
    else:
        programs = _programs(files.mounts, inject.library_dir)
        names = driver.aliases(request.capabilities, inventory)
    choice = compat.choose(request, allocation, inventory, container, inject)
    more = (
        *compat.arguments(choice),
        *inside.options(request, allocation, inventory, container, nodes.devices),
    )
    hook = hooks.build(files.mounts, programs, names, inject, more=more, token=token)
    return Built(
        edits=attrs.evolve(nodes.merged(files).merged(hook), env=_variables(container, inject)),
        reasons=(*left_out, *missing, *noted),
        unprepared=None if whole else wanted,
        cuda_compat=choice,
    )


def _variables(
    container: containers.Container, inject: options.InjectOptions
) -> tuple[tuple[str, str], ...]:
    """Give the operator's variables that the container does not have: its own always stand."""
    if not inject.env:
        return ()
    own = container.environment()
    wanted = dict(entry.split("=", 1) for entry in inject.env)
    return tuple((name, value) for name, value in wanted.items() if name not in own)


@functools.lru_cache(maxsize=32)
def _programs(mounts: tuple[model.MountEdit, ...], library_dir: str) -> tuple[str, ...]:
    folder = posixpath.join(library_dir, "bin")
    split = (posixpath.split(mount.destination) for mount in mounts)
    return tuple(name for place, name in split if place == folder)
