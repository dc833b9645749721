# SPDX-License-Identifier: Apache-2.0
"""All findings of a node, in the order in which they are to be mended."""

from collections.abc import Iterator

from nri_nvidia.check import driver, node, runtime
from nri_nvidia.check.model import Facts, Finding, Severity

_ORDER = [*Severity]


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Give every finding once: errors first, and in each severity causes before consequences."""
    unique = dict.fromkeys(_all(facts))
    seen: set[tuple[str, str]] = set()
    kept = []
    for finding in unique:
        # The daemon sees much of what is looked at here as well, and says it alike.
        key = finding.code, finding.message[:60]
        if key not in seen:
            seen.add(key)
            kept.append(finding)
    return tuple(sorted(kept, key=lambda finding: _ORDER.index(finding.severity)))


def _all(facts: Facts) -> Iterator[Finding]:
    yield from runtime.findings(facts)
    yield from driver.findings(facts)
    yield from node.daemon(facts)
    yield from node.others(facts)
    yield from node.guards(facts)
