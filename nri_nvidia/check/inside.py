# SPDX-License-Identifier: Apache-2.0
"""One running container, looked into from its first process.

By itself, since `explain` asks for it alone and is not to import the whole doctor.
"""

import re
from collections.abc import Iterator

import attrs

from nri_nvidia.host import root as roots

_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml)\.so(?:\.[0-9.]+)?", re.ASCII)
_SHORTEST = 12
"""Characters of an id that occur in no other process's cgroup by chance."""
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib")
_FOR_GRAPHICS = ("libX11.so.6", "libXext.so.6")
"""What libGLX_nvidia is linked with and no driver package holds."""
_LONGEST = 1 << 16


@attrs.frozen(kw_only=True)
class Inside:
    """What is seen of a running container from its first process.

    `shadows` are the driver's libraries that its LD_LIBRARY_PATH finds instead of those given;
    `lacking` are libraries that the driver's graphics needs and its image should have.
    """

    pid: int
    shadows: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


def look(root: roots.Root, container: str, library_dir: str) -> Inside | None:
    """Look into a container by its id; None where none of its processes is seen."""
    pid = first_process(root, container)
    if pid is None:
        return None
    own = roots.Root(root.on_disk(f"/proc/{pid}/root"))
    there = {found for place in _LIBRARIES for found in own.entries(place)}
    there |= {
        found
        for place in _LIBRARIES
        for folder in own.entries(place)
        if folder.endswith("-linux-gnu")
        for found in own.entries(f"{place}/{folder}")
    }
    return Inside(
        pid=pid,
        shadows=tuple(shadows(root, pid, library_dir)),
        lacking=tuple(library for library in _FOR_GRAPHICS if library not in there),
    )


def shadows(root: roots.Root, pid: int, library_dir: str) -> Iterator[str]:
    """Give the driver's libraries that LD_LIBRARY_PATH finds before those that were given."""
    environment = root.data(f"/proc/{pid}/environ", _LONGEST) or b""
    for entry in environment.split(b"\0"):
        key, _, value = entry.partition(b"=")
        if key != b"LD_LIBRARY_PATH":
            continue
        own = roots.Root(root.on_disk(f"/proc/{pid}/root"))
        for directory in value.decode("utf-8", "replace").split(":"):
            place = own.resolve(directory) if directory.startswith("/") else None
            if place is None or f"{place}/".startswith(f"{library_dir}/"):
                continue
            for name in own.entries(place):
                real = own.resolve(f"{place}/{name}") if _DRIVER.fullmatch(name) else None
                if real and not real.startswith(f"{library_dir}/"):
                    yield f"{directory}/{name}"


def first_process(root: roots.Root, container: str) -> int | None:
    """Give the lowest process id in a container's cgroup."""
    if len(container) < _SHORTEST:
        return None
    for name in sorted(filter(str.isdigit, root.entries("/proc")), key=int):
        if container in (root.text(f"/proc/{name}/cgroup") or ""):
            return int(name)
    return None
