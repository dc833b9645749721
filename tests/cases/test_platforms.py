# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of the toolkit's modes, as far as they tell which host is which."""

import pytest

from nri_nvidia.host import presets, tegra
from nri_nvidia.host.model import Platform
from tests import inventories
from tests.cases.test_cases import NOW
from tests.host.conftest import tree

__all__ = ["tree"]

PLATFORMS = {
    name: case
    for name, case in NOW.items()
    if case["category"] == "mode"
    and "platform" in case["input"]
    and case["expected"]["mode"] in {"csv", "jit-cdi"}
}


@pytest.mark.parametrize("name", PLATFORMS)
def test_platform(name, tree):
    """Where the toolkit takes the lists of a Jetson (csv), so do we; elsewhere the nvidia module."""
    signs, expected = PLATFORMS[name]["input"]["platform"], PLATFORMS[name]["expected"]
    if signs.get("nvml"):
        tree.module("550.163.01")
        tree.gpu("0000:07:00.0", 0, inventories.UUIDS[0])
    if signs.get("tegra"):
        tree.put(tegra.RELEASE, "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n")
    if signs.get("nvgpu"):
        tree.put("/dev.nodes", "c 489 0 0660 0 44 /dev/nvhost-gpu\n")
    preset = presets.choose(tree.recorded()).preset
    assert (preset.platform is Platform.TEGRA) == (expected["mode"] == "csv")


def test_there_are_such_cases():
    """Both answers, and each of the three signs, are among them."""
    modes = {case["expected"]["mode"] for case in PLATFORMS.values()}
    signs = {key for case in PLATFORMS.values() for key in case["input"]["platform"]}
    assert (modes, signs) == ({"csv", "jit-cdi"}, {"nvml", "tegra", "nvgpu"})
