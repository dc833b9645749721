# SPDX-License-Identifier: Apache-2.0
"""All contributions to one container, merged in a fixed order."""

import contextlib
import functools
import posixpath
from collections.abc import Mapping

import attrs

from nri_nvidia import errors, resolve
from nri_nvidia.edits import (
    compat,
    devices,
    driver,
    fabric,
    hidden,
    hooks,
    inside,
    model,
    options,
    volume,
)
from nri_nvidia.host import derived
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model

_ANY = "\0"
"""What stands for the token among arguments that are made for many; none can hold it."""


@attrs.frozen(kw_only=True)
class Built:
    """The edits, what should be said of them, and the directory that would have served better.

    `cuda_compat` says whether a newer CUDA driver of the image may be used.
    """

    edits: model.ContainerEdits
    reasons: tuple[Reason, ...] = ()
    unprepared: volume.Volume | None = None
    cuda_compat: compat.Choice | None = None


@attrs.frozen(kw_only=True)
class _Case:
    """All that the edits depend on where nothing of the container's own matters.

    `whole` is the mount of the prepared directory, if that is ready. `shadowed` is what
    `compat.is_shadowed` tells, `reports` whether there is a token for the hook.
    """

    capabilities: frozenset[request_model.Capability]
    all_capabilities: bool
    assigned: tuple[resolve.Assigned, ...]
    whole: model.MountEdit | None
    privileged: bool
    shadowed: bool
    reports: bool
    inject: options.InjectOptions


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

    `ready` are the prepared directories by name, for the layout `volume`. For nearly all
    containers nothing of their own matters, so what they are given is made once for each set of
    GPUs and capabilities; all that differs is the hook's token.
    """
    built = _for_one(request, allocation, inventory, container, inject, ready=ready, token=token)
    unseen = tuple(hidden.reasons(container, inject, built.edits))
    return attrs.evolve(built, reasons=(*built.reasons, *unseen)) if unseen else built


def _for_one(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    container: containers.Container,
    inject: options.InjectOptions,
    *,
    ready: Mapping[str, str],
    token: str,
) -> Built:
    wanted = volume.wanted(request.capabilities, inventory) if inject.layout == "volume" else None
    if _is_usual(request, inventory, container, inject):
        case = _Case(
            capabilities=request.capabilities,
            all_capabilities=request.all_capabilities,
            assigned=allocation.assigned,
            whole=volume.mount(wanted, ready, (), inject.library_dir) if wanted else None,
            privileged=bool(container.privileged),
            shadowed=compat.is_shadowed(container, inject.library_dir),
            reports=bool(token),
            inject=inject,
        )
        # A refusal has this container's own words in it, so that is found out below.
        with contextlib.suppress(errors.Error):
            return _with_token(_usual(inventory, case), token)
    whole = volume.mount(wanted, ready, container.mounts, inject.library_dir) if wanted else None
    return _build(
        request, allocation, inventory, container, inject, wanted=wanted, whole=whole, token=token
    )


def _is_usual(
    request: request_model.GpuRequest,
    inventory: host.Inventory,
    container: containers.Container,
    inject: options.InjectOptions,
) -> bool:
    """Tell a container of which no more matters than `_usual` takes.

    It asks for GPUs and capabilities alone, its spec holds no devices, and its mounts are at other
    places than ours, neither above nor below.
    """
    if (
        request.groups
        or request.imex_channels
        or request.mig_management
        or container.devices
        or container.user_namespace
        or inject.env
    ):
        return False
    mounts = container.mounts
    rooted = driver.places([mount for mount in mounts if mount.source.startswith("/")])
    made = driver.places([mount for mount in mounts if not mount.source.startswith("/")])
    places = rooted | made
    if not places.isdisjoint(driver.above(inventory, request.capabilities, inject.library_dir)):
        return False
    inside = inject.library_dir.rstrip("/") + "/"
    below = inside, inside.removeprefix("/var")  # as `places` are named
    if [place for place in places if place.startswith(below)]:
        return False
    # What a runtime makes for the container, as /dev is, does not count there (`fabric`).
    return rooted.isdisjoint(fabric.above(inventory))


@derived.kept
def _usual(inventory: host.Inventory, case: _Case) -> Built:
    """Give what a container gets that has nothing of its own that matters, but for its token."""
    path = (f"LD_LIBRARY_PATH={case.inject.library_dir}/lib64",) if case.shadowed else ()
    of_volume = case.inject.layout == "volume"
    return _build(
        request_model.GpuRequest(
            source=request_model.Source.ENV,
            devices=("all",),
            capabilities=case.capabilities,
            all_capabilities=case.all_capabilities,
        ),
        resolve.Allocation(assigned=case.assigned),
        inventory,
        containers.Container(privileged=case.privileged, env=path),
        case.inject,
        wanted=volume.wanted(case.capabilities, inventory) if of_volume else None,
        whole=case.whole,
        token=_ANY if case.reports else "",
    )


def _with_token(built: Built, token: str) -> Built:
    """Give a container its own token in the place of that of all."""
    hooks_ = tuple(
        model.HookEdit(
            stage=hook.stage,
            path=hook.path,
            args=_signed(hook.args, token),
            env=hook.env,
            timeout=hook.timeout,
        )
        for hook in built.edits.hooks
    )
    edits = built.edits
    return Built(
        edits=model.ContainerEdits(
            env=edits.env, devices=edits.devices, mounts=edits.mounts, hooks=hooks_
        ),
        reasons=built.reasons,
        unprepared=built.unprepared,
        cuda_compat=built.cuda_compat,
    )


def _signed(args: tuple[str, ...], token: str) -> tuple[str, ...]:
    if args[-1] == _ANY:  # as it is now, and there are hundreds
        return (*args[:-1], token)
    return tuple(token if part == _ANY else part for part in args)


def _build(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    container: containers.Container,
    inject: options.InjectOptions,
    *,
    wanted: volume.Volume | None,
    whole: model.MountEdit | None,
    token: str,
) -> Built:
    """Give what one container gets; `whole` is the mount of the directory `wanted`, if ready."""
    possible, left_out = devices.possible(request, inventory)
    nodes = devices.build(possible, allocation, inventory, container.devices)
    further, missing = fabric.build(request, allocation, inventory, container)
    nodes = nodes.merged(further) if further else nodes
    left_out += devices.groups_needed(nodes.devices)
    if container.user_namespace:
        devices.require_own_paths(nodes.devices)
        left_out += devices.shared(possible, allocation.assigned)
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
