# SPDX-License-Identifier: Apache-2.0
"""The unit's text, and what systemd is asked to do with it."""

import pathlib
import subprocess
import time
from collections.abc import Callable

import nri_nvidia
from nri_nvidia import errors
from nri_nvidia.install import model

_BOOTED = "/run/systemd/system"
TMPFILES = b"""\
# SPDX-License-Identifier: Apache-2.0
# There at boot, before the service: a user's own docker sees of /run what was there at its start.
# Into the second go CDI specifications, if settings have them kept.
d /run/nri-nvidia 0755 root root -
d /run/cdi 0755 root root -
"""
"""What systemd-tmpfiles reads (tmpfiles.d(5))."""
_PATIENCE = 20
"""Seconds that a daemon may take until it answers; it answers before it is registered."""
_NOT_RUNNING = 3


def unit() -> bytes:
    """Give the unit: from the wheel, or from the checkout that this runs in."""
    package = pathlib.Path(nri_nvidia.__file__).parent
    places = (package / "install" / model.UNIT, package.parent / "contrib/systemd" / model.UNIT)
    for place in places:
        if place.is_file():
            return place.read_bytes()
    raise errors.ConfigError(
        f"{model.UNIT}: neither in the package nor in a checkout around it",
        hint="install nri-nvidia from a wheel or a checkout",
    )


def booted() -> bool:
    """Whether systemd runs this machine (sd_booted(3))."""
    return pathlib.Path(_BOOTED).is_dir()


def call(*words: str) -> None:
    """Run systemctl; raises HostError with what it said."""
    done = subprocess.run(
        ["systemctl", *words], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise errors.HostError(
            f"systemctl {' '.join(words)}: {done.stderr.strip() or done.returncode}",
            hint=f"journalctl -u {model.UNIT}",
        )


def main_pid() -> int:
    """Give the service's process, 0 for none."""
    shown = subprocess.run(
        ["systemctl", "show", "--property=MainPID", "--value", model.UNIT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return int(shown.stdout.strip() or 0)


def restart() -> bool:
    """Start the service anew; whether its new process answers.

    Not waited for is its registration, which is READY to systemd: a runtime may come much later.
    """
    before = main_pid()
    call("restart", "--no-block", model.UNIT)
    return wait_for(lambda: main_pid() not in {0, before} and answers())


def answers() -> bool:
    """Whether the daemon's socket answers, registered or not."""
    done = subprocess.run(
        [f"{model.CURRENT}/bin/nri-nvidia", "status", "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode in {0, 1}


def wait_for(happened: Callable[[], bool], patience: float = _PATIENCE) -> bool:
    """Whether something happens in that many seconds."""
    end = time.monotonic() + patience
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
