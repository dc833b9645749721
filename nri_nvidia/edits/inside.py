# SPDX-License-Identifier: Apache-2.0
"""What the hook is told of a container beside libraries and programs.

These are its options `--place`, `--show` and `--profile`. What they say holds for what the
container is given alone; an option that would say nothing is left out.
"""

import re
from collections.abc import Iterable, Iterator

from nri_nvidia import resolve
from nri_nvidia.edits import driver, model
from nri_nvidia.host import model as host
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model

_GPU_NODE = re.compile(r"/dev/nvidia\d+")
_MASK_BITS = 64
EVERYTHING = "."


def options(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    container: containers.Container,
    nodes: Iterable[model.DeviceEdit],
) -> tuple[str, ...]:
    """Give the options for one container; `nodes` are those it is given."""
    places = driver.links(request.capabilities, inventory)
    args = [part for link, target in places for part in ("--place", f"{link}={target}")]
    for entry in shown(request, allocation, container):
        args += ["--show", entry]
    found = {item.gpu.minor for item in allocation.assigned}
    found |= {*minors(container.devices), *minors(nodes)}
    mask = visible(found)
    if mask and "graphics" in driver.effective(request.capabilities):
        args += ["--profile", f"{mask:x}"]
    return tuple(args)


def shown(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    container: containers.Container,
) -> tuple[str, ...]:
    """Give what of /proc/driver/nvidia a container is to see, beside what describes the driver.

    That is its GPUs' directories and its MIG devices' access files (libnvidia-container,
    `nvc_mount.c`: the files' presence grants access on drivers without nvidia-caps nodes), or all
    of these to what manages MIG. From a privileged container nothing can be hidden: it may mount
    a procfs of its own, and such are the tools that look after all GPUs.
    """
    if container.privileged:
        return (EVERYTHING,)
    entries: dict[str, None] = {}
    if request.mig_management:
        entries["capabilities"] = None
    for item in allocation.assigned:
        if item.gpu.bus_id and item.gpu.minor >= 0:  # else the nvidia module knows it not
            entries[f"gpus/{item.gpu.bus_id}"] = None
        if item.mig and not request.mig_management:
            instance = f"capabilities/gpu{item.gpu.minor}/mig/gi{item.mig.gi}"
            entries[f"{instance}/access"] = None
            entries[f"{instance}/ci{item.mig.ci}/access"] = None
    return tuple(entries)


def minors(nodes: Iterable[model.DeviceEdit | containers.Device]) -> Iterator[int]:
    """Give the minors of the GPUs among nodes.

    The minor counts, not the digits in the name (the toolkit's `update-application-profile`).
    """
    for node in nodes:
        if node.type == "c" and _GPU_NODE.fullmatch(node.path):
            yield node.minor


def visible(numbers: Iterable[int]) -> int:
    """Give the mask of GPUs by minor that the driver's EGL is to show; it has 64 bits."""
    mask = 0
    for minor in numbers:
        mask |= 1 << minor if 0 <= minor < _MASK_BITS else 0
    return mask
