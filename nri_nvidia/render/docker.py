# SPDX-License-Identifier: Apache-2.0
"""Edits as arguments of `docker run`, for a docker that knows nothing of us."""

from nri_nvidia import errors
from nri_nvidia.edits import model

_FLAGS = frozenset(("ro", "rw", "z", "Z"))


def arguments(edits: model.ContainerEdits) -> tuple[str, ...]:
    """Give `--device=`, `--volume=` and `--env=` arguments, a word each and not quoted.

    docker parts their values at colons and knows no other way to write one: a path with a colon
    raises HostError. Hooks cannot be said this way; they are the caller's to leave out.
    """
    return (
        *(f"--device={_parts(each.host_path, each.path, each.access)}" for each in edits.devices),
        *(f"--volume={_parts(each.source, each.destination, _options(each))}"
          for each in edits.mounts),
        *(f"--env={name}={value}" for name, value in edits.env),
    )  # fmt: skip


def _options(mount: model.MountEdit) -> str:
    return ",".join(option for option in mount.options if option in _FLAGS) or "rw"


def _parts(source: str, destination: str, options: str) -> str:
    for path in (source, destination):
        if ":" in path:
            raise errors.HostError(
                f"{path}: docker cannot be told a path with a colon",
                hint="use nri-nvidia-runtime as docker's runtime instead",
            )
    return f"{source}:{destination}:{options}"
