# SPDX-License-Identifier: Apache-2.0
"""Asks NVML everything once and prints one JSON document: `python -m nri_nvidia.host.nvml`.

This is a process of its own, because NVML keeps /dev/nvidiactl open, may hang in the kernel, and
may crash; `query.py` starts it and gives up on it in time. The only import of pynvml is here.
"""

import argparse
import ctypes
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1  # prctl(2)

# A MIG device is called like its GPU, with `MIG 1g.10gb` behind it.
_PROFILE = re.compile(r" MIG (\S+)$")


def main(arguments: list[str] | None = None) -> int:
    """Print the document; 0 ok, 1 with a sentence on stderr where NVML does not answer."""
    parser = argparse.ArgumentParser(prog="python -m nri_nvidia.host.nvml")
    parser.add_argument("--library", help="the libnvidia-ml to load (default: as ld.so finds it)")
    parser.add_argument("--parent", type=int, help="the process to end with")
    given = parser.parse_args(arguments)
    if arguments is None:
        # A process that hangs in the driver must not outlive the daemon that waits for it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if given.parent is not None and os.getppid() != given.parent:
        return 1  # it ended before that signal was asked for
    try:
        if given.library:
            # Once it is loaded, pynvml's own dlopen by SONAME finds this very file.
            ctypes.CDLL(given.library)
        pynvml.nvmlInit()
        try:
            print(json.dumps(document(), sort_keys=True))  # noqa: T201 - its purpose
        finally:
            pynvml.nvmlShutdown()
    except (OSError, pynvml.NVMLError) as error:
        print(f"NVML: {error}", file=sys.stderr)  # noqa: T201 - read by query.py
        return 1
    return 0


def document() -> dict[str, Any]:
    """Give the document (design: `nvml.json` of a recorded host); NVML must be initialised.

    A GPU that cannot even be identified becomes a sentence in `errors`, not the end of it.
    """
    errors: list[str] = []
    gpus: list[dict[str, Any]] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_gpu(index))
        except pynvml.NVMLError as error:
            errors.append(f"GPU {index}: {error}")
    result: dict[str, Any] = {
        "driver_version": pynvml.nvmlSystemGetDriverVersion(),
        "cuda_version": _cuda_version(),
        "gpus": gpus,
    }
    return {**result, "errors": errors} if errors else result


def _gpu(index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig_enabled = _mig_enabled(handle)
    major, minor = _optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle, default=(0, 0))
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    return {
        "index": index,
        "uuid": uuid,
        "minor": _optional(pynvml.nvmlDeviceGetMinorNumber, handle, default=-1),
        "bus_id": _bus_id(handle, integrated=not uuid.startswith("GPU-")),
        "name": _optional(pynvml.nvmlDeviceGetName, handle, default=""),
        "brand": _constant("NVML_BRAND_", _optional(pynvml.nvmlDeviceGetBrand, handle, default=0)),
        "architecture": _constant(
            "NVML_DEVICE_ARCH_",
            _optional(pynvml.nvmlDeviceGetArchitecture, handle, default=0xFFFFFFFF),
        ),
        "compute_capability": f"{major}.{minor}" if major else "",
        "memory_bytes": _memory(handle),
        "mig_enabled": mig_enabled,
        "mig_devices": list(_mig_devices(handle)) if mig_enabled else [],
    }


def _bus_id(handle: Any, *, integrated: bool) -> str:
    """Give the PCI address; a GPU that is a part of the processor (Jetson) may have none."""
    if integrated:
        place = _optional(pynvml.nvmlDeviceGetPciInfo, handle, default=None)
        return "" if place is None else _string(place.busId)
    return _string(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _mig_devices(parent: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index in range(_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, parent, default=0)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
        except pynvml.NVMLError:
            continue  # indexes have gaps where no instance stands
        profile = _profile(handle)
        found.append(
            {
                "index": index,
                "uuid": pynvml.nvmlDeviceGetUUID(handle),
                "gi": pynvml.nvmlDeviceGetGpuInstanceId(handle),
                "ci": pynvml.nvmlDeviceGetComputeInstanceId(handle),
                "profile": profile,
                "memory_bytes": _memory(handle),
                "gfx": "+gfx" in profile,
            }
        )
    return found


def _mig_enabled(handle: Any) -> bool:
    """Tell whether MIG is on and stays on: a change that waits for a reset is no state to use."""
    current, pending = _optional(pynvml.nvmlDeviceGetMigMode, handle, default=(0, 0))
    return bool(current == pending == pynvml.NVML_DEVICE_MIG_ENABLE)


def _profile(handle: Any) -> str:
    match = _PROFILE.search(_optional(pynvml.nvmlDeviceGetName, handle, default=""))
    return match.group(1) if match else ""


def _memory(handle: Any) -> int:
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle, default=None)
    return 0 if memory is None else int(memory.total)


def _cuda_version() -> str:
    number = _optional(pynvml.nvmlSystemGetCudaDriverVersion_v2, default=0)
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _constant(prefix: str, value: int) -> str:
    """Give a constant of pynvml by its value: 9 of NVML_DEVICE_ARCH_ is `hopper`."""
    for name in dir(pynvml):
        if name.startswith(prefix) and not name.endswith("_COUNT"):
            word = name.removeprefix(prefix).lower()
            if getattr(pynvml, name) == value:
                return "" if word == "unknown" else word
    return ""


def _optional(call: Callable[..., T], *arguments: Any, default: T) -> T:
    """Give what a driver or GPU may not know; a call that fails answers the default."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return default


def _string(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    sys.exit(main())
