# SPDX-License-Identifier: Apache-2.0
"""The one way from a container to a decision; every door takes it.

Pure: no clock, no file, no socket. What only some doors know comes in as `Context`.
"""

import enum
from collections.abc import Iterator, Mapping

import attrs

from nri_nvidia import errors, limits, resolve, suitability
from nri_nvidia.edits import build, compat, model, options, present, volume
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import access, parse, policy
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model
from nri_nvidia.request import rules as access_rules


class Decision(enum.StrEnum):
    """What happens to a container.

    INJECT: it is given GPUs or driver files. IGNORE: it is created and given nothing. DENY: policy
    refuses its creation. ERROR: it asked for what this host cannot give, and creation fails.
    """

    INJECT = "inject"
    IGNORE = "ignore"
    DENY = "deny"
    ERROR = "error"


@attrs.frozen(kw_only=True)
class Policy:
    """All settings that a decision depends on."""

    request: policy.RequestPolicy = attrs.field(factory=policy.RequestPolicy)
    inject: options.InjectOptions = attrs.field(factory=options.InjectOptions)

    def without_access(self) -> "Policy":
        """Give the settings without the operator's rules, for what is no container's request."""
        return attrs.evolve(self, request=attrs.evolve(self.request, access=access_rules.Access()))


@attrs.frozen(kw_only=True)
class Context:
    """What only some doors know.

    `allocated` are the UUIDs that the kubelet gave this container (None: not known).
    `hook_token` goes into the hook's report of its result. `volumes` are the prepared directories
    of driver files, by name. `image` is the environment of its image. `holdings` is what other
    containers hold, where that matters.
    """

    allocated: frozenset[str] | None = None
    hook_token: str = ""
    volumes: Mapping[str, str] = attrs.field(factory=dict)
    image: access_rules.Image | None = None
    holdings: tuple[limits.Holding, ...] = ()


@attrs.frozen(kw_only=True)
class Plan:
    """A decision with its reasons and all that follows from it.

    `unprepared` is the directory that would serve the next such container with one mount, if it
    were prepared. `cuda_compat` says whether a newer CUDA driver of the image may be used. `rule`
    is the operator's rule that decided over the GPUs, if one did.
    """

    decision: Decision
    reasons: tuple[Reason, ...] = ()
    request: request_model.GpuRequest | None = None
    assigned: tuple[resolve.Assigned, ...] = ()
    driver_version: str = ""
    edits: model.ContainerEdits = attrs.field(factory=model.ContainerEdits)
    unprepared: volume.Volume | None = None
    cuda_compat: compat.Choice | None = None
    rule: access_rules.Rule | None = None

    @property
    def shares(self) -> bool:
        """Whether its GPUs do not count as held (`Rule.shares`)."""
        return self.rule is not None and self.rule.shares

    @property
    def created(self) -> bool:
        """Whether the container would be created."""
        return self.decision in {Decision.INJECT, Decision.IGNORE}

    def refusal(self) -> errors.Error:
        """Give a refused plan as the error to answer with."""
        reason = self.reasons[-1]
        family = errors.PolicyError if self.decision is Decision.DENY else errors.RequestError
        return family(reason.message, hint=reason.hint, code=reason.code)


def asks(
    container: containers.Container,
    rules: Policy,
    parsed: parse.Parsed | None = None,
    context: Context | None = None,
) -> bool:
    """Tell whether a container asks for anything that it may have: the host must be looked at.

    Devices in its spec may be GPUs that another has allocated, so there the host decides.
    """
    context = context or Context()
    parsed = parsed or parse.parse(container, rules.request, context.image)
    if parsed.request is None or parsed.error is not None:
        return False
    verdict = access.over_gpus(
        parsed.request,
        container,
        rules.request.access,
        context.image,
        vouched=context.allocated is not None or bool(container.devices),
    )
    return verdict.action is access_rules.Action.ALLOW


def plan(
    container: containers.Container,
    inventory: host.Inventory,
    rules: Policy,
    context: Context | None = None,
    parsed: parse.Parsed | None = None,
) -> Plan:
    """Decide over one container on one host; never raises for what a container asks.

    `parsed` is its request where that has been read by these rules already.
    """
    context = context or Context()
    parsed = parsed or parse.parse(container, rules.request, context.image)
    request = parsed.request
    if request is None:
        return Plan(decision=Decision.IGNORE, reasons=parsed.reasons)
    if parsed.error is not None:
        refusal = refused(parsed.error, request)
        return attrs.evolve(refusal, reasons=(*parsed.reasons, *refusal.reasons))
    other = present.served(container, in_its_place=rules.request.accept_pod_annotations)
    if other:
        return Plan(decision=Decision.IGNORE, reasons=(*parsed.reasons, other), request=request)
    verdict = access.over_gpus(
        request,
        container,
        rules.request.access,
        context.image,
        vouched=context.allocated is not None
        or (bool(container.devices) and bool(present.gpus(container, inventory))),
    )
    # Several claims of one container may have the same to say.
    noted = tuple(dict.fromkeys((*parsed.reasons, *verdict.reasons)))
    if verdict.action is not access_rules.Action.ALLOW:
        denied = verdict.action is access_rules.Action.DENY
        return Plan(
            decision=Decision.DENY if denied else Decision.IGNORE,
            reasons=noted,
            request=request,
            rule=verdict.rule,
        )
    if request.all_lists and inventory.with_all_lists:
        inventory = inventory.with_all_lists
    try:
        decided = _decide(
            container, request, inventory, rules=rules, context=context, rule=verdict.rule
        )
    except errors.Error as error:
        decided = attrs.evolve(refused(error, request), driver_version=inventory.driver_version)
    if not noted and verdict.rule is None:
        return decided
    return attrs.evolve(decided, reasons=(*noted, *decided.reasons), rule=verdict.rule)


def refused(error: errors.Error, request: request_model.GpuRequest | None) -> Plan:
    """Give the plan that an error makes of a request."""
    denied = isinstance(error, errors.PolicyError)
    return Plan(
        decision=Decision.DENY if denied else Decision.ERROR,
        reasons=(Reason.of(error),),
        request=request,
    )


def _decide(
    container: containers.Container,
    request: request_model.GpuRequest,
    inventory: host.Inventory,
    *,
    rules: Policy,
    context: Context,
    rule: access_rules.Rule | None,
) -> Plan:
    told: tuple[Reason, ...] = ()
    if request.shares:
        request, reason = limits.shared(container, request, context.holdings, inventory)
        told = (reason,)
    allocation = present.allocation(container, request, inventory)
    if allocation is None:
        resolved = _as_allocated(request, resolve.resolve(request, inventory), context)
        allocation = limits.at_most(rule, request, resolved)
    if rules.request.access.exclusive and not (rule and rule.shares):
        limits.require_free(container, request, allocation.assigned, context.holdings)
    noted = told + allocation.reasons
    if not allocation.given:
        return Plan(decision=Decision.IGNORE, reasons=noted, request=request)
    noted += suitability.require(request, allocation.assigned, inventory)
    noted += tuple(_moved(inventory))
    built = build.build(
        request,
        allocation,
        inventory,
        container,
        rules.inject,
        ready=context.volumes,
        token=context.hook_token,
    )
    return Plan(
        decision=Decision.INJECT,
        reasons=(*noted, *built.reasons),
        request=request,
        assigned=allocation.assigned,
        driver_version=inventory.driver_version or inventory.libraries_version,
        edits=built.edits,
        unprepared=built.unprepared,
        cuda_compat=built.cuda_compat,
    )


def _moved(inventory: host.Inventory) -> Iterator[Reason]:
    """Say where the driver's files are not from the place that the settings name."""
    for problem in inventory.problems:
        if problem.code == "driver-root-empty":
            yield Reason(code=problem.code, message=problem.message, hint=problem.hint)


def _as_allocated(
    request: request_model.GpuRequest, allocation: resolve.Allocation, context: Context
) -> resolve.Allocation:
    """Hold a claim against what the kubelet allocated; raises PolicyError for more than that.

    Raises HostError where nothing that was allocated can be given.
    """
    if context.allocated is None or not allocation.given or not request.devices:
        return allocation
    if request.shares:
        return allocation  # it was allocated to the other container
    allowed = {uuid.lower() for uuid in context.allocated}
    within = tuple(item for item in allocation.assigned if _uuid(item).lower() in allowed)
    outside = [_uuid(item) for item in allocation.assigned if item not in within]
    if not outside:
        return allocation
    allotted = ", ".join(sorted(context.allocated)) or "no GPU"
    if not request.wants_all:
        raise errors.PolicyError(
            f"{request.variable}: {', '.join(outside)} was asked for, and the kubelet allocated "
            f"{allotted} to this container",
            hint="request the GPU as a resource: resources.limits nvidia.com/gpu",
            code="not-allocated",
        )
    if allowed and not within:
        # Created without a GPU it would fail later, and nobody would know why.
        raise errors.HostError(
            f"{request.variable}=all means what the kubelet allocated to this container, "
            f"{allotted}, and this node cannot give that",
            hint="nri-nvidia devices lists what there is; let the device plugin look again",
            code="allocated-not-there",
        )
    narrowed = Reason(
        code="narrowed-to-allocated",
        message=f"{request.variable}=all means what the kubelet allocated to this container: "
        f"{allotted}",
    )
    return attrs.evolve(
        allocation,
        assigned=within,
        reasons=(*allocation.reasons, narrowed),
        given=bool(within),
    )


def _uuid(item: resolve.Assigned) -> str:
    return item.mig.uuid if item.mig else item.gpu.uuid
