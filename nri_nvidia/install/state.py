# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself left on the node, and may be removed with it."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterable

import attrs

from nri_nvidia.config import model
from nri_nvidia.daemon import standing
from nri_nvidia.host import volumes
from nri_nvidia.oci import cdifiles

RUNTIME = "/run/nri-nvidia"
STATE = "/var/lib/nri-nvidia"


@attrs.frozen(kw_only=True)
class Places:
    """Where the daemon writes: its two directories, and what it has beside the runtime and CDI.

    `kept` are the CDI specifications that the daemon keeps, `elsewhere` directories of its that
    settings (the first of each pair) have put outside of the two.
    """

    runtime: str = RUNTIME
    state: str = STATE
    cdi: tuple[str, ...] = cdifiles.DIRECTORIES
    nri_socket: str = model.Nri().socket
    kept: tuple[str, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()


def places(settings: model.Config) -> Places:
    """Give where a daemon with these settings writes."""
    chosen = {
        "control.socket": os.path.dirname(settings.control.socket),  # noqa: PTH120
        "hook.directory": settings.hook.directory,
        "inject.volume_dir": settings.inject.volume_dir,
    }
    kinds = settings.cdi.kinds if settings.cdi.keep else ()
    return Places(
        nri_socket=settings.nri.socket,
        kept=tuple(f"{settings.cdi.directory}/{cdifiles.name_of(kind)}" for kind in kinds),
        elsewhere=tuple(
            (key, path)
            for key, path in chosen.items()
            if not f"{path}/".startswith((f"{RUNTIME}/", f"{STATE}/"))
        ),
    )


def remove(written: Places) -> list[str]:
    """Remove what the daemon wrote at its usual places; give what stays, and why.

    Prepared driver directories that a container has mounted stay, and the hook while a CDI
    specification of somebody else's making names it.
    """
    stays = []
    for kept in written.kept:
        pathlib.Path(kept).unlink(missing_ok=True)
    if not standing.remove(written.nri_socket):
        lock = standing.place(written.nri_socket)
        stays.append(
            f"{lock}: left: another nri-nvidia serves that runtime, or it cannot be removed"
        )
    for key, path in written.elsewhere:
        if os.path.lexists(path):
            stays.append(f"{path}: left, since {key} names it; look what is in it, and remove it")
    runtime, state = written.runtime, written.state
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
    named = [str(path) for path in specifications(written.cdi) if runtime in _text(path)]
    if named:
        stays.append(
            f"{runtime}: left, since {', '.join(named)} names the hook in it; remove both"
        )
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
