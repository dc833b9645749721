# SPDX-License-Identifier: Apache-2.0
"""The operator's rules over who may have what: the values, and which of them meets a claim.

A claim is one thing that a container asks for: its list of GPUs, or one of the rights and nodes
that reach beyond its own GPUs. The first rule that meets a claim decides over it.
"""

import enum
import fnmatch
import re
from collections.abc import Iterable, Mapping

import attrs

from nri_nvidia.request import container as containers
from nri_nvidia.request import model, names


class Action(enum.StrEnum):
    """What a rule does: give it, create the container without it, or refuse the creation."""

    ALLOW = "allow"
    IGNORE = "ignore"
    DENY = "deny"


class Preset(enum.StrEnum):
    """What holds where no rule decides: NVIDIA's own behaviour, or little from pods' own words."""

    COMPATIBLE = "compatible"
    STRICT = "strict"


class Kind(enum.StrEnum):
    """What is asked for. A CDI name is of the kind `cdi` and of that of the id in it.

    `index` is any name by place, which can be guessed: also `0:1` and PCI bus ids. `share` is
    what another container of the pod holds, whatever that is. The last five reach beyond the
    container's own GPUs.
    """

    NONE = "none"
    ALL = "all"
    INDEX = "index"
    UUID = "uuid"
    CDI = "cdi"
    SHARE = "share"
    MANAGEMENT = "management"
    MIG_CONFIG = "mig-config"
    MIG_MONITOR = "mig-monitor"
    IMEX = "imex"
    NVSWITCH = "nvswitch"


class Source(enum.StrEnum):
    """Where a claim was read, for rules: `env` is both of `image` and `pod`.

    An annotation of the container is the kubelet's word, one of the pod its author's. That by
    which a container shares another's GPUs is `share`.
    """

    ENV = "env"
    IMAGE = "image"
    POD = "pod"
    MOUNT = "mount"
    ANNOTATION = "annotation"
    POD_ANNOTATION = "pod-annotation"
    SHARE = "share"


_OF_ENVIRONMENT = frozenset({Source.IMAGE, Source.POD})
# By place: an index, one of a MIG device, a PCI bus id. An Orin's UUID has no prefix.
_PLACE = re.compile(r"[0-9A-Fa-f:.]+")
_MANAGING_GPUS = frozenset({names.MANAGEMENT_KIND})


@attrs.frozen(kw_only=True)
class Rule:
    """One rule; a condition that is empty, or None, is met by everything.

    `number` counts from 1. Names of namespaces and runtime handlers, and values of labels and
    annotations, are patterns (`ml-*`); the runtime's default handler has an empty name.
    `max_devices` limits what an allowing rule gives, and `over_max` says what happens above it.
    `shares` is for containers that look at GPUs which others hold: they do not count where GPUs
    are exclusive.
    """

    number: int
    action: Action
    name: str = ""
    namespaces: tuple[str, ...] = ()
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    sources: frozenset[Source] = frozenset()
    runtime_handlers: tuple[str, ...] = ()
    privileged: bool | None = None
    devices: frozenset[Kind] = frozenset()
    max_devices: int | None = None
    over_max: Action = Action.DENY
    shares: bool = False

    def __str__(self) -> str:
        """Give it as reasons name it."""
        return f"policy_rules[{self.number}]" + (f" ({self.name})" if self.name else "")


@attrs.frozen(kw_only=True)
class Access:
    """The preset and the rules, in their order; `exclusive` has a GPU held by one container."""

    preset: Preset = Preset.COMPATIBLE
    rules: tuple[Rule, ...] = ()
    exclusive: bool = False

    @property
    def is_open(self) -> bool:
        """Whether nothing but NVIDIA's own rules says who may have what."""
        return not self.rules and self.preset is Preset.COMPATIBLE


@attrs.frozen(kw_only=True)
class Image:
    """The environment of a container's image; None where it is not known, and why not."""

    env: Mapping[str, str] | None = None
    problem: str = ""


@attrs.frozen(kw_only=True)
class Claim:
    """What is asked for: the kinds of each thing in it, where it was read, and its text."""

    kinds: tuple[frozenset[Kind], ...]
    source: Source
    variable: str
    said: str

    @property
    def managing(self) -> bool:
        """Whether it reaches beyond the container's own GPUs."""
        return any(kinds <= BEYOND for kinds in self.kinds)


BEYOND = frozenset({Kind.MANAGEMENT, Kind.MIG_CONFIG, Kind.MIG_MONITOR, Kind.IMEX, Kind.NVSWITCH})


@attrs.frozen(kw_only=True)
class Found:
    """The rule that decides, if any; `unsure` tells that the image would have had to be known."""

    rule: Rule | None = None
    unsure: bool = False


def kinds(device: str) -> frozenset[Kind]:
    """Give what a device's name is."""
    name = names.qualified(device)
    named = frozenset({Kind.CDI}) if name else frozenset()
    if name and name.kind in _MANAGING_GPUS:
        return frozenset({Kind.MANAGEMENT})
    text = names.plain(device)
    if names.keyword((device,)):
        return named | {Kind(names.keyword((device,)))}
    place = _PLACE.fullmatch(text) and "-" not in text
    return named | {Kind.INDEX if place else Kind.UUID}


def first(
    claim: Claim, container: containers.Container, access: Access, image: Image | None
) -> Found:
    """Give the first rule that meets a claim.

    A rule that asks whether image or pod set a variable, where that is not known, meets it if that
    is on the preset's side: by strict the rules that refuse, by compatible those that allow.
    """
    unsure = False
    for rule in access.rules:
        if not (_covers(rule, claim) and meets(rule, container)):
            continue
        known = _by_source(rule, claim, container, image)
        if known is None:
            unsure = True
            known = (rule.action is Action.ALLOW) is (access.preset is Preset.COMPATIBLE)
        if known:
            return Found(rule=rule, unsure=unsure)
    return Found(unsure=unsure)


def wants_image(container: containers.Container, access: Access) -> bool:
    """Tell whether it may matter to a container if its image or its pod set a variable."""
    return any(
        len(rule.sources & _OF_ENVIRONMENT) == 1 and Source.ENV not in rule.sources
        for rule in access.rules
        if meets(rule, container)
    )


def meets(rule: Rule, container: containers.Container) -> bool:
    """Tell whether a container is one that a rule is about, whatever it asks for."""
    return (
        (not rule.namespaces or _one_of(container.namespace, rule.namespaces))
        and _all_of(rule.labels, container.labels)
        and _all_of(rule.annotations, container.annotations)
        and (not rule.runtime_handlers or _handled(container, rule.runtime_handlers))
        and (rule.privileged is None or rule.privileged is bool(container.privileged))
    )


def _one_of(namespace: str, patterns: Iterable[str]) -> bool:
    return bool(namespace) and any(fnmatch.fnmatchcase(namespace, each) for each in patterns)


def _handled(container: containers.Container, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(container.runtime_handler, each) for each in patterns)


def _all_of(wanted: Mapping[str, str], present: Mapping[str, str]) -> bool:
    return all(
        key in present and fnmatch.fnmatchcase(present[key], pattern)
        for key, pattern in wanted.items()
    )


def _covers(rule: Rule, claim: Claim) -> bool:
    """Tell whether a rule is about what is asked.

    To allow a list it must name every kind in it, to refuse one of them is enough. What reaches
    beyond the container's GPUs it must name.
    """
    if not rule.devices:
        return not claim.managing
    named = [bool(kinds & rule.devices) for kinds in claim.kinds]
    return all(named) if rule.action is Action.ALLOW else any(named)


def _by_source(
    rule: Rule, claim: Claim, container: containers.Container, image: Image | None
) -> bool | None:
    """Tell whether a rule is about where a claim was read; None where that is not known."""
    if not rule.sources or claim.source in rule.sources:
        return True
    if claim.source is not Source.ENV or not rule.sources & _OF_ENVIRONMENT:
        return False
    if rule.sources >= _OF_ENVIRONMENT:
        return True
    if image is None or image.env is None:
        return None
    own, known = container.environment(), image.env
    # What nobody set is a default that an old CUDA image brings about.
    by_image = all(
        known.get(name) == own[name] for name in claim.variable.split(",") if name in own
    )
    return (Source.IMAGE if by_image else Source.POD) in rule.sources


def source(request: model.GpuRequest) -> Source:
    """Give where a request's list of GPUs was read, as rules tell it."""
    if request.source is model.Source.ANNOTATION and containers.PLUGIN_PREFIX in request.variable:
        return Source.POD_ANNOTATION
    return Source(str(request.source))
