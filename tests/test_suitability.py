# SPDX-License-Identifier: Apache-2.0
"""Requirements against whole nodes, as a decision shows them."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.request import container, policy
from tests import inventories

L4 = inventories.gpu(0, name="NVIDIA L4", brand="nvidia", compute_capability="8.9")
NODE = inventories.with_gpus(L4, driver_version="550.54.14")
GEFORCE = inventories.gpu(
    1, name="NVIDIA GeForce RTX 4090", brand="geforce_rtx", compute_capability="8.9"
)


def decide(*env, inventory=NODE, devices="all", rules=None):
    shown = container.Container(env=(f"NVIDIA_VISIBLE_DEVICES={devices}", *env))
    return pipeline.plan(shown, inventory, rules or pipeline.Policy())


def codes(plan):
    return [reason.code for reason in plan.reasons]


def test_every_gpu_has_to_meet_it():
    """The GPU that does not is named with what it has; asking for the other alone works."""
    both = inventories.with_gpus(L4, GEFORCE)
    plan = decide("NVIDIA_REQUIRE_BRAND=brand=nvidia", inventory=both)
    assert plan.decision is pipeline.Decision.ERROR
    assert plan.reasons[0].message == (
        "NVIDIA_REQUIRE_BRAND: brand=nvidia is not met: "
        "GPU 1 (NVIDIA GeForce RTX 4090) has brand geforce_rtx"
    )
    assert "run it on a node with such a GPU" in plan.reasons[0].hint
    assert decide("NVIDIA_REQUIRE_BRAND=brand=nvidia", inventory=both, devices="0").edits


def test_none_is_held_against_the_node_alone():
    """Without a GPU, CUDA and driver are checked, and what asks for a GPU's kind is not."""
    plan = decide("NVIDIA_REQUIRE_CUDA=cuda>=12.8,arch>=9.0", devices="none")
    assert codes(plan) == ["requirement-not-met"]
    assert decide("NVIDIA_REQUIRE_A=arch>=9.0,brand=tesla", devices="none").edits


def test_without_nvml_it_counts_as_met_and_is_told():
    """The kernel tells the driver's version; CUDA, arch and brand are NVML's to tell."""
    silent = inventories.with_gpus(inventories.gpu(0), nvml_state="absent", cuda_version="")
    plan = decide("NVIDIA_REQUIRE_CUDA=cuda>=99,brand=tesla", inventory=silent)
    assert plan.decision is pipeline.Decision.INJECT
    assert codes(plan) == ["requirement-not-checked"] * 2
    assert "cuda>=99 counts as met: NVML has not answered" in plan.reasons[0].message
    assert codes(decide("NVIDIA_REQUIRE_D=driver>=600", inventory=silent)) == [
        "requirement-not-met"
    ]


def test_brand_that_nvml_has_no_name_for_is_unknown():
    """Images ask for `brand=unknown` for such GPUs."""
    inventory = inventories.with_gpus(inventories.gpu(0, compute_capability="9.0"))
    assert decide("NVIDIA_REQUIRE_B=brand=unknown", inventory=inventory).edits
    assert not decide("NVIDIA_REQUIRE_B=brand=tesla", inventory=inventory).edits


def test_implied_requirement_of_an_old_image():
    """CUDA_VERSION without NVIDIA_REQUIRE_CUDA is a requirement, named by that variable."""
    plan = decide("CUDA_VERSION=13.0.1")
    assert plan.reasons[0].message.startswith("CUDA_VERSION: cuda>=13.0 is not met: this node has")
    assert decide("CUDA_VERSION=12.4.1").edits


def test_switches():
    """The variable and the setting switch the check off; a value that does not is named."""
    unmet = "NVIDIA_REQUIRE_CUDA=cuda>=13"
    off = pipeline.Policy(request=policy.RequestPolicy(disable_require=True))
    assert decide(unmet, rules=off).edits
    assert decide(unmet, "NVIDIA_DISABLE_REQUIRE=1").edits
    plan = decide(unmet, "NVIDIA_DISABLE_REQUIRE=yes")
    assert "'yes' does not switch it off" in plan.reasons[0].hint


def test_requirement_counts_where_gpus_are_given_only():
    """On a node without a GPU `all` gives nothing, and nothing is required of it."""
    plan = decide("NVIDIA_REQUIRE_CUDA=cuda>=13", inventory=pipeline.host.Inventory())
    assert codes(plan) == ["no-gpu-on-node"]


@given(
    st.dictionaries(st.text(max_size=8), st.text(max_size=60), max_size=3),
    st.sampled_from([NODE, inventories.with_gpus(L4, nvml_state="absent", cuda_version="")]),
)
def test_any_requirements_are_decided(stated, inventory):
    """Whatever variables hold, the container is created or refused with a sentence and a hint."""
    plan = decide(*(f"NVIDIA_REQUIRE_{name}={text}" for name, text in stated.items()),
                  inventory=inventory)  # fmt: skip
    assert plan.created or (plan.reasons[-1].message and plan.reasons[-1].hint)


def test_requirements_have_a_limit():
    """An image cannot have the daemon busy with its requirements while others wait."""
    long = decide(f"NVIDIA_REQUIRE_A={'cuda>=99 ' * 4000}")
    many = decide(*(f"NVIDIA_REQUIRE_{n}=cuda>=1" for n in range(33)))
    assert codes(long) == codes(many) == ["too-many-requirements"]
    assert "36000 characters" in long.reasons[0].message
    assert "33 requirements" in many.reasons[0].message
    assert decide("NVIDIA_REQUIRE_A=" + " ".join(["cuda>=99"] * 1000 + ["cuda>=12"])).edits


def test_mig_device_is_judged_by_its_gpu():
    """A MIG device has the brand and the compute capability of its GPU."""
    host = inventories.mig_host()
    gpus = (attrs.evolve(host.gpus[0], compute_capability="9.0", brand="nvidia"), host.gpus[1])
    host = attrs.evolve(host, gpus=gpus)
    assert decide("NVIDIA_REQUIRE_A=arch>=9.0", inventory=host, devices="0:1").edits
    assert not decide("NVIDIA_REQUIRE_A=arch>=9.1", inventory=host, devices="0:1").edits
