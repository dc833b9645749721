# SPDX-License-Identifier: Apache-2.0
"""The options that several verbs share: which configuration and which host."""

import argparse
import pathlib

import attrs

from nri_nvidia import errors
from nri_nvidia.config import load, model
from nri_nvidia.host import options as host_options
from nri_nvidia.oci import install


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add --config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"configuration (default: {load.DEFAULT_PATH}, if it is there)",
    )


def add_host(parser: argparse.ArgumentParser) -> None:
    """Add --host."""
    parser.add_argument(
        "--host", metavar="DIR", help="a recorded host (a tree laid out like /), not this one"
    )


def file(path: str | None) -> str | None:
    """Give the configuration file: the one named, else the default one if that is there."""
    if path is None and pathlib.Path(load.DEFAULT_PATH).exists():
        return load.DEFAULT_PATH
    return path


def config(path: str | None) -> model.Config:
    """Give the settings of a file, or of the default one if that is there."""
    chosen = file(path)
    return load.load([] if chosen is None else [load.read(chosen)])


def host(settings: model.Config, directory: str | None) -> host_options.Options:
    """Give what to scan: a recorded host, or this one as it is configured."""
    if directory is None:
        return settings.host_options()
    if not directory or not pathlib.Path(directory).is_dir():
        raise errors.ConfigError(
            f"--host {directory or repr(directory)}: not a directory that can be read",
            hint="a recorded host is a tree laid out like /, with proc/driver/nvidia in it",
        )
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


def interpreter(settings: model.Config) -> str:
    """Give the Python that runs the hook: the configured one, else what this machine has."""
    return settings.hook.interpreter or install.interpreter()
