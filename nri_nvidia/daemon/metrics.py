# SPDX-License-Identifier: Apache-2.0
"""The daemon's state as series of Prometheus, made anew for each scrape.

How many series there are is bounded: reasons are codes, and containers are shown up to a number.
"""

from collections.abc import Iterator

import prometheus_client
from prometheus_client import core, registry

import nri_nvidia
from nri_nvidia.daemon import decider, hostwatch, ledger, tallies, upgrades
from nri_nvidia.host import model as host

_MOST_HELD = 2000
_LABELS = ("namespace", "pod", "container", "gpu", "uuid", "minor", "mig", "source")
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST


def text(
    state: decider.Decider,
    watch: hostwatch.HostWatch,
    inventory: host.Inventory | None,
    *,
    ready: bool,
) -> bytes:
    """Give all series in Prometheus' text format."""
    known = prometheus_client.CollectorRegistry()
    known.register(_Series(state, watch, inventory, ready=ready))
    return prometheus_client.generate_latest(known)


class _Series(registry.Collector):
    """The series of one moment."""

    def __init__(
        self,
        state: decider.Decider,
        watch: hostwatch.HostWatch,
        inventory: host.Inventory | None,
        *,
        ready: bool,
    ) -> None:
        self._state = state
        self._watch = watch
        self._inventory = inventory
        self._ready = ready

    def describe(self) -> list[core.Metric]:
        """Name none ahead, as the registry allows."""
        return []

    def collect(self) -> Iterator[core.Metric]:
        """Give every family."""
        yield from self._daemon()
        yield from self._decisions()
        yield from self._host()
        yield from self._containers()

    def _daemon(self) -> Iterator[core.Metric]:
        connection = self._state.connection
        yield core.InfoMetricFamily(
            "nri_nvidia_build", "This program.", value={"version": nri_nvidia.__version__}
        )
        yield _gauge("registered", "Whether a runtime has taken us in.", connection.since > 0)
        yield _gauge("ready", "Whether a container created now gets a working GPU.", self._ready)
        yield core.CounterMetricFamily(
            "nri_nvidia_registrations",
            "How often a runtime took us in; each after the first is a reconnect.",
            value=connection.registrations,
        )

    def _decisions(self) -> Iterator[core.Metric]:
        counted = self._state.ledger.tallies
        decisions = core.CounterMetricFamily(
            "nri_nvidia_decisions",
            "Decisions over containers that asked for something, by result and reason.",
            labels=("decision", "reason"),
        )
        for key, count in counted.decisions.items():
            decisions.add_metric(key, count)
        yield decisions
        yield _histogram("decision", "From a container's request to the answer.", counted.deciding)
        hooks = core.CounterMetricFamily(
            "nri_nvidia_hooks", "What hooks reported of themselves.", labels=("result",)
        )
        for result, count in counted.hooks.items():
            hooks.add_metric((result,), count)
        yield hooks
        yield _histogram("hook", "How long hooks took.", counted.hooking)

    def _host(self) -> Iterator[core.Metric]:
        yield core.CounterMetricFamily(
            "nri_nvidia_scans", "How often the host was scanned.", value=self._watch.scans
        )
        yield core.CounterMetricFamily(
            "nri_nvidia_scan_seconds", "Time taken by these.", value=self._watch.scan_seconds
        )
        inventory = self._inventory
        if inventory is None:
            return
        yield core.InfoMetricFamily(
            "nri_nvidia_driver",
            "The loaded driver.",
            value={"version": inventory.driver_version, "cuda_version": inventory.cuda_version},
        )
        yield _gauge("gpus", "GPUs that containers can be given.", len(inventory.usable))
        slices = sum(len(gpu.mig_devices) for gpu in inventory.usable)
        yield _gauge("mig_devices", "MIG devices that containers can be given.", slices)
        yield _gauge("nvml_answers", "Whether NVML answers.", inventory.nvml_state == "ok")
        yield _gauge("host_problems", "What is wrong with the host.", len(inventory.problems))

    def _containers(self) -> Iterator[core.Metric]:
        books = self._state.ledger
        entries = [*books.entries.values()]
        stale = sum(upgrades.is_stale(entry, self._inventory) for entry in entries)
        yield _gauge("stale_containers", "Containers with another driver's files.", stale)
        missed = len(books.missed)
        yield _gauge("missed_containers", "Containers created while we were away.", missed)
        yield _gauge("containers", "Containers that hold something of the driver.", len(entries))
        held = core.GaugeMetricFamily(
            "nri_nvidia_container_gpu",
            "1 for each GPU or MIG device that a container holds.",
            labels=_LABELS,
        )
        shown = 0
        for labels in _held(entries):
            if shown < _MOST_HELD:
                held.add_metric(labels, 1)
            shown += 1
        yield held
        left_out = max(shown - _MOST_HELD, 0)
        yield _gauge("series_left_out", "Held devices beyond those that are shown.", left_out)


def _held(entries: list[ledger.Entry]) -> Iterator[tuple[str, ...]]:
    """Give the labels of each device that is held, each once."""
    seen: set[tuple[str, ...]] = set()
    for entry in entries:
        container = entry.container
        for held in entry.held:
            labels = (
                container.namespace,
                container.pod,
                container.name or container.id[:12],
                str(held.index),
                held.uuid,
                str(held.minor),
                held.mig,
                entry.source,
            )
            if labels not in seen:
                seen.add(labels)
                yield labels


def _gauge(name: str, about: str, value: float) -> core.GaugeMetricFamily:
    return core.GaugeMetricFamily(f"nri_nvidia_{name}", about, value=float(value))


def _histogram(name: str, about: str, times: tallies.Histogram) -> core.HistogramMetricFamily:
    return core.HistogramMetricFamily(
        f"nri_nvidia_{name}_duration_seconds",
        about,
        buckets=times.cumulative,
        sum_value=times.total,
    )
