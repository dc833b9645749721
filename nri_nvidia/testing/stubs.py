# SPDX-License-Identifier: Apache-2.0
"""Small real files for simulated hosts; a recording of a host is made of the same ones."""

from nri_nvidia.host.stubs import (
    EM_386,
    EM_AARCH64,
    EM_X86_64,
    library_cache,
    shared_object,
)

__all__ = ["EM_386", "EM_AARCH64", "EM_X86_64", "library_cache", "shared_object"]
