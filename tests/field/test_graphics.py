# SPDX-License-Identifier: Apache-2.0
"""Field cases: what programs that draw need besides libraries, and what they must not see."""

import itertools

import pytest

from nri_nvidia.testing import host_spec

from . import harness
from .harness import LIBRARY_DIR, asked, built, capable, decide, gpus

HEADLESS = {
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    *(
        f"{LIBRARY_DIR}/lib64/{name}"
        for name in ("libnvidia-egl-gbm.so.1", "libnvidia-egl-wayland.so.1")
    ),
    f"{LIBRARY_DIR}/lib64/libnvidia-allocator.so.1",
    f"{LIBRARY_DIR}/lib64/libEGL_nvidia.so.0",
}


def options(plan, name):
    """Give the values of an option of the plan's hook."""
    (hook,) = plan.edits.hooks
    return [value for key, value in itertools.pairwise(hook.args) if key == name]


@pytest.mark.parametrize("layout", host_spec.LAYOUTS)
@pytest.mark.parametrize("capabilities", ["graphics", "display", "all"])
def test_headless_egl_has_what_it_needs(tmp_path, layout, capabilities):
    """FC-063: EGL's vendor and platform files, their libraries, and GBM's backend to link."""
    host = built(tmp_path, layout=layout, gpus=gpus(1), graphics=True)
    plan = decide(host, *asked("0", capable(capabilities)))
    assert HEADLESS - set(harness.mounted(plan)) == set()
    places = dict(place.split("=") for place in options(plan, "--place"))
    assert places["gbm/nvidia-drm_gbm.so"] == "lib64/libnvidia-allocator.so.1"
    for target in places.values():
        assert f"{LIBRARY_DIR}/{target}" in harness.mounted(plan)


@pytest.mark.parametrize("capabilities", ["compute", "utility", "ngx", "compute,utility"])
def test_a_container_that_computes_has_nothing_of_it(tmp_path, capabilities):
    """FC-063: without graphics none of these files is given and no link is made."""
    host = built(tmp_path, gpus=gpus(1), graphics=True)
    plan = decide(host, *asked("0", capable(capabilities)))
    own = {path for path in HEADLESS if "allocator" not in path}  # that one is compute's as well
    assert own & set(harness.mounted(plan)) == set()
    assert options(plan, "--place") == []


@pytest.mark.parametrize(
    ("value", "numbers"), [("0", [0]), ("1,3", [1, 3]), ("all", [0, 1, 2, 3])]
)
def test_the_own_gpus_entries_are_shown(tmp_path, value, numbers):
    """FC-119: the hook leaves the own GPUs' directories in /proc, and hides the others'."""
    host = built(tmp_path, gpus=gpus(4))
    plan = decide(host, *asked(value))
    assert options(plan, "--show") == [f"gpus/{host.gpus[number].bus_id}" for number in numbers]


def test_without_a_gpu_all_entries_are_hidden(tmp_path):
    """FC-119: `none` has no GPU's directory; the hook is there all the same."""
    plan = decide(built(tmp_path, gpus=gpus(4)), *asked("none"))
    assert options(plan, "--show") == []
    assert len(plan.edits.hooks) == 1
