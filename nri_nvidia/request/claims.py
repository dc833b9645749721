# SPDX-License-Identifier: Apache-2.0
"""What of a container's claims beyond its own GPUs holds: MIG management, IMEX, NVSwitch.

Rules and preset decide; where they have no say, NVIDIA's own rules do: who is privileged, or in
one of `request.management_namespaces`, may manage.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from nri_nvidia import errors
from nri_nvidia.reasons import Reason
from nri_nvidia.request import access, extras, model, names, policy, rules
from nri_nvidia.request import container as containers


@attrs.frozen(kw_only=True)
class Asker:
    """Who asks: a container, by a list of devices from `source` that `variable` names."""

    container: containers.Container
    source: rules.Source
    variable: str
    policy: policy.RequestPolicy
    image: rules.Image | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether it is in a namespace that may manage."""
        return self.container.namespace in self.policy.management_namespaces

    @property
    def may_manage(self) -> bool:
        """Whether NVIDIA's rules let it manage."""
        return self.container.privileged is True or self.is_trusted

    def judge(
        self, kind: rules.Kind, value: str, variable: str = "", source: rules.Source | None = None
    ) -> access.Verdict | None:
        """Judge a claim; that of the list itself unless a variable and a source are named."""
        return access.beyond(
            kind,
            self.container,
            self.policy.access,
            self.image,
            source=source or self.source,
            variable=variable or self.variable,
            value=value,
            trusted=self.is_trusted,
        )


@attrs.frozen(kw_only=True)
class Held:
    """What holds of claims, what is to be said of the rest, and a rule's refusal."""

    devices: tuple[str, ...] = ()
    imex_channels: tuple[str, ...] = ()
    groups: tuple[model.Group, ...] = ()
    overseeing: tuple[model.MigManagement, ...] = ()
    managed: tuple[model.MigManagement, ...] = ()
    reasons: tuple[Reason, ...] = ()
    error: errors.PolicyError | None = None

    def by(self, verdict: access.Verdict, **left: Any) -> "Held":
        """Give what holds after a verdict that is not to allow: without what was claimed."""
        if verdict.action is rules.Action.DENY:
            found = attrs.evolve(self, reasons=(*self.reasons, *verdict.reasons[:-1]))
            return attrs.evolve(found, error=self.error or verdict.refusal())
        return attrs.evolve(self, reasons=(*self.reasons, *verdict.reasons), **left)

    def saying(self, verdict: access.Verdict | None) -> "Held":
        """Give the same with what a verdict has to say."""
        return attrs.evolve(self, reasons=(*self.reasons, *(verdict.reasons if verdict else ())))


def hold(
    asker: Asker, claimed: Held, env: Mapping[str, str], *, imex: tuple[rules.Source, str]
) -> Held:
    """Judge all claims in `claimed`; `imex` is where its channels were read, and its name.

    Raises RequestError by NVIDIA's rule over MIG management.
    """
    held = _managing(asker, claimed)
    held = _channels(asker, held, *imex)
    held = _switches(asker, held, env)
    return _mig(asker, held, env)


def _refused(verdict: access.Verdict | None) -> bool:
    return verdict is not None and verdict.action is not rules.Action.ALLOW


def _managing(asker: Asker, held: Held) -> Held:
    """Give who may name NVIDIA's management device, and does, all GPUs and the rights over MIG.

    In any other container's list the name stays, and is refused.
    """
    asked = [device for device in held.devices if _is_management(device)]
    if not asked:
        return held
    verdict = asker.judge(rules.Kind.MANAGEMENT, ",".join(asked))
    if verdict and _refused(verdict):
        return held.by(verdict, devices=tuple(d for d in held.devices if d not in asked))
    if not verdict and not asker.may_manage:
        return held
    held = held.saying(verdict)
    return attrs.evolve(held, devices=("all",), overseeing=tuple(model.MigManagement))


def _is_management(device: str) -> bool:
    name = names.qualified(device)
    return name is not None and name.kind == names.MANAGEMENT_KIND


def _channels(asker: Asker, held: Held, source: rules.Source, variable: str) -> Held:
    if not held.imex_channels:
        return held
    value = ",".join(held.imex_channels)
    verdict = asker.judge(rules.Kind.IMEX, value, variable, source)
    if verdict and _refused(verdict):
        return held.by(verdict, imex_channels=())
    return held.saying(verdict)


def _switches(asker: Asker, held: Held, env: Mapping[str, str]) -> Held:
    group = model.Group.NVSWITCH
    if group not in held.groups:
        return held
    if group in extras.groups(env):
        name = extras.variable(group)
        verdict = asker.judge(rules.Kind.NVSWITCH, env[name], name, rules.Source.ENV)
    else:
        verdict = asker.judge(rules.Kind.NVSWITCH, f"nvidia.com/{group}=all")
    if verdict and _refused(verdict):
        return held.by(verdict, groups=tuple(each for each in held.groups if each != group))
    return held.saying(verdict)


def _mig(asker: Asker, held: Held, env: Mapping[str, str]) -> Held:
    found: list[model.MigManagement] = []
    for kind in model.MigManagement:
        name = extras.managing(kind)
        if not env.get(name):
            continue
        verdict = asker.judge(rules.Kind(f"mig-{kind}"), env[name], name, rules.Source.ENV)
        if verdict and _refused(verdict):
            held = held.by(verdict)
            continue
        extras.mig_management(
            {name: env[name]}, privileged=verdict is not None or asker.may_manage
        )
        held = held.saying(verdict)
        found.append(kind)
    return attrs.evolve(held, managed=tuple(found)) if found else held
