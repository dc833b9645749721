# SPDX-License-Identifier: Apache-2.0
"""What NVML said, as a document and as values.

The document is written by `nvml.py` in a process of its own and may be written by hand for a
recorded host, so each wrong place is named. One in a GPU is that GPU's alone; what is not known is
another version's, and passed over.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from nri_nvidia.errors import HostError

from . import proc
from .model import MigDevice

# 16 GPUs with 7 MIG devices each make some 30 kB.
LIMIT = 1 << 20

_HEX = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_GPU_UUID = re.compile(f"GPU-{_HEX}", re.IGNORECASE)
# A GPU that is a part of the processor has neither the prefix nor a PCI address.
_INTEGRATED_UUID = re.compile(_HEX, re.IGNORECASE)
_MIG_UUID = re.compile(f"MIG-{_HEX}|MIG-GPU-{_HEX}/\\d+/\\d+", re.IGNORECASE)
_TEXT_LIMIT = 256


@attrs.frozen(kw_only=True)
class ReportGpu:
    """One GPU as NVML shows it; `bus_id` in sysfs' form, `minor` -1 where NVML tells none.

    A GPU that is a part of the processor may have an empty `bus_id`, and a UUID without `GPU-`.
    """

    index: int
    uuid: str
    minor: int
    bus_id: str
    name: str = ""
    brand: str = ""
    architecture: str = ""
    compute_capability: str = ""
    memory_bytes: int = 0
    mig_enabled: bool = False
    mig_devices: tuple[MigDevice, ...] = ()


@attrs.frozen(kw_only=True)
class Report:
    """One answer of NVML.

    `errors` are sentences, `GPU 3: why`, about GPUs that it could not describe, or not rightly.
    """

    driver_version: str
    cuda_version: str = ""
    gpus: tuple[ReportGpu, ...] = ()
    errors: tuple[str, ...] = ()


def parse(text: str | bytes) -> Report:
    """Read a document.

    A GPU that is described wrongly becomes a sentence in `errors`. Raises HostError with the code
    `nvml-document`, which names the first wrong place elsewhere.
    """
    if len(text) > LIMIT:
        raise _error("document", f"is longer than {LIMIT} bytes")
    try:
        # Two GPUs in one object would otherwise hide each other without a word.
        document = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _error("document", f"is no JSON: {error}") from None
    fields = _Fields(document, "document")
    errors = [_text(e, f"errors[{at}]") for at, e in enumerate(fields.array("errors"))]
    gpus: list[ReportGpu] = []
    for at, value in enumerate(fields.array("gpus", True)):
        try:
            gpus.append(_gpu(value, f"gpus[{at}]"))
        except HostError as error:
            errors.append(f"GPU {_index(value, at)}: {error.message}")
    report = Report(
        driver_version=fields.text("driver_version", required=True),
        cuda_version=fields.text("cuda_version"),
        gpus=tuple(gpus),
        errors=tuple(errors),
    )
    _unique("gpus", "index", [gpu.index for gpu in report.gpus])
    _unique("gpus", "uuid", [gpu.uuid for gpu in report.gpus])
    _unique("gpus", "bus_id", [gpu.bus_id for gpu in report.gpus])
    return report


def _gpu(value: Any, where: str) -> ReportGpu:
    fields = _Fields(value, where)
    mig = fields.array("mig_devices")
    gpu = ReportGpu(
        index=fields.number("index", required=True),
        uuid=_gpu_uuid(fields.text("uuid", required=True), f"{where}.uuid"),
        minor=fields.number("minor", least=-1, required=True),
        bus_id=proc.normal_bus_id(fields.text("bus_id", required=True)),
        name=fields.text("name"),
        brand=fields.text("brand"),
        architecture=fields.text("architecture"),
        compute_capability=fields.text("compute_capability"),
        memory_bytes=fields.number("memory_bytes"),
        mig_enabled=fields.truth("mig_enabled"),
        mig_devices=tuple(_mig(m, f"{where}.mig_devices[{at}]") for at, m in enumerate(mig)),
    )
    if not gpu.bus_id and gpu.uuid.startswith("GPU-"):
        raise _error(f"{where}.bus_id", "is no PCI address like 00000000:07:00.0")
    _unique(f"{where}.mig_devices", "index", [device.index for device in gpu.mig_devices])
    _unique(f"{where}.mig_devices", "uuid", [device.uuid for device in gpu.mig_devices])
    return gpu


def _mig(value: Any, where: str) -> MigDevice:
    fields = _Fields(value, where)
    return MigDevice(
        index=fields.number("index", required=True),
        uuid=_matching(fields.text("uuid", required=True), _MIG_UUID, f"{where}.uuid"),
        gi=fields.number("gi", required=True),
        ci=fields.number("ci", required=True),
        profile=fields.text("profile"),
        memory_bytes=fields.number("memory_bytes"),
        gfx=fields.truth("gfx"),
    )


def _index(value: Any, place: int) -> int:
    """Give the index that a GPU says of itself, else its place in the list."""
    said = value.get("index") if isinstance(value, Mapping) else None
    if isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        return said
    return place


class _Fields:
    """An object of the document, read key by key."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise _error(where, "is no object")
        self._values = value
        self._where = where

    def text(self, key: str, *, required: bool = False) -> str:
        return _text(self._take(key, "", required), self._at(key))

    def number(self, key: str, *, least: int = 0, required: bool = False) -> int:
        value = self._take(key, 0, required)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
            raise _error(self._at(key), f"is no whole number from {least}")
        return value

    def truth(self, key: str) -> bool:
        value = self._take(key, False, False)
        if not isinstance(value, bool):
            raise _error(self._at(key), "is neither true nor false")
        return value

    def array(self, key: str, required: bool = False) -> list[Any]:
        value = self._take(key, [], required)
        if not isinstance(value, list):
            raise _error(self._at(key), "is no array")
        return value

    def _take(self, key: str, default: Any, required: bool) -> Any:
        if key not in self._values and required:
            raise _error(self._at(key), "is missing")
        return self._values.get(key, default)

    def _at(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where != "document" else key


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in an object")
    return found


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_LIMIT or not value.isprintable():
        raise _error(where, f"is no printable text of at most {_TEXT_LIMIT} characters")
    return value


def _gpu_uuid(text: str, where: str) -> str:
    if _INTEGRATED_UUID.fullmatch(text):
        return text.lower()
    return _matching(text, _GPU_UUID, where)


def _matching(text: str, pattern: re.Pattern[str], where: str) -> str:
    if not pattern.fullmatch(text):
        raise _error(where, f"is not a UUID as NVML writes it: {text!r}")
    head = text.rindex("-", 0, 8) + 1  # behind GPU-, MIG- or MIG-GPU-
    return text[:head].upper() + text[head:].lower()


def _unique(where: str, key: str, values: list[Any]) -> None:
    if len(set(values)) != len(values):
        raise _error(where, f"names the same {key} twice")


def _error(where: str, what: str) -> HostError:
    return HostError(
        f"NVML document: {where[:80]} {what}",
        hint="it must be what `python -m nri_nvidia.host.nvml` prints",
        code="nvml-document",
    )
