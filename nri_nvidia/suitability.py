# SPDX-License-Identifier: Apache-2.0
"""Whether a node and its GPUs are what a container requires (NVIDIA_REQUIRE_*)."""

import functools
from collections.abc import Iterable

from nri_nvidia import errors, resolve
from nri_nvidia.host import model as host
from nri_nvidia.reasons import Reason
from nri_nvidia.request import conditions
from nri_nvidia.request import model as request_model

_MOST = 32
"""How many requirements one container may state, as upstream."""
_LONGEST = 16384
"""How long all of them may be: those of images have some 2000 characters, and others wait."""
_UNKNOWN_BRAND = "unknown"

# Images of one kind require the same: a long list of driver branches, read once.
_judge = functools.lru_cache(maxsize=64)(conditions.evaluate)


def require(
    request: request_model.GpuRequest,
    assigned: Iterable[resolve.Assigned],
    inventory: host.Inventory,
) -> tuple[Reason, ...]:
    """Hold each requirement against each GPU, or against the node alone where there is none.

    A MIG device is judged by its GPU (libnvidia-container `configure.c`). Gives what could not be
    checked. Raises HostError for one that is not met, RequestError for one that cannot be read.
    """
    stated = [each for each in request.requirements if each.text.strip(" ")]
    if len(stated) > _MOST:
        raise errors.RequestError(
            f"{len(stated)} requirements are stated by variables NVIDIA_REQUIRE_*; at most "
            f"{_MOST} are read",
            hint="join them by commas in one variable, or set NVIDIA_DISABLE_REQUIRE=true",
            code="too-many-requirements",
        )
    length = sum(len(each.text) for each in stated)
    if length > _LONGEST:
        raise errors.RequestError(
            f"the requirements of the variables NVIDIA_REQUIRE_* are {length} characters long; at "
            f"most {_LONGEST} are read",
            hint="shorten them, or set NVIDIA_DISABLE_REQUIRE=true",
            code="too-many-requirements",
        )
    if not stated:
        return ()
    gpus: list[host.Gpu | None] = list(dict.fromkeys(item.gpu for item in assigned))
    # The GPUs of a node are mostly alike, and so is what is asked about them.
    first: dict[conditions.Facts, host.Gpu | None] = {}
    for gpu in gpus or [None]:
        first.setdefault(facts_of(inventory, gpu), gpu)
    unsure: dict[str, Reason] = {}
    for facts, gpu in first.items():
        for requirement in stated:
            verdict = _judge(requirement, facts)
            if not verdict.met:
                raise _not_met(request, requirement, gpu, facts)
            for term in verdict.assumed:
                unsure.setdefault(term, _not_checked(requirement, term, inventory))
    return tuple(unsure.values())


def facts_of(inventory: host.Inventory, gpu: host.Gpu | None) -> conditions.Facts:
    """Give what terms may ask about; the driver's version needs no NVML, the rest does.

    A GPU that NVML describes without a brand is of brand `unknown`, which images ask for.
    """
    # A Jetson's driver counts by the board's software: no image can mean that (csv mode, too).
    tegra = inventory.platform is host.Platform.TEGRA
    driver = "" if tegra else inventory.driver_version
    if gpu is None:
        return conditions.Facts(cuda=inventory.cuda_version, driver=driver)
    described = bool(gpu.brand or gpu.compute_capability or gpu.architecture)
    return conditions.Facts(
        cuda=inventory.cuda_version,
        driver=driver,
        has_gpu=True,
        arch=gpu.compute_capability,
        brand=gpu.brand or (_UNKNOWN_BRAND if described else ""),
    )


def _not_met(
    request: request_model.GpuRequest,
    requirement: request_model.Requirement,
    gpu: host.Gpu | None,
    facts: conditions.Facts,
) -> errors.HostError:
    names = conditions.properties(requirement)
    node = [f"{'CUDA' if n == 'cuda' else n} {getattr(facts, n) or 'unknown'}"
            for n in names if n in {"cuda", "driver"}]  # fmt: skip
    own = [f"{n} {getattr(facts, n) or 'unknown'}" for n in names if n in {"arch", "brand"}]
    has = [f"this node has {', '.join(node)}"] if node else []
    has += (
        [f"GPU {gpu.index} ({gpu.name or gpu.uuid}) has {', '.join(own)}"] if gpu and own else []
    )
    remedy = "update the node's driver, or use an image made for an older CUDA"
    remedy = remedy if node else "run it on a node with such a GPU"
    switch = "set NVIDIA_DISABLE_REQUIRE=true in the container"
    if request.disable_require:
        switch += f" ({request.disable_require!r} does not switch it off)"
    return errors.HostError(
        f"{conditions.shown(requirement)} is not met: {'; '.join(has)}",
        hint=f"{remedy}; to have it not checked, {switch}, or request.disable_require on the node",
        code="requirement-not-met",
    )


def _not_checked(
    requirement: request_model.Requirement, term: str, inventory: host.Inventory
) -> Reason:
    silent = inventory.nvml_state == "absent"
    why = "NVML has not answered" if silent else "NVML does not tell it of this node or GPU"
    why = why if inventory.driver_version else "no driver of a known version is loaded"
    return Reason(
        code="requirement-not-checked",
        message=f"{requirement.variable}: {errors.printable(term, 200)} counts as met: {why}",
        hint="nri-nvidia devices shows what NVML tells",
    )
