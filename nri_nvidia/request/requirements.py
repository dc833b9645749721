# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_REQUIRE_*: which requirements a container states."""

import re
from collections.abc import Mapping

from nri_nvidia import errors
from nri_nvidia.request import model

DISABLE = "NVIDIA_DISABLE_REQUIRE"
_PREFIX = "NVIDIA_REQUIRE_"
_NOT_REQUIREMENTS = "NVIDIA_REQUIRE_JETPACK"
_DISABLING = {"1", "t", "T", "TRUE", "true", "True"}
# A semantic version of which parts may be missing (toolkit `image/cuda_image.go`): what stands
# behind its numbers, as in 12.4.0-rc.1+build7, is looked at for its form alone.
_CUDA_VERSION = re.compile(
    r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?"
    r"(?:-(?:(?!0\d+(?:[.+]|$))[0-9A-Za-z-]+)(?:\.(?!0\d+(?:[.+]|$))[0-9A-Za-z-]+)*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_LONGEST_VERSION = 256
_MOST = (2**32 - 1, 2**32 - 1, 2**64 - 1)


def collect(
    env: Mapping[str, str], *, legacy: bool, disabled: bool
) -> tuple[model.Requirement, ...]:
    """Give the requirements in the order of their variables' names, the implied one first.

    An old image implies `cuda>=MAJOR.MINOR` of its CUDA_VERSION. Raises RequestError when that
    variable is not a version. A text may be empty (an empty variable states nothing).
    """
    if disabled or env.get(DISABLE) in _DISABLING:
        return ()
    names = sorted([name for name in env if name.startswith(_PREFIX)])
    stated = tuple(
        model.Requirement(variable=name, text=env[name])
        for name in names
        if not name.startswith(_NOT_REQUIREMENTS)
    )
    if not legacy:
        return stated
    implied = f"cuda>={cuda_version(env['CUDA_VERSION'])}"
    return (model.Requirement(variable="CUDA_VERSION", text=implied), *stated)


def cuda_version(text: str) -> str:
    """Read `MAJOR[.MINOR[.PATCH]]` as `MAJOR.MINOR`; raises RequestError."""
    match = _CUDA_VERSION.fullmatch(text) if len(text) <= _LONGEST_VERSION else None
    parts = [int(part or 0) for part in match.groups()] if match else []
    if not parts or any(part > most for part, most in zip(parts, _MOST, strict=True)):
        raise errors.RequestError(
            f"CUDA_VERSION={errors.printable(text, _LONGEST_VERSION)}: not a version; an image "
            "with CUDA_VERSION and without NVIDIA_REQUIRE_CUDA requires that CUDA",
            hint="write it as 12.4 or 12.4.1, or set NVIDIA_DISABLE_REQUIRE=true",
            code="invalid-cuda-version",
        )
    return f"{parts[0]}.{parts[1]}"
