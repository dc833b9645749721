# SPDX-License-Identifier: Apache-2.0
"""What must hold, against what a document of results says."""

from collections.abc import Iterator
from typing import Any

import attrs

from nri_nvidia.config import model as config_model

from . import operator, wrapped


@attrs.frozen(kw_only=True)
class Verdict:
    """One thing that must hold: a value at most `limit`, or at least it where `least` is set."""

    what: str
    value: float
    limit: float
    unit: str
    least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit


def default_layout() -> str:
    """Give the layout that a container gets where nothing is configured."""
    return str(getattr(config_model.Config().inject, "layout", "files"))


def verdicts(document: dict[str, Any]) -> list[Verdict]:
    """Judge what the document has figures for."""
    return [
        *_of_arms({arm["name"]: arm for arm in document.get("creations", [])}),
        *_of_daemon(document.get("daemon")),
        *_of_hosts(document.get("hosts", {})),
        *_of_runtime(document.get("runtime", {})),
        *_of_operator(document.get("operator", {})),
    ]


def _of_arms(arms: dict[str, Any]) -> Iterator[Verdict]:
    if not arms:
        return
    for image in ("busybox", "debian"):
        yield Verdict(
            what=f"GPU-less container, {image}: over plain",
            value=arms[f"gpu-less {image}"]["difference"]["value"], limit=2, unit="ms",
        )  # fmt: skip
    for layout, limit in (("default", 1.35), ("files", 1.7)):
        name = f"gpu {default_layout() if layout == 'default' else layout} debian"
        yield Verdict(
            what=f"GPU container, Debian, layout {layout}: create + start to plain",
            value=arms[name]["ratio"]["value"], limit=limit, unit="x",
        )  # fmt: skip
    counted = arms[f"gpu {default_layout()} debian"]["count"]
    if counted:
        yield Verdict(
            what="GPU container, Debian: processes more than plain",
            value=counted["processes"] - arms["plain debian"]["count"]["processes"],
            limit=2, unit="",
        )  # fmt: skip


def _of_daemon(daemon: dict[str, Any] | None) -> Iterator[Verdict]:
    if daemon is None:
        return
    times, every = daemon["times"], "answer, 8 GPUs, every capability"
    for share, limit in (("p50", 2.5), ("p99", 5.0)):
        yield Verdict(what=f"{every}: {share}", value=times[every][share], limit=limit, unit="ms")
    nothing = "answer, nothing asked"
    yield Verdict(what=f"{nothing}: p50", value=times[nothing]["p50"], limit=0.1, unit="ms")
    start = "daemon: start to registered"
    yield Verdict(what=f"{start}: p50", value=times[start]["p50"], limit=500, unit="ms")
    crowd = daemon["crowd"]
    yield Verdict(
        what=f"{crowd['asked']} creations at once: answered in time",
        value=crowd["answered"], limit=crowd["asked"], unit="", least=True,
    )  # fmt: skip
    if daemon["memory_many_mb"]:
        yield Verdict(
            what="resident after 1,000 containers",
            value=daemon["memory_many_mb"], limit=45, unit="MB",
        )  # fmt: skip
        yield Verdict(
            what="threads more after 1,000 containers",
            value=daemon["threads_many"] - daemon["threads"], limit=0, unit="",
        )  # fmt: skip


def _of_hosts(hosts: dict[str, Any]) -> Iterator[Verdict]:
    for name, limit in (("16 GPUs x 7 MIG", 3.0), ("16 GPUs", 0.3)):
        if name in hosts:
            value = hosts[name]["fingerprint, 200 files"]["p50"]
            yield Verdict(
                what=f"{name}, 200 driver files: fingerprint", value=value, limit=limit, unit="ms"
            )
    if "16 GPUs x 7 MIG" in hosts:
        value = hosts["16 GPUs x 7 MIG"]["scan"]["p50"]
        yield Verdict(what="16 GPUs x 7 MIG: scan", value=value, limit=150, unit="ms")


def _of_runtime(times: dict[str, Any]) -> Iterator[Verdict]:
    if not times:
        return
    limits = {wrapped.STATE: 2, wrapped.DELETE: 2, wrapped.NOTHING: 2, wrapped.GPUS: 15}
    for name, limit in limits.items():
        value = times[name]["p50"] - times[wrapped.DIRECT]["p50"]
        yield Verdict(
            what=f"nri-nvidia-runtime, {name}: over the real one",
            value=value,
            limit=limit,
            unit="ms",
        )


_WAITED = {
    f"{operator.ANSWER}, {operator.GONE}": 20,
    f"{operator.ANSWER}, {operator.HELD}": 50,
    operator.PLAN: 300,
    "": 200,
}
"""Milliseconds by the beginning of a name: `plan` looks at a host, and for a Python."""


def _of_operator(times: dict[str, Any]) -> Iterator[Verdict]:
    """Judge at p50 what one waits for."""
    for name, found in times.items():
        limit = next(limit for prefix, limit in _WAITED.items() if name.startswith(prefix))
        yield Verdict(what=name, value=found["p50"], limit=limit, unit="ms")
