# SPDX-License-Identifier: Apache-2.0
"""The bench's results as one JSON document; the table and the plot are made of it alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from . import creations, figures, life

MS = 1e-6
"""Nanoseconds to milliseconds."""


def of_arms(results: Mapping[str, creations.Measured]) -> list[dict[str, Any]]:
    """Give the arms: milliseconds of create, start and both, and the paired difference to the base.

    `create` is None where one step does both.
    """
    return [_arm(each, results.get(each.arm.base)) for each in results.values()]


def _arm(each: creations.Measured, base: creations.Measured | None) -> dict[str, Any]:
    whole = [sample.whole for sample in each.samples]
    creates = [sample.create for sample in each.samples if sample.create is not None]
    found: dict[str, Any] = {
        "name": each.arm.name,
        "what": each.arm.what,
        "image": each.arm.image,
        "base": each.arm.base,
        "given": attrs.asdict(each.given),
        "count": attrs.asdict(each.counts) if each.counts else None,
        "create": summary(creates) if creates else None,
        "start": summary([sample.start for sample in each.samples]),
        "whole": summary(whole),
        "samples": [
            [s.create if s.create is None else round(s.create, 3), round(s.start, 3)]
            for s in each.samples
        ],
    }
    if base is not None:
        found |= compared(base, each)
    return found


def compared(base: creations.Measured, other: creations.Measured) -> dict[str, Any]:
    """Give what two arms differ by: in milliseconds, as a ratio, and on a quiet machine."""
    before, after = ([sample.whole for sample in each.samples] for each in (base, other))
    return {
        "difference": attrs.asdict(figures.difference(before, after)),
        "ratio": attrs.asdict(figures.ratio(before, after)),
        "quiet": attrs.asdict(figures.quiet(before, after)),
    }


def of_times(times: Mapping[str, Sequence[float]], scale: float = MS) -> dict[str, Any]:
    """Give percentiles in milliseconds of samples in nanoseconds."""
    return {name: summary([scale * value for value in found]) for name, found in times.items()}


def of_life(found: life.Life) -> dict[str, Any]:
    """Give a daemon's figures: milliseconds, and MB of 1,000,000 bytes."""
    return {
        "times": of_times(
            {
                "daemon: start to registered": found.start,
                "answer, 8 GPUs, every capability": found.answer,
                "answer, nothing asked": found.answer_nothing,
                "socket round trip, 8 GPUs, every capability": found.round_trip,
                "socket round trip, nothing asked": found.round_trip_nothing,
            }
        ),
        "crowd": {
            "asked": life.CROWD,
            "answered": found.crowd_answered,
            "whole_ms": found.crowd_whole * MS,
            "slowest_ms": found.crowd_slowest * MS,
        },
        "memory_mb": found.memory / 1e6,
        "memory_many_mb": found.memory_many / 1e6 or None,
        "threads": found.threads,
        "threads_many": found.threads_many or None,
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Give percentiles, rounded to a microsecond of milliseconds."""
    return {
        name: value if name == "count" else round(value, 4)
        for name, value in attrs.asdict(figures.summary(values)).items()
    }
