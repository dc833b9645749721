# SPDX-License-Identifier: Apache-2.0
"""What is counted from the start of the daemon on, for metrics. All of it stays small."""

import bisect
import collections
import math

DECISION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Seconds: a usual decision takes milliseconds, a runtime waits for two seconds."""
HOOK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_MOST_REASONS = 200
_OTHER = "other"


class Histogram:
    """Counts of lengths of time, in seconds, by upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, seconds: float) -> None:
        """Count one; what is no length of time counts as none at all."""
        if not math.isfinite(seconds) or seconds < 0:
            return
        self.total += seconds
        self._counts[bisect.bisect_left(self.bounds, seconds)] += 1

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """Give the counts as Prometheus has them: of all that are not above each bound."""
        names = [*map(str, self.bounds), "+Inf"]
        count = 0
        found = []
        for name, more in zip(names, self._counts, strict=True):
            count += more
            found.append((name, float(count)))
        return found


class Tallies:
    """Decisions by result and reason, hooks by result, and how long both took."""

    def __init__(self) -> None:
        self.decisions: collections.Counter[tuple[str, str]] = collections.Counter()
        self.deciding = Histogram(DECISION_BUCKETS)
        self.hooks: collections.Counter[str] = collections.Counter()
        self.hooking = Histogram(HOOK_BUCKETS)

    def decided(self, decision: str, reason: str, seconds: float) -> None:
        """Count a decision; `reason` is the code of what decided it."""
        key = (decision, reason)
        if key not in self.decisions and len(self.decisions) >= _MOST_REASONS:
            key = (decision, _OTHER)
        self.decisions[key] += 1
        self.deciding.add(seconds)

    def hook(self, *, failed: bool, seconds: float) -> None:
        """Count a hook's report."""
        self.hooks["failed" if failed else "ok"] += 1
        self.hooking.add(seconds)
