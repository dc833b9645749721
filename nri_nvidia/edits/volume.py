# SPDX-License-Identifier: Apache-2.0
"""Which directory of driver files a container is given by one mount (layout `volume`).

The directory has the names that the layout `files` would make below `library_dir`, so a container
sees the same in both. Its own name tells its content: the same name is never another content.
"""

import hashlib
import posixpath
from collections.abc import Iterable, Mapping

import attrs

from nri_nvidia.edits import compat, driver, model
from nri_nvidia.host import derived
from nri_nvidia.host import model as host
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model


@attrs.frozen(kw_only=True)
class Volume:
    """What a prepared directory holds.

    `name` is `<driver version>-<digest>`. `files` are pairs of a path in the directory and the
    host's file, `links` of a path and the link's text.
    """

    name: str
    files: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]

    @property
    def programs(self) -> tuple[str, ...]:
        """The names of the programs in it."""
        return tuple(path[4:] for path, _ in self.files if path.startswith("bin/"))


def wanted(
    capabilities: frozenset[request_model.Capability], inventory: host.Inventory
) -> Volume | None:
    """Give the directory for these capabilities, None where no file would be in it."""
    return _wanted(inventory, capabilities)


@derived.kept
def _wanted(
    inventory: host.Inventory, capabilities: frozenset[request_model.Capability]
) -> Volume | None:
    files: dict[str, host.DriverFile] = {}
    for file in inventory.files:
        directory = driver.DIRECTORIES.get(file.kind)
        if directory and not file.destination and driver.selected(file, capabilities):
            files.setdefault(posixpath.join(directory, file.names[0]), file)
    if not files:
        return None
    links = {
        posixpath.join(directory, name): soname
        for name, soname in driver.aliases(capabilities, inventory)
        for directory in ("lib64", "lib32")
        if posixpath.join(directory, soname) in files
        and posixpath.join(directory, name) not in files
    }
    if "lib64/libcuda.so.1" in files:
        links["lib"] = compat.LINK  # leads nowhere, unless the hook finds a newer CUDA driver
    digest = hashlib.sha256()
    for path, file in sorted(files.items()):
        digest.update(f"{path}\0{file.source}\0{file.identity}\0".encode())
    for path, target in sorted(links.items()):
        digest.update(f"{path}\0{target}\0".encode())
    version = inventory.libraries_version or inventory.driver_version or "unknown"
    return Volume(
        name=f"{version}-{digest.hexdigest()[:16]}",
        files=tuple((path, file.source) for path, file in sorted(files.items())),
        links=tuple(sorted(links.items())),
    )


def mount(
    volume: Volume,
    ready: Mapping[str, str],
    mounts: Iterable[containers.Mount],
    library_dir: str,
) -> model.MountEdit | None:
    """Give the one mount, or None where the files have to be mounted one by one.

    That is while the directory is not ready, and where the container has a mount of its own at
    `library_dir` or below it: no place for that could be made in ours, which is read-only.
    """
    source = ready.get(volume.name)
    inside = library_dir.rstrip("/") + "/"
    if source is None or any(
        (posixpath.normpath(each.destination) + "/").startswith(inside) for each in mounts
    ):
        return None
    return model.MountEdit(source=source, destination=library_dir)
