# SPDX-License-Identifier: Apache-2.0
"""What of the hook's work in an image a container's own mount hides.

The hook sees the image without the container's mounts, so that nothing of a volume is changed:
what it writes there is done, and is not what the container finds at that place.
"""

import posixpath
from collections.abc import Iterator

from nri_nvidia.edits import driver, model, options
from nri_nvidia.reasons import Reason
from nri_nvidia.request import container as containers

_CACHE = "/etc/ld.so.cache"
_ABOVE = frozenset({_CACHE, posixpath.dirname(_CACHE)})
_STEP = "ldcache"
_PATH = "LD_LIBRARY_PATH"


def reasons(
    container: containers.Container, inject: options.InjectOptions, edits: model.ContainerEdits
) -> Iterator[Reason]:
    """Say where a mount hides the cache by which ld.so finds the driver's libraries.

    Not where there is no such step of the hook, no library, or the libraries' directory is in
    the container's LD_LIBRARY_PATH: then nobody needs the cache.
    """
    # Nearly all containers have mounts, and none of them such a one.
    near = [mount for mount in container.mounts if "etc" in mount.destination]
    found = driver.places(near) & _ABOVE if near else frozenset()
    if not found or inject.hook is None or _STEP in inject.hook.skipped:
        return
    libraries = f"{inject.library_dir}/{driver.LIBRARIES}"
    ours = (inject.library_dir, libraries)
    if not any(mount.destination.startswith(ours) for mount in edits.mounts):
        return
    searched = container.variable(_PATH) or dict(edits.env).get(_PATH) or ""
    if libraries in {posixpath.normpath(each) for each in searched.split(":") if each}:
        return
    (place, *_) = sorted(found)
    yield Reason(
        code="loader-cache-hidden",
        message=f"the container's own mount {place} hides the image's {_CACHE}, which is where "
        "the hook lists the driver's libraries: programs do not find them there",
        hint=f"set {_PATH}={libraries} in the container, or mount nothing at {place}",
    )
