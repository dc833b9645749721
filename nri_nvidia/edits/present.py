# SPDX-License-Identifier: Apache-2.0
"""What a container's spec already holds of the driver: another one's work is left as it is."""

import posixpath
import re
from collections.abc import Iterable

from nri_nvidia import errors, resolve
from nri_nvidia.edits import hooks
from nri_nvidia.host import model as host
from nri_nvidia.host import reach
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model

# NVIDIA's legacy hook (Red Hat's name of it, and what it runs), its runtime, and the hooks of its
# CDI specifications.
_OTHER_INJECTORS = {
    "nvidia-container-cli",
    "oci-nvidia-hook",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-cdi-hook",
    "nvidia-ctk",
}
_NODE = re.compile(r"/dev/nvidia.*", re.ASCII | re.DOTALL)
_GPU_NODE = re.compile(r"/dev/nvidia(\d{1,9})", re.ASCII)
_LIBCUDA = re.compile(r"libcuda\.so(?:\.[0-9.]+)?", re.ASCII)


def served(container: containers.Container, *, in_its_place: bool = False) -> Reason | None:
    """Recognise ourselves and other injectors at work: there are never two owners.

    `in_its_place` tells that NVIDIA's NRI plugin is not there and we read its annotations.
    """
    for hook in container.hooks:
        if hooks.is_ours(hook):
            return Reason(
                code="already-served",
                message="the container's spec already holds our edits",
                hint="two copies of nri-nvidia on one node? nri-nvidia status shows this one",
            )
        if is_injector(hook.path):
            return Reason(
                code="other-injector",
                message=f"the container's spec holds {hook.path}, which gives GPUs by itself; "
                "nothing is added to it",
                hint="remove the nvidia runtime class, runtime or CDI device from this container",
            )
    key = container.plugin_annotation
    if key and not in_its_place:
        return Reason(
            code="other-injector",
            message=f"the annotation {key} asks NVIDIA's own NRI plugin for GPUs; nothing is "
            "added to what that gives",
            hint="remove the annotation to have the variables honoured here, or remove that "
            "plugin and set request.accept_pod_annotations = true",
        )
    return None


def is_injector(path: str) -> bool:
    """Tell a hook's program that gives GPUs, and is not ours."""
    # The operator's installer keeps each program as NAME.real beside a script NAME.
    return posixpath.basename(path).removesuffix(".real") in _OTHER_INJECTORS


def is_node(path: str) -> bool:
    """Tell a node of the driver by its path in a container."""
    return _NODE.fullmatch(posixpath.normpath(path)) is not None


def gpus(container: containers.Container, inventory: host.Inventory) -> tuple[host.Gpu, ...]:
    """Give the GPUs whose nodes the spec holds: by number, by path where it tells no numbers."""
    numbers = {(d.major, d.minor) for d in container.devices if d.type == "c" and d.major >= 0}
    minors = {
        int(match[1])
        for device in container.devices
        if device.major < 0 and (match := _GPU_NODE.fullmatch(posixpath.normpath(device.path)))
    }
    return tuple(
        gpu
        for gpu in inventory.usable
        if gpu.minor in minors
        or (gpu.node and (gpu.node.major, gpu.node.minor) in numbers)
        or _made_up(gpu, numbers)
    )


def _divided(
    container: containers.Container, gpu: host.Gpu, inventory: host.Inventory
) -> tuple[host.MigDevice, ...]:
    """Give the MIG devices of a GPU whose capability nodes the spec holds, too."""
    known = reach.capability_nodes(inventory)
    paths = {posixpath.normpath(d.path) for d in container.devices if d.major < 0}
    numbers = {(d.major, d.minor) for d in container.devices if d.type == "c"}

    def held(name: str) -> bool:
        node = known.get(name)
        return node is not None and (node.path in paths or (node.major, node.minor) in numbers)

    return tuple(
        mig for mig in gpu.mig_devices if all(map(held, reach.mig_capabilities(gpu, mig)))
    )


def _made_up(gpu: host.Gpu, numbers: set[tuple[int, int]]) -> bool:
    """Whether a GPU without a node of its own (WSL, Jetson) has all those that make it up."""
    if gpu.node is not None or not gpu.nodes:
        return False
    return all((node.major, node.minor) in numbers for node in gpu.nodes)


def allocation(
    container: containers.Container,
    request: request_model.GpuRequest,
    inventory: host.Inventory,
) -> resolve.Allocation | None:
    """Take GPU nodes of the spec for the answer (a device plugin passed them); None without any.

    Where the driver's files are there as well, nothing is left to give.
    """
    if not container.devices or not request.devices:
        return None
    found = tuple(
        resolve.Assigned(gpu=gpu, mig=mig)
        for gpu in gpus(container, inventory)
        for mig in _divided(container, gpu, inventory) or (None,)
    )
    if not found:
        return None
    driver = next((m for m in container.mounts if _is_libcuda(m.destination)), None)
    listed = _listed(found)
    if driver:
        return resolve.Allocation(
            given=False,
            reasons=(
                Reason(
                    code="other-injector",
                    message=f"the container's spec already holds the nodes of GPU {listed} and "
                    f"the driver at {driver.destination}; nothing is added to it",
                    hint="let one of the two give GPUs: nri-nvidia, or what made this spec",
                ),
            ),
        )
    resolve.require_driver(request, inventory)
    asked, difference = _compare(request, inventory, found)
    return resolve.Allocation(
        assigned=asked or found,
        reasons=(_reason(container, request, listed, difference),),
    )


def _compare(
    request: request_model.GpuRequest,
    inventory: host.Inventory,
    found: tuple[resolve.Assigned, ...],
) -> tuple[tuple[resolve.Assigned, ...], str]:
    """Give what the request means where that agrees with the spec, else how it differs.

    A spec may hold no more of a MIG device than its GPU's node: then the request says which it is.
    Of one that holds a device's own nodes no other device is added, and a whole GPU means these.
    """
    if request.wants_all:
        return (), ""
    try:
        asked = resolve.resolve(request, inventory).assigned
    except errors.Error as error:
        return (), error.message
    held = {item for item in found if item.mig}
    named = {item for item in asked if item.mig}
    divided = {item.gpu for item in held}
    same = {item.gpu for item in asked} == {item.gpu for item in found}
    if same and all(_of(gpu, named) in (set(), _of(gpu, held)) for gpu in divided):
        return resolve.in_order((*(i for i in asked if i.gpu not in divided), *held)), ""
    return (), f"{request.variable}={','.join(request.devices)} means GPU {_listed(asked)}"


def _of(gpu: host.Gpu, items: set[resolve.Assigned]) -> set[resolve.Assigned]:
    return {item for item in items if item.gpu == gpu}


def _listed(items: Iterable[resolve.Assigned]) -> str:
    """Write GPUs by index and MIG devices as `0:1`."""
    names = (f"{i.gpu.index}:{i.mig.index}" if i.mig else str(i.gpu.index) for i in items)
    return ", ".join(dict.fromkeys(names))


def _reason(
    container: containers.Container,
    request: request_model.GpuRequest,
    listed: str,
    difference: str,
) -> Reason:
    holds = f"the container's spec already holds the nodes of GPU {listed}"
    if difference and container.privileged:
        return Reason(
            code="privileged-sees-all",
            message=f"{holds}, since it is privileged: nothing keeps it from them, though "
            f"{difference}",
            hint="only a container that is not privileged can be held to some of the GPUs",
        )
    if difference:
        return Reason(
            code="devices-in-spec-differ",
            message=f"{holds}, though {difference}: it gets those of the spec and no further GPU",
            hint="let one of the two choose: the device plugin, or the variable",
        )
    return Reason(
        code="devices-in-spec",
        message=f"{holds}: these are what it gets, {request.variable} adds driver files and no "
        "further GPU",
    )


def _is_libcuda(destination: str) -> bool:
    return _LIBCUDA.fullmatch(posixpath.basename(destination)) is not None
