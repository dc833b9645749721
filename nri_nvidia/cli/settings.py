# SPDX-License-Identifier: Apache-2.0
"""What verbs make of the options that they share: the settings, and the host to look at."""

import os
import pathlib

import attrs

from nri_nvidia import errors
from nri_nvidia.cli import shared
from nri_nvidia.config import model
from nri_nvidia.host import model as host_model
from nri_nvidia.host import options as host_options
from nri_nvidia.oci import install

_PARTS = ("proc", "nvml.json", "dev.nodes")
_MOST_NAMED = 16


def config(path: str | None) -> model.Config:
    """Give the settings of a file, or of the default one if that is there."""
    chosen = shared.file(path)
    if chosen is None:
        return model.Config()
    from nri_nvidia.config import load  # noqa: PLC0415 - with what it takes to judge a file

    return load.load([load.read(chosen)])


def host(settings: model.Config, directory: str | None) -> host_options.Options:
    """Give what to scan: a recorded host, or this one as it is configured."""
    if directory is None:
        return settings.host_options()
    if not directory or not pathlib.Path(directory).is_dir():
        raise errors.ConfigError(
            f"--host {directory or repr(directory)}: not a directory that can be read",
            hint="a recorded host is a tree laid out like /, with proc/driver/nvidia in it",
        )
    _require_recording(directory)
    recorded = host_options.Options.for_recorded(directory)
    given = settings.host
    return attrs.evolve(
        recorded,
        preset=given.preset,
        driver_root=recorded.below(given.driver_root) if given.driver_root else "",
        dev_root=recorded.below(given.dev_root) if given.dev_root else "",
        library_search_paths=given.library_search_paths,
        create_device_nodes=given.create_device_nodes,
    )


def _require_recording(directory: str) -> None:
    """Raise ConfigError for a directory that holds no host: it would pass for one without a GPU.

    A recording has at least one of these, and as a rule all three.
    """
    top = pathlib.Path(directory)
    if _is_recording(top):
        return
    try:
        names = sorted(each.name for each in top.iterdir() if _is_recording(each))
    except OSError:
        names = []
    below = f"; below it are {', '.join(names[:_MOST_NAMED])}" if names else ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    raise errors.ConfigError(
        f"--host {directory}: no recorded host: it has no {', '.join(_PARTS)}{below}{more}",
        hint=f"name one of them: --host {top / names[0]}"
        if names
        else "a recorded host is a tree laid out like /, with proc in it; nri-nvidia devices "
        "--record DIR writes one of this node",
    )


def _is_recording(top: pathlib.Path) -> bool:
    return any(os.path.lexists(top / part) for part in _PARTS)


def interpreter(settings: model.Config) -> str:
    """Give the Python that runs the hook: the configured one, else what this machine has."""
    return settings.hook.interpreter or install.interpreter()


def kind(inventory: host_model.Inventory) -> list[str]:
    """Say which kind of host it was taken for, and why."""
    if not inventory.preset:
        return []
    elsewhere = [
        f"{what} below {root}"
        for what, root in (("driver", inventory.driver_root), ("nodes", inventory.dev_root))
        if root != "/"
    ]
    return [
        f"host: {inventory.preset}: {inventory.preset_reason}",
        *(["  " + ", ".join(elsewhere)] if elsewhere else []),
    ]
