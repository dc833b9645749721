# SPDX-License-Identifier: Apache-2.0
"""How a runtime joins what several plugins want."""

from typing import Any

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api

_STAGES = (
    "prestart",
    "create_runtime",
    "create_container",
    "start_container",
    "poststart",
    "poststop",
)
_REMOVED = "-"
"""What begins the key of an entry that is to be taken away."""


class CreationFailed(errors.Error):
    """Raised when a container's creation fails: a plugin refused, or two claim the same thing."""

    code = "creation-failed"


class Merged:
    """The adjustments of several plugins, with an owner for every key.

    A plugin takes away what one before it has set by an entry whose key has a dash before it, and
    may set it itself in the same answer: then it is the owner, and there is no conflict.
    """

    def __init__(self) -> None:
        self.adjustment = api.ContainerAdjustment()
        self._owners: dict[tuple[int, str], str] = {}
        self._hooking: list[str] = []

    def add(self, plugin: str, adjust: api.ContainerAdjustment) -> None:
        """Join one plugin's; raises CreationFailed when a key has an owner, be it itself."""
        into = self.adjustment
        self._join(plugin, api.Field.MOUNTS, "destination", into.mounts, adjust.mounts)
        self._join(plugin, api.Field.ENV, "key", into.env, adjust.env)
        devices, found = into.linux.devices, adjust.linux.devices
        self._join(plugin, api.Field.DEVICES, "path", devices, found)
        self._join(plugin, api.Field.CDI_DEVICES, "name", into.cdi_devices, adjust.cdi_devices)
        into.linux.resources.devices.extend(adjust.linux.resources.devices)
        for key, value in adjust.annotations.items():
            self._claim(plugin, api.Field.ANNOTATIONS, key)
            into.annotations[key] = value
        for stage in _STAGES:
            added = getattr(adjust.hooks, stage)
            getattr(into.hooks, stage).extend(added)
            if added and plugin not in self._hooking:
                self._hooking.append(plugin)

    def owners(self) -> api.FieldOwners:
        """Give who set or took away what, as validators are told it."""
        found = api.FieldOwners()
        for (field, key), owner in self._owners.items():
            entries = found.compound.setdefault(field, api.CompoundFieldOwners())
            entries.owners[key] = owner
        if self._hooking:
            found.simple[api.Field.OCI_HOOKS] = ",".join(self._hooking)
        return found

    def _join(
        self, plugin: str, field: int, named: str, into: list[Any], added: list[Any]
    ) -> None:
        """Take out what is to be taken away, then put in what is not."""
        gone = {key[1:] for entry in added if (key := getattr(entry, named)).startswith(_REMOVED)}
        for key in gone:
            self._owners[field, key] = f"{_REMOVED}{plugin}"
        into[:] = [entry for entry in into if getattr(entry, named) not in gone]
        for entry in added:
            if not getattr(entry, named).startswith(_REMOVED):
                self._claim(plugin, field, getattr(entry, named))
                into.append(entry)

    def _claim(self, plugin: str, field: int, key: str) -> None:
        owner = self._owners.get((field, key), "")
        if owner and owner != f"{_REMOVED}{plugin}":
            what = _WORDS[field]
            raise CreationFailed(
                f'plugins "{owner}" and "{plugin}" both tried to set {what} {key}'
            )
        self._owners[field, key] = plugin


_WORDS: dict[int, str] = {
    api.Field.ANNOTATIONS: "annotation",
    api.Field.MOUNTS: "mount",
    api.Field.DEVICES: "device",
    api.Field.CDI_DEVICES: "CDI device",
    api.Field.ENV: "env",
}
