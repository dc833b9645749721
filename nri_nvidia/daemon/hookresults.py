# SPDX-License-Identifier: Apache-2.0
"""What becomes of a hook's report."""

import logging
import math

from nri_nvidia.daemon import hookreports, ledger, recorder

logger = logging.getLogger(__name__)


def keep(report: hookreports.Report, books: ledger.Ledger, kept: recorder.Recorder) -> None:
    """Keep a hook's result, and log a step that failed."""
    entry = books.entries.get(report.container_id)
    name = entry.container.display if entry else "a container"
    short = report.container_id[:12]
    result = "; ".join(report.failures) or "ok"
    books.report(report.container_id, result, report.notes)
    told = {
        "ok": report.ok,
        "failures": [*report.failures],
        "notes": [*report.notes],
        # Python's JSON knows NaN; whoever reads ours may not.
        "duration_ms": report.duration_ms if math.isfinite(report.duration_ms) else 0.0,
    }
    kept.hook_reported(report.container_id, told)
    books.tallies.hook(
        failed=not report.ok or bool(report.failures), seconds=report.duration_ms / 1000
    )
    for note in report.notes:
        logger.info("%s (%s): its hook: %s", name, short, note)
    for failure in report.failures:
        logger.warning("%s (%s): its hook failed at %s", name, short, failure)
