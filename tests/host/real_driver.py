# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own user-space files as Debian packages them, and which capability each belongs to.

The package lists themselves say what there is: Debian splits the driver more finely than the
capabilities do, so each package's files belong to the same ones, but for those named below.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_nvidia.testing import host_kernel, host_spec
from tests.containerd import conftest

# Package -> capabilities, "" for every container. One for 32-bit programs (`:i386`) is like its
# namesake, and needs compat32 besides. video brings compute and display graphics.
PACKAGES = {
    "firmware-nvidia-gsp": "",
    "libcuda1": "compute",
    "libcudadebugger1": "compute",
    "libnvidia-nvvm4": "compute",
    "libnvidia-pkcs11-openssl3": "compute",
    "libnvidia-ptxjitcompiler1": "compute",
    "nvidia-cuda-mps": "compute",
    "nvidia-opencl-common": "compute",
    "nvidia-opencl-icd": "compute",
    "libnvidia-gpucomp": "compute graphics",  # glcore and eglcore depend on it
    "libnvidia-allocator1": "compute graphics",  # libnvidia-egl-gbm1 depends on it
    "libnvcuvid1": "video",
    "libnvidia-encode1": "video",
    "libnvidia-opticalflow1": "video",
    "nvidia-vdpau-driver": "video",
    "libnvidia-cfg1": "utility",
    "libnvidia-ml1": "utility",
    "nvidia-persistenced": "utility",
    "nvidia-smi": "utility",
    "libnvidia-ngx1": "ngx",
    "libegl-nvidia0": "graphics",
    "libgles-nvidia1": "graphics",
    "libgles-nvidia2": "graphics",
    "libglx-nvidia0": "graphics",
    "libnvidia-api1": "graphics",
    "libnvidia-egl-gbm1": "graphics",
    "libnvidia-egl-wayland1": "graphics",
    "libnvidia-eglcore": "graphics",
    "libnvidia-fbc1": "graphics",
    "libnvidia-glcore": "graphics",
    "libnvidia-glvkspirv": "graphics",
    "libnvidia-rtcore": "graphics",
    "libnvoptix1": "graphics",
    "nvidia-egl-common": "graphics",
    "nvidia-vulkan-common": "graphics",
    "nvidia-xconfig": "graphics",
    "xserver-xorg-video-nvidia": "graphics",
}

# Packages that hold no file of their own, and one whose only file is a service of the host's.
NOTHING = {"libgl1-nvidia-glvnd-glx", "nvidia-alternative", "nvidia-egl-icd", "nvidia-vulkan-icd"}
NOTHING |= {"nvidia-powerd"}

# File or directory -> why no container is given it.
NOT_GIVEN = {
    "/etc/init.d/nvidia-persistenced": "starts a service of the host",
    "/usr/lib/systemd/system/": "starts services of the host",
    "/usr/sbin/nvidia-powerd": "a service of the host that nobody talks to",
    "/usr/lib/nvidia/current/nvidia.ids": "by it an X server that has no configuration tells "
    "which driver to try; the configuration that is given says it",
    "/usr/lib/nvidia/current/nvidia-smi.1.gz": "a manual page",
    "/usr/lib/x86_64-linux-gnu/nvidia/current/nvidia/wine/": "for Windows programs under Wine; "
    "neither of NVIDIA's own ways gives it",
}


def record() -> dict:
    """Give what contrib/setup unpacked: version, root and files by package."""
    path = conftest.CACHE / "driver/driver.json"
    if not path.exists():
        pytest.fail(f"there are no driver packages: {conftest.SETUP}")
    found = json.loads(path.read_text("utf-8"))
    if found["schema"] < 2:
        pytest.fail(f"the driver packages are those of an earlier checkout: {conftest.SETUP}")
    return found


def build(packages: dict, top: Path, **spec: object) -> Path:
    """Make a host of the packages' files, with a kernel's texts and nodes.

    NVML cannot answer without a driver.
    """
    shutil.copytree(packages["root"], top, symlinks=True, copy_function=link)
    whole = host_spec.HostSpec(
        gpus=(host_spec.GpuSpec(),) * 2,
        driver=packages["version"],
        nvml=False,
        sockets=False,
        **spec,  # type: ignore[arg-type]
    )
    host_kernel.write(top, whole)
    return top


def link(source: str, target: str) -> None:
    """Copy a file by a hard link, or where that cannot be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def files(packages: dict) -> Iterator[tuple[str, str, frozenset[str], bool]]:
    """Give the driver's files: package, path, capabilities (none: always), whether 32-bit.

    Links are left out: what they lead to is in a package, or nowhere.
    """
    top = Path(packages["root"])
    for package, paths in packages["packages"].items():
        name, _, architecture = package.partition(":")
        for path in paths:
            if (
                name in NOTHING
                or (top / path[1:]).is_symlink()
                or any(map(path.startswith, NOT_GIVEN))
            ):
                continue
            narrow = architecture == "i386" and ".so" in path
            yield package, path, frozenset(PACKAGES[name].split()), narrow


def expected(packages: dict, capabilities: set[str]) -> set[str]:
    """Give the files that belong to some capabilities."""
    brought = {"video": "compute", "display": "graphics"}
    effective = capabilities | {brought[each] for each in capabilities & set(brought)}
    return {
        path
        for _, path, own, narrow in files(packages)
        if (not own or own & effective) and (not narrow or "compat32" in capabilities)
    }
