# SPDX-License-Identifier: Apache-2.0
"""The log line of a decision."""

import logging

from nri_nvidia import pipeline
from nri_nvidia.daemon import ledger

logger = logging.getLogger(__name__)


def write(decided: ledger.Decided) -> None:
    """Write the one line of a decision, and one for each thing to be said of what is given.

    The decision is one of the ledger's, in which what a container wrote is cut to a length: an
    image may hold megabytes for its log line.
    """
    plan, container = decided.plan, decided.container
    request = plan.request
    gpus = ",".join(str(item.gpu.index) for item in plan.assigned) or "none"
    asked = f"{request.variable}={','.join(request.devices) or 'none'}" if request else "nothing"
    if plan.decision is pipeline.Decision.INJECT:
        edits = plan.edits
        what = (
            f"GPU {gpus}, {len(edits.devices)} nodes, {len(edits.mounts)} files, "
            f"driver {plan.driver_version or 'of unknown version'}"
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
