# SPDX-License-Identifier: Apache-2.0
"""What a container asks for, read once for those that are alike.

Of most containers a few variables say it, the same ones in each that is started from an image or
by a controller. So these are taken out, and what was read from the same ones before is given.
"""

import functools

from nri_nvidia.request import container as containers
from nri_nvidia.request import parse as reading
from nri_nvidia.request import policy

_KEPT, _LONGEST = 64, 4096
"""How many sets of variables are kept, and of at most how many characters each."""
_VARIABLES = ("NVIDIA_", "CUDA_VERSION=")


def parse(container: containers.Container, rules: policy.RequestPolicy) -> reading.Parsed:
    """Give what `parse.parse` gives."""
    if _has_more(container, rules):
        return reading.parse(container, rules)
    names = (*_VARIABLES, *(f"{name}=" for name in rules.swarm_resources))
    env = tuple([entry for entry in container.env if entry.startswith(names)])
    if sum(map(len, env)) > _LONGEST:
        return reading.parse(container, rules)
    managing = container.namespace in rules.management_namespaces
    namespace = container.namespace if managing else ""
    return _read(env, container.privileged, namespace, rules)


def _has_more(container: containers.Container, rules: policy.RequestPolicy) -> bool:
    """Tell a container of which more than that may matter: annotations, mounts, or all of it."""
    prefixes = (*rules.annotation_prefixes, containers.PLUGIN_PREFIX, containers.SHARE_PREFIX)
    return (
        not rules.access.is_open
        or bool([key for key in container.annotations if key.startswith(prefixes)])
        or bool([mount for mount in container.mounts if "null" in mount.source])
    )


@functools.lru_cache(maxsize=_KEPT)
def _read(
    env: tuple[str, ...], privileged: bool | None, namespace: str, rules: policy.RequestPolicy
) -> reading.Parsed:
    # Read from what the key holds and from nothing else, so that whatever counts is in the key.
    container = containers.Container(env=env, privileged=privileged, namespace=namespace)
    return reading.parse(container, rules)
