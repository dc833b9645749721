# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia configure`: engines' own configuration, shown as a diff, applied, undone."""

import argparse
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

from nri_nvidia import errors
from nri_nvidia.check import containerd as known
from nri_nvidia.cli import output
from nri_nvidia.configure import containerd, engines, files, model
from nri_nvidia.install import model as install

ENGINES = {
    "containerd": (containerd.propose, "switch NRI on (1.7; 2.x has it on)"),
    "docker": (engines.docker, "register nri-nvidia-runtime in daemon.json"),
    "crio": (engines.crio, "switch NRI on (before 1.30)"),
    "nerdctl": (engines.nerdctl, "nri-nvidia-runtime in the place of its containerd's runc"),
    "podman": (engines.podman, "register nri-nvidia-runtime in containers.conf.d"),
}
_RUNTIME = "nri-nvidia-runtime"
_VERSIONS = {"containerd": r"\sv?(\d+\.\d+\S*)", "crio": r"version:?\s+v?(\d+\.\d+\S*)"}
_PROGRAMS = {name: "dockerd" if name == "docker" else name for name in ENGINES}
_BINARIES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
_PASSED = ("unit", "require", "default", "cdi", "builds", "transparent")
_DROP_IN = re.compile(r"/etc/systemd/system/([^/]+)\.service\.d/")
_LIMIT = 5
_LONGEST = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an engine each, with its options."""
    verbs = parser.add_subparsers(dest="engine", metavar="ENGINE", required=True)
    for name, (_, summary) in ENGINES.items():
        own = verbs.add_parser(name, help=summary, description=summary)
        doing = own.add_mutually_exclusive_group()
        doing.add_argument("--apply", action="store_true", help="do it (default: show it)")
        doing.add_argument(
            "--undo", action="store_true", help="put back what was there before --apply"
        )
        own.add_argument(
            "--leave-changed",
            action="store_true",
            help="with --undo: what was changed since stays as it is, and is not asked for again",
        )
        own.add_argument("--json", action="store_true", help="print what was printed as JSON")
        own.add_argument("--root", metavar="DIR", default="/", help="a node's / (default: /)")
        if name != "nerdctl":
            own.add_argument("--config", metavar="PATH", default="", help="not the usual file")
        if name in _VERSIONS:
            own.add_argument("--engine-version", metavar="N", help="default: asked of the program")
            own.add_argument(
                "--require",
                action="store_true",
                help="no container is created without this plugin (containerd 2.2, CRI-O 1.34)",
            )
        if name == "containerd":
            own.add_argument(
                "--transparent",
                action="store_true",
                help=f"{_RUNTIME} in the place of runc for every client, as ctr and nerdctl",
            )
        if name in {"containerd", "docker", "nerdctl"}:
            unit = "docker.service" if name == "docker" else "containerd.service"
            own.add_argument("--unit", metavar="UNIT", default=unit, help=f"default: {unit}")
        if name in {"docker", "podman"}:
            own.add_argument(
                "--default", action="store_true", help="the runtime of all containers"
            )
        if name == "docker":
            own.add_argument(
                "--builds",
                action="store_true",
                help="also BuildKit's RUN: ours is the first runc on dockerd's PATH",
            )
            own.add_argument(
                "--cdi", action="store_true", help="switch CDI on (docker 25 to 28.1)"
            )
        if name != "crio":
            own.add_argument(
                "--runtime-path", metavar="PATH", help=f"{_RUNTIME}'s (default: ours)"
            )


def main(options: argparse.Namespace) -> int:
    """Show what is to change, change it or put it back."""
    own = os.geteuid() != 0 and options.root == "/"
    disk = files.Disk(options.root, _home("STATE", ".local/state") if own else files.RECORDS)
    if options.undo:
        leaving = options.leave_changed
        disk.undoing(options.engine, leaving=leaving)  # what it refuses needs no lock
        with disk.working():
            changes = disk.undoing(options.engine, leaving=leaving)
            notes = disk.undo(options.engine, leaving=leaving)
        then = _when_undone(options.engine, [each.path for each in changes], own=own)
        notes.append(f"put back; {_counts(then)}" if changes else "all else is forgotten")
        _tell(options, changes, notes, done=True, then=then)
        return 0
    if options.leave_changed:
        raise errors.ConfigError("--leave-changed: without --undo nothing is left or put back")
    chosen = _options(options, disk)
    proposal, notes = _proposal(options, disk, chosen)
    if options.apply and proposal.needed:
        with disk.working():
            # Another may have done it meanwhile.
            proposal, notes = _proposal(options, disk, chosen)
            notes += disk.apply(options.engine, proposal.needed)
    needed = proposal.needed
    if not needed:
        if not notes or options.engine not in {"containerd", "crio"}:
            notes.append("everything is as it should be: nothing to do")
    elif not options.apply:
        notes.append("nothing is changed yet: repeat it with --apply")
    else:
        notes.append(f"done; {_counts(proposal.then)}")
    _tell(options, needed, notes, done=bool(needed and options.apply), then=proposal.then)
    return 0


def _counts(then: Sequence[str]) -> str:
    if not then:
        return "it counts from the next container on"
    return f"for it to count: {' && '.join(then)}"


def _when_undone(engine: str, paths: Iterable[str], *, own: bool) -> tuple[str, ...]:
    """Give what has an engine go by its former files: docker drops no runtime at a reload."""
    if engine == "podman":
        return ()
    units = [match[1] for path in paths if (match := _DROP_IN.match(path))]
    first = ("systemctl daemon-reload",) if units else ()
    unit = units[0] if units else {"docker": "docker", "crio": "crio"}.get(engine)
    if unit is None:
        return ("systemctl restart containerd   # or what brings it, as k3s",)
    return (*first, f"systemctl {'--user ' if own else ''}restart {unit}")


def _proposal(
    given: argparse.Namespace, disk: files.Disk, chosen: model.Options
) -> tuple[model.Proposal, list[str]]:
    """Say what is to change and what is to be told of it; raises ConfigError."""
    propose, _ = ENGINES[given.engine]
    proposal = propose(disk, chosen)
    needed, notes = proposal.needed, list(proposal.notes)
    disk.check(needed)
    if needed:
        notes += [*_not_there(given, disk, needed), *_not_to_last(given, chosen, needed)]
    return proposal, notes


def _tell(
    options: argparse.Namespace,
    changes: Iterable[model.File | model.Link],
    notes: Iterable[str],
    *,
    done: bool,
    then: Iterable[str] = (),
) -> None:
    diffs = {change.path: "".join(_diff(change)) for change in changes}
    if options.json:
        output.print_json(
            {
                "engine": options.engine,
                "done": done,
                "changes": [{"path": path, "diff": diff} for path, diff in diffs.items()],
                "notes": list(notes),
                "then": list(then) if diffs else [],
            }
        )
        return
    for diff in diffs.values():
        for line in diff.splitlines():
            parts = line.split("\t")
            print("\t".join(errors.printable(part, _LONGEST) for part in parts))
    for text in notes:
        sys.stderr.write(f"nri-nvidia: {errors.printable(text)}\n")


def _options(given: argparse.Namespace, disk: files.Disk) -> model.Options:
    named = vars(given)
    own = os.geteuid() != 0 and given.root == "/"
    config = named.get("config") or ""
    if config and not config.startswith("/") and given.root != "/":
        raise errors.ConfigError(
            f"--config {config}: not a path below {given.root}", hint="begin it with /"
        )
    return model.Options(
        config=str(pathlib.Path(config).absolute()) if config else "",
        release=_release(given, disk),
        runtime=_runtime(named["runtime_path"]) if "runtime_path" in named else "",
        user=_home("CONFIG", ".config") if own else "",
        **{name: named[name] for name in _PASSED if name in named},
    )


def _not_there(
    given: argparse.Namespace, disk: files.Disk, needed: Iterable[model.File | model.Link]
) -> Iterator[str]:
    """Say that the engine is nowhere to be found, and which new file is for it then."""
    program = _PROGRAMS[given.engine]
    new = [each.path for each in needed if isinstance(each, model.File) and each.before is None]
    there = given.root == "/" and shutil.which(program)
    there = there or any(program in disk.names(place) for place in _BINARIES)
    places = known.PLACES if given.engine == "containerd" else ()
    there = there or any(disk.text(place) is not None for place in places)
    if not new or there or vars(given).get("engine_version"):
        return
    searched = f"no such program on PATH or in {', '.join(_BINARIES)}"
    searched += f"; no {', '.join(places)}" if places else ""
    files_are = "is a new file" if len(new) == 1 else "are new files"
    another = "" if given.engine == "nerdctl" else "; --config names another"
    yield (
        f"no {given.engine} was found here ({searched}): {', '.join(new)} {files_are}, for one "
        f"that is installed later{another}"
    )


def _not_to_last(
    given: argparse.Namespace,
    chosen: model.Options,
    needed: Iterable[model.File | model.Link],
) -> Iterator[str]:
    """Say that a path which goes into the engine's files is of a place that may go away."""
    written = [each.target if isinstance(each, model.Link) else each.after for each in needed]
    if (
        not chosen.runtime
        or given.runtime_path
        or not any(chosen.runtime in text for text in written)
    ):
        return
    place = pathlib.Path(chosen.runtime).parent.parent
    if place.is_relative_to(install.HOME) or not (place / "pyvenv.cfg").exists():
        return
    lasting = f"{install.HOME}/bin/{_RUNTIME}"
    do = (
        f"name the installed one: --runtime-path {lasting}"
        if os.access(lasting, os.X_OK)
        else f"nri-nvidia install puts it at {lasting}: do that first, and then this"
    )
    yield (
        f"{chosen.runtime} is in a virtual environment: when that is moved or removed, "
        f"{given.engine} starts no container by it; {do}"
    )


def _home(kind: str, usual: str) -> str:
    """Give a user's directory by the XDG Base Directory Specification; of its state, ours.

    A path that is not absolute counts for none there.
    """
    named = os.environ.get(f"XDG_{kind}_HOME", "")
    place = named if named.startswith("/") else str(pathlib.Path.home() / usual)
    return f"{place}/nri-nvidia/configured" if kind == "STATE" else place


def _release(given: argparse.Namespace, disk: files.Disk) -> str:
    """Give the engine's version; asked of the program where that is the one of the files."""
    pattern = _VERSIONS.get(given.engine)
    if pattern is None:
        return ""
    if given.engine_version is not None:
        said = re.fullmatch(r"v?(\d+\.\d+(?:[.+~-].*)?)", given.engine_version.strip())
        if said is None:
            raise errors.ConfigError(
                f"--engine-version {given.engine_version}: not a version", hint="as in 2.1.9"
            )
        return said[1]
    if given.root != "/":
        return ""
    if (
        given.engine == "containerd"
        and containerd.owned(given.config or containerd.usual(disk))[0]
    ):
        return ""  # these bring a containerd of their own
    try:
        done = subprocess.run(
            [given.engine, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", check=False, timeout=_LIMIT,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(pattern, done.stdout, re.IGNORECASE)
    return found[1] if found else ""


def _runtime(given: str | None) -> str:
    """Give nri-nvidia-runtime's path: the one named, beside this program, or on PATH."""
    if given:
        return str(pathlib.Path(given).absolute())
    for place in (sys.argv[0], sys.executable):
        beside = pathlib.Path(place).absolute().parent / _RUNTIME
        if os.access(beside, os.X_OK):
            return str(beside)
    found = shutil.which(_RUNTIME)
    if found:
        return str(pathlib.Path(found).absolute())
    raise errors.ConfigError(
        f"{_RUNTIME} is neither beside this program nor on PATH",
        hint="name it by --runtime-path",
    )


def _diff(change: model.File | model.Link) -> Iterator[str]:
    if isinstance(change, model.Link):
        before = [f"{change.before}\n"] if change.before else []
        after = [f"{change.target}\n"] if change.target else []
        name = f"{change.path} (a link)"
    else:
        before = (change.before or "").splitlines(keepends=True)
        after = change.after.splitlines(keepends=True)
        name = change.path
    lines = difflib.unified_diff(
        before, after, name if before else "/dev/null", name if after else "/dev/null"
    )
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
