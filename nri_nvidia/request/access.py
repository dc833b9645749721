# SPDX-License-Identifier: Apache-2.0
"""Who may have what: the verdict of rules and preset over each claim of a container.

Strict is about pods alone: whoever starts containers by hand may do so as root of the node.
"""

import attrs

from nri_nvidia import errors
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model, rules

_OWN_WORD = frozenset({rules.Source.ENV, rules.Source.POD_ANNOTATION, rules.Source.SHARE})
"""What the author of a pod or an image says, and nobody who allocates GPUs."""
_NOT_ALLOCATED = frozenset({rules.Kind.ALL, rules.Kind.INDEX, rules.Kind.SHARE})
"""What needs a rule by strict, where it is somebody's own word."""


@attrs.frozen(kw_only=True)
class Verdict:
    """What becomes of a claim, by which rule (None: by the preset), and what is to be said."""

    action: rules.Action
    rule: rules.Rule | None = None
    reasons: tuple[Reason, ...] = ()

    def refusal(self) -> errors.PolicyError:
        """Give a verdict that denies as the error to answer with."""
        reason = self.reasons[-1]
        return errors.PolicyError(reason.message, hint=reason.hint, code=reason.code)


def in_pod(container: containers.Container) -> bool:
    """Tell a container of a pod, as far as its door shows that."""
    return bool(container.pod or container.namespace or container.pod_uid)


def over_gpus(
    request: model.GpuRequest,
    container: containers.Container,
    access: rules.Access,
    image: rules.Image | None = None,
    *,
    vouched: bool = False,
) -> Verdict:
    """Judge a request's list of GPUs; `vouched` tells that another has allocated them.

    Strict lets pass what was allocated: mounts, the container's annotations, UUIDs (which a pod
    has from the device plugin), and `none`, which gives no device. What was allocated to a
    container says nothing about what it shares of another.
    """
    if access.is_open:
        return Verdict(action=rules.Action.ALLOW)
    claim = rules.Claim(
        kinds=_kinds(request),
        source=rules.source(request),
        variable=request.variable,
        said=_said(request),
    )
    found = rules.first(claim, container, access, image)
    if found.rule:
        return _by_rule(found, claim, image)
    unsure = _unsure(found, image)
    own = claim.source in _OWN_WORD and any(kinds & _NOT_ALLOCATED for kinds in claim.kinds)
    vouched = vouched and not request.shares
    if not own or vouched or not _is_strict(container, access):
        return Verdict(action=rules.Action.ALLOW, reasons=unsure)
    where = f'namespaces = ["{container.namespace}"], ' if container.namespace else ""
    if request.shares:
        what, devices = "what another container of it holds", '["share"]'
    else:
        what, devices = "all, or a GPU by its place,", '["all", "index"]'
    resource = "request the GPU as a resource (resources.limits nvidia.com/gpu), or "
    return Verdict(
        action=rules.Action.IGNORE,
        reasons=(
            *unsure,
            Reason(
                code="strict-policy",
                message=f"{claim.said} is ignored: by policy = strict a pod gets {what} only "
                "where a rule allows it",
                hint=f"{'' if request.shares else resource}add to "
                f'[[policy_rules]]: {where}devices = {devices}, action = "allow"',
            ),
        ),
    )


def beyond(
    kind: rules.Kind,
    container: containers.Container,
    access: rules.Access,
    image: rules.Image | None = None,
    *,
    source: rules.Source,
    variable: str,
    value: str,
    trusted: bool = False,
) -> Verdict | None:
    """Judge a claim to what reaches beyond a container's own GPUs; None where NVIDIA's rules hold.

    By strict it is left out, unless a rule allows it, it was allocated (a mount, the container's
    annotation), or the container is `trusted` with it by another setting.
    """
    if access.is_open:
        return None
    joint = "=" if source is rules.Source.ENV else ": "
    claim = rules.Claim(
        kinds=(frozenset({kind}),),
        source=source,
        variable=variable,
        said=f"{variable}{joint}{value}",
    )
    found = rules.first(claim, container, access, image)
    if found.rule:
        return _by_rule(found, claim, image)
    if trusted or source not in _OWN_WORD or not _is_strict(container, access):
        return None
    return Verdict(
        action=rules.Action.IGNORE,
        reasons=(
            *_unsure(found, image),
            Reason(
                code="strict-policy-beyond",
                message=f"{claim.said} is ignored: by policy = strict {kind} is for pods that a "
                "rule allows it",
                hint=f'add to [[policy_rules]]: devices = ["{kind}"], action = "allow"',
            ),
        ),
    )


def _kinds(request: model.GpuRequest) -> tuple[frozenset[rules.Kind], ...]:
    if request.shares:
        return (frozenset({rules.Kind.SHARE}),)
    return tuple(map(rules.kinds, request.devices)) or (frozenset({rules.Kind.NONE}),)


def _is_strict(container: containers.Container, access: rules.Access) -> bool:
    return access.preset is rules.Preset.STRICT and in_pod(container)


def _by_rule(found: rules.Found, claim: rules.Claim, image: rules.Image | None) -> Verdict:
    rule = found.rule
    assert rule is not None
    done = {"allow": "allowed", "ignore": "ignored", "deny": "denied"}[rule.action]
    reason = Reason(
        code=f"{done}-by-rule",
        message=f"{claim.said} is {done} by {rule}",
        hint="" if rule.action is rules.Action.ALLOW else "ask whoever sets this node's policy",
    )
    return Verdict(action=rule.action, rule=rule, reasons=(*_unsure(found, image), reason))


def _unsure(found: rules.Found, image: rules.Image | None) -> tuple[Reason, ...]:
    if not found.unsure:
        return ()
    why = f": {image.problem}" if image and image.problem else ""
    return (
        Reason(
            code="image-not-known",
            message="whether the image or the pod set the variable matters to a rule and is not "
            f"known{why}",
            hint="set policy.cri_socket to the runtime's CRI socket",
        ),
    )


def _said(request: model.GpuRequest) -> str:
    joint = "=" if request.source is model.Source.ENV else ": "
    return f"{request.variable}{joint}{','.join(request.devices) or 'none'}"
