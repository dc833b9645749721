# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of NVIDIA_REQUIRE_*, in both dialects, against ours."""

import attrs

from nri_nvidia import resolve, suitability
from nri_nvidia.host import model as host
from nri_nvidia.request import model
from tests import inventories
from tests.cases import test_cases as recorded


def check(requirements, inventory, gpus):
    """Hold requirements against GPUs, as a decision does."""
    request = model.GpuRequest(
        source=model.Source.ENV,
        devices=("all",),
        requirements=tuple(
            model.Requirement(variable=f"NVIDIA_REQUIRE_{number}", text=text)
            for number, text in enumerate(requirements)
        ),
    )
    assigned = [resolve.Assigned(gpu=gpu) for gpu in gpus]
    return suitability.require(request, assigned, inventory)


def judged(given, expected, facts, gpus):
    """Check that requirements are met or not for the reason upstream gives."""
    inventory = host.Inventory(
        cuda_version=facts.get("cuda", ""), driver_version=facts.get("driver", "")
    )
    if expected["ok"]:
        assert check(given["requirements"], inventory, gpus) == ()
    else:
        recorded.expect_error(expected, lambda: check(given["requirements"], inventory, gpus))


def gpu(number, facts):
    return inventories.gpu(
        number,
        compute_capability=facts.get("arch", ""),
        brand=facts.get("brand", "").lower(),
    )


@recorded.of("requirements-legacy-dialect")
def test_legacy_dialect(name):
    """A requirement is met, not met or malformed as libnvidia-container has it."""
    given, expected = recorded.NOW[name]["input"], recorded.NOW[name]["expected"]
    facts = given["host"]
    judged(given, expected, facts, [gpu(n, each) for n, each in enumerate(facts["gpus"])])


@recorded.of("requirements-csv-dialect")
def test_csv_dialect(name):
    """Where the toolkit's own dialect says the same, so do we."""
    given, expected = recorded.NOW[name]["input"], recorded.NOW[name]["expected"]
    facts = given["properties"]
    judged(given, expected, facts, [attrs.evolve(gpu(0, facts), architecture="ampere")])
