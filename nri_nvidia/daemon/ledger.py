# SPDX-License-Identifier: Apache-2.0
"""Who holds what, and what was decided lately."""

import collections
from collections.abc import Iterable

import attrs

from nri_nvidia import pipeline
from nri_nvidia.request import container as containers

_KEPT_DECISIONS = 200


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

    `adopted` tells one that was found already running, and of which only the nodes are known.
    `hook` is what its hook reported: empty before that, `ok`, or what went wrong.
    """

    container: containers.Container
    since: float
    held: tuple[Held, ...] = ()
    capabilities: tuple[str, ...] = ()
    driver_version: str = ""
    adopted: bool = False
    hook: str = ""


@attrs.frozen(kw_only=True)
class Decided:
    """One decision over a container that asked for something. `time` is Unix time in seconds."""

    time: float
    container: containers.Container
    plan: pipeline.Plan
    duration_ms: float


class Ledger:
    """The daemon's memory of containers; used on the event loop alone."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.missed: dict[str, containers.Container] = {}
        self.decisions: collections.deque[Decided] = collections.deque(maxlen=_KEPT_DECISIONS)
        self.counts: collections.Counter[str] = collections.Counter()

    def record(self, decided: Decided) -> None:
        """Keep a decision, and the container if it was given something."""
        plan, container = decided.plan, decided.container
        self.decisions.append(decided)
        self.counts[str(plan.decision)] += 1
        if plan.decision is not pipeline.Decision.INJECT:
            return
        self.entries[container.id] = Entry(
            container=container,
            since=decided.time,
            held=tuple(
                Held(
                    index=item.gpu.index,
                    uuid=item.gpu.uuid,
                    minor=item.gpu.minor,
                    mig=item.mig.uuid if item.mig else "",
                )
                for item in plan.assigned
            ),
            capabilities=tuple(
                sorted(map(str, plan.request.capabilities if plan.request else ()))
            ),
            driver_version=plan.driver_version,
        )

    def adopt(self, entry: Entry) -> None:
        """Take in a container that was served before this process lived."""
        self.entries.setdefault(entry.container.id, entry)

    def miss(self, container: containers.Container) -> bool:
        """Note a container that asked for something and got nothing; tell whether that is new."""
        new = container.id not in self.missed
        self.missed[container.id] = container
        return new

    def report(self, container_id: str, result: str) -> None:
        """Keep what a container's hook said."""
        entry = self.entries.get(container_id)
        if entry:
            self.entries[container_id] = attrs.evolve(entry, hook=result)

    def drop(self, container_id: str) -> Entry | None:
        """Forget a container that has stopped."""
        self.missed.pop(container_id, None)
        return self.entries.pop(container_id, None)

    def keep_only(self, container_ids: Iterable[str]) -> None:
        """Forget all but these: the runtime has told what exists."""
        known = set(container_ids)
        for container_id in [*self.entries, *self.missed]:
            if container_id not in known:
                self.drop(container_id)
