# SPDX-License-Identifier: Apache-2.0
"""What the daemon does at each event of the runtime."""

import asyncio
import collections
import logging
import posixpath
import re
import time
from collections.abc import Awaitable, Callable, Sequence

import attrs

from nri_nvidia import errors, limits, pipeline
from nri_nvidia.config import model as config_model
from nri_nvidia.daemon import (
    adoption,
    connection,
    cri,
    decisionlog,
    holdings,
    hookplace,
    hookreports,
    hookresults,
    hostwatch,
    ledger,
    leftovers,
    looks,
    recorder,
    volumekeeper,
    warmkeeper,
)
from nri_nvidia.edits import fabric, hooks, volume
from nri_nvidia.edits import model as edits_model
from nri_nvidia.host import model as host
from nri_nvidia.nri import plugin
from nri_nvidia.request import asked, parse
from nri_nvidia.request import container as containers

logger = logging.getLogger(__name__)

_GPU_NODE = re.compile(r"/dev/nvidia\d+", re.ASCII)
_SHARE_FOR_THE_ANSWER = 0.1
_LEAST_WAIT = 0.05
_ADOPTION_LIMIT = 5.0
_BATCH = 16
"""Containers looked through in one go: a few milliseconds, by which a request may be delayed."""
_KEPT_ENDS = 4096
"""Events remembered from a registration on until its list of containers is read."""


class Decider:
    """Answers the runtime. All of it runs on the event loop and none of it blocks."""

    def __init__(
        self,
        watch: hostwatch.HostWatch,
        config: config_model.Config,
        *,
        place: hookplace.HookPlace,
        keeper: volumekeeper.VolumeKeeper,
        reports: hookreports.Receiver,
        records: recorder.Recorder,
        on_config: Callable[[str], Awaitable[None]],
        on_registered: Callable[[], None],
    ) -> None:
        self.ledger = ledger.Ledger()
        self.holdings = holdings.Holdings(self.ledger)
        self.connection = connection.Connection()
        self.fault: errors.Error | None = None
        self.troubles: list[errors.Error] = []
        self.place = place
        self.records = records
        self._volumes = keeper
        self._watch = watch
        self._reports = reports
        self._looks = looks.Looks(watch, place, keeper)
        self._cri = cri.Cri()
        self.leftovers = leftovers.Leftovers(
            self._cri, self.ledger, lambda: self.connection.runtime_name, self.stop_container
        )
        self.warm = warmkeeper.WarmKeeper()
        self._noting = False
        self._deciding: dict[object, float] = {}
        self._ended: collections.deque[str] = collections.deque(maxlen=_KEPT_ENDS)
        self._begun: collections.deque[str] = collections.deque(maxlen=_KEPT_ENDS)
        self._on_config = on_config
        self._on_registered = on_registered
        self.use(config)

    def use(self, config: config_model.Config) -> None:
        """Decide by these settings from now on."""
        self.hook = config.hook
        directory = config.inject.volume_dir if config.inject.layout == "volume" else ""
        self._volumes.use(directory, config.host.root)
        self.rules = config.rules(
            interpreter=config.hook.interpreter, report_socket=self._reports.path
        )
        self.warm.use(config.hook, posixpath.dirname(self._reports.path))
        self.markers = parse.markers(self.rules.request)
        self._cri.use(config.policy.cri_socket, config.policy.cri_timeout)

    async def configure(self, config: str, runtime: plugin.RuntimeInfo) -> None:
        """Take the runtime's configuration string."""
        self.connection.runtime = runtime
        await self._on_config(config)
        if not runtime.can_inject:
            logger.warning(
                "%s %s takes no devices from NRI plugins: its containers get nothing from here",
                runtime.name,
                runtime.version,
            )

    async def registered(self, runtime: plugin.RuntimeInfo) -> None:
        """Note that containers reach us from now on."""
        self.connection.runtime = runtime
        self._volumes.blind = not runtime.visible
        self.connection.since = time.time()
        self.connection.registrations += 1
        self.connection.trouble = None
        self._noting = True
        self.holdings.begin(holdings.RUNTIME)

    async def unreachable(self, reason: errors.Error) -> None:
        """Keep why there is no connection, for whoever asks."""
        self.connection.trouble = reason
        self.connection.tried = time.monotonic()

    async def disconnected(self) -> None:
        """Note that no container reaches us any more."""
        self.connection.since, self.connection.tried = 0.0, time.monotonic()
        self.holdings.end(holdings.RUNTIME)

    async def create_container(
        self, container: containers.Container, deadline: float
    ) -> edits_model.ContainerEdits:
        """Decide over a new container; raises an Error to refuse its creation."""
        started = time.monotonic()
        parsed = asked.parse(container, self.rules.request)
        if parsed.request is None and not parsed.reasons:
            return edits_model.ContainerEdits()
        question = object()
        self._deciding[question] = started
        try:
            plan = await self._plan(container, parsed, deadline)
        except errors.Error as error:
            plan = pipeline.refused(error, parsed.request)
        except asyncio.CancelledError:
            logger.warning(
                "%s (%s): no decision in time; its creation is refused",
                container.display,
                container.id[:12],
            )
            self._keep(
                ledger.decided(container, pipeline.refused(_late(), parsed.request), started)
            )
            raise
        finally:
            del self._deciding[question]
        made = ledger.decided(container, plan, started)
        self._note(self._begun, container.id)
        # The runtime waits for the answer, and mostly nobody for what is kept and said of it.
        soon = asyncio.get_running_loop().call_soon
        if self._counts_at_once(container):
            soon(decisionlog.write, self._keep(made))
        else:
            soon(lambda: decisionlog.write(self._keep(made)))
        if not plan.created:
            raise plan.refusal()
        return plan.edits

    @property
    def longest_decision(self) -> float:
        """Give for how many seconds the oldest decision is under way, 0 where none is."""
        begun = min(self._deciding.values(), default=None)
        return 0.0 if begun is None else time.monotonic() - begun

    def _counts_at_once(self, container: containers.Container) -> bool:
        """Tell whether somebody looks for a decision before the loop has gone round.

        That is the next one where GPUs are exclusive, and whoever notes who holds what.
        """
        exclusive = self.rules.request.access.exclusive
        return exclusive or ledger.is_unknown_to_nri(container.id)

    def _keep(self, made: ledger.Decided) -> ledger.Decided:
        """Remember a decision, in memory and on disk; gives it with texts cut to a length."""
        kept = self.ledger.record(made)
        self.records.decided(kept)
        return kept

    async def _plan(
        self, container: containers.Container, parsed: parse.Parsed, deadline: float
    ) -> pipeline.Plan:
        now = asyncio.get_running_loop().time
        by = deadline - _SHARE_FOR_THE_ANSWER
        rules = self.rules
        image = await self._cri.image(
            container, rules.request.access, self.connection.runtime_name, (by - now()) / 2
        )
        if image:
            parsed = parse.parse(container, rules.request, image)
        if self.fault and parsed.request and not parsed.error:
            raise self.fault
        context = pipeline.Context(image=image)
        if not pipeline.asks(container, rules, parsed, context):
            return pipeline.plan(container, host.Inventory(), rules, context, parsed)
        assert parsed.request is not None
        channels = fabric.channel_numbers(parsed.request)
        await self._watch.have_channels(channels, max(by - now(), _LEAST_WAIT))
        begun = self._looks.begin(self.hook if rules.inject.hook else None)
        inventory = await self._watch.inventory(max(by - now(), _LEAST_WAIT), begun.host)
        rules = await self._complete_rules(by - now(), begun.hook)
        ready = await self._volumes.ready(begun.volumes)
        if held_matters := _held_matters(parsed, rules):
            await self.holdings.known(by - now())
        # Nothing is awaited from here until the ledger has it: no two can be given one GPU.
        context = pipeline.Context(
            hook_token=self._reports.token(container.id),
            volumes=ready,
            image=image,
            holdings=self.holdings.now() if held_matters else (),
        )
        plan = pipeline.plan(container, inventory, rules, context, parsed)
        if limits.is_held(plan.reasons) and await self.leftovers.let_go(by - now()):
            context = attrs.evolve(context, holdings=self.holdings.now())
            plan = pipeline.plan(container, inventory, rules, context, parsed)
        self._volumes.want(plan.unprepared)
        for mount in plan.edits.mounts:
            if mount.destination == rules.inject.library_dir:
                self._volumes.note_use(mount.source)
        return plan

    async def _complete_rules(
        self, left: float, look: "asyncio.Future[hookplace.Installed] | None"
    ) -> pipeline.Policy:
        """Give the rules with the interpreter of a hook that is in place now."""
        rules = self.rules
        hook = rules.inject.hook
        if hook is None:
            return rules
        interpreter = await self.place.ready(self.hook, max(left, _LEAST_WAIT), look)
        if (hook.interpreter, hook.warm) != (interpreter, self.warm.directory):
            hook = attrs.evolve(hook, interpreter=interpreter, warm=self.warm.directory)
            completed = attrs.evolve(rules, inject=attrs.evolve(rules.inject, hook=hook))
            if self.rules is rules:  # other settings may have come meanwhile
                self.rules = completed
            return completed
        return rules

    def close(self) -> None:
        """Let the thread of its looks go, and the process that stands ready."""
        self._looks.close()
        self.warm.close()

    @property
    def volume_problem(self) -> host.Problem | None:
        """Why containers get the driver's files one by one, if that is not meant."""
        return self._volumes.problem

    def prepare(self, inventory: host.Inventory) -> None:
        """Have ready what most containers of this host will ask for."""
        usual = self.rules.request.default_capabilities & self.rules.request.supported_capabilities
        self._volumes.want(volume.wanted(usual, inventory))

    async def stop_container(self, container_id: str) -> None:
        """Note that a container's GPUs are free again."""
        self._note(self._ended, container_id)
        self._reports.forget(container_id)
        self.records.ended(container_id, time.time())
        entry = self.ledger.drop(container_id)
        if entry:
            logger.info("%s (%s) has stopped", entry.container.display, container_id[:12])

    async def remove_container(self, container_id: str) -> None:
        """Forget a container; it has stopped before, but that event may have been missed."""
        self._note(self._ended, container_id)
        self._reports.forget(container_id)
        self.records.ended(container_id, time.time())
        self.ledger.drop(container_id)

    async def synchronized(self, existing: Sequence[containers.Container]) -> None:
        """Compare what runs with what is known: adopt what we served once, list what we missed.

        Containers come and go while this looks. One that was decided over on this connection is
        known to be as the ledger says; of those before, the answer may never have arrived.
        """
        # Not before: until its Synchronize is answered a runtime does not call a plugin.
        self._on_registered()
        try:
            await self._compare(existing)
        finally:
            self.holdings.end(holdings.RUNTIME)

    async def _compare(self, existing: Sequence[containers.Container]) -> None:
        existing_ids = frozenset((*(container.id for container in existing), *self._begun))
        self.ledger.keep_only(existing_ids)
        self.records.keep_only(existing_ids)
        inventory: host.Inventory | None = None
        missed: list[containers.Container] = []
        for begin in range(0, len(existing), _BATCH):
            batch = existing[begin : begin + _BATCH]
            await asyncio.sleep(0)
            served = [container for container in batch if self._served(container)]
            if inventory is None and served:
                inventory = await self._inventory()
            wanting = {each.id for each in batch if pipeline.asks(each, self.rules)}
            kept = await adoption.kept(self.records, [*wanting.union(each.id for each in served)])
            since = {*self._begun, *self._ended}
            for container in batch:
                if container.id in since:
                    continue
                if self._served(container):
                    found = adoption.entry(
                        container, inventory or host.Inventory(), kept.get(container.id)
                    )
                    self.ledger.adopt(found)
                elif container.id in wanting and not adoption.passed_over(kept.get(container.id)):
                    missed += [container] if self.ledger.miss(container) else []
        self._noting = False
        self._begun.clear()
        self._ended.clear()
        for container in missed:
            await self._record_missed(container)

    def _note(self, events: collections.deque[str], container_id: str) -> None:
        if self._noting:
            events.append(container_id)

    async def _record_missed(self, container: containers.Container) -> None:
        """Keep what a container that was missed would have got; where nothing, it was not."""
        started = time.monotonic()
        parsed = parse.parse(container, self.rules.request)
        try:
            inventory = await self._watch.inventory(_ADOPTION_LIMIT)
            context = pipeline.Context(
                volumes=await self._volumes.ready(),
                holdings=self.holdings.now() if _shares(parsed) else (),
            )
            plan = pipeline.plan(container, inventory, self.rules, context, parsed)
        except errors.Error as error:
            plan = pipeline.refused(error, parsed.request)
        made = ledger.decided(container, plan, started)
        if container.id not in self.ledger.missed:
            return  # it ended meanwhile
        if plan.decision is pipeline.Decision.IGNORE:
            self.ledger.drop(container.id)
            return
        logger.warning(
            "%s (%s) asked for a GPU and was created while nri-nvidia was away; "
            "recreate it to give it one",
            container.display,
            container.id[:12],
        )
        self.records.decided(ledger.shortened(made), missed=True)

    def _served(self, container: containers.Container) -> bool:
        """Tell whether a container got something: our hook, a GPU's node, our files."""
        inside = f"{self.rules.inject.library_dir}/"
        return (
            any(map(hooks.is_ours, container.hooks))
            or any(_GPU_NODE.fullmatch(device.path) for device in container.devices)
            or any(f"{mount.destination}/".startswith(inside) for mount in container.mounts)
        )

    async def _inventory(self) -> host.Inventory:
        try:
            return await self._watch.inventory(_ADOPTION_LIMIT)
        except errors.Error as error:
            logger.warning("which GPUs the running containers hold is not known: %s", error)
            return host.Inventory()

    def hook_reported(self, report: hookreports.Report) -> None:
        """Keep a hook's result, and log a step that failed."""
        hookresults.keep(report, self.ledger, self.records)


def _shares(parsed: parse.Parsed) -> bool:
    return parsed.request is not None and bool(parsed.request.shares)


def _held_matters(parsed: parse.Parsed, rules: pipeline.Policy) -> bool:
    """Tell whether it matters to a request what other containers hold."""
    return _shares(parsed) or rules.request.access.exclusive


def _late() -> errors.HostError:
    return errors.HostError(
        "there was no decision in time for the runtime",
        hint="the daemon's log says what it waited for; try again",
        code="decision-late",
    )
