# SPDX-License-Identifier: Apache-2.0
"""What a choice of GPUs is held to: a rule's number of devices, and what others hold."""

from collections.abc import Iterable, Sequence

import attrs

from nri_nvidia import errors, resolve
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model
from nri_nvidia.request import rules

_HELD = "held-exclusively"


@attrs.frozen(kw_only=True)
class Holding:
    """A GPU that a container holds, or a MIG device of it (`mig`, a UUID); whose it is.

    `gpu` is the UUID. It may be empty, while the driver has not initialised the GPU; `minor` is
    always there.
    """

    gpu: str
    minor: int
    mig: str = ""
    container: containers.Container


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
    never runs two.
    """
    others = [each for each in holdings if not _same(each.container, container)]
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


def is_held(reasons: Sequence[Reason]) -> bool:
    """Tell a refusal by `require_free`."""
    return bool(reasons) and reasons[-1].code == _HELD


def _same(holder: containers.Container, container: containers.Container) -> bool:
    if holder.id == container.id:
        return True
    names = (holder.pod_uid, holder.name)
    return all(names) and names == (container.pod_uid, container.name)


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
