# SPDX-License-Identifier: Apache-2.0
"""Where the daemon's settings come from, and which of them count from its next start on."""

from collections.abc import Mapping, Sequence

import attrs

from nri_nvidia.config import load
from nri_nvidia.config import model as config_model

_FIXED: Mapping[str, Sequence[str]] = {
    "nri": ("enabled", "socket", "name", "index"),
    "control": ("socket", "group"),
    "metrics": ("listen",),
}
"""What is opened or connected once, by its table."""


@attrs.frozen(kw_only=True)
class Sources:
    """Where settings come from besides the runtime, in rising order of precedence."""

    file: str | None = None
    options: tuple[load.Text, ...] = ()

    def load(self, runtime: str = "") -> config_model.Config:
        """Read all sources again, the runtime's between file and options; raises ConfigError."""
        texts: Sequence[load.Text] = [
            *([load.read(self.file)] if self.file else []),
            load.Text(name="the runtime's configuration for this plugin", toml=runtime),
            *self.options,
        ]
        return load.load(texts)


def in_force(running: config_model.Config, read: config_model.Config) -> config_model.Config:
    """Give the settings that were read, with what a running daemon cannot change as it is."""
    tables = {
        name: attrs.evolve(
            getattr(read, name), **{key: getattr(getattr(running, name), key) for key in keys}
        )
        for name, keys in _FIXED.items()
    }
    return attrs.evolve(read, **tables)


def later(running: config_model.Config, read: config_model.Config) -> str:
    """Say which settings were changed and count from the next start on; empty for none."""
    names = [
        f"{table}.{key}"
        for table, keys in _FIXED.items()
        for key in keys
        if getattr(getattr(running, table), key) != getattr(getattr(read, table), key)
    ]
    if not names:
        return ""
    said = f"what they say of {', '.join(names)} counts from the next start"
    return f"; {said}: systemctl restart nri-nvidia"
