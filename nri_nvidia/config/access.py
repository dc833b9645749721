# SPDX-License-Identifier: Apache-2.0
"""`[policy]` and `[[policy_rules]]`: who may have what."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from nri_nvidia.request import rules


def _absolute_or_empty(_: object, _attribute: "attrs.Attribute[str]", value: str) -> None:
    if value and (not value.startswith("/") or "\0" in value):
        raise ValueError(f"{value!r} is not an absolute path")


def _one_of(known: Iterable[Any]) -> Callable[[object, "attrs.Attribute[str]", str], None]:
    names = tuple(map(str, known))

    def check(_: object, _attribute: "attrs.Attribute[str]", value: str) -> None:
        if value not in names:
            raise ValueError(f"{value!r} is none of {', '.join(names)}")

    return check


def _some_of(
    known: Iterable[Any],
) -> Callable[[object, "attrs.Attribute[tuple[str, ...]]", tuple[str, ...]], None]:
    names = tuple(map(str, known))

    def check(
        _: object, _attribute: "attrs.Attribute[tuple[str, ...]]", value: tuple[str, ...]
    ) -> None:
        unknown = [each for each in value if each not in names]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: there are {', '.join(names)}")

    return check


def _positive(_: object, _attribute: "attrs.Attribute[int | None]", value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{value!r} is not a number from 1 on")


def _seconds(_: object, _attribute: "attrs.Attribute[float]", value: float) -> None:
    if not 0 < value <= 10:
        raise ValueError(f"{value!r} is not a number of seconds above 0, up to 10")


@attrs.frozen(kw_only=True)
class Policy:
    """`[policy]`: what holds where no rule decides; `policy = "strict"` sets the preset alone.

    `exclusive` has a GPU or MIG device held by one container at a time. `cri_socket` is where the
    runtime is asked for the environment of images, where a rule needs it; empty, the runtime's
    usual one. `cri_timeout` is in seconds, and part of what a container's creation may take.
    """

    preset: str = attrs.field(default="compatible", validator=_one_of(rules.Preset))
    exclusive: bool = False
    cri_socket: str = attrs.field(default="", validator=_absolute_or_empty)
    cri_timeout: float = attrs.field(default=0.5, validator=_seconds)


@attrs.frozen(kw_only=True)
class Rule:
    """One of `[[policy_rules]]`; `request.rules.Rule` says what each key means."""

    action: str = attrs.field(validator=_one_of(rules.Action))
    name: str = ""
    namespaces: tuple[str, ...] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    runtime_handlers: tuple[str, ...] = ()
    sources: tuple[str, ...] = attrs.field(default=(), validator=_some_of(rules.Source))
    privileged: bool | None = None
    devices: tuple[str, ...] = attrs.field(default=(), validator=_some_of(rules.Kind))
    max_devices: int | None = attrs.field(default=None, validator=_positive)
    over_max: str = attrs.field(default="deny", validator=_one_of(("deny", "ignore")))
    shares: bool = False


def access(policy: Policy, given: Iterable[Rule]) -> rules.Access:
    """Give the settings as a decision needs them."""
    return rules.Access(
        preset=rules.Preset(policy.preset),
        exclusive=policy.exclusive,
        rules=tuple(
            rules.Rule(
                number=number,
                name=rule.name,
                action=rules.Action(rule.action),
                namespaces=rule.namespaces,
                labels=rule.labels,
                annotations=rule.annotations,
                runtime_handlers=rule.runtime_handlers,
                sources=frozenset(map(rules.Source, rule.sources)),
                privileged=rule.privileged,
                devices=frozenset(map(rules.Kind, rule.devices)),
                max_devices=rule.max_devices,
                over_max=rules.Action(rule.over_max),
                shares=rule.shares,
            )
            for number, rule in enumerate(given, 1)
        ),
    )


def out_of_place(rule: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Give keys of a rule that do nothing beside its action, each with what is wrong."""
    if "action" not in rule:
        yield "action", f"is missing: write one of {', '.join(rules.Action)}"
        return
    if rule["action"] != str(rules.Action.ALLOW):
        for key in ("max_devices", "shares"):
            if rule.get(key):
                yield key, 'says something only with action = "allow"'
    if rule.get("over_max") == str(rules.Action.IGNORE) and "max_devices" not in rule:
        yield "over_max", "says something only with max_devices"
