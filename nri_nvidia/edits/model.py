# SPDX-License-Identifier: Apache-2.0
"""Changes to a container as a value that every door can render."""

from collections.abc import Callable
from typing import TypeVar

import attrs

from nri_nvidia.errors import Error

T = TypeVar("T")


@attrs.frozen(kw_only=True, cache_hash=True)
class DeviceEdit:
    """A device node to make in the container, with its cgroup rule."""

    path: str
    host_path: str
    type: str = "c"
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    access: str = "rw"


@attrs.frozen(kw_only=True, cache_hash=True)
class MountEdit:
    """A bind mount to make in the container."""

    source: str
    destination: str
    type: str = "bind"
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "rbind", "rprivate")


@attrs.frozen(kw_only=True)
class HookEdit:
    """A hook to run; `env` is never empty (an empty one would inherit the image's)."""

    stage: str
    path: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    timeout: int = 10


@attrs.frozen(kw_only=True)
class ContainerEdits:
    """All that changes in one container. Keys (paths, destinations, names) occur once each."""

    env: tuple[tuple[str, str], ...] = ()
    devices: tuple[DeviceEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    hooks: tuple[HookEdit, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changes at all."""
        return bool(self.env or self.devices or self.mounts or self.hooks)

    def merged(self, other: "ContainerEdits") -> "ContainerEdits":
        """Give these edits with another's behind them; the same key twice is our own defect.

        A runtime takes a repeated key for a conflict and fails the container, so equal entries are
        joined and different ones raise Error here, with both values.
        """
        return ContainerEdits(
            env=_join(self.env, other.env, lambda e: e[0]),
            devices=_join(self.devices, other.devices, lambda d: d.path),
            mounts=_join(self.mounts, other.mounts, lambda m: m.destination),
            hooks=self.hooks + other.hooks,
        )


def _join(first: tuple[T, ...], second: tuple[T, ...], key: Callable[[T], str]) -> tuple[T, ...]:
    if not second:
        return first
    known = {key(entry): entry for entry in first}
    added: list[T] = []
    for entry in second:
        existing = known.get(key(entry))
        if existing is None:
            known[key(entry)] = entry
            added.append(entry)
        elif existing != entry:
            raise Error(f"two edits claim {key(entry)}: {existing} and {entry}")
    return first + tuple(added)
