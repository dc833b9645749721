# SPDX-License-Identifier: Apache-2.0
"""All contributions to one container, merged in a fixed order."""

from nri_nvidia import resolve
from nri_nvidia.edits import devices, driver, hooks, model, options
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model


def build(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    container: containers.Container,
    inject: options.InjectOptions,
    *,
    token: str = "",
) -> tuple[model.ContainerEdits, tuple[Reason, ...]]:
    """Give the edits and what should be said of them; raises HostError or RequestError."""
    possible, left_out = devices.possible(request, inventory)
    nodes = devices.build(possible, allocation, inventory, container.devices)
    if container.user_namespace:
        devices.require_own_paths(nodes.devices)
    files, noted = driver.build(
        request.capabilities, inventory, container.mounts, inject.library_dir
    )
    names = driver.aliases(request.capabilities, inventory)
    hook = hooks.build(files.mounts, names, inject, token=token)
    return nodes.merged(files).merged(hook), (*left_out, *noted)
