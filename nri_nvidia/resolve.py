# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a request means on a host."""

import re
from collections.abc import Iterable

import attrs

from nri_nvidia import errors, refusals
from nri_nvidia.host import derived, reach
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import model as request_model
from nri_nvidia.request import names

_INDEX = re.compile(r"[0-9]{1,9}")
_MIG_INDEX = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_MIG_PATH = re.compile(r"(?i:MIG-)((?i:GPU-)[0-9A-Fa-f-]+)/([0-9]{1,9})/([0-9]{1,9})")
_BUS_ID = re.compile(r"([0-9A-Fa-f]{1,8}):([0-9A-Fa-f]{1,2}):([0-9A-Fa-f]{1,2})\.[0-7]")
_MOST_DEVICES = 1024  # more than any node has; other containers wait meanwhile


@attrs.frozen(kw_only=True, cache_hash=True)
class Assigned:
    """One thing that a container gets: a whole GPU, or a MIG device of it."""

    gpu: host.Gpu
    mig: host.MigDevice | None = None


@attrs.frozen(kw_only=True)
class Allocation:
    """The GPUs of a container in PCI order, and what should be said about the choice.

    `given` is False when the request is set aside: the container is created and gets nothing.
    """

    assigned: tuple[Assigned, ...] = ()
    reasons: tuple[Reason, ...] = ()
    given: bool = True


def resolve(request: request_model.GpuRequest, inventory: host.Inventory) -> Allocation:
    """Find the GPUs; raises RequestError (no such device) or HostError (cannot be told now).

    Ids may be an index, a UUID or its unique beginning (8 hex digits or more), a PCI bus id with
    its domain, or a MIG device as `MIG-<uuid>`, `<gpu>:<mig>` or `MIG-GPU-<uuid>/<gi>/<ci>`. Case
    does not matter. `all` is every GPU that is not in MIG mode and every MIG device.
    """
    if len(request.devices) > _MOST_DEVICES:
        raise errors.RequestError(
            f"{request.variable}: {len(request.devices)} devices are named; at most "
            f"{_MOST_DEVICES} are looked for",
            hint="write all for every GPU",
            code="too-many-devices",
        )
    names.require_known(request.devices, request.variable)
    keyword = names.keyword(request.devices)
    everything, nothing = keyword == "all", keyword == "none" or not request.devices
    if not inventory.hardware and not inventory.gpus:
        if everything or nothing:
            return _without_hardware(request, inventory)
        raise errors.RequestError(
            f"{refusals.asked(request, request.devices[0])}: this node has no NVIDIA GPU",
            hint="run the container on a node that has one",
            code="no-gpu-on-node",
        )
    require_driver(request, inventory)
    if nothing:
        return Allocation()
    if everything:
        usual = _all_that_are_well(inventory)
        return Allocation(assigned=usual) if usual else _all_gpus(request, inventory)
    found = [_find(request, device, inventory) for device in request.devices]
    for item in found:
        problem = reach.out_of_reach(item.gpu, item.mig, inventory) if item.gpu.problem else None
        if problem:
            raise problem
    return Allocation(
        assigned=in_order(found),
        reasons=_not_apart(request, found, inventory)
        + tuple(
            Reason(
                code="gpu-in-mig-mode",
                message=f"GPU {item.gpu.index} is in MIG mode: the whole GPU was asked for, and "
                "programs cannot compute on it",
                hint=f"ask for one of its MIG devices, e.g. {item.gpu.index}:0",
            )
            for item in found
            if item.gpu.mig_enabled and item.mig is None
        ),
    )


def _not_apart(
    request: request_model.GpuRequest, found: list[Assigned], inventory: host.Inventory
) -> tuple[Reason, ...]:
    """Say where one node stands for all GPUs, so that a container can use the others too."""
    others = [gpu.index for gpu in inventory.usable if gpu not in {item.gpu for item in found}]
    if inventory.platform is not host.Platform.WSL or not others:
        return ()
    return (
        Reason(
            code="gpus-not-apart",
            message=f"{refusals.asked(request, *request.devices)}: in WSL /dev/dxg stands for all "
            f"GPUs: the container can use GPU {','.join(map(str, others))} too",
            hint="let the program choose: CUDA_VISIBLE_DEVICES",
        ),
    )


def _without_hardware(request: request_model.GpuRequest, inventory: host.Inventory) -> Allocation:
    """Decide `all` and `none` where there is no GPU: CUDA images run on CPU nodes too."""
    if not request.wants_all and inventory.files:
        return Allocation()
    return Allocation(
        given=False,
        reasons=(
            Reason(
                code="no-gpu-on-node",
                message=f"{refusals.asked(request, *request.devices or ('none',))}: this node has "
                "no NVIDIA GPU, so there is nothing to give",
            ),
        ),
    )


def require_driver(request: request_model.GpuRequest, inventory: host.Inventory) -> None:
    """Raise HostError unless the kernel module is loaded and the driver's files match it."""
    asked = refusals.asked(request, *request.devices or ("none",))
    if not inventory.driven:
        raise errors.HostError(
            f"{asked}: the NVIDIA driver is not loaded on this node",
            hint="load it: modprobe nvidia; dmesg says why if that fails",
            code="driver-not-loaded",
        )
    mismatch = next((p for p in inventory.problems if p.code == "driver-version-mismatch"), None)
    if mismatch:
        raise errors.HostError(
            f"{asked}: {mismatch.message}", hint=mismatch.hint, code=mismatch.code
        )


@derived.kept
def _all_that_are_well(inventory: host.Inventory) -> tuple[Assigned, ...]:
    """Give all there is where nothing is to be said of any GPU, else nothing."""
    if any(gpu.mig_enabled and not gpu.mig_devices for gpu in inventory.usable):
        return ()
    found = _every(inventory)
    well = all(reach.out_of_reach(item.gpu, item.mig, inventory) is None for item in found)
    return found if well else ()


def _every(inventory: host.Inventory) -> tuple[Assigned, ...]:
    """Give each GPU that is not divided, and each MIG device of those that are."""
    return tuple(
        Assigned(gpu=gpu, mig=mig)
        for gpu in inventory.usable
        for mig in (gpu.mig_devices if gpu.mig_enabled else (None,))
    )


def _all_gpus(request: request_model.GpuRequest, inventory: host.Inventory) -> Allocation:
    """Give all that can be had; one GPU that is out of reach does not hide the others."""
    for gpu in inventory.usable:
        if gpu.mig_enabled and not gpu.mig_devices:
            refusals.require_nvml(request, request.devices[0], inventory)
    found = _every(inventory)
    problems = {
        item: problem
        for item in found
        if (problem := reach.out_of_reach(item.gpu, item.mig, inventory))
    }
    assigned = tuple(item for item in found if item not in problems)
    if assigned:
        return Allocation(
            assigned=assigned,
            reasons=tuple(
                Reason(
                    code="gpu-left-out",
                    message=f"{refusals.asked(request, *request.devices)}: "
                    f"{reach.left_out(item.gpu, item.mig, problem)}",
                    hint=problem.hint,
                )
                for item, problem in problems.items()
            ),
        )
    for problem in problems.values():
        raise problem
    excluded = sum(gpu.excluded for gpu in inventory.gpus)
    in_mig_mode = sum(gpu.mig_enabled for gpu in inventory.usable)
    why = (
        f"{excluded} GPU(s) are excluded by the driver and {in_mig_mode} are in MIG mode without "
        "a MIG device"
        if excluded or in_mig_mode
        else "the driver sees none"
    )
    raise errors.HostError(
        f"{refusals.asked(request, *request.devices)}: no GPU of this node can be given: {why}",
        hint="nri-nvidia devices shows them; dmesg shows what the driver said",
        code="no-usable-gpu",
    )


def _find(request: request_model.GpuRequest, device: str, inventory: host.Inventory) -> Assigned:
    """Find one id. A CDI name of our own kind is the id in it."""
    text = names.plain(device)
    if _INDEX.fullmatch(text):
        refusals.require_order(request, device, inventory)
        for gpu in inventory.usable:
            if gpu.index == int(text):
                return Assigned(gpu=gpu)
    elif match := _MIG_INDEX.fullmatch(text):
        refusals.require_order(request, device, inventory)
        return _mig_by_index(request, device, (int(match[1]), int(match[2])), inventory)
    elif match := _MIG_PATH.fullmatch(text):
        path = (match[1], int(match[2]), int(match[3]))
        return _mig_by_path(request, device, path, inventory)
    elif text[:4].lower() == "mig-":
        return _mig_by_uuid(request, device, text, inventory)
    elif text[:4].lower() == "gpu-":
        return _gpu_by_uuid(request, device, text, inventory)
    elif match := _BUS_ID.fullmatch(text):
        wanted = tuple(int(part, 16) for part in match.groups())
        for gpu in inventory.gpus:
            if _bus_numbers(gpu.bus_id) == wanted:
                return _unless_excluded(request, device, gpu)
    elif text.lower() in {gpu.uuid.lower() for gpu in inventory.usable}:
        return _gpu_by_uuid(request, device, text, inventory)  # Orin's has no prefix
    raise refusals.unknown(request, device, inventory)


def _gpu_by_uuid(
    request: request_model.GpuRequest, device: str, text: str, inventory: host.Inventory
) -> Assigned:
    named = [gpu for gpu in inventory.gpus if gpu.uuid]
    matches = _by_uuid(text, [gpu.uuid for gpu in named])
    if len(matches) > 1:
        raise refusals.ambiguous(request, device, matches)
    for gpu in named:
        if gpu.uuid in matches:
            return _unless_excluded(request, device, gpu)
    refusals.require_uuids(request, device, inventory)
    raise refusals.unknown(request, device, inventory)


def _mig_by_uuid(
    request: request_model.GpuRequest, device: str, text: str, inventory: host.Inventory
) -> Assigned:
    refusals.require_nvml(request, device, inventory)
    migs = {mig.uuid: Assigned(gpu=gpu, mig=mig) for gpu, mig in refusals.mig_devices(inventory)}
    matches = _by_uuid(text, migs)
    if len(matches) > 1:
        raise refusals.ambiguous(request, device, matches)
    if matches:
        return migs[matches[0]]
    raise refusals.unknown_mig(request, device, inventory)


def _mig_by_index(
    request: request_model.GpuRequest,
    device: str,
    place: tuple[int, int],
    inventory: host.Inventory,
) -> Assigned:
    refusals.require_nvml(request, device, inventory)
    for gpu, mig in refusals.mig_devices(inventory):
        if (gpu.index, mig.index) == place:
            return Assigned(gpu=gpu, mig=mig)
    raise refusals.unknown_mig(request, device, inventory)


def _mig_by_path(
    request: request_model.GpuRequest,
    device: str,
    path: tuple[str, int, int],
    inventory: host.Inventory,
) -> Assigned:
    refusals.require_nvml(request, device, inventory)
    uuid, gi, ci = path
    matches = _by_uuid(uuid, [gpu.uuid for gpu in inventory.usable if gpu.uuid])
    if len(matches) > 1:
        raise refusals.ambiguous(request, device, matches)
    for gpu, mig in refusals.mig_devices(inventory):
        if gpu.uuid in matches and (mig.gi, mig.ci) == (gi, ci):
            return Assigned(gpu=gpu, mig=mig)
    raise refusals.unknown_mig(request, device, inventory)


def _by_uuid(text: str, uuids: Iterable[str]) -> list[str]:
    """Give the UUIDs that a text means: the equal one, else those that begin with it."""
    known = list(uuids)
    equal = [uuid for uuid in known if uuid.lower() == text.lower()]
    if equal or refusals.is_too_short(text):
        return equal
    return [uuid for uuid in known if uuid.lower().startswith(text.lower())]


def _bus_numbers(bus_id: str) -> tuple[int, ...] | None:
    match = _BUS_ID.fullmatch(bus_id)
    return tuple(int(part, 16) for part in match.groups()) if match else None


def in_order(found: Iterable[Assigned]) -> tuple[Assigned, ...]:
    """Give each once, in PCI order."""
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=lambda a: (a.gpu.index, -1 if a.mig is None else a.mig.index)))


def _unless_excluded(request: request_model.GpuRequest, device: str, gpu: host.Gpu) -> Assigned:
    if gpu.excluded:
        raise errors.RequestError(
            f"{refusals.asked(request, device)}: the driver excludes this GPU ({gpu.bus_id})",
            hint="the module option NVreg_ExcludedGpus lists what is excluded",
            code="gpu-excluded",
        )
    return Assigned(gpu=gpu)
