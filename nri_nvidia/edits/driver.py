# SPDX-License-Identifier: Apache-2.0
"""Driver files: libraries, binaries, firmware and sockets, each a bind mount (layout `files`)."""

import posixpath
from collections.abc import Iterable, Iterator

from nri_nvidia import errors
from nri_nvidia.edits import model
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model

_SOCKET_OPTIONS = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
_DIRECTORIES = {
    host.FileKind.LIBRARY: "lib64",
    host.FileKind.LIBRARY32: "lib32",
    host.FileKind.BINARY: "bin",
    host.FileKind.CONFIG: "share",
}
_IMPLIED = {
    request_model.Capability.VIDEO: request_model.Capability.COMPUTE,
    request_model.Capability.DISPLAY: request_model.Capability.GRAPHICS,
}


def build(
    capabilities: frozenset[request_model.Capability],
    inventory: host.Inventory,
    mounts: tuple[containers.Mount, ...],
    library_dir: str,
) -> tuple[model.ContainerEdits, tuple[Reason, ...]]:
    """Give the mounts, and what was left to the container's own mounts.

    A mount of the user's at or above a place of ours below `library_dir` wins there. Raises
    HostError where the driver is loaded and its libraries are not to be found.
    """
    wanted = [file for file in inventory.files if selected(file, capabilities)]
    _require_libraries(wanted, capabilities, inventory)
    kept: list[str] = []
    edits: dict[str, model.MountEdit] = {}
    own = {posixpath.normpath(mount.destination): mount for mount in mounts}
    for file in wanted:
        for destination in _destinations(file, library_dir):
            winner = _users_mount(destination, own, library_dir)
            if winner:
                kept.append(winner)
            elif destination not in edits:
                edits[destination] = _mount(file, destination)
    return model.ContainerEdits(mounts=tuple(edits.values())), _kept(kept)


def aliases(
    capabilities: frozenset[request_model.Capability], inventory: host.Inventory
) -> tuple[tuple[str, str], ...]:
    """Give the libraries' further names, each with the SONAME that it stands for."""
    return tuple(
        dict.fromkeys(
            (name, file.names[0])
            for file in inventory.files
            if file.kind in {host.FileKind.LIBRARY, host.FileKind.LIBRARY32}
            and selected(file, capabilities)
            for name in file.names[1:]
        )
    )


def selected(file: host.DriverFile, capabilities: frozenset[request_model.Capability]) -> bool:
    """Tell whether a file belongs to the capabilities asked for.

    video brings compute's files and display graphics' (libnvidia-container `nvc_info.c`); 32-bit
    libraries need compat32 besides.
    """
    if file.kind is host.FileKind.LIBRARY32 and (
        request_model.Capability.COMPAT32 not in capabilities
    ):
        return False
    effective = {
        str(c) for c in capabilities | {_IMPLIED[c] for c in capabilities & set(_IMPLIED)}
    }
    return not file.capabilities or bool(file.capabilities & effective)


def _require_libraries(
    wanted: Iterable[host.DriverFile],
    capabilities: frozenset[request_model.Capability],
    inventory: host.Inventory,
) -> None:
    needs = capabilities - {request_model.Capability.COMPAT32}
    if not needs or any(file.kind is host.FileKind.LIBRARY for file in wanted):
        return
    version = f" {inventory.driver_version}" if inventory.driver_version else ""
    missing = next((p for p in inventory.problems if p.code == "driver-libraries-missing"), None)
    raise errors.HostError(
        missing.message
        if missing
        else f"no library of the NVIDIA driver{version} for {', '.join(sorted(needs))} is on this "
        "node",
        hint=(missing.hint if missing else "")
        or "install the driver's user-space files, or name their place: host.driver_root, "
        "host.library_search_paths",
        code="driver-files-missing",
    )


def _destinations(file: host.DriverFile, library_dir: str) -> Iterator[str]:
    if file.destination:
        yield posixpath.normpath(file.destination)
        return
    directory = _DIRECTORIES[file.kind]
    # A library's further names are links that the hook makes: ld.so.cache knows a file by its
    # SONAME alone, and lists another name of it only for a link.
    for name in file.names[:1]:
        yield posixpath.normpath(posixpath.join(library_dir, directory, name))


def _mount(file: host.DriverFile, destination: str) -> model.MountEdit:
    if file.kind is host.FileKind.SOCKET:
        return model.MountEdit(
            source=file.source, destination=destination, options=_SOCKET_OPTIONS
        )
    return model.MountEdit(source=file.source, destination=destination)


def _users_mount(
    destination: str, own: dict[str, containers.Mount], library_dir: str
) -> str | None:
    """Give the user's mount that decides over a place; raise where it cannot be reached.

    A mount at the place itself or at `library_dir` or below it is the user's answer to the same
    question. One further up (`/usr/local`) only holds our directory; read-only, it cannot.
    """
    place = destination
    while place not in {"/", ""}:
        mount = own.get(place)
        if mount and (place == destination or _is_below(place, library_dir)):
            return place
        if mount and "ro" in mount.options:
            raise errors.RequestError(
                f"{destination}: the container's read-only mount {place} leaves no place for the "
                "driver's files",
                hint="make that mount writable, mount it elsewhere, or set inject.library_dir",
                code="no-place-for-driver-files",
            )
        place = posixpath.dirname(place)
    return None


def _is_below(place: str, directory: str) -> bool:
    return place == directory or place.startswith(directory.rstrip("/") + "/")


def _kept(places: Iterable[str]) -> tuple[Reason, ...]:
    return tuple(
        Reason(
            code="users-mount-kept",
            message=f"the container has a mount of its own at {place}: it is kept, and the "
            "driver's files for that place are not given",
            hint="remove that mount to get the node's driver files",
        )
        for place in dict.fromkeys(places)
    )
