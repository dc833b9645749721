# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia run`: the daemon."""

import argparse
import json
import logging
import os
import sys

from nri_nvidia import errors, log
from nri_nvidia.cli import shared
from nri_nvidia.config import load

_LAST_WORDS = 1.0
"""Seconds that the log's reader has for what is said last."""

_SWITCH = 0.001
"""Seconds after which a thread that computes has to let the event loop go on; Python has 5 ms."""

_OPTIONS = (
    ("--nri-socket", "nri.socket", "the runtime's NRI socket"),
    ("--name", "nri.name", "the plugin's name"),
    ("--index", "nri.index", "the plugin's place among the runtime's plugins, two digits"),
    ("--preset", "host.preset", "the kind of host, if its files do not tell"),
    ("--driver-root", "host.driver_root", "where the driver's files live as if it were /"),
    ("--dev-root", "host.dev_root", "where dev is, if not in /"),
    ("--host-root", "host.root", "where proc and sys are read, if not in /"),
    ("--control-socket", "control.socket", "the socket that `status` asks"),
    ("--layout", "inject.layout", "files or volume"),
    ("--volume-directory", "inject.volume_dir", "where directories of driver files are prepared"),
    ("--hook-directory", "hook.directory", "where the hook is installed"),
    (
        "--metrics",
        "metrics.listen",
        "where metrics and health are served: ADDRESS:PORT, unix:PATH",
    ),
    ("--log-level", "log.level", "debug, info, warning or error"),
    ("--log-format", "log.format", "text or json"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    shared.add_config(parser)
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the options that override a key of the configuration each."""
    for option, key, text in _OPTIONS:
        parser.add_argument(option, dest=key, metavar="VALUE", help=f"{text} ({key})")


def overrides(options: argparse.Namespace) -> tuple[load.Text, ...]:
    """Give the options that were named as sources of settings."""
    given = vars(options)
    return tuple(
        load.Text(name=option, toml=f"{key} = {json.dumps(given[key])}", lined=False)
        for option, key, _ in _OPTIONS
        if given[key] is not None
    )


def main(options: argparse.Namespace) -> int:
    """Be the daemon until SIGTERM or SIGINT."""
    sys.setswitchinterval(_SWITCH)
    log.set_up("info", "text")
    # The daemon's modules bring asyncio and the messages: later than the parser's own errors.
    from nri_nvidia.daemon import service, sources  # noqa: PLC0415

    if os.geteuid() != 0 and not os.environ.get("NRI_PLUGIN_SOCKET"):
        raise errors.HostError(
            "nri-nvidia run: only root may connect to the runtime's NRI socket",
            hint="run it as root",
            code="not-root",
        )
    origin = sources.Sources(file=shared.file(options.config), options=overrides(options))
    try:
        service.run(origin)
    except errors.Error as error:
        if os.environ.get("NRI_PLUGIN_SOCKET"):
            # A runtime that starts its plugins throws their standard error away.
            logging.getLogger(__name__).error("nri-nvidia ends: %s", error)  # noqa: TRY400
        raise
    finally:
        log.settle(_LAST_WORDS)
    return 0
