# SPDX-License-Identifier: Apache-2.0
"""What a container may ask for beside GPUs: groups of nodes, IMEX channels, MIG management."""

from collections.abc import Iterable, Mapping

import attrs

from nri_nvidia import errors
from nri_nvidia.request import model

# Exactly this value counts, and no privilege is needed (toolkit `internal/modifier/gated.go`).
_ENABLED = "enabled"
_CDI_VENDOR = "nvidia.com"
_IMEX_KIND = f"{_CDI_VENDOR}/imex-channel"
_NAMES = {group: f"{_CDI_VENDOR}/{group}=all" for group in model.Group}
_CDI_NAMES = {name: group for group, name in _NAMES.items()}
_VARIABLES = {group: f"NVIDIA_{group.upper()}" for group in model.Group}
_MANAGING = {kind: f"NVIDIA_MIG_{kind.upper()}_DEVICES" for kind in model.MigManagement}


@attrs.frozen(kw_only=True)
class Named:
    """CDI names of NVIDIA's other kinds, taken out of a list of devices."""

    devices: tuple[str, ...]
    imex_channels: tuple[str, ...] = ()
    groups: tuple[model.Group, ...] = ()


def variable(group: model.Group) -> str:
    """Give the variable by which a group is asked for."""
    return _VARIABLES[group]


def name(group: model.Group) -> str:
    """Give the CDI name by which a group is asked for."""
    return _NAMES[group]


def managing(kind: model.MigManagement) -> str:
    """Give the variable by which a right over MIG is asked for."""
    return _MANAGING[kind]


def groups(env: Mapping[str, str]) -> tuple[model.Group, ...]:
    """Give the groups of nodes that the environment switches on."""
    return tuple(group for group, name in _VARIABLES.items() if env.get(name) == _ENABLED)


def named(devices: tuple[str, ...]) -> Named:
    """Sort out `nvidia.com/imex-channel=0` and `nvidia.com/gds=all`.

    NVIDIA's device plugin gives channels and groups by these names beside those of GPUs
    (`internal/plugin/server.go`).
    """
    if not any("=" in device for device in devices):
        return Named(devices=devices)
    left: list[str] = []
    channels: list[str] = []
    found: list[model.Group] = []
    for device in devices:
        kind, _, name = device.partition("=")
        if kind == _IMEX_KIND and name:
            channels.append(name)
        elif device in _CDI_NAMES:
            found.append(_CDI_NAMES[device])
        else:
            left.append(device)
    return Named(devices=tuple(left), imex_channels=tuple(channels), groups=tuple(found))


def mig_management(env: Mapping[str, str], *, privileged: bool) -> tuple[model.MigManagement, ...]:
    """Give the kinds of MIG management that are asked for; an empty variable asks for nothing.

    Raises RequestError for a container that is not privileged (toolkit
    `nvidia-container-runtime-hook/container_config.go`).
    """
    kinds = tuple(kind for kind, name in _MANAGING.items() if env.get(name))
    if kinds and not privileged:
        name = _MANAGING[kinds[0]]
        raise errors.RequestError(
            f"{name}={env[name]}: only a privileged container may manage MIG",
            hint="make the container privileged, name its namespace in "
            "request.management_namespaces, or remove the variable",
            code="mig-management-unprivileged",
        )
    return kinds


def require_all(kinds: Iterable[model.MigManagement], env: Mapping[str, str]) -> None:
    """Raise RequestError for a value other than `all`, in any case of letters.

    In NVIDIA's stack that is looked at later than all else (libnvidia-container `cli/common.c`).
    """
    for kind in kinds:
        name = _MANAGING[kind]
        if env[name].strip().lower() != "all":
            raise errors.RequestError(
                f"{name}={env[name]}: only all is possible: MIG of every GPU or of none",
                hint=f"write {name}=all",
                code="mig-management-not-all",
            )
