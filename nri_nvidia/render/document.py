# SPDX-License-Identifier: Apache-2.0
"""A decision as the documented JSON of `plan --json`, which the daemon's records hold as well."""

from collections.abc import Sequence
from typing import Any

import attrs

from nri_nvidia import pipeline, resolve
from nri_nvidia.edits import compat, model


def plan(decided: pipeline.Plan) -> dict[str, Any]:
    """Give a plan as the documented JSON; `gpus` and `edits` are filled when it injects."""
    request = decided.request
    injected = decided.decision is pipeline.Decision.INJECT
    return {
        "decision": str(decided.decision),
        "reasons": [attrs.asdict(reason) for reason in decided.reasons],
        "request": {
            "source": str(request.source) if request else None,
            "devices": list(request.devices) if request else [],
            "capabilities": sorted(map(str, request.capabilities)) if request else [],
            "imex_channels": list(request.imex_channels) if request else [],
        },
        "gpus": [gpu(item) for item in decided.assigned],
        "driver_version": decided.driver_version,
        "cuda_compat": _compat(decided.cuda_compat),
        "edits": _edits(decided.edits) if injected else None,
    }


def gpu(item: resolve.Assigned) -> dict[str, Any]:
    """Give one assigned GPU or MIG device as the documented JSON."""
    card, mig = item.gpu, item.mig
    return {
        "index": card.index,
        "uuid": card.uuid,
        "minor": card.minor,
        "bus_id": card.bus_id,
        "mig": mig
        and {
            "uuid": mig.uuid,
            "gi": mig.gi,
            "ci": mig.ci,
            "index": mig.index,
            "profile": mig.profile,
        },
    }


def _compat(choice: compat.Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {"allowed": choice.allowed, "reason": attrs.asdict(choice.reason)}


def _edits(edits: model.ContainerEdits) -> dict[str, Any]:
    return {
        "env": dict(edits.env),
        # They are flat, and many: attrs.asdict() would take most of the time.
        "devices": _flat(model.DeviceEdit, edits.devices),
        "mounts": _flat(model.MountEdit, edits.mounts),
        "hooks": _flat(model.HookEdit, edits.hooks),
    }


def _flat(kind: type[attrs.AttrsInstance], values: Sequence[object]) -> list[dict[str, Any]]:
    """Give values of one kind as objects; what their fields hold is left as it is."""
    names = [field.name for field in attrs.fields(kind)]
    return [{name: getattr(value, name) for name in names} for value in values]
