# SPDX-License-Identifier: Apache-2.0
"""A document of results as a picture. matplotlib is imported when a picture is asked for."""

import importlib
from pathlib import Path
from typing import Any

MISSING = (
    "--plot needs matplotlib, which this environment lacks: "
    "pip install --group bench, or pip install matplotlib"
)


class NoPlotError(Exception):
    """Raised where there is nothing to draw with, or nothing to draw."""


def check() -> None:
    """Raise NoPlotError before an hour is spent on what cannot be drawn."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise NoPlotError(MISSING) from None


def draw(document: dict[str, Any], path: Path) -> None:
    """Write a picture: containers on the left, the pieces of one on the right."""
    check()
    figure_module = importlib.import_module("matplotlib.figure")
    drawers = [
        (draw_, arms)
        for draw_, arms in (
            (_creations, document.get("creations")),
            (_parts, document.get("parts")),
        )
        if arms
    ]
    if not drawers:
        raise NoPlotError("--plot draws the groups creations and parts, and neither was measured")
    height = max(4.2, 0.3 * max(len(arms) for _, arms in drawers))
    figure = figure_module.Figure(figsize=(6.4 * len(drawers), height), layout="constrained")
    for place, (drawer, arms) in enumerate(drawers, 1):
        drawer(figure.add_subplot(1, len(drawers), place), arms)
    figure.savefig(path, dpi=120, format="png")


def _creations(axes: Any, arms: list[dict[str, Any]]) -> None:
    """Draw the median as a bar, create and start on top of each other, and p95 as a whisker."""
    names = [arm["name"] for arm in arms][::-1]
    creates = [arm["create"]["p50"] if arm["create"] else 0 for arm in arms][::-1]
    wholes = [arm["whole"]["p50"] for arm in arms][::-1]
    late = [arm["whole"]["p95"] for arm in arms][::-1]
    rest = [whole - create for whole, create in zip(wholes, creates, strict=True)]
    axes.barh(names, creates, color="#9ecae1", label="create")
    axes.barh(names, rest, left=creates, color="#3182bd", label="start, or both by ctr")
    for row, (whole, end) in enumerate(zip(wholes, late, strict=True)):
        axes.plot([whole, end], [row, row], color="#444444", linewidth=1)
        axes.text(whole, row + 0.42, f"{whole:.0f}", fontsize=7, ha="right", va="bottom")
    axes.set_xlabel("ms, median; line to p95")
    axes.set_title("create + start of a container", fontsize=10)
    axes.legend(fontsize=8, loc="upper right")
    axes.tick_params(labelsize=8)


def _parts(axes: Any, arms: list[dict[str, Any]]) -> None:
    """Draw what each piece adds, with its interval, from the first to the last."""
    known = [arm for arm in arms if "difference" in arm][::-1]
    names = [arm["name"] for arm in known]
    values = [arm["difference"]["value"] for arm in known]
    errors = [
        [arm["difference"]["value"] - arm["difference"]["low"] for arm in known],
        [arm["difference"]["high"] - arm["difference"]["value"] for arm in known],
    ]
    colors = ["#e6550d" if name.startswith("hook") else "#3182bd" for name in names]
    axes.barh(names, values, xerr=errors, color=colors, ecolor="#444444", capsize=2)
    axes.axvline(0, color="#444444", linewidth=0.8)
    axes.set_xlabel("ms added (95 % interval)")
    axes.set_title("a GPU container, piece by piece", fontsize=10)
    axes.tick_params(labelsize=8)
