# SPDX-License-Identifier: Apache-2.0
"""Sees to it that what was decided is what the runtime does, whatever other plugins want."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import attrs

from nri_nvidia import errors, pipeline
from nri_nvidia.config import model as config_model
from nri_nvidia.daemon import decider, decisionlog, ledger
from nri_nvidia.edits import model as edits_model
from nri_nvidia.host import model as host
from nri_nvidia.host import reach
from nri_nvidia.nri import plugin, validation
from nri_nvidia.request import container as containers

logger = logging.getLogger(__name__)

_PENDING = 1024
"""Decisions of which the runtime has not shown yet what became; it shows it at once or never."""
_SAID, _LONGEST = 6, 300
_SHARE_FOR_THE_ANSWER, _LEAST_WAIT = 0.1, 0.05
_STANDS_BACK = frozenset({"other-injector", "already-served"})
"""The reasons by which a container is left to another one that gives it its GPUs."""
_CHARACTER = frozenset({"c", "u"})


@attrs.frozen(kw_only=True)
class _Given:
    """What a container was given. `alone` tells that nobody else is to give it a GPU."""

    edits: edits_model.ContainerEdits
    plan: pipeline.Plan
    alone: bool


class Decider(decider.Decider):
    """Decides, and refuses a container of whose decision other plugins made something else."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._mode = config_model.OFF
        self._given: dict[str, _Given] = {}
        self._vain: errors.Error | None = None
        super().__init__(*arguments, **named)

    def use(self, config: config_model.Config) -> None:
        """Decide by these settings from now on."""
        super().use(config)
        self._mode = config.nri.validate

    @property
    def validates(self) -> bool:
        """Whether to be shown what all plugins together change in a container."""
        return self._mode != config_model.OFF

    async def configure(self, config: str, runtime: plugin.RuntimeInfo) -> None:
        """Take the runtime's configuration string; say where validation is not to be had."""
        await super().configure(config, runtime)
        self._given.clear()
        if self._vain in self.troubles:
            self.troubles.remove(self._vain)
        if self.validates and runtime.can_inject and not runtime.can_validate:
            self._vain = errors.ConfigError(
                f"nri.validate = {self._mode} has no effect: {errors.printable(runtime.name)} "
                f"{errors.printable(runtime.version)} shows no plugin what the others change",
                hint="containerd 2.2 and later do; here nri-nvidia check looks at what runs",
                code="validation-unavailable",
            )
            self.troubles.append(self._vain)
            logger.warning("%s", self._vain)

    async def create_container(
        self, container: containers.Container, deadline: float
    ) -> edits_model.ContainerEdits:
        """Decide over a new container; raises an Error to refuse its creation."""
        edits = await super().create_container(container, deadline)
        if self._will_be_shown(container.id):
            self._remember(container.id, edits)
        return edits

    async def stop_container(self, container_id: str) -> None:
        """Note that a container's GPUs are free again."""
        self._given.pop(container_id, None)
        await super().stop_container(container_id)

    async def remove_container(self, container_id: str) -> None:
        """Forget a container."""
        self._given.pop(container_id, None)
        await super().remove_container(container_id)

    def may_object(self, data: bytes) -> bool:
        """Tell by the bytes of a change whether there may be anything against it."""
        if self._mode == config_model.ALL:
            return True
        return self.validates and any(key.encode() in data for key in self._given)

    async def validate(self, proposed: validation.Proposed, deadline: float) -> None:
        """Raise PolicyError where the runtime is about to do something else than was decided."""
        given = self._given.pop(proposed.container.id, None)
        edits = given.edits if given else edits_model.ContainerEdits()
        faults = list(validation.altered(edits, proposed)) if given else []
        if self._mode == config_model.ALL or (self.validates and given and given.alone):
            of_interest = validation.has_more(edits, proposed)
            seen = await self._nodes(deadline) if of_interest else host.Inventory()
            faults += validation.added(edits, proposed, _names(seen))
        if faults:
            self._overrule(proposed.container, given, faults)

    def _counts_at_once(self, container: containers.Container) -> bool:
        return super()._counts_at_once(container) or self._will_be_shown(container.id)

    def _will_be_shown(self, container_id: str) -> bool:
        runtime = self.connection.runtime
        shows = self.validates and runtime is not None and runtime.can_validate
        return shows and not ledger.is_unknown_to_nri(container_id)

    def _remember(self, container_id: str, edits: edits_model.ContainerEdits) -> None:
        """Keep what was decided; nothing where nothing had to be."""
        last = self.ledger.decisions[-1] if self.ledger.decisions else None
        if last is None or last.container.id != container_id:
            return
        codes = {reason.code for reason in last.plan.reasons}
        self._given[container_id] = _Given(
            edits=edits, plan=last.plan, alone=bool(edits) or not codes & _STANDS_BACK
        )
        for key in list(itertools.islice(self._given, max(0, len(self._given) - _PENDING))):
            del self._given[key]

    async def _nodes(self, deadline: float) -> host.Inventory:
        """Give the host as it is, or as it was: nobody waits here for one that hangs."""
        with contextlib.suppress(errors.Error):
            left = deadline - _SHARE_FOR_THE_ANSWER - asyncio.get_running_loop().time()
            return await self._watch.inventory(max(left, _LEAST_WAIT))
        return self._watch.last or host.Inventory()

    def _overrule(
        self, container: containers.Container, given: _Given | None, faults: list[str]
    ) -> None:
        """Take a decision back and raise why; the runtime makes no such container."""
        further = f"; and {len(faults) - _SAID} more" if len(faults) > _SAID else ""
        error = validation.AlteredError(
            f"{'; '.join(errors.printable(each, _LONGEST) for each in faults[:_SAID])}{further}; "
            + ("this is not what nri-nvidia decided" if given else "nri-nvidia was not asked"),
            hint="have one plugin give GPUs: change that one, or set nri.validate",
        )
        self._reports.forget(container.id)
        self.ledger.drop(container.id)
        plan = pipeline.refused(error, given.plan.request if given else None)
        decisionlog.write(self._keep(ledger.decided(container, plan, time.monotonic())))
        raise error


def _names(inventory: host.Inventory) -> Callable[[str, int, int], str]:
    """Give a function that says what a node or a device rule is of the driver, -1 being any."""
    known: dict[tuple[int, int], str] = {}
    for gpu in inventory.gpus:
        for node in (gpu.node, *gpu.nodes, *gpu.dri_nodes):
            if node is not None:
                known.setdefault((node.major, node.minor), reach.name(gpu))
    for node in inventory.nodes:
        known.setdefault((node.major, node.minor), node.path)

    def name(kind: str, major: int, minor: int) -> str:
        if kind not in {*_CHARACTER, "", "a"}:
            return ""
        found = [
            what
            for (its_major, its_minor), what in known.items()
            if major in {-1, its_major} and minor in {-1, its_minor}
        ]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"{found[0]}{more}" if found else ""

    return name
