# SPDX-License-Identifier: Apache-2.0
"""Field cases: what images require of a node, and whose CUDA driver is used."""

import attrs
import pytest

from nri_nvidia import pipeline
from nri_nvidia.oci import compat
from tests import inventories

from .harness import asked, codes, decide

WANTED = "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla,driver>=535,driver<536"
NODE = inventories.with_gpus(
    inventories.gpu(0, brand="nvidia", compute_capability="9.0"), driver_version="550.54.14"
)


def test_image_that_wants_a_newer_driver_is_told_what_there_is():
    """FC-057: the refusal has what the image wants, what the node has, and the switch."""
    plan = decide(NODE, *asked("all", WANTED))
    assert (plan.decision, codes(plan)) == (pipeline.Decision.ERROR, ["requirement-not-met"])
    reason = plan.reasons[0]
    for text in ("NVIDIA_REQUIRE_CUDA", "cuda>=12.8", "CUDA 12.4", "driver 550.54.14"):
        assert text in reason.message
    assert "NVIDIA_DISABLE_REQUIRE=true" in reason.hint


@pytest.mark.parametrize("value", ["1", "true"])
def test_check_can_be_switched_off(value):
    """FC-057: with the variable set the container gets its GPU."""
    assert decide(NODE, *asked("all", WANTED, f"NVIDIA_DISABLE_REQUIRE={value}")).edits


def test_clause_that_nobody_knows_does_not_crash():
    """FC-057: it is refused as a sentence where it decides, and not looked at where it does not."""
    plan = decide(NODE, *asked("all", "NVIDIA_REQUIRE_X=colour=blue"))
    assert codes(plan) == ["invalid-requirement"]
    assert "cuda, driver, arch, brand" in plan.reasons[0].message
    assert decide(NODE, *asked("all", "NVIDIA_REQUIRE_X=cuda>=12 colour=blue")).edits


def test_an_alternative_of_the_image_is_enough():
    """FC-057: images list driver branches by which an older CUDA does."""
    node = attrs.evolve(NODE, driver_version="535.183.01", cuda_version="12.2")
    assert not decide(node, *asked("all", WANTED)).edits
    tesla = inventories.with_gpus(
        inventories.gpu(0, brand="tesla", compute_capability="7.5"), driver_version="535.183.01"
    )
    assert decide(tesla, *asked("all", WANTED)).edits


@pytest.mark.parametrize(
    ("version", "host", "brand", "used"),
    [
        ("570.124.06", "570.133.20", "nvidia", False),
        ("570.124.06", "535.183.01", "nvidia", True),
        ("570.124.06", "535.183.01", "geforce", False),
        ("570.124.06", "535.183.01", "", True),
    ],
)
def test_forward_compatibility_by_versions_and_kind_of_gpu(version, host, brand, used):
    """FC-056: a later branch on a GPU for data centers; the kind not being told, the version decides."""
    node = inventories.with_gpus(inventories.gpu(0, brand=brand), driver_version=host)
    choice = decide(node, *asked("0")).cuda_compat
    assert (choice.allowed and not compat.why_not(version, host, {})) is used
    assert choice.reason.message
