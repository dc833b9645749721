# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia uninstall`: takes away what `install` put there, and nothing else."""

import argparse
import os
import pathlib
from collections.abc import Iterator

from nri_nvidia import errors
from nri_nvidia.cli import output, settings
from nri_nvidia.config import model as config_model
from nri_nvidia.install import apply, model, service, state, steps, tree
from nri_nvidia.oci import client

_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument(
        "--root", metavar="DIR", default="/", help="below this directory (default: /)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def main(options: argparse.Namespace) -> int:
    """Stop the service and remove what was installed; the settings stay."""
    live = os.path.realpath(options.root) == "/"
    if live and os.geteuid() != 0 and not options.dry_run:
        raise errors.HostError(
            "nri-nvidia uninstall: only root may do that", hint="run it as root", code="not-root"
        )
    there = tree.Tree(options.root)
    todo = steps.uninstall(there)
    if options.dry_run:
        outside = [each.path for each in todo.entries if not each.path.startswith(model.RELEASES)]
        count = len(todo.entries) - len(outside)
        output.print_lines(
            [
                *(f"remove: {path}" for path in outside),
                f"remove {count} files below {model.RELEASES}",
                *(f"leave: {path}" for path in todo.stays),
            ]
        )
        return 0
    # Now, since this runs from what is about to be removed, and reads them by modules of that.
    sound, said = _settings()
    written = state.places(sound)
    unit = any(pathlib.Path(each.path).name == model.UNIT for each in todo.entries)
    if live and unit and service.booted():
        service.call("disable", "--now", model.UNIT)
    apply.uninstall(there, todo)
    stays: list[str] = []
    if live:
        if service.booted():
            service.call("daemon-reload")
        stays = state.remove(written)
    output.print_lines(
        [
            f"removed nri-nvidia {todo.before.version}",
            *(f"{path}: left" for path in todo.stays),
            *(
                f"{path}: left, and leads nowhere now: remove it, docker's --gpus finds it"
                for path in _stand_ins(options.root)
            ),
            *stays,
            *(said if live else ()),
        ]
    )
    return 0


def _stand_ins(root: str) -> Iterator[str]:
    """Give the links to what is gone that had docker take --gpus; README has people make one."""
    for folder in _FOLDERS:
        link = pathlib.Path(root, folder[1:], client.STAND_IN)
        target = link.readlink() if link.is_symlink() else pathlib.Path()
        gone = not pathlib.Path(root, str(target).lstrip("/")).exists()
        if target.name == client.FRONT and gone:
            yield f"{folder}/{client.STAND_IN}"


def _settings() -> tuple[config_model.Config, list[str]]:
    """Give the settings that say where the daemon wrote; with faults in them, the usual ones.

    Then it is said, since what lies at other places is not found.
    """
    try:
        return settings.config(None), []
    except errors.ConfigError as error:
        fault = error.message.partition("\n")[0]
        said = (
            f"only the usual places were looked at, since the settings have a fault ({fault}): "
            "look at those that nri.socket, cdi.directory, hook.directory, inject.volume_dir and "
            "control.socket name"
        )
        return config_model.Config(), [said]
