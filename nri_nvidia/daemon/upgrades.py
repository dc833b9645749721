# SPDX-License-Identifier: Apache-2.0
"""Which containers hold the files of a driver that is not loaded any more."""

import posixpath
import re
from collections.abc import Iterable

from nri_nvidia.daemon import ledger
from nri_nvidia.host import model as host
from nri_nvidia.request import container as containers

# The name of a library of the driver's version, or of a prepared directory.
_VERSIONED = re.compile(
    r"lib(?:cuda|nvidia-ml)\.so\.(\d{1,6}(?:\.\d{1,6}){1,3})"
    r"|(\d{1,6}(?:\.\d{1,6}){1,3})-[0-9a-f]{16}",
    re.ASCII,
)


def version_in(container: containers.Container) -> str:
    """Give the driver whose files a container's mounts are, empty if none are there."""
    names = (posixpath.basename(mount.source) for mount in container.mounts)
    return next(
        (match[1] or match[2] for name in names if (match := _VERSIONED.fullmatch(name))), ""
    )


def is_stale(entry: ledger.Entry, inventory: host.Inventory | None) -> bool:
    """Tell a container that the loaded module refuses, since it holds another driver's files."""
    loaded = inventory.driver_version if inventory else ""
    return bool(loaded) and entry.driver_version not in {"", loaded}


def problems(
    entries: Iterable[ledger.Entry], inventory: host.Inventory | None
) -> list[host.Problem]:
    """Give one problem that names all such containers with both versions, or none."""
    stale = [
        f"{entry.container.display} ({entry.driver_version})"
        for entry in entries
        if is_stale(entry, inventory)
    ]
    if not stale or inventory is None:
        return []
    return [
        host.Problem(
            code="stale-driver",
            message=f"the loaded driver is {inventory.driver_version}, and these containers hold "
            f"the files of an older or newer one: {', '.join(stale)}",
            hint="recreate them: to the kernel module their driver is another version",
        )
    ]
