# SPDX-License-Identifier: Apache-2.0
"""What is made of samples: percentiles, and paired differences with a bootstrap interval.

A machine that is busy with other things shifts every sample of a round alike, so two arms are
compared round by round: the median of the differences, not the difference of the medians.
"""

import random
from collections.abc import Callable, Sequence

import attrs

RESAMPLES = 2000
_SEED = 20


@attrs.frozen(kw_only=True)
class Summary:
    """Percentiles of samples, in the samples' unit."""

    count: int
    p10: float
    p50: float
    p95: float
    p99: float
    least: float


@attrs.frozen(kw_only=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


def quantile(values: Sequence[float], share: float) -> float:
    """Give a quantile, `share` between 0 and 1, interpolated between neighbours."""
    if not values:
        raise ValueError("no samples, so no quantile of them")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """Give the middle of some samples."""
    return quantile(values, 0.5)


def summary(values: Sequence[float]) -> Summary:
    """Give the percentiles that are reported."""
    p10, p50, p95, p99 = (quantile(values, share) for share in (0.1, 0.5, 0.95, 0.99))
    return Summary(count=len(values), p10=p10, p50=p50, p95=p95, p99=p99, least=min(values))


def difference(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """Give the median of `other - base`; sample n of both is of the same round."""
    pairs = [b - a for a, b in zip(base, other, strict=True)]
    return bootstrap(len(pairs), lambda chosen: median([pairs[n] for n in chosen]))


def quiet(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """Give the difference of the tenth percentiles: what others on the machine disturb least.

    It is not that of a typical round, but the one to look at where the machine is busy.
    """
    pairs = list(zip(base, other, strict=True))

    def of(chosen: Sequence[int]) -> float:
        drawn = [pairs[n] for n in chosen]
        return quantile([b for _, b in drawn], 0.1) - quantile([a for a, _ in drawn], 0.1)

    return bootstrap(len(pairs), of)


def ratio(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """Give the ratio of the medians, rounds drawn together for its interval."""
    if len(base) != len(other):
        raise ValueError(f"{len(base)} and {len(other)} samples are not of the same rounds")

    def of(chosen: Sequence[int]) -> float:
        return median([other[n] for n in chosen]) / median([base[n] for n in chosen])

    return bootstrap(len(base), of)


def bootstrap(
    count: int, statistic: Callable[[Sequence[int]], float], resamples: int = RESAMPLES
) -> Estimate:
    """Give a statistic of all rounds, and the middle 95 % of it over rounds drawn with return.

    `statistic` takes round numbers below `count`. The same input gives the same interval.
    """
    rounds = range(count)
    drawn = random.Random(_SEED)
    found = [statistic(drawn.choices(rounds, k=count)) for _ in range(resamples)]
    return Estimate(
        value=statistic(rounds), low=quantile(found, 0.025), high=quantile(found, 0.975)
    )
