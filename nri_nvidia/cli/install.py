# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia install`: a private environment, commands, a unit and a file of settings."""

import argparse
import os
import pathlib
import subprocess

from nri_nvidia import errors
from nri_nvidia.cli import completion, manual, output
from nri_nvidia.config import example, load, toolkit
from nri_nvidia.install import apply, environment, model, service, steps, tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument(
        "--root", metavar="DIR", default="/", help="below this directory, for a package"
    )
    parser.add_argument(
        "--python", metavar="PATH", default="",
        help="the Python to run on, of the version that this runs on (default: the same)",
    )  # fmt: skip
    parser.add_argument(
        "--unit-directory", metavar="DIR", default="/etc/systemd/system",
        help="where the unit goes (default: %(default)s; packages: /usr/lib/systemd/system)",
    )  # fmt: skip
    parser.add_argument(
        "--import", dest="imported", metavar="FILE", nargs="?", const=toolkit.DEFAULT_PATH,
        help="write the settings that NVIDIA's file (default: %(const)s) means here",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument(
        "--no-start", action="store_true", help="do not enable, start or restart the service"
    )


def main(options: argparse.Namespace) -> int:
    """Install or upgrade, and have systemd run it."""
    live = os.path.realpath(options.root) == "/"
    if live and os.geteuid() != 0 and not options.dry_run:
        raise errors.HostError(
            "nri-nvidia install: only root may write there",
            hint="run it as root, or with --root DIR",
            code="not-root",
        )
    there = tree.Tree(options.root)
    release = environment.release(options.python)
    extras = (
        *completion.files(),
        model.File(
            path=f"/usr/local/share/man/man8/{model.MANUAL}", content=manual.page().encode()
        ),
    )
    found = toolkit.read(load.read(options.imported)) if options.imported else None
    things = steps.wanted(_settings(found), release, extras, options.unit_directory)
    todo = steps.install(there, release, things)
    starts = live and not options.no_start and service.booted()
    if found:
        _import(found, todo)
    if options.dry_run:
        output.print_lines(_said(todo, starts=starts))
        return 0
    if starts:
        if todo.new_release:
            apply.place_release(there, todo)
        _approve(todo.release)
    apply.install(there, todo)
    if found:
        apply.disown(there, model.SETTINGS)
    for path in todo.keeps:
        output.print_lines([f"{path}: is yours, and was left as it is"])
    if not starts:
        if not (live and service.booted() and service.main_pid()):
            apply.tidy(there, todo)  # nothing runs from it
        output.print_lines([f"installed {release.name}"])
        return 0
    return _start(there, todo)


def _settings(found: toolkit.Imported | None) -> model.File:
    text = example.text()
    if found:
        notes = (f"Not taken from NVIDIA's: {errors.printable(str(each))}" for each in found.left)
        text = example.text(found.settings, notes)
    return model.File(path=model.SETTINGS, content=text.encode())


def _import(found: toolkit.Imported, todo: steps.Installation) -> None:
    """Say what was taken; raises ConfigError where the settings there are somebody's own."""
    if model.SETTINGS in todo.keeps:
        raise errors.ConfigError(
            f"--import: {model.SETTINGS} was changed, and is not written over",
            hint="`nri-nvidia config --import FILE` prints what to put there",
        )
    output.print_lines(
        [
            *(f"taken: {line}" for line in toolkit.toml(found.settings).splitlines()),
            *(f"not taken: {each}" for each in found.left),
        ]
    )


def _said(todo: steps.Installation, *, starts: bool) -> list[str]:
    lines = []
    if todo.new_release:
        lines.append(f"make {todo.release.directory} ({len(todo.release.files)} files)")
    for thing in todo.writes:
        verb = f"link to {thing.target}" if isinstance(thing, model.Link) else "write"
        lines.append(f"{verb}: {thing.path}")
    lines += [f"leave as it is: {path}" for path in todo.keeps]
    if todo.leaves:
        lines.append(f"remove {len(todo.leaves)} files of before")
    if starts and lines:
        lines += [
            f"run: systemctl {words}"
            for words in ("daemon-reload", f"enable {model.UNIT}", f"restart {model.UNIT}")
        ]
    return lines or ["everything is as it should be: nothing to do"]


def _approve(release: model.Release) -> None:
    """Have the release read the settings, before anything changes; raises ConfigError."""
    if not pathlib.Path(model.SETTINGS).exists():
        return
    done = subprocess.run(
        [f"{release.directory}/bin/nri-nvidia", "config", "--check", model.SETTINGS],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        raise errors.ConfigError(
            f"this version cannot use the settings; the one that runs was left:\n"
            f"{(done.stdout or done.stderr).strip()}",
            hint=f"mend {model.SETTINGS} and install again",
        )


def _start(there: tree.Tree, todo: steps.Installation) -> int:
    """Have systemd run it; go back to the release of before if the new one does not answer."""
    service.call("daemon-reload")
    service.call("enable", model.UNIT)
    if not todo.new_release and not todo.writes and service.main_pid():
        output.print_lines([f"{todo.release.name} runs: nothing to do"])
        return 0
    if service.restart():
        apply.tidy(there, todo)
        output.print_lines([f"installed {todo.release.name}; nri-nvidia status says how it fares"])
        return 0
    hint = f"journalctl -u {model.UNIT}"
    if todo.before.release and todo.new_release:
        apply.go_back(there, todo)
        service.restart()
        raise errors.HostError(
            f"{todo.release.name} does not answer; {todo.before.release} runs again", hint=hint
        )
    raise errors.HostError(f"{todo.release.name} is installed and does not answer", hint=hint)
