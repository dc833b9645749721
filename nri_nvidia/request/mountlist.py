# SPDX-License-Identifier: Apache-2.0
"""Requests as mounts of /dev/null: a device plugin names devices so (`volume-mounts`).

Source: toolkit `image/devices.go`. Other than there a name needs a separator behind the root.
"""

import posixpath
from collections.abc import Iterable, Iterator

from nri_nvidia import errors
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers

ROOT = "/var/run/nvidia-container-devices"
_LONGEST_SHOWN = 400


def named(mounts: Iterable[containers.Mount]) -> tuple[str, ...]:
    """Give what mounts of /dev/null below the root name, e.g. `GPU-…` or `imex/0`."""
    found = []
    for mount in mounts:
        if posixpath.normpath(mount.source) != "/dev/null":
            continue
        destination = posixpath.normpath(mount.destination)
        if destination.startswith(ROOT + "/"):
            found.append(destination[len(ROOT) + 1 :])
    return tuple(dict.fromkeys(found))


def devices(mounts: Iterable[containers.Mount]) -> tuple[str, ...]:
    """Give the devices among what is named: all but IMEX channels; CDI names as such."""
    found = []
    for item in named(mounts):
        head, _, rest = item.partition("/")
        name = _cdi(rest) if head == "cdi" else item
        if name and head != "imex":
            found.append(name)
    return tuple(dict.fromkeys(found))


def channels(mounts: Iterable[containers.Mount]) -> tuple[str, ...]:
    """Give the IMEX channels that are named."""
    return tuple(item[5:] for item in named(mounts) if item.startswith("imex/"))


def misread(mounts: Iterable[containers.Mount]) -> Iterator[Reason]:
    """Say which mounts name no device though they are where devices are named."""
    for item in named(mounts):
        head, _, rest = item.partition("/")
        if item == "imex" or (head == "cdi" and not _cdi(rest)):
            yield Reason(
                code="mount-names-no-device",
                message=f"the mount {ROOT}/{item} names no device, so it is ignored",
                hint=f"write {ROOT}/cdi/VENDOR/CLASS/DEVICE, or {ROOT}/imex/CHANNEL",
            )


def not_accepted(mounts: Iterable[containers.Mount]) -> Iterator[Reason]:
    """Say that mounts ask for devices where requests by mounts do not count."""
    found = named(mounts)
    if found:
        yield Reason(
            code="volume-mounts-not-accepted",
            message=f"mounts below {ROOT} name {errors.cut(', '.join(found), _LONGEST_SHOWN)} and "
            "do not count: request.accept_volume_mounts is false on this node",
            hint="request.accept_volume_mounts = true accepts them; or ask by "
            "NVIDIA_VISIBLE_DEVICES",
        )


def _cdi(rest: str) -> str | None:
    """Read `vendor/class/device` or `vendor/class=device`; None for anything shorter."""
    vendor, _, remainder = rest.partition("/")
    kind, separator, device = remainder.partition("=" if "=" in remainder else "/")
    return f"{vendor}/{kind}={device}" if separator and vendor and kind and device else None
