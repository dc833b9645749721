# SPDX-License-Identifier: Apache-2.0
"""CUDA forward compatibility: whether an image's own newer CUDA driver may be used.

An image's /usr/local/cuda/compat is seen by the hook alone, which compares its version with the
host's. What can be decided ahead is decided here: the setting, and the kind of the GPUs, since
the driver refuses such libraries on others than those of data centers (CUDA error 804).
"""

import posixpath

import attrs

from nri_nvidia import resolve
from nri_nvidia.edits import options
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model

LINK = "/etc/nri-nvidia-compat"
"""Where `library_dir`/lib leads; the hook links it to the libraries that it has chosen."""
_CUDA = frozenset({request_model.Capability.COMPUTE, request_model.Capability.VIDEO})
# NVML's brands of GPUs for data centers: those before and after the name Tesla was given up, and
# virtual ones for compute. Some RTX cards are certified for it, and nothing tells which.
_ORIN = "Orin (nvgpu)"  # which has a directory of its own in images (toolkit, `lib-csv.go`)
_DATA_CENTER = frozenset({"tesla", "nvidia", "nvidia_vcs"})


@attrs.frozen(kw_only=True)
class Choice:
    """Whether the hook may put an image's CUDA driver first, and why.

    It may be in `directory`, and is compared with `host`: a driver's version, or `cuda=` and a
    CUDA version where the host has no driver version of that kind.
    """

    allowed: bool
    reason: Reason
    host: str = ""
    directory: str = ""


def choose(
    request: request_model.GpuRequest,
    allocation: resolve.Allocation,
    inventory: host.Inventory,
    container: containers.Container,
    inject: options.InjectOptions,
) -> Choice | None:
    """Decide for a container; None where it is given no GPU or no CUDA driver."""
    if not allocation.assigned or request.capabilities.isdisjoint(_CUDA):
        return None
    choice = _barred(inventory, container, inject)
    choice = choice or _by_gpu(allocation, inventory, always=inject.cuda_compat == "always")
    if not choice.allowed:
        return choice
    directory, host_version = inject.cuda_compat_dir, inventory.driver_version
    if inventory.platform is host.Platform.TEGRA:
        host_version = f"cuda={inventory.cuda_version}"
        if any(_ORIN in item.gpu.name for item in allocation.assigned):
            directory += "_orin" if directory == options.InjectOptions().cuda_compat_dir else ""
    return attrs.evolve(choice, host=host_version, directory=directory)


def arguments(choice: Choice | None) -> tuple[str, ...]:
    """Give what the hook has to be told."""
    if choice is None or not choice.allowed:
        return ()
    return "--compat", choice.host, "--compat-dir", choice.directory


def _barred(
    inventory: host.Inventory, container: containers.Container, inject: options.InjectOptions
) -> Choice | None:
    """Refuse for what holds whatever the GPU is."""
    if inject.cuda_compat == "never":
        return _no("off", "inject.cuda_compat is never")
    if inject.hook is None:
        return _no("no-hook", "the hook is off, which alone could see the image's libraries")
    if inventory.platform is host.Platform.WSL:
        return _no("wsl", "the driver is in Windows, and its CUDA alone goes with it")
    known = (
        inventory.cuda_version
        if inventory.platform is host.Platform.TEGRA
        else inventory.driver_version
    )
    if not known:
        return _no("no-version", "this node tells no version to compare its own with")
    if is_shadowed(container, inject.library_dir):
        libraries, first = _searched(inject.library_dir)
        return _no(
            "shadowed",
            f"LD_LIBRARY_PATH has {libraries}, which beats all else, without {first} before it",
            hint=f"put {first} before it, as CUDA images do",
        )
    return None


def _by_gpu(allocation: resolve.Allocation, inventory: host.Inventory, *, always: bool) -> Choice:
    if always:
        return _yes("always", "inject.cuda_compat is always")
    if inventory.platform is host.Platform.TEGRA:
        return _yes("tegra", "the CUDA version decides")
    gpus = dict.fromkeys(item.gpu for item in allocation.assigned)
    other = next((g for g in gpus if g.brand and g.brand not in _DATA_CENTER), None)
    if other:
        return _no(
            "not-on-this-gpu",
            f"GPU {other.index} ({other.name}) is of brand {other.brand}, and CUDA takes such "
            "libraries on GPUs for data centers only",
            hint="inject.cuda_compat = always uses them by their version alone",
        )
    unknown = next((g for g in gpus if not g.brand), None)
    if unknown:
        return _yes(
            "unknown-gpu",
            f"NVML tells no brand of GPU {unknown.index}, so the version decides alone",
        )
    return _yes("data-center-gpu", "the version decides")


def is_shadowed(container: containers.Container, library_dir: str) -> bool:
    """Tell where the image's search path would find some of the host's libraries first."""
    text = container.variable("LD_LIBRARY_PATH") or ""
    places = [posixpath.normpath(each) for each in text.split(":") if each]
    libraries, first = _searched(library_dir)
    return libraries in places and first not in places[: places.index(libraries)]


def _searched(library_dir: str) -> tuple[str, str]:
    """Give the directory of the host's libraries, and that which has to be before it."""
    return f"{library_dir}/lib64", f"{library_dir}/lib"


def _yes(code: str, why: str) -> Choice:
    message = f"a newer CUDA driver in the image is used: {why}"
    return Choice(allowed=True, reason=Reason(code=f"cuda-compat-{code}", message=message))


def _no(code: str, why: str, *, hint: str = "") -> Choice:
    message = f"a CUDA driver in the image is not used: {why}"
    reason = Reason(code=f"cuda-compat-{code}", message=message, hint=hint)
    return Choice(allowed=False, reason=reason)
