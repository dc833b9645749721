# SPDX-License-Identifier: Apache-2.0
"""All findings of a node, in the order in which they are to be mended."""

from collections.abc import Iterator

from nri_nvidia.check import driver, node, runtime
from nri_nvidia.check.model import Facts, Finding, Severity

_ORDER = [*Severity]
_TOLD_TWICE = frozenset({"stale-driver"})
"""What the daemon says of all containers at once, where each was found by itself."""


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Give every finding once: errors first, and in each severity causes before consequences."""
    local = dict.fromkeys(_local(facts))
    unique = {**local, **dict.fromkeys(_others(facts))}
    seen: set[tuple[str, str]] = set()
    kept = []
    for finding in unique:
        # The daemon sees much of what is looked at here as well, and says it alike.
        key = finding.code, "" if finding.code in _TOLD_TWICE else finding.message[:60]
        if key not in seen or (finding.code in _TOLD_TWICE and finding in local):
            seen.add(key)
            kept.append(finding)
    return tuple(sorted(kept, key=lambda finding: _ORDER.index(finding.severity)))


def _local(facts: Facts) -> Iterator[Finding]:
    yield from node.settings(facts)
    yield from runtime.findings(facts)
    yield from driver.findings(facts)


def _others(facts: Facts) -> Iterator[Finding]:
    yield from node.daemon(facts)
    yield from node.others(facts)
    yield from node.guards(facts)
