# SPDX-License-Identifier: Apache-2.0
"""What is asked beside GPUs, read from variables and names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import errors
from nri_nvidia.request import extras, model

NAMES = [f"nvidia.com/{group}=all" for group in model.Group]


def test_each_group_has_its_variable():
    """The variables are those of NVIDIA's toolkit."""
    assert [extras.variable(group) for group in model.Group] == [
        "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH",
    ]  # fmt: skip


@given(st.dictionaries(st.sampled_from([extras.variable(g) for g in model.Group]), st.text()))
def test_exactly_one_value_switches_a_group_on(env):
    """Any other text than `enabled` leaves it off."""
    found = extras.groups(env)
    assert [extras.variable(group) for group in found] == [
        name for name in map(extras.variable, model.Group) if env.get(name) == "enabled"
    ]


def test_names_of_other_kinds_are_no_gpus():
    """Channels and groups are taken out of a list, in their order; what is left keeps its own."""
    found = extras.named(
        ("nvidia.com/gpu=1", "nvidia.com/imex-channel=3", *NAMES, "0", "nvidia.com/imex-channel=0")
    )
    assert found.devices == ("nvidia.com/gpu=1", "0")
    assert found.imex_channels == ("3", "0")
    assert found.groups == tuple(model.Group)


@pytest.mark.parametrize(
    "name", ["nvidia.com/gds=0", "nvidia.com/imex-channel=", "nvidia.com/gds", "gds=all"]
)
def test_a_name_that_is_almost_one_stays_a_device(name):
    """It is refused later as what it is, rather than passed over here."""
    assert extras.named((name,)) == extras.Named(devices=(name,))


@given(st.lists(st.text(st.characters(exclude_characters="=")), max_size=4).map(tuple))
def test_lists_without_such_names_are_left_as_they_are(devices):
    """Ids of GPUs go through unchanged."""
    assert extras.named(devices) == extras.Named(devices=devices)


@pytest.mark.parametrize("kind", model.MigManagement)
def test_managing_mig_is_for_the_privileged(kind):
    """Without privileges it is an error that names the variable; an empty one asks for nothing."""
    name = f"NVIDIA_MIG_{kind.upper()}_DEVICES"
    assert extras.mig_management({name: ""}, privileged=False) == ()
    assert extras.mig_management({name: "x"}, privileged=True) == (kind,)
    with pytest.raises(errors.RequestError, match=f"{name}=all: only a privileged container"):
        extras.mig_management({name: "all"}, privileged=False)


@pytest.mark.parametrize(("value", "good"), [("all", True), ("ALL ", True), ("0", False)])
def test_only_all_of_mig_can_be_managed(value, good):
    """Any spelling of `all` is taken, anything else named."""
    env = {"NVIDIA_MIG_CONFIG_DEVICES": value}
    if good:
        extras.require_all([model.MigManagement.CONFIG], env)
        return
    with pytest.raises(errors.RequestError, match="only all is possible"):
        extras.require_all([model.MigManagement.CONFIG], env)
