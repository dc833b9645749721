# SPDX-License-Identifier: Apache-2.0
"""A simulated WSL 2: Windows' libraries, its driver store, and /dev/dxg."""

import json
import pathlib
from typing import Any

from . import stubs
from .host_kernel import described, put, write_nodes
from .host_spec import HostSpec

STORE = "usr/lib/wsl/drivers/nv_dispi.inf_amd64_0afec3f2050014a0"
OTHER_STORE = "usr/lib/wsl/drivers/iigd_dch.inf_amd64_2951c510c4c5f33f"
LIBRARIES = "usr/lib/wsl/lib"
# Names in the directory of libraries, each with its SONAME.
_LIBRARIES = {
    "libdxcore.so": "libdxcore.so",
    "libd3d12.so": "libd3d12.so",
    "libcuda.so.1.1": "libcuda.so.1",
    "libcuda.so.1": "libcuda.so.1",
    "libcuda.so": "libcuda.so.1",
    "libcudadebugger.so.1": "libcudadebugger.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libnvcuvid.so.1": "libnvcuvid.so.1",
    "libnvidia-encode.so.1": "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so.1": "libnvidia-opticalflow.so.1",
    "libnvoptix.so.1": "libnvoptix.so.1",
    "libnvwgf2umx.so": "libnvwgf2umx.so",
}
_STORE = {
    "libcuda.so.1.1": "libcuda.so.1",
    "libcuda_loader.so": "libcuda.so.1",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4": "libnvidia-nvvm.so.4",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so": "libnvidia-ml.so.1",
    "libnvdxgdmal.so.1": "libnvdxgdmal.so.1",
}
_FILES = ("nvcubins.bin", "nvoptix.bin", "nvldumdx.dll", "nv_dispi.inf")


def write(top: pathlib.Path, spec: HostSpec) -> None:
    """Write the whole host; the spec's driver is Windows'."""
    put(top / "etc/os-release", b"ID=ubuntu\nID_LIKE=debian\n")
    put(top / "proc/sys/kernel/osrelease", b"5.15.167.4-microsoft-standard-WSL2\n")
    put(top / "proc/devices", b"Character devices:\n  1 mem\n 10 misc\n\nBlock devices:\n")
    write_nodes(top, spec, {"/dev/dxg": ("c", 10, 125, 0o666, 0, 0)})
    for directory, names in ((LIBRARIES, _LIBRARIES), (STORE, _STORE)):
        for name, soname in names.items():
            put(top / directory / name, stubs.shared_object(soname))
        put(top / directory / "nvidia-smi", b"#!/bin/sh\n", 0o755)
    for name in _FILES:
        put(top / STORE / name, b"a file of Windows' driver\n")
    put(top / OTHER_STORE / "libigd12umd64.so", stubs.shared_object("libigd12umd64.so"))
    if spec.nvml:
        text = json.dumps(document(spec), indent=1, sort_keys=True)
        put(top / "nvml.json", f"{text}\n".encode())


def document(spec: HostSpec) -> dict[str, Any]:
    """Give what NVML says: in WSL a GPU has no minor number."""
    told = [{**described(gpu, at, at), "minor": -1} for at, gpu in enumerate(spec.gpus)]
    return {"driver_version": spec.driver, "cuda_version": spec.cuda, "gpus": told}
