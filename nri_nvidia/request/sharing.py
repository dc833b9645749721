# SPDX-License-Identifier: Apache-2.0
"""The annotation by which a container of a pod shares the GPUs of another: what it may say.

`nri-nvidia/share.CONTAINER: OTHER` is our own; NVIDIA's stack has none for this. What the other
container holds is looked up later (`limits.shared`).
"""

import re

from nri_nvidia import errors
from nri_nvidia.request import container as containers
from nri_nvidia.request import model

# A container's name is a DNS label (Kubernetes, Container.name; RFC 1123).
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LONGEST_SHOWN = 100


def key(container: containers.Container) -> str:
    """Give the annotation that is for this container, empty where the pod has none."""
    own = f"{containers.SHARE_PREFIX}{container.name}"
    return own if container.name and own in container.annotations else ""


def named(container: containers.Container) -> str:
    """Give whom it names, as it was written but for blanks around it; empty for nobody."""
    return container.annotations.get(key(container), "").strip()


def require_possible(request: model.GpuRequest, container: containers.Container) -> None:
    """Raise RequestError where a request to share names what cannot be the other container.

    That is one without a name, the container itself, and one that shares, too: it has nothing of
    its own, and its turn may come before or after.
    """
    if request.source is not model.Source.SHARE:
        return
    other = request.shares
    said = f"{request.variable}: {errors.cut(other, _LONGEST_SHOWN) or repr('')}"
    hint = "write the name of the container of this pod that holds the GPUs"
    if not _NAME.fullmatch(other):
        raise errors.RequestError(
            f"{said}: no name of a container", hint=hint, code="share-misnamed"
        )
    if other == container.name:
        raise errors.RequestError(
            f"{said}: a container has nothing to share with itself",
            hint=hint,
            code="share-of-itself",
        )
    further = f"{containers.SHARE_PREFIX}{other}"
    if further in container.annotations:
        whose = errors.cut(container.annotations[further].strip(), _LONGEST_SHOWN)
        raise errors.RequestError(
            f"{said}: {other} itself shares the GPUs of {whose or 'nobody'} ({further})",
            hint=f"{hint}, not one that shares",
            code="share-of-sharer",
        )
