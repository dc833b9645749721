# SPDX-License-Identifier: Apache-2.0
"""What a runtime's NRI can do, by what the runtime says of itself.

A runtime refuses a plugin that asks for an event which it does not know, so in doubt it cannot.
"""

import re

_NUMBERS = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", re.ASCII)
_EARLY = re.compile(r"(?:alpha|beta|rc|dev)", re.ASCII | re.IGNORECASE)
_VALIDATION = (0, 10)
"""The NRI that brought ValidateContainerAdjustment (docs/validation-plugins.md there)."""
_FIRST = {"containerd": (2, 2), "cri-o": (1, 34)}
"""The runtimes with it. NRI tells its own version from 0.12 on only."""


def can_validate(name: str, version: str, nri_version: str) -> bool:
    """Tell whether a runtime shows to plugins what all of them together change.

    A distribution may decorate versions (`2.2.1~ds1`, `v2.2.1-k3s1`). What came before a
    runtime's first release with it may have it or not.
    """
    nri = _NUMBERS.match(nri_version)
    if nri:
        return (int(nri[1]), int(nri[2])) >= _VALIDATION
    found = _NUMBERS.match(version)
    first = _FIRST.get(name)
    if not found or not first:
        return False
    release = (int(found[1]), int(found[2]))
    early = found[3] in {None, "0"} and _EARLY.search(version, found.end()) is not None
    return release > first or (release == first and not early)
