# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself left on the node, and may be removed with it."""

import contextlib
import pathlib
import shutil
from collections.abc import Iterable

from nri_nvidia.host import volumes

RUNTIME = "/run/nri-nvidia"
STATE = "/var/lib/nri-nvidia"
_CDI = ("/etc/cdi", "/var/run/cdi")


def remove(runtime: str = RUNTIME, state: str = STATE, cdi: Iterable[str] = _CDI) -> list[str]:
    """Remove the daemon's directories at their usual places; give what stays, and why.

    Prepared driver directories that a container has mounted stay, and the hook while a CDI
    specification names it.
    """
    stays = []
    top = pathlib.Path(state, "driver")
    mounted = {part for root in volumes.mount_roots() for part in root.split("/")}
    for each in sorted(top.iterdir()) if top.is_dir() else ():
        if each.name in mounted:
            stays.append(f"{each}: left, since containers use it")
        else:
            shutil.rmtree(each, ignore_errors=True)
    for folder in (top, pathlib.Path(state)):
        with contextlib.suppress(OSError):
            folder.rmdir()
    named = [str(path) for path in specifications(cdi) if runtime in _text(path)]
    if named:
        stays.append(f"{runtime}: left, since {', '.join(named)} names the hook in it")
    else:
        shutil.rmtree(runtime, ignore_errors=True)
    return stays


def specifications(directories: Iterable[str]) -> list[pathlib.Path]:
    """Give the files in directories of CDI specifications."""
    return sorted(
        path
        for directory in directories
        for path in pathlib.Path(directory).glob("*")
        if path.is_file()
    )


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
