# SPDX-License-Identifier: Apache-2.0
"""Whether a container that is created now gets a working GPU, and else why not."""

import contextlib
import time

import attrs

from nri_nvidia import errors, pipeline
from nri_nvidia.daemon import decider, hostwatch
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model
from nri_nvidia.request import parse

_LIMIT = 2.0
_IDLE = 300.0
"""Seconds: an attempt has limits for each of its steps, and pauses of at most a minute between."""
_HANDLERS = 2.0
"""How many times the runtime's own limit a handler may run before the daemon counts as stuck."""


@attrs.frozen(kw_only=True)
class Look:
    """One look at the host: what it has, or else why that is not known, and what it had last."""

    inventory: host.Inventory | None = None
    fault: errors.Error | None = None


async def look(state: decider.Decider, watch: hostwatch.HostWatch) -> Look:
    """Look at the host and for the hook; a disk or a driver that hangs is not waited for.

    What once kept the hook from its place may be over, though no container has come since.
    """
    if state.hook.enabled:
        with contextlib.suppress(errors.HostError):  # it is the place's fault from now on
            await state.place.ready(state.hook, _LIMIT)
    try:
        return Look(inventory=await watch.inventory(_LIMIT))
    except errors.Error as error:
        return Look(inventory=watch.last, fault=error)


def missing(state: decider.Decider, seen: Look) -> tuple[Reason, ...]:
    """Give what keeps such a container from its GPU; nothing where it gets one."""
    found = list(_connection(state))
    faults = (state.fault, state.place.fault, seen.fault)
    found += [Reason.of(fault) for fault in faults if fault]
    if seen.fault or seen.inventory is None:
        return tuple(found)
    return (*found, *_decision(state.rules, seen.inventory))


def stuck(state: decider.Decider) -> tuple[Reason, ...]:
    """Give the handler that runs for far longer than the runtime waits, if there is one."""
    runtime = state.connection.runtime
    limit = _HANDLERS * (runtime.request_timeout if runtime else 2.0)
    waited = state.longest_decision
    if waited <= limit:
        return ()
    return (
        Reason(
            code="handler-stuck",
            message=f"a container's creation is being decided for {waited:.1f} s; the runtime "
            f"waits for {limit / _HANDLERS:g} s",
            hint="restart nri-nvidia; its log says what it waits for",
        ),
    )


def hung(state: decider.Decider) -> tuple[Reason, ...]:
    """Give why the process had better be started anew, if it had."""
    return (*stuck(state), *idle(state))


def idle(state: decider.Decider) -> tuple[Reason, ...]:
    """Give that the daemon is not registered and has long made no attempt to be."""
    connection = state.connection
    waited = time.monotonic() - connection.tried
    if not connection.wanted or connection.since or waited <= _IDLE:
        return ()
    return (
        Reason(
            code="connecting-stuck",
            message=f"nri-nvidia is not registered and has not tried to be for {waited:.0f} s",
            hint="restart nri-nvidia",
        ),
    )


def _connection(state: decider.Decider) -> tuple[Reason, ...]:
    connection = state.connection
    if not connection.wanted:
        return ()
    if not connection.since:
        trouble = f": {connection.trouble}" if connection.trouble else ""
        return (
            Reason(
                code="not-registered",
                message=f"nri-nvidia is not registered with a runtime{trouble}",
                hint="nri-nvidia check says why",
            ),
        )
    if connection.runtime and not connection.runtime.can_inject:
        return (
            Reason(
                code="runtime-takes-nothing",
                message=f"{connection.runtime.name} takes no devices from NRI plugins",
                hint="use nri-nvidia-runtime, or a CDI specification",
            ),
        )
    return ()


def _decision(rules: pipeline.Policy, inventory: host.Inventory) -> tuple[Reason, ...]:
    """Decide over a container that asks for all GPUs; policy has no say, the node alone has."""
    request = request_model.GpuRequest(
        source=request_model.Source.ENV,
        devices=("all",),
        capabilities=rules.request.default_capabilities & rules.request.supported_capabilities,
    )
    plan = pipeline.plan(
        containers.Container(id="ready", privileged=True),
        inventory,
        rules.without_access(),
        parsed=parse.Parsed(request=request),
    )
    if plan.decision is pipeline.Decision.DENY:
        return ()
    if plan.decision is pipeline.Decision.INJECT and plan.assigned:
        return ()
    return plan.reasons[-1:] or (
        Reason(code="no-usable-gpu", message="this node has no GPU that can be given"),
    )
