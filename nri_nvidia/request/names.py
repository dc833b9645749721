# SPDX-License-Identifier: Apache-2.0
"""How a device may be named: by id, by a qualified name of CDI, as a device plugin's replica.

A qualified name is `vendor/class=device` (CDI SPEC, "kind" and "name"). Those of NVIDIA's GPUs
mean the id in them, so they work on every channel; those of other vendors are the runtime's own
business.
"""

import re
from collections.abc import Iterable

import attrs

from nri_nvidia import errors

GPU_KINDS = frozenset({"nvidia.com/gpu", "runtime.nvidia.com/gpu"})
"""What NVIDIA's specifications and its runtime call a GPU; here both are the same."""
MANAGEMENT_KIND = "management.nvidia.com/gpu"
NO_GPU = "nvidia.com/gpu=none"
"""The driver's files and no GPU."""
_RUNTIME_KIND = "runtime.nvidia.com/gpu"
_OWN_VENDORS = ("nvidia.com", ".nvidia.com")
_QUALIFIED = re.compile(
    r"([A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
    r"/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)"
    r"=([A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?)"
)
# The strategy `type-index` of NVIDIA's CDI specifications writes gpu0 and mig0:1.
_TYPE_INDEX = re.compile(r"gpu([0-9]{1,9})|mig([0-9]{1,9}:[0-9]{1,9})")
# A shared GPU is handed out several times, each with a number of its own (device plugin, `rm`).
_REPLICA = re.compile(r"(.+)::[0-9]{1,9}")


@attrs.frozen(kw_only=True)
class Qualified:
    """A CDI name in its parts; `kind` is `vendor/class`."""

    kind: str
    device: str


def qualified(text: str) -> Qualified | None:
    """Read a CDI name; None for anything else."""
    match = _QUALIFIED.fullmatch(text)
    return Qualified(kind=match[1], device=match[2]) if match else None


def is_foreign(text: str) -> bool:
    """Tell the CDI name of another vendor's device."""
    name = qualified(text)
    vendor = name.kind.partition("/")[0] if name else ""
    return name is not None and vendor != _OWN_VENDORS[0] and not vendor.endswith(_OWN_VENDORS[1])


def plain(text: str) -> str:
    """Give the id that a name means: without a GPU's kind, without the number of a replica."""
    kind, separator, device = text.partition("=")
    if separator and kind in GPU_KINDS:
        text = device
        if match := _TYPE_INDEX.fullmatch(device):
            text = match[1] or match[2]
    replica = _REPLICA.fullmatch(text)
    return replica[1] if replica else text


def keyword(devices: Iterable[str]) -> str:
    """Give `all` or `none` if a list holds it, whichever comes first, else an empty text.

    `all` counts in any case of letters; `none` counts by its CDI name, since without it that is
    the variable's own keyword, read before (toolkit `lib-nvml.go`).
    """
    for device in devices:
        if plain(device).lower() == "all":
            return "all"
        name = qualified(device)
        if name and name.kind in GPU_KINDS and name.device == "none":
            return "none"
    return ""


def require_known(devices: Iterable[str], variable: str) -> None:
    """Raise RequestError for CDI names that cannot be given here, or not together.

    A GPU by the runtime's own kind goes with no other kind, as upstream (`lib.go`). Management
    names are taken out of a privileged container's list before.
    """
    names = [(text, name) for text in devices if (name := qualified(text))]
    kinds = dict.fromkeys(name.kind for _, name in names)
    for text, name in names:
        if name.kind == MANAGEMENT_KIND:
            raise errors.RequestError(
                f"{variable}: {text}: only a privileged container, or one in a namespace of "
                "request.management_namespaces, is given the management nodes",
                hint="make the container privileged, or ask for nvidia.com/gpu",
                code="management-unprivileged",
            )
        if name.kind not in GPU_KINDS:
            raise errors.RequestError(
                f"{variable}: {text}: devices of kind {name.kind} are not given here; those of "
                f"{', '.join(sorted(GPU_KINDS))} are",
                hint="ask the runtime for it: its CDI annotation or option --device",
                code="foreign-cdi-kind",
            )
    if _RUNTIME_KIND in kinds and len(kinds) > 1:
        raise errors.RequestError(
            f"{variable}: {', '.join(text for text, _ in names)}: {_RUNTIME_KIND} cannot be asked "
            "for together with other CDI kinds",
            hint="name all GPUs by one kind",
            code="mixed-cdi-kinds",
        )
