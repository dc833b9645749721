# SPDX-License-Identifier: Apache-2.0
"""Links `/dev/char/MAJOR:MINOR -> ../NAME`, by which a device is named where only numbers count.

udev makes one for every device that the kernel announces; NVIDIA's driver announces none of its
own. runc 1.1.3 to 1.1.6, asked to leave cgroups to systemd, drops the rule of a device without
such a link from what it tells systemd: the container works until systemd next writes its units'
rules (`systemctl daemon-reload`, an update of resources), and then has lost the device. systemd
before 240 needs the link itself.
"""

import os
import pathlib
import stat
from collections.abc import Iterable, Iterator

from .model import DeviceNode, Problem
from .root import Root

_DIRECTORY = "/dev/char"
_DIRECTORY_MODE = 0o755


def ensure(dev: Root, wanted: Iterable[DeviceNode]) -> tuple[Problem, ...]:
    """Make the links that are missing for the nodes that exist; tell what stands in the way.

    A link that leads to a device of these numbers is right, however it is spelled. Anything else
    at its place is left as it is. Nothing is written where every link is there.
    """
    directory = dev.resolve(_DIRECTORY)
    missing: dict[str, str] = {}
    problems: list[Problem] = []
    for node in wanted:
        name = f"{node.major}:{node.minor}"
        if not node.exists or not node.path.startswith("/dev/") or name in missing:
            continue
        if directory and os.path.lexists(dev.on_disk(f"{directory}/{name}")):
            problems += _wrong(dev, name, node)
        else:
            missing[name] = f"../{node.path.removeprefix('/dev/')}"
    return *problems, *_make(dev, missing)


def _wrong(dev: Root, name: str, node: DeviceNode) -> Iterator[Problem]:
    path = f"{_DIRECTORY}/{name}"
    found = dev.stat(path)
    numbers = os.makedev(node.major, node.minor)
    if found is not None and stat.S_ISCHR(found.st_mode) and found.st_rdev == numbers:
        return
    place = pathlib.Path(dev.on_disk(path))
    what = f"leads to {place.readlink()}" if place.is_symlink() else "is no link"
    yield Problem(
        code="dev-char-link-wrong",
        message=f"{place} {what}, which is not {node.host_path}: "
        "containers may lose that device at a daemon-reload of systemd",
        hint=f"ln -sfn ../{node.path.removeprefix('/dev/')} {place}",
    )


def _make(dev: Root, missing: dict[str, str]) -> Iterator[Problem]:
    """Make links by name and target; all that cannot be made are one problem."""
    refused: dict[str, str] = {}
    for name, target in missing.items():
        try:
            pathlib.Path(_directory(dev), name).symlink_to(target)
        except FileExistsError:
            continue  # another was faster; the next scan looks at what it made
        except OSError as error:
            refused[name] = error.strerror or type(error).__name__
    if refused:
        names = ", ".join(refused)
        yield Problem(
            code="dev-char-link-missing",
            message=f"{dev.on_disk(_DIRECTORY)} lacks links for {names} and they cannot be made "
            f"({', '.join(sorted(set(refused.values())))}): "
            "containers may lose these devices at a daemon-reload of systemd",
            hint="make them with ln -s, or set host.dev_char_symlinks = false "
            "where runc is 1.1.7 or newer and systemd 240 or newer",
        )


def _directory(dev: Root) -> str:
    """Give the directory on disk, made if it is missing; raises OSError."""
    found = dev.resolve(_DIRECTORY)
    if found is None:
        above = dev.resolve("/dev") or "/dev"
        found = f"{above}/char"
        pathlib.Path(dev.on_disk(found)).mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
    return dev.on_disk(found)
