# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia explain`: what was decided over one container, and why."""

import argparse
import difflib
import pathlib
import sys
import time
from typing import Any

from nri_nvidia import cli, errors
from nri_nvidia.cli import daemon, output
from nri_nvidia.config import place

_LIBRARY_DIR = "--library-dir"
_GRAPHICS = {"graphics", "display"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    daemon.add_arguments(parser)
    parser.add_argument(
        "container",
        metavar="CONTAINER",
        help="an id or its beginning, NAMESPACE/POD/CONTAINER, POD/CONTAINER, or a name",
    )
    parser.add_argument("--json", action="store_true", help="print the record as JSON")


def main(options: argparse.Namespace) -> int:
    """Print the explanation; 1 when not exactly one container is meant, or none is known."""
    try:
        answer = daemon.explain(options, options.container)
    except cli.NotRunningError as error:
        path = daemon.socket(options)
        answer = _without_daemon(path, options.container)
        if not answer["candidates"]:
            raise
        sys.stderr.write(
            errors.printable(
                f"nri-nvidia: {error.message}; this is what the last daemon kept in "
                f"{_directory(path)}"
            )
            + "\n"
        )
    found = answer["explanation"]
    if found is None:
        raise _unclear(options.container, answer["candidates"], _known(options))
    found = {**found, "inside": _inside(found)}
    if options.json:
        output.print_json(found)
    else:
        print("\n".join(text(output.plain(found), time.time())))
    return 0


def _inside(found: dict[str, Any]) -> dict[str, Any] | None:
    """Look into the container, where it runs here and may be seen."""
    if found["ended"] or found["edits"] is None:
        return None
    # Imported here alone: only what still runs can be looked into, and they take long.
    import attrs  # noqa: PLC0415

    from nri_nvidia.check import inside  # noqa: PLC0415
    from nri_nvidia.host import root  # noqa: PLC0415

    seen = inside.look(root.Root(), found["id"].partition("/")[0], _library_dir(found))
    return None if seen is None else attrs.asdict(seen)


def _library_dir(found: dict[str, Any]) -> str:
    """Give the driver's directory in the container, as its hook was told."""
    for hook in found["edits"]["hooks"]:
        arguments = [*hook["args"], ""]
        if _LIBRARY_DIR in arguments:
            return str(arguments[arguments.index(_LIBRARY_DIR) + 1])
    return place.LIBRARY_DIR


def _directory(path: str) -> pathlib.Path:
    from nri_nvidia.daemon import records  # noqa: PLC0415

    return pathlib.Path(path).parent / records.DIRECTORY


def _without_daemon(path: str, query: str) -> dict[str, Any]:
    """Read what a daemon has left on disk, as it would answer."""
    import attrs  # noqa: PLC0415

    from nri_nvidia.daemon import records  # noqa: PLC0415

    kept: dict[str, dict[str, Any]] = {}
    records.each(_directory(path), lambda record: kept.update({record["id"]: record}))
    found = records.match(query, map(records.summary, kept.values()))
    now = {"holds": None, "stale": None, "loaded_driver": None}
    return {
        "candidates": [attrs.asdict(summary) for summary in found],
        "explanation": {**kept[found[0].id], **now} if len(found) == 1 else None,
    }


def _known(options: argparse.Namespace) -> list[str]:
    """Name the containers of the last decisions, the newest first, as far as one can be asked."""
    try:
        decisions = daemon.status(options)["decisions"]
    except cli.NotRunningError:
        return []
    return [*dict.fromkeys(_name(entry) for entry in reversed(decisions))]


def _unclear(query: str, candidates: list[dict[str, Any]], known: list[str]) -> errors.Error:
    if not candidates:
        near = difflib.get_close_matches(query, known, n=3) or known[:3]
        last = f"; known are {', '.join(near)}" if near else ""
        last += ", and more" if len(known) > len(near) else ""
        return errors.RequestError(
            f"{query or repr(query)}: no decision over such a container is known{last}",
            hint="a container that asks for nothing leaves none, and docker's and podman's are "
            "known by their ids alone (docker inspect -f {{.Id}} NAME); nri-nvidia status lists "
            "the last decisions, nri-nvidia plan tries a request out",
            code="no-such-container",
        )
    # So much of each id that it is told from the others.
    ids = {entry["id"] for entry in candidates}
    width = next((w for w in range(20, 64) if len({each[:w] for each in ids}) == len(ids)), 64)
    names = [f"  {entry['id'][:width]}  {_name(entry)}" for entry in candidates[:20]]
    more = [f"  and {len(candidates) - 20} more"] if len(candidates) > 20 else []
    return errors.RequestError(
        "\n".join([f"{query} may mean each of these:", *names, *more]),
        hint="name one of them in full",
        code="ambiguous-container",
    )


def text(found: dict[str, Any], now: float) -> list[str]:
    """Give a record as lines."""
    lines = [f"container: {_name(found)} ({found['id']})", f"created: {_when(found, now)}"]
    took = f", in {found['duration_ms']:.1f} ms" if found["duration_ms"] is not None else ""
    if found["missed"]:
        lines.append("decision: none: it was created while nri-nvidia was away, and got nothing")
        lines.append(f"would have been: {found['decision']}")
    else:
        lines.append(f"decision: {found['decision']}{took}")
    for reason in found["reasons"]:
        lines.append(f"because: {reason['message']} [{reason['code']}]")
        lines += [f"  {reason['hint']}"] if reason["hint"] else []
    if not found["reasons"]:
        lines.append("because: it is given what it asked for; no rule says otherwise [as-asked]")
    lines += _request(found["request"])
    lines += _state(found)
    lines += _seen(found)
    lines += _given(found)
    return lines


def _when(found: dict[str, Any], now: float) -> str:
    if not found["time"]:
        return "not known"
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["time"]))
    what = "found " if found["missed"] else ""
    end = ""
    if found["ended"]:
        end = f"; ended {output.ago(now - found['ended'])} ago"
    elif found["decision"] in {"deny", "error"} and not found["missed"]:
        what = "no, its creation was refused: "
    return f"{what}{at}, {output.ago(now - found['time'])} ago{end}"


def _request(request: dict[str, Any] | None) -> list[str]:
    if request is None:
        return []
    where = {
        "env": "the container's environment",
        "mount": "the container's mounts",
        "annotation": "the container's annotations",
        "share": "the pod's annotations",
    }
    source = where.get(request["source"], request["source"])
    lines = [f"asked: {request['variable']}={','.join(request['devices']) or 'none'}, in {source}"]
    lines.append(f"capabilities: {','.join(request['capabilities']) or 'none'}")
    if request.get("shares"):
        lines.append(f"shared: the GPUs of {request['shares']}, another container of its pod")
    for name, values in (
        ("IMEX channels", request["imex_channels"]),
        ("requirements", request["requirements"]),
    ):
        lines += [f"{name}: {', '.join(values)}"] if values else []
    return lines


def _state(found: dict[str, Any]) -> list[str]:
    if found["missed"]:
        return ["to do: recreate it, to give it a GPU"]
    lines = [f"driver: {found['driver_version']}"] if found["driver_version"] else []
    if found["stale"]:
        lines.append(
            f"stale: the loaded driver is {found['loaded_driver']} by now; "
            "recreate it [stale-driver]"
        )
    return lines


def _seen(found: dict[str, Any]) -> list[str]:
    """Say what of the image is in the way of the driver."""
    inside = found["inside"]
    if inside is None:
        return []
    lines = []
    if inside["shadows"]:
        lines.append(
            f"in the way: LD_LIBRARY_PATH finds {', '.join(inside['shadows'])} before the host's "
            "driver [library-path-shadows-driver]"
        )
    asked = set((found["request"] or {}).get("capabilities", ()))
    if asked & _GRAPHICS and inside["lacking"]:
        lines.append(
            f"lacking: the image has no {', '.join(inside['lacking'])}, which the driver's "
            "graphics needs and no driver holds"
        )
    return lines


def _given(found: dict[str, Any]) -> list[str]:
    lines = []
    for gpu in found["gpus"]:
        mig = f"{gpu['mig']['uuid']} on " if gpu["mig"] else ""
        place = f" at {gpu['bus_id']}" if gpu["bus_id"] else ""
        inside = gpu["container_index"]
        seen = f", index {inside} in the container" if inside is not None else ""
        lines.append(f"gpu {gpu['index']}: {mig}{gpu['uuid']} {gpu['name']}{place}{seen}")
    edits = found["edits"]
    if edits is None:
        return lines
    for title, rows in (
        ("variables", [(f"{key}={value}",) for key, value in edits["env"].items()]),
        (
            "devices",
            [
                (d["path"], f"{d['type']} {d['major']}:{d['minor']}", d["access"])
                for d in edits["devices"]
            ],
        ),
        ("mounts", [(m["destination"], m["source"]) for m in edits["mounts"]]),
    ):
        lines += [f"{title}:", *output.columns(rows, "  ")] if rows else []
    if found["missed"]:
        return lines
    if found.get("cuda_compat"):
        lines.append(f"cuda compatibility: {found['cuda_compat']['reason']['message']}")
    for hook in edits["hooks"]:
        lines.append(f"hook: {' '.join(hook['args'])}")
    return lines + _hook(found)


def _hook(found: dict[str, Any]) -> list[str]:
    if not found["edits"]["hooks"]:
        return []
    told = found["hook"]
    if told is None:
        return ["hook's result: it has not reported (yet)"]
    took = f", {told['duration_ms']:.1f} ms"
    notes = [f"hook's note: {note}" for note in told.get("notes", ())]
    if told["ok"] and not told["failures"]:
        return [f"hook's result: ok{took}", *notes]
    failures = told["failures"] or ["failed"]
    return [*(f"hook's result: {failure}{took}" for failure in failures), *notes]


def _name(found: dict[str, Any]) -> str:
    parts = [found["namespace"], found["pod"], found["name"]]
    return "/".join(part for part in parts if part) or found["id"][:12]
