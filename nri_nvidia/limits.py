# SPDX-License-Identifier: Apache-2.0
"""What a choice of GPUs is held to: a rule's number of devices, and what others hold."""

from collections.abc import Iterable, Sequence

import attrs

from nri_nvidia import errors, resolve
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model
from nri_nvidia.request import rules

_HELD = "held-exclusively"


@attrs.frozen(kw_only=True)
class Holding:
    """A GPU that a container holds, or a MIG device of it (`mig`, a UUID); whose it is.

    `gpu` is the UUID. It may be empty, while the driver has not initialised the GPU; `minor` is
    always there. `shares` tells that it does not count where GPUs are exclusive, and `shared_from`
    the container of the same pod by which it is held, if it is shared.
    """

    gpu: str
    minor: int
    mig: str = ""
    container: containers.Container
    shares: bool = False
    shared_from: str = ""


def at_most(
    rule: rules.Rule | None, request: request_model.GpuRequest, allocation: resolve.Allocation
) -> resolve.Allocation:
    """Hold a choice to the number that a rule allows; a MIG device counts as one.

    Raises PolicyError for more, or sets the request aside where the rule says so.
    """
    count = len(allocation.assigned)
    if rule is None or rule.max_devices is None or count <= rule.max_devices:
        return allocation
    asked = _asked(request)
    message = f"{asked} means {count} devices, and {rule} allows {rule.max_devices}"
    if rule.over_max is rules.Action.IGNORE:
        ignored = Reason(code="over-max-devices", message=f"{message}, so it is ignored")
        return resolve.Allocation(given=False, reasons=(*allocation.reasons, ignored))
    raise errors.PolicyError(
        message, hint=f"ask for {rule.max_devices} at most", code="over-max-devices"
    )


def require_free(
    container: containers.Container,
    request: request_model.GpuRequest,
    assigned: Iterable[resolve.Assigned],
    holdings: Iterable[Holding],
) -> None:
    """Raise PolicyError for a device that another container holds, with that one's name.

    A whole GPU and a device of it exclude each other; two devices of one GPU do not. A container
    of the same name in the same pod is an earlier attempt at this one, which has ended: a kubelet
    never runs two. A container and those of its pod that share its GPUs hold them together,
    whichever of them is created (again) first.
    """
    others = [
        each
        for each in holdings
        if not (
            each.shares or _same(each.container, container) or _together(each, container, request)
        )
    ]
    for item in assigned:
        holder = next((each for each in others if _meet(each, item)), None)
        if holder:
            what = item.mig.uuid if item.mig else f"GPU {item.gpu.index} ({item.gpu.uuid})"
            part = f", by its MIG device {holder.mig}" if holder.mig and not item.mig else ""
            raise errors.PolicyError(
                f"{_asked(request)}: {what} is held by {holder.container.display} "
                f"({holder.container.id[:12]}){part}, and GPUs are exclusive on this node",
                hint="ask for a free one: nri-nvidia devices --free; or end that container",
                code=_HELD,
            )


def shared(
    container: containers.Container,
    request: request_model.GpuRequest,
    holdings: Iterable[Holding],
    inventory: host.Inventory,
) -> tuple[request_model.GpuRequest, Reason]:
    """Give a request to share with the devices that it means, and what is to be said of them.

    They are those of the named container in the same sandbox, so no other pod's can be had by it,
    and those of its last attempt. Raises RequestError where that one holds nothing (now).
    """
    asked, name, other = _asked(request), container.name, request.shares
    if not container.sandbox:
        raise errors.RequestError(
            f"{asked}: which pod {name} is of is not known for certain by this door, and "
            "GPUs are shared within one pod only",
            hint="only NRI tells: have the runtime's NRI reach nri-nvidia",
            code="share-without-pod",
        )
    found = [
        each
        for each in holdings
        if (each.container.sandbox, each.container.name) == (container.sandbox, other)
    ]
    if not found:
        raise errors.RequestError(
            f"{asked} of this pod holds no GPU now for {name} to share: it has not been created "
            "yet, has ended, or was given none",
            hint=f"the kubelet tries {name} again by itself; list {other} before it, since what "
            f"runs before {other}, as initContainers do, cannot share",
            code="nothing-to-share",
        )
    last = found[-1].container.id
    names = [_name(each, inventory) for each in found if each.container.id == last]
    reason = Reason(
        code="gpus-shared",
        message=f"{asked} of this pod ({last[:12]}) holds {', '.join(names)}, and {name} shares "
        "that",
    )
    return attrs.evolve(request, devices=tuple(names)), reason


def _name(held: Holding, inventory: host.Inventory) -> str:
    """Give a name to ask for it by; a GPU that the driver has not initialised has no UUID."""
    alike = (gpu for gpu in inventory.usable if gpu.minor == held.minor)
    return held.mig or held.gpu or next((gpu.bus_id or str(gpu.index) for gpu in alike), "a GPU")


def is_held(reasons: Sequence[Reason]) -> bool:
    """Tell a refusal by `require_free`."""
    return bool(reasons) and reasons[-1].code == _HELD


def _same(holder: containers.Container, container: containers.Container) -> bool:
    if holder.id == container.id:
        return True
    names = (holder.pod_uid, holder.name)
    return all(names) and names == (container.pod_uid, container.name)


def _together(
    held: Holding, container: containers.Container, request: request_model.GpuRequest
) -> bool:
    """Tell whether it is held by the container that this one shares with, or by way of it."""
    sandbox = held.container.sandbox
    whose = held.shared_from or held.container.name
    return (
        bool(sandbox and whose)
        and sandbox == container.sandbox
        and whose == (request.shares or container.name)
    )


def _meet(held: Holding, item: resolve.Assigned) -> bool:
    """Tell whether two claims are to one thing; a GPU without a UUID is told by its minor."""
    if held.mig and item.mig:
        return held.mig == item.mig.uuid
    if held.mig and held.mig in {mig.uuid for mig in item.gpu.mig_devices}:
        return True
    if held.gpu and item.gpu.uuid:
        return held.gpu == item.gpu.uuid
    return held.minor == item.gpu.minor


def _asked(request: request_model.GpuRequest) -> str:
    joint = "=" if request.source is request_model.Source.ENV else ": "
    return f"{request.variable}{joint}{','.join(request.devices) or 'none'}"
