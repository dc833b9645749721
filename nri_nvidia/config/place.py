# SPDX-License-Identifier: Apache-2.0
"""Where the settings are, and of them what a question to the daemon needs.

Whoever only asks a running daemon must not pay for all that settings can mean, nor be kept from
asking by a fault in a file that the daemon does not follow: it goes on with its old settings.
"""

import tomllib

FILE = "/etc/nri-nvidia/config.toml"
LIBRARY_DIR = "/usr/local/nvidia"
CONTROL_SOCKET = "/run/nri-nvidia/control.sock"
UNITS = tuple(
    f"{directory}/nri-nvidia.service"
    for directory in (
        "/etc/systemd/system",
        "/run/systemd/system",
        "/usr/local/lib/systemd/system",
        "/usr/lib/systemd/system",
        "/lib/systemd/system",
    )
)
"""Where systemd looks for our unit (systemd.unit(5), the unit file load path)."""


def control_socket(toml: str) -> str:
    """Give `control.socket` of a text of settings, else its default; empty where it is no path."""
    try:
        control = tomllib.loads(toml).get("control", {})
    except (tomllib.TOMLDecodeError, RecursionError):
        return ""
    told = control.get("socket", CONTROL_SOCKET) if isinstance(control, dict) else ""
    return told if isinstance(told, str) and told.startswith("/") else ""
