# SPDX-License-Identifier: Apache-2.0
"""How it is between the daemon and the runtime that it is a plugin of."""

import time

import attrs

from nri_nvidia import errors
from nri_nvidia.nri import plugin


@attrs.define(kw_only=True)
class Connection:
    """The runtime that the daemon is registered with; `since` is Unix time, 0 while it is not.

    `trouble` is why the last attempt to connect ended, at `tried` (monotonic). `wanted` is false
    where NRI is off.
    """

    wanted: bool = True
    runtime: plugin.RuntimeInfo | None = None
    trouble: errors.Error | None = None
    since: float = 0.0
    registrations: int = 0
    tried: float = attrs.field(factory=time.monotonic)

    @property
    def runtime_name(self) -> str:
        """The runtime's name, if known."""
        return self.runtime.name if self.runtime else ""
