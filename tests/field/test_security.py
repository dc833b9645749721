# SPDX-License-Identifier: Apache-2.0
"""Field cases: what a container may open, and what runs beside it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia.render import oci
from nri_nvidia.request import container as containers
from tests import inventories

from . import harness, strategies
from .harness import asked, capable, decide


@settings(max_examples=150)
@given(data=st.data(), inventory=strategies.hosts(), capabilities=strategies.CAPABILITIES)
def test_only_what_was_given_may_be_opened(data, inventory, capabilities):
    """FC-119: a rule for each node given, by both numbers, and never one for a whole major."""
    plan = decide(inventory, *asked(data.draw(strategies.asks(inventory)), capable(capabilities)))
    spec = oci.patched({}, plan.edits)
    rules = spec["linux"]["resources"]["devices"]
    for rule in rules:
        assert rule["access"] == "rw"
        assert isinstance(rule["major"], int)
        assert isinstance(rule["minor"], int)
    minors = {rule["minor"] for rule in rules if rule["major"] == 195 and rule["minor"] < 254}
    assert minors == {item.gpu.minor for item in plan.assigned}


def test_one_of_four():
    """FC-119: for GPU 0 of four exactly its node, nvidiactl and uvm are allowed."""
    found = inventories.with_gpus(*(inventories.gpu(number) for number in range(4)))
    plan = decide(found, *asked("0"))
    assert {(d.major, d.minor) for d in plan.edits.devices} == {
        (195, 0), (195, 255), (511, 0), (511, 1),
    }  # fmt: skip


NAMES = st.sampled_from(["LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PATH",
                         "GLIBC_TUNABLES", "NVIDIA_CTK_LIBCUDA_DIR"])  # fmt: skip
VALUES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30)


@given(
    image=st.dictionaries(NAMES, VALUES),
    name=VALUES,
    labels=st.dictionaries(VALUES, VALUES, max_size=2),
)
def test_nothing_of_the_image_reaches_the_hook(image, name, labels):
    """FC-117, FC-050: environment, names and labels change neither the hook's line nor its variables."""
    plain = decide(inventories.EIGHT, *asked("0")).edits.hooks
    env = [f"{key}={value}" for key, value in image.items()]
    shown = containers.Container(env=(*env, *asked("0")), name=name, labels=labels)
    plan = harness.pipeline.plan(shown, inventories.EIGHT, harness.RULES)
    assert plan.edits.hooks == plain
    assert plain[0].env
