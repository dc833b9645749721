# SPDX-License-Identifier: Apache-2.0
"""Who holds what, and what was decided lately."""

import collections
import functools
import time
from collections.abc import Iterable
from typing import Any, TypeVar

import attrs

from nri_nvidia import errors, pipeline, resolve
from nri_nvidia.daemon import tallies
from nri_nvidia.edits import model as edits_model
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model

V = TypeVar("V", bound=Any)
_ROOTS = "runtime"
_KEPT_DECISIONS = 200
_KEPT_DEVICES = 128
_KEPT_MESSAGE = 2000
_KEPT_REQUIREMENTS = 32
_KEPT_SETS = 64


@attrs.frozen(kw_only=True)
class Held:
    """A GPU or MIG device that a container holds, by what does not change with the inventory."""

    index: int
    uuid: str
    minor: int
    mig: str = ""


@attrs.frozen(kw_only=True)
class Entry:
    """A container that was given something. `since` is Unix time in seconds.

    `adopted` tells one that was found already running, and of which only the nodes are known,
    unless there is a record. `hook` is what its hook reported: empty before that, `ok`, or what
    went wrong; `notes` is what else it said. `door` is how it came: `nri`, or `runtime` for one of
    nri-nvidia-runtime. `source` is what its request was read from, empty if that is not known.
    `shares` tells that its GPUs do not count as held, and `shared_from` is the container of its
    pod whose GPUs it shares, if it does.
    """

    container: containers.Container
    since: float
    held: tuple[Held, ...] = ()
    capabilities: tuple[str, ...] = ()
    driver_version: str = ""
    adopted: bool = False
    hook: str = ""
    notes: tuple[str, ...] = ()
    door: str = "nri"
    source: str = ""
    shares: bool = False
    shared_from: str = ""


@attrs.frozen(kw_only=True)
class Decided:
    """One decision over a container that asked for something. `time` is Unix time in seconds."""

    time: float
    container: containers.Container
    plan: pipeline.Plan
    duration_ms: float


def decided(container: containers.Container, plan: pipeline.Plan, started: float) -> Decided:
    """Give a decision that was made now and begun at `started` (monotonic)."""
    taken = (time.monotonic() - started) * 1000
    return Decided(time=time.time(), container=container, plan=plan, duration_ms=taken)


class Ledger:
    """The daemon's memory of containers; used on the event loop alone."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.missed: dict[str, containers.Container] = {}
        self.decisions: collections.deque[Decided] = collections.deque(maxlen=_KEPT_DECISIONS)
        self.counts: collections.Counter[str] = collections.Counter()
        self.tallies = tallies.Tallies()

    def record(self, decided: Decided) -> Decided:
        """Keep a decision, and the container if it was given something; its edits are not kept.

        Gives the decision with its edits, and with texts cut to a length.
        """
        decided = shortened(decided)
        plan, container = decided.plan, decided.container
        bare = attrs.evolve(plan, edits=edits_model.ContainerEdits())
        self.decisions.append(_decided(decided, container, bare))
        self.counts[str(plan.decision)] += 1
        self.tallies.decided(str(plan.decision), rule(plan), decided.duration_ms / 1000)
        if plan.decision is not pipeline.Decision.INJECT:
            return decided
        self.entries[container.id] = Entry(
            container=container,
            since=decided.time,
            held=_held(plan.assigned),
            capabilities=_listed(plan.request.capabilities) if plan.request else (),
            driver_version=plan.driver_version,
            source=str(plan.request.source) if plan.request else "",
            shares=plan.shares,
            shared_from=plan.request.shares if plan.request else "",
        )
        return decided

    def adopt(self, entry: Entry) -> None:
        """Take in a container that was served before this process lived."""
        entry = attrs.evolve(entry, container=named(entry.container))
        self.entries.setdefault(entry.container.id, entry)

    def miss(self, container: containers.Container) -> bool:
        """Note a container that asked for something and got nothing; tell whether that is new."""
        new = container.id not in self.missed
        self.entries.pop(container.id, None)
        self.missed[container.id] = named(container)
        return new

    def report(self, container_id: str, result: str, notes: tuple[str, ...] = ()) -> None:
        """Keep what a container's hook said."""
        entry = self.entries.get(container_id)
        if entry:
            self.entries[container_id] = attrs.evolve(entry, hook=result, notes=notes)

    def came_by(self, container_id: str, door: str) -> bool:
        """Note the door of a container that holds something; tell whether there is one."""
        entry = self.entries.get(container_id)
        if entry:
            self.entries[container_id] = attrs.evolve(entry, door=door)
        return entry is not None

    def drop(self, container_id: str) -> Entry | None:
        """Forget a container that has stopped."""
        self.missed.pop(container_id, None)
        return self.entries.pop(container_id, None)

    def keep_only(self, container_ids: Iterable[str]) -> None:
        """Forget all but these, since NRI's runtime has no others."""
        known = set(container_ids)
        for container_id in [*self.entries, *self.missed]:
            if container_id not in known and not is_unknown_to_nri(container_id):
                self.drop(container_id)


@functools.lru_cache(maxsize=_KEPT_SETS)
def _held(assigned: tuple[resolve.Assigned, ...]) -> tuple[Held, ...]:
    return tuple(
        Held(
            index=item.gpu.index,
            uuid=item.gpu.uuid,
            minor=item.gpu.minor,
            mig=item.mig.uuid if item.mig else "",
        )
        for item in assigned
    )


@functools.lru_cache(maxsize=_KEPT_SETS)
def _listed(capabilities: frozenset[request_model.Capability]) -> tuple[str, ...]:
    return tuple(sorted(map(str, capabilities)))


def is_unknown_to_nri(container_id: str) -> bool:
    """Tell a container that came by nri-nvidia-runtime: its id says for whom, behind a `/`."""
    return "/" in container_id


def rule(plan: pipeline.Plan) -> str:
    """Give the code of what decided: the last reason, or that what was asked for is given."""
    return plan.reasons[-1].code if plan.reasons else "as-asked"


def is_of_user(container_id: str) -> bool:
    """Tell such a container of another user than root, who may name any number of them."""
    return is_unknown_to_nri(container_id) and not container_id.endswith(f"/{_ROOTS}")


def runtime_id(container_id: str, uid: int) -> str:
    """Give the id under which a container of nri-nvidia-runtime is kept.

    It is told apart from the same one of another user, and from those of NRI.
    """
    return f"{container_id}/{uid or _ROOTS}"


def named(container: containers.Container) -> containers.Container:
    """Give what of a container is worth keeping: its names and its cgroup's.

    Its environment may be megabytes.
    """
    return containers.Container(
        id=container.id,
        name=_short(container.name),
        pod=_short(container.pod),
        namespace=_short(container.namespace),
        pod_uid=_short(container.pod_uid),
        sandbox=_short(container.sandbox),
        cgroup=_short(container.cgroup, 4096),
    )


def shortened(decided: Decided) -> Decided:
    """Give a decision with what a container wrote cut to a length; twice is as once."""
    plan = decided.plan
    request = plan.request and _changed(
        plan.request,
        devices=tuple(map(_short, plan.request.devices[:_KEPT_DEVICES])),
        requirements=tuple(
            _changed(each, variable=_short(each.variable), text=_short(each.text, _KEPT_MESSAGE))
            for each in plan.request.requirements[:_KEPT_REQUIREMENTS]
        ),
        disable_require=_short(plan.request.disable_require),
    )
    reasons = tuple(
        _changed(reason, message=_short(reason.message, _KEPT_MESSAGE))
        for reason in plan.reasons[:_KEPT_DEVICES]
    )
    plan = _changed(plan, request=request, reasons=reasons)
    return _decided(decided, named(decided.container), plan)


def _changed(value: V, **parts: object) -> V:
    """Give a value with other parts: itself where they are the same, as they nearly always are."""
    for name, part in parts.items():
        if getattr(value, name) != part:
            return attrs.evolve(value, **parts)
    return value


def _decided(decided: Decided, container: containers.Container, plan: pipeline.Plan) -> Decided:
    """Give a decision with another container and plan; by `evolve` it takes five times as long."""
    return Decided(
        time=decided.time, container=container, plan=plan, duration_ms=decided.duration_ms
    )


def _short(text: str, limit: int = 256) -> str:
    return errors.printable(text, limit)
