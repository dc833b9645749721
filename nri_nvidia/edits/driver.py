# SPDX-License-Identifier: Apache-2.0
"""Driver files: libraries, binaries, firmware and sockets, each a bind mount (layout `files`)."""

import functools
import posixpath
from collections.abc import Iterable, Iterator, Mapping

from nri_nvidia import errors
from nri_nvidia.edits import model
from nri_nvidia.host import derived
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model

_KEPT_PLACES, _KEPT_LENGTH = 512, 256
_SOCKET_OPTIONS = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
LIBRARIES = "lib64"
DIRECTORIES = {
    host.FileKind.LIBRARY: LIBRARIES,
    host.FileKind.LIBRARY32: "lib32",
    host.FileKind.BINARY: "bin",
    host.FileKind.CONFIG: "share",
    host.FileKind.XORG: "xorg",
}
_IMPLIED = {
    request_model.Capability.VIDEO: request_model.Capability.COMPUTE,
    request_model.Capability.DISPLAY: request_model.Capability.GRAPHICS,
}

# The directory of a link (`host.model.DriverFile.links`) -> the capability that it is for: the
# file may be given for another one besides.
_LINKED_FOR = {"gbm": "graphics", "xorg": "graphics", "vdpau": "video"}


def build(
    capabilities: frozenset[request_model.Capability],
    inventory: host.Inventory,
    mounts: tuple[containers.Mount, ...],
    library_dir: str,
    whole: model.MountEdit | None = None,
) -> tuple[model.ContainerEdits, tuple[Reason, ...]]:
    """Give the mounts, and what was left to the container's own mounts.

    `whole` is the one mount at `library_dir` that holds all that belongs below it, if there is.
    A mount of the user's at or above a place of ours below `library_dir` wins there, and one that
    holds a file's own fixed place may keep it out. Raises HostError where the driver is loaded and
    its libraries are not to be found, RequestError where there is no place for them.
    """
    # Of two mounts that turn out to be at one place the stricter counts.
    own = {_place(m.destination): m for m in sorted(mounts, key=lambda m: "ro" in m.options)}
    if own.keys().isdisjoint(above(inventory, capabilities, library_dir)):
        return _undisturbed(inventory, capabilities, library_dir, whole)
    return _build(capabilities, inventory, own, library_dir, whole)


@derived.kept
def _undisturbed(
    inventory: host.Inventory,
    capabilities: frozenset[request_model.Capability],
    library_dir: str,
    whole: model.MountEdit | None,
) -> tuple[model.ContainerEdits, tuple[Reason, ...]]:
    """Give what a container gets whose own mounts are elsewhere, as nearly all are."""
    return _build(capabilities, inventory, {}, library_dir, whole)


@derived.kept
def above(
    inventory: host.Inventory, capabilities: frozenset[request_model.Capability], library_dir: str
) -> frozenset[str]:
    """Give all places of ours and what is above them: a mount elsewhere changes nothing."""
    found = {library_dir}
    for file in inventory.files:
        if selected(file, capabilities):
            found.update(_destinations(file, library_dir))
    further = found
    while further:
        further = {posixpath.dirname(place) for place in further} - found
        found |= further
    return frozenset(found)


def places(mounts: Iterable[containers.Mount]) -> frozenset[str]:
    """Give where a container's own mounts are."""
    return frozenset([_place(mount.destination) for mount in mounts])


def _build(
    capabilities: frozenset[request_model.Capability],
    inventory: host.Inventory,
    own: Mapping[str, containers.Mount],
    library_dir: str,
    whole: model.MountEdit | None,
) -> tuple[model.ContainerEdits, tuple[Reason, ...]]:
    wanted = [file for file in inventory.files if selected(file, capabilities)]
    _require_libraries(wanted, capabilities, inventory)
    _require_cuda(wanted, capabilities, inventory)
    kept: list[str] = []
    edits: dict[str, model.MountEdit] = {}
    if whole:
        edits[library_dir] = whole
        require_place(library_dir, own)
    for file in wanted:
        if whole and not file.destination:
            continue
        for destination in _destinations(file, library_dir):
            winner = _users_mount(file, destination, own, library_dir)
            if winner:
                kept.append(winner)
            elif destination not in edits:
                edits[destination] = _mount(file, destination)
    noted = (*_kept(kept), *_vulkan(wanted), *_without_nvml(wanted, capabilities, inventory))
    return model.ContainerEdits(mounts=tuple(edits.values())), noted


def aliases(
    capabilities: frozenset[request_model.Capability], inventory: host.Inventory
) -> tuple[tuple[str, str], ...]:
    """Give the libraries' further names, each with the SONAME that it stands for."""
    return _aliases(inventory, capabilities)


@derived.kept
def _aliases(
    inventory: host.Inventory, capabilities: frozenset[request_model.Capability]
) -> tuple[tuple[str, str], ...]:
    return tuple(
        dict.fromkeys(
            (name, file.names[0])
            for file in inventory.files
            if file.kind in {host.FileKind.LIBRARY, host.FileKind.LIBRARY32}
            and selected(file, capabilities)
            for name in file.names[1:]
        )
    )


def links(
    capabilities: frozenset[request_model.Capability], inventory: host.Inventory
) -> tuple[tuple[str, str], ...]:
    """Give the links to make in an image's own library directories, for what looks only there.

    Each is a path below such a directory and the path below `library_dir` that it leads to.
    """
    return _links(inventory, capabilities)


@derived.kept
def _links(
    inventory: host.Inventory, capabilities: frozenset[request_model.Capability]
) -> tuple[tuple[str, str], ...]:
    brought = effective(capabilities)
    return tuple(
        (link, posixpath.join(DIRECTORIES[file.kind], file.names[0]))
        for file in inventory.files
        if selected(file, capabilities)
        for link in file.links
        if _LINKED_FOR[link.partition("/")[0]] in brought
    )


def effective(capabilities: frozenset[request_model.Capability]) -> set[str]:
    """Give the capabilities asked for with those that they bring (`nvc_info.c`)."""
    return {str(c) for c in capabilities | {_IMPLIED[c] for c in capabilities & set(_IMPLIED)}}


def selected(file: host.DriverFile, capabilities: frozenset[request_model.Capability]) -> bool:
    """Tell whether a file belongs to the capabilities asked for.

    video brings compute's files and display graphics' (libnvidia-container `nvc_info.c`); 32-bit
    libraries need compat32 besides.
    """
    if file.kind is host.FileKind.LIBRARY32 and (
        request_model.Capability.COMPAT32 not in capabilities
    ):
        return False
    return not file.capabilities or bool(file.capabilities & effective(capabilities))


def _require_libraries(
    wanted: Iterable[host.DriverFile],
    capabilities: frozenset[request_model.Capability],
    inventory: host.Inventory,
) -> None:
    needs = capabilities - {request_model.Capability.COMPAT32}
    of_use = {host.FileKind.LIBRARY, host.FileKind.LISTED}
    if not needs or any(file.kind in of_use for file in wanted):
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


def _require_cuda(
    wanted: Iterable[host.DriverFile],
    capabilities: frozenset[request_model.Capability],
    inventory: host.Inventory,
) -> None:
    """Raise HostError where a container that computes would be given a driver without libcuda."""
    if request_model.Capability.COMPUTE not in capabilities:
        return
    gap = _gap("libcuda", inventory)
    if gap and not any("libcuda.so.1" in file.names for file in wanted):
        raise errors.HostError(
            f"compute is asked for, and {gap.message}",
            hint=f"{gap.hint}; without it: NVIDIA_DRIVER_CAPABILITIES=utility",
            code="driver-files-missing",
        )


def _without_nvml(
    wanted: Iterable[host.DriverFile],
    capabilities: frozenset[request_model.Capability],
    inventory: host.Inventory,
) -> Iterator[Reason]:
    """Say where nvidia-smi and what else asks NVML will not run; programs can still compute."""
    gap = _gap("libnvidia-ml", inventory)
    if not gap or request_model.Capability.UTILITY not in capabilities:
        return
    if not any("libnvidia-ml.so.1" in file.names for file in wanted):
        yield Reason(
            code=gap.code,
            message=f"utility is asked for, and {gap.message}: nvidia-smi will not run",
            hint=gap.hint,
        )


def _gap(library: str, inventory: host.Inventory) -> host.Problem | None:
    """Give the problem that says why a library is not among the driver's files."""
    codes = {"driver-incomplete", "driver-library-missing", "driver-library-damaged"}
    return next(
        (
            problem
            for problem in inventory.problems
            if problem.code in codes and problem.message.startswith(f"{library} ")
        ),
        None,
    )


def _destinations(file: host.DriverFile, library_dir: str) -> Iterator[str]:
    if file.destination:
        yield posixpath.normpath(file.destination)
        return
    directory = DIRECTORIES[file.kind]
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


def _place(destination: str) -> str:
    """Give a mount's place, by the name that images' own link makes of it."""
    return _known(destination) if len(destination) <= _KEPT_LENGTH else _cleaned(destination)


def _cleaned(destination: str) -> str:
    place = posixpath.normpath(destination)
    # Of two slashes at the beginning normpath keeps both, as POSIX has it; runtimes do not.
    place = place[1:] if place.startswith("//") else place
    return place.removeprefix("/var") if _is_below(place, "/var/run") else place


# Most containers have their mounts at the same places.
_known = functools.lru_cache(maxsize=_KEPT_PLACES)(_cleaned)


def _users_mount(
    file: host.DriverFile, destination: str, own: Mapping[str, containers.Mount], library_dir: str
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
        if mount and file.destination and not _can_hold(mount, file):
            return place
        place = posixpath.dirname(place)
    require_place(destination, own)
    return None


def require_place(destination: str, own: Mapping[str, containers.Mount]) -> None:
    """Raise RequestError where a read-only mount of the container's leaves no place for ours."""
    place = destination
    while place not in {"/", ""}:
        mount = own.get(place)
        if mount and "ro" in mount.options:
            raise errors.RequestError(
                f"{destination}: the container's read-only mount {place} leaves no place for the "
                "driver's files",
                hint="make that mount writable, mount it elsewhere, or set inject.library_dir",
                code="no-place-for-driver-files",
            )
        place = posixpath.dirname(place)


def _can_hold(mount: containers.Mount, file: host.DriverFile) -> bool:
    """Tell whether a file that has its own place may have it inside a user's mount.

    The runtime makes an empty file there to mount on, which stays: in a directory of the host
    (`/etc`, `/lib/firmware`) that would be a broken configuration or firmware file of the host's.
    What is below /run and /tmp does not last.
    """
    if "ro" in mount.options:
        return False
    return mount.type == "tmpfs" or file.kind is host.FileKind.SOCKET


def _is_below(place: str, directory: str) -> bool:
    return place == directory or place.startswith(directory.rstrip("/") + "/")


def _vulkan(wanted: Iterable[host.DriverFile]) -> Iterator[Reason]:
    """Say where programs get the driver's Vulkan and no loader would find it."""
    files = list(wanted)
    has_driver = any("libGLX_nvidia.so.0" in file.names for file in files)
    if has_driver and not any("/vulkan/icd.d/" in file.destination for file in files):
        yield Reason(
            code="vulkan-icd-missing",
            message="this node has the driver's Vulkan library, and no vulkan/icd.d/nvidia_icd."
            "json below /etc or /usr/share: Vulkan programs in the container will not find it",
            hint="install the distribution's package of the driver's Vulkan ICD",
        )


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
