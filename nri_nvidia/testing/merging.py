# SPDX-License-Identifier: Apache-2.0
"""How a runtime joins what several plugins want."""

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


class CreationFailed(errors.Error):
    """Raised when a container's creation fails: a plugin refused, or two claim the same thing."""

    code = "creation-failed"


class Merged:
    """The adjustments of several plugins, with an owner for every key."""

    def __init__(self) -> None:
        self.adjustment = api.ContainerAdjustment()
        self._owners: dict[tuple[str, str], str] = {}

    def add(self, plugin: str, adjust: api.ContainerAdjustment) -> None:
        """Join one plugin's; raises CreationFailed when a key has an owner, be it itself."""
        into = self.adjustment
        for mount in adjust.mounts:
            self._claim(plugin, "mount", mount.destination)
            into.mounts.append(mount)
        for variable in adjust.env:
            self._claim(plugin, "env", variable.key)
            into.env.append(variable)
        for device in adjust.linux.devices:
            self._claim(plugin, "device", device.path)
            into.linux.devices.append(device)
        for key, value in adjust.annotations.items():
            self._claim(plugin, "annotation", key)
            into.annotations[key] = value
        for stage in _STAGES:
            getattr(into.hooks, stage).extend(getattr(adjust.hooks, stage))

    def _claim(self, plugin: str, what: str, key: str) -> None:
        owner = self._owners.get((what, key))
        if owner is not None:
            raise CreationFailed(
                f'plugins "{owner}" and "{plugin}" both tried to set {what} {key}'
            )
        self._owners[what, key] = plugin
