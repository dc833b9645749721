# SPDX-License-Identifier: Apache-2.0
"""A document of results as markdown."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import limits


def render(document: dict[str, Any]) -> str:
    """Give the whole text, a section for each group that the document has."""
    parts = [_machine(document)]
    if arms := document.get("creations"):
        parts.append(
            _section(
                "Create + start of a container: in an existing pod, or by ctr run",
                _creations(arms),
            )
        )
    if arms := document.get("parts"):
        parts.append(
            _section("Where a GPU container's milliseconds go (Debian)", _parts(document))
        )
    pieces = list(_pieces(document))
    if pieces:
        head = ("piece", "least", "p50", "p95", "p99", "samples")
        parts.append(_section("The pieces, in ms", _rows(head, pieces)))
    if daemon := document.get("daemon"):
        parts.append(_section("The daemon", _daemon(daemon)))
    judged = [
        (
            each.what,
            f"{each.value:.4g} {each.unit}".strip(),
            f"{'at least' if each.least else 'at most'} {each.limit:g} {each.unit}".strip(),
            "holds" if each.holds else "**does not hold**",
        )
        for each in limits.verdicts(document)
    ]
    if judged:
        head = ("what must hold", "measured", "limit", "")
        parts.append(_section("What must hold", _rows(head, judged)))
    return "\n\n".join(parts) + "\n"


def _section(title: str, body: str) -> str:
    return f"### {title}\n\n{body}"


def _machine(document: dict[str, Any]) -> str:
    found = document["environment"]
    engine = document.get("engine")
    ran = f", {engine}, {document['pairs']} rounds, {document['files']}" if engine else ""
    load = " -> ".join(str(each) for each in (found["load"][0], document["load_after"][0]))
    return (
        f"{found['cpus']} x {found['cpu']}, {found['memory_gib']} GiB, Linux {found['kernel']}, "
        f"Python {found['python']} (hook: {found['hook_python']}), {found['commit']}{ran}; "
        f"load {load}."
    )


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(found: dict[str, float] | None, digits: int = 1, sign: str = "+") -> str:
    if not found:
        return ""
    low, high = (f"{found[end]:{sign}.{digits}f}" for end in ("low", "high"))
    return f"{found['value']:{sign}.{digits}f} ({low} to {high})"


def _creations(arms: Sequence[dict[str, Any]]) -> str:
    head = (
        "container", "p50 ms", "p95 ms", "of it create", "over plain, ms (95 %)",
        "ratio (95 %)", "over plain at p10, ms", "mounts, nodes, hooks", "processes", "programs",
    )  # fmt: skip
    rows = []
    for arm in arms:
        given, count = arm["given"], arm["count"] or {"processes": "?", "programs": "?"}
        rows.append((
            f"{arm['name']}: {arm['what']}",
            f"{arm['whole']['p50']:.1f}", f"{arm['whole']['p95']:.1f}",
            f"{arm['create']['p50']:.1f}" if arm["create"] else "",
            _interval(arm.get("difference")), _interval(arm.get("ratio"), 2, ""),
            _interval(arm.get("quiet")),
            f"{given['mounts']}, {given['nodes']}, {given['hooks']}",
            str(count["processes"]), str(count["programs"]),
        ))  # fmt: skip
    return _rows(head, rows)


def _parts(document: dict[str, Any]) -> str:
    """Lay the differences one below the other; those of the chain to the whole have a share of it."""
    arms, total = document["parts"], document["parts_total"]
    chain = _chain(arms)
    head = (
        "piece", "adds ms (95 %)", "share", "adds at p10, ms", "share at p10",
        "what", "p50 ms with it", "processes",
    )  # fmt: skip
    rows = []
    for arm in arms:
        count = arm["count"] or {"processes": "?"}
        whole = total if arm["name"] in chain else None
        rows.append((
            arm["name"],
            *_added(arm, whole, "difference"), *_added(arm, whole, "quiet"),
            arm["what"], f"{arm['whole']['p50']:.1f}", str(count["processes"]),
        ))  # fmt: skip
    ends = (_interval(total["difference"]), "100 %", _interval(total["quiet"]), "100 %")
    rows.append(("all of it", *ends, "the last over the first, not the sum", "", ""))
    return _rows(head, rows)


def _added(arm: dict[str, Any], whole: dict[str, Any] | None, figure: str) -> tuple[str, str]:
    added = arm.get(figure)
    if not added:
        return "", ""
    share = f"{100 * added['value'] / whole[figure]['value']:.0f} %" if whole else ""
    return _interval(added), share


def _chain(arms: Sequence[dict[str, Any]]) -> set[str]:
    """Give the arms that lead from the first to the last, each the base of the next."""
    bases = {arm["name"]: arm["base"] for arm in arms}
    name, found = arms[-1]["name"], set()
    while name:
        found.add(name)
        name = bases[name]
    return found


def _pieces(document: dict[str, Any]) -> Iterator[Sequence[str]]:
    groups = {
        "": {**document.get("daemon", {}).get("times", {}), **document.get("decision", {})},
        **{f"{name}: ": host for name, host in document.get("hosts", {}).items()},
        "process: ": document.get("programs", {}),
        "nri-nvidia-runtime: ": document.get("runtime", {}),
        "operator: ": document.get("operator", {}),
    }
    for prefix, group in groups.items():
        for name, found in group.items():
            if isinstance(found, dict):
                figures = [f"{found[share]:.3g}" for share in ("least", "p50", "p95", "p99")]
                yield (f"{prefix}{name}", *figures, str(found["count"]))


def _daemon(daemon: dict[str, Any]) -> str:
    crowd = daemon["crowd"]
    rows = [
        ("resident memory at start", f"{daemon['memory_mb']:.1f} MB"),
        ("threads at start", str(daemon["threads"])),
        (
            f"{crowd['asked']} creations at once",
            f"{crowd['answered']} answered in time, all after {crowd['whole_ms']:.0f} ms",
        ),
    ]
    if daemon["memory_many_mb"]:
        rows.append(("resident memory, 1,000 containers", f"{daemon['memory_many_mb']:.1f} MB"))
        rows.append(("threads, 1,000 containers", str(daemon["threads_many"])))
    return _rows(("", ""), rows)
