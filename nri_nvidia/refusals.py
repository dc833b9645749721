# SPDX-License-Identifier: Apache-2.0
"""Why a device that a container names cannot be given: what was asked, and what there is."""

import re
from collections.abc import Iterable

from nri_nvidia import errors
from nri_nvidia.host import model as host
from nri_nvidia.request import model as request_model
from nri_nvidia.request import mountlist, names

_INDEX = re.compile(r"[0-9]{1,9}")
_BEGINNING = re.compile(r"(?i:GPU|MIG|MIG-GPU)-[0-9A-Fa-f-]*")
_SPAN = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_PLACE = re.compile(r"[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{2}\.[0-7]")
_LISTED = "nri-nvidia devices lists them"
_MIN_PREFIX_DIGITS = 8
_MOST_LISTED = 16
_LONGEST_SHOWN = 400


def is_too_short(text: str) -> bool:
    """Tell that what follows `GPU-` or `MIG-` has too few hex digits to be a UUID's beginning."""
    digits = sum(character in "0123456789abcdef" for character in text[4:].lower())
    return digits < _MIN_PREFIX_DIGITS


def _short(device: str) -> str:
    """Say how much of a UUID is needed, where less was written."""
    text = names.plain(device)
    if not (_BEGINNING.fullmatch(text) and is_too_short(text)):
        return ""
    return f": of a UUID at least its first {_MIN_PREFIX_DIGITS} hex digits are needed"


def mig_devices(inventory: host.Inventory) -> Iterable[tuple[host.Gpu, host.MigDevice]]:
    """Give each MIG device with its GPU."""
    return ((gpu, mig) for gpu in inventory.usable for mig in gpu.mig_devices)


def require_order(
    request: request_model.GpuRequest, device: str, inventory: host.Inventory
) -> None:
    """Raise HostError where an index could mean another GPU."""
    if inventory.nvml_state == "mismatch":
        raise errors.HostError(
            f"{asked(request, device)}: NVML and the kernel count this node's GPUs in different "
            "orders, so an index could mean the wrong one",
            hint="ask by UUID; nri-nvidia devices lists them",
            code="index-ambiguous",
        )


def require_nvml(
    request: request_model.GpuRequest, device: str, inventory: host.Inventory
) -> None:
    """Raise HostError where MIG devices cannot be known."""
    if inventory.nvml_state == "absent":
        raise errors.HostError(
            f"{asked(request, device)}: NVML has not answered, and MIG devices are known from "
            "it alone",
            hint="try again; nri-nvidia devices says what NVML answers",
            code="nvml-not-available",
        )


def require_uuids(
    request: request_model.GpuRequest, device: str, inventory: host.Inventory
) -> None:
    """Raise HostError where a UUID that no GPU has may be that of one whose own is not known.

    So it is from boot to a GPU's first use, or NVML's first answer: /proc shows question marks.
    """
    without = [str(gpu.index) for gpu in inventory.usable if not gpu.uuid]
    may_be = _BEGINNING.fullmatch(names.plain(device)) and not _short(device)
    if without and inventory.nvml_state == "absent" and may_be:
        raise errors.HostError(
            f"{asked(request, device)}: no GPU of that UUID is known, and that of GPU "
            f"{', '.join(without)} is not, since NVML has not answered",
            hint="try again; nri-nvidia devices says what NVML answers",
            code="nvml-not-available",
        )


def asked(request: request_model.GpuRequest, *devices: str) -> str:
    """Write what was asked as its author did: `NVIDIA_VISIBLE_DEVICES=0,2`.

    A long text is cut: what stands behind it, what the node has, is to be seen too.
    """
    separator = "=" if request.source is request_model.Source.ENV else ": "
    return f"{request.variable}{separator}{errors.cut(','.join(devices), _LONGEST_SHOWN)}"


def unknown(
    request: request_model.GpuRequest, device: str, inventory: host.Inventory
) -> errors.RequestError:
    """Say that there is no such GPU, and which there are."""
    if device == mountlist.ROOT:
        return errors.RequestError(
            f"{asked(request, device)}: the devices are named by mounts below it, and none of "
            "them is accepted on this node, or there is none",
            hint="request.accept_volume_mounts = true accepts them; the device plugin's strategy "
            "volume-mounts makes them",
            code="volume-mounts-not-accepted",
        )
    have = _ranges(inventory) if _INDEX.fullmatch(names.plain(device)) else _named(inventory)
    return errors.RequestError(
        f"{asked(request, device)}: no such GPU{_short(device)}; this node has {have}",
        hint=_works(names.plain(device), inventory) or _LISTED,
        code="no-such-gpu",
    )


def _works(text: str, inventory: host.Inventory) -> str:
    """Say how to write what is written otherwise elsewhere; empty where nothing like it is there.

    Tools name GPUs by spans of indices, as lspci does by bus ids without their domain, and by the
    digits of UUIDs alone; files of variables are written as if a shell read them.
    """
    if match := _SPAN.fullmatch(text):
        first, last = int(match[1]), int(match[2])
        meant = [str(gpu.index) for gpu in inventory.usable if first <= gpu.index <= last]
        return f"a span is not read; write {','.join(meant) or 'each index, as 0,1'}"
    if plain := text.strip("\"'") if text.strip("\"'") != text else "":
        return f"quotation marks are read as a part of it; write {plain}"
    if _PLACE.fullmatch(text):
        wanted = text.lower().rjust(len("00:00.0"), "0")
        found = [gpu.bus_id for gpu in inventory.gpus if gpu.bus_id.endswith(f":{wanted}")]
        return f"a PCI bus id is read with its domain; write {found[0]}" if found else ""
    uuids = [gpu.uuid for gpu in inventory.usable]
    uuids += [mig.uuid for _, mig in mig_devices(inventory)]
    begun = text.lower()
    heads = {each[:4] for each in uuids if begun and each[4:].lower().startswith(begun)}
    if is_too_short(f"GPU-{text}") or len(heads) != 1:
        return ""
    (head,) = heads
    return f"a UUID is read with what stands before its digits; write {head}{text}"


def unknown_mig(
    request: request_model.GpuRequest, device: str, inventory: host.Inventory
) -> errors.RequestError:
    """Say that there is no such MIG device, and which there are."""
    known = [f"{gpu.index}:{mig.index} ({mig.uuid})" for gpu, mig in mig_devices(inventory)]
    return errors.RequestError(
        f"{asked(request, device)}: no such MIG device{_short(device)}; "
        f"this node has {_few(known) or 'none'}",
        hint=_LISTED,
        code="no-such-mig-device",
    )


def ambiguous(
    request: request_model.GpuRequest, device: str, matches: list[str]
) -> errors.RequestError:
    """Say that the beginning of a UUID is that of several."""
    return errors.RequestError(
        f"{asked(request, device)}: begins more than one UUID: {', '.join(matches)}",
        hint="write more digits",
        code="ambiguous-uuid",
    )


def _named(inventory: host.Inventory) -> str:
    """Write the GPUs that exist with the beginnings of their UUIDs: `0 (GPU-836c0c09), 1 (…)`."""
    called = [(gpu.index, _called(gpu)) for gpu in inventory.usable]
    named = [f"{index} ({name})" if name else str(index) for index, name in called]
    return _few(named) or _ranges(inventory)


def _called(gpu: host.Gpu) -> str:
    """Give a name by which a GPU can be asked for; an Orin's UUID, without GPU-, only whole."""
    head = "GPU-"
    short = gpu.uuid[: len(head) + _MIN_PREFIX_DIGITS] if gpu.uuid.startswith(head) else gpu.uuid
    return short or gpu.bus_id


def _few(entries: list[str]) -> str:
    more = f" and {len(entries) - _MOST_LISTED} more" if len(entries) > _MOST_LISTED else ""
    return ", ".join(entries[:_MOST_LISTED]) + more


def _ranges(inventory: host.Inventory) -> str:
    """Write the indices that exist, e.g. `0-7`, `0,2-3`, `no GPU that can be given`."""
    indices = [gpu.index for gpu in inventory.usable]
    if not indices:
        return "no GPU that can be given"
    groups: list[list[int]] = []
    for index in indices:
        if groups and index == groups[-1][-1] + 1:
            groups[-1].append(index)
        else:
            groups.append([index])
    return ",".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)
