# SPDX-License-Identifier: Apache-2.0
"""What the daemon does at each event of the runtime."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence

import attrs

from nri_nvidia import errors, pipeline
from nri_nvidia.daemon import hookreports, hostwatch, ledger
from nri_nvidia.edits import hooks
from nri_nvidia.edits import model as edits_model
from nri_nvidia.host import model as host
from nri_nvidia.nri import plugin
from nri_nvidia.request import container as containers
from nri_nvidia.request import parse

logger = logging.getLogger(__name__)

_GPU_NODE = re.compile(r"/dev/nvidia\d+", re.ASCII)
_SHARE_FOR_THE_ANSWER = 0.1


@attrs.define(kw_only=True)
class Connection:
    """The runtime that the daemon is registered with; `since` is Unix time, 0 while it is not."""

    runtime: plugin.RuntimeInfo | None = None
    since: float = 0.0
    registrations: int = 0


class Decider:
    """Answers the runtime. All of it runs on the event loop and none of it blocks."""

    def __init__(
        self,
        watch: hostwatch.HostWatch,
        rules: pipeline.Policy,
        *,
        reports: hookreports.Receiver,
        on_config: Callable[[str], Awaitable[None]],
        on_registered: Callable[[], None],
    ) -> None:
        self.ledger = ledger.Ledger()
        self.connection = Connection()
        self.rules = rules
        self.fault: errors.Error | None = None
        self._watch = watch
        self._reports = reports
        self._on_config = on_config
        self._on_registered = on_registered

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
        self.connection.since = time.time()
        self.connection.registrations += 1
        self._on_registered()

    async def disconnected(self) -> None:
        """Note that no container reaches us any more."""
        self.connection.since = 0.0

    async def create_container(
        self, container: containers.Container, deadline: float
    ) -> edits_model.ContainerEdits:
        """Decide over a new container; raises an Error to refuse its creation."""
        started = time.monotonic()
        parsed = parse.parse(container, self.rules.request)
        if parsed.request is None and not parsed.reasons:
            return edits_model.ContainerEdits()
        try:
            plan = await self._plan(container, parsed, deadline)
        except errors.Error as error:
            plan = pipeline.refused(error, parsed.request)
        decided = ledger.Decided(
            time=time.time(),
            container=container,
            plan=plan,
            duration_ms=(time.monotonic() - started) * 1000,
        )
        self.ledger.record(decided)
        _log(decided)
        if not plan.created:
            raise plan.refusal()
        return plan.edits

    async def _plan(
        self, container: containers.Container, parsed: parse.Parsed, deadline: float
    ) -> pipeline.Plan:
        if parsed.request is None or parsed.error:
            return pipeline.plan(container, host.Inventory(), self.rules)
        if self.fault:
            raise self.fault
        left = deadline - asyncio.get_running_loop().time()
        inventory = await self._watch.inventory(max(left - _SHARE_FOR_THE_ANSWER, 0.05))
        context = pipeline.Context(hook_token=self._reports.token(container.id))
        return pipeline.plan(container, inventory, self.rules, context)

    async def stop_container(self, container_id: str) -> None:
        """Note that a container's GPUs are free again."""
        self._reports.forget(container_id)
        entry = self.ledger.drop(container_id)
        if entry:
            logger.info("%s (%s) has stopped", entry.container.display, container_id[:12])

    async def remove_container(self, container_id: str) -> None:
        """Forget a container; it has stopped before, but that event may have been missed."""
        self._reports.forget(container_id)
        self.ledger.drop(container_id)

    async def synchronized(self, existing: Sequence[containers.Container]) -> None:
        """Compare what runs with what is known: adopt what we served once, list what we missed."""
        self.ledger.keep_only(container.id for container in existing)
        for container in existing:
            if container.id in self.ledger.entries:
                continue
            held = any(_GPU_NODE.fullmatch(device.path) for device in container.devices)
            if any(map(hooks.is_ours, container.hooks)) or held:
                self.ledger.adopt(await self._adopted(container))
            elif pipeline.asks(container, self.rules) and self.ledger.miss(container):
                logger.warning(
                    "%s (%s) asked for a GPU and was created while nri-nvidia was away; "
                    "recreate it to give it one",
                    container.display,
                    container.id[:12],
                )

    async def _adopted(self, container: containers.Container) -> ledger.Entry:
        minors = {device.minor: device for device in container.devices}
        gpus: tuple[host.Gpu, ...] = ()
        if minors:
            try:
                gpus = (await self._watch.inventory(5.0)).usable
            except errors.Error as error:
                logger.warning("%s: which GPUs it holds is not known: %s", container.id, error)
        return ledger.Entry(
            container=container,
            since=0.0,
            adopted=True,
            held=tuple(
                ledger.Held(index=gpu.index, uuid=gpu.uuid, minor=gpu.minor)
                for gpu in gpus
                if f"/dev/nvidia{gpu.minor}" in {device.path for device in container.devices}
            ),
        )

    def hook_reported(self, report: hookreports.Report) -> None:
        """Keep a hook's result, and log a step that failed."""
        entry = self.ledger.entries.get(report.container_id)
        name = entry.container.display if entry else report.container_id[:12]
        self.ledger.report(report.container_id, "; ".join(report.failures) or "ok")
        for failure in report.failures:
            logger.warning("%s: its hook failed at %s", name, failure)


def _log(decided: ledger.Decided) -> None:
    """Write the one line of a decision."""
    plan, container = decided.plan, decided.container
    request = plan.request
    gpus = ",".join(str(item.gpu.index) for item in plan.assigned) or "none"
    asked = f"{request.variable}={','.join(request.devices) or 'none'}" if request else "nothing"
    if plan.decision is pipeline.Decision.INJECT:
        edits = plan.edits
        what = (
            f"GPU {gpus}, {len(edits.devices)} nodes, {len(edits.mounts)} files, "
            f"driver {plan.driver_version}"
        )
    else:
        what = str(plan.reasons[-1]) if plan.reasons else "nothing asked"
    logger.log(
        logging.INFO if plan.created else logging.WARNING,
        "%s (%s): %s: %s; asked %s; %.1f ms",
        container.display,
        container.id[:12],
        plan.decision,
        what,
        asked,
        decided.duration_ms,
        extra={
            "fields": {
                "container": container.id,
                "name": container.display,
                "decision": str(plan.decision),
                "reasons": [reason.code for reason in plan.reasons],
                "gpus": [item.mig.uuid if item.mig else item.gpu.uuid for item in plan.assigned],
                "duration_ms": round(decided.duration_ms, 3),
            }
        },
    )
    if plan.decision is pipeline.Decision.INJECT:
        for reason in plan.reasons:
            logger.info("%s: %s", container.display, reason)
