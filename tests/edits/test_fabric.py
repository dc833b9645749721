# SPDX-License-Identifier: Apache-2.0
"""Groups of further nodes: one that is not there is told by the words that asked for it."""

import pytest

from nri_nvidia.request import container as containers
from nri_nvidia.request import model, mountlist
from tests import inventories
from tests.field.harness import asked, codes, decide, requests

KEY = "cdi.k8s.io/nvidia-device-plugin_1"


@pytest.mark.parametrize("group", model.Group)
def test_a_group_that_is_not_there_is_named_as_it_was_asked_for(group):
    """By its variable, an annotation, a mount or a name in the list of devices."""
    name, variable = f"nvidia.com/{group}=all", f"NVIDIA_{group.upper()}=enabled"
    mount = containers.Mount(
        source="/dev/null", destination=f"{mountlist.ROOT}/cdi/nvidia.com/{group}/all"
    )
    mounts = requests(accept_volume_mounts=True)
    for plan, said in (
        (decide(inventories.EIGHT, *asked("0", variable)), variable),
        (decide(inventories.EIGHT, *asked(f"0,{name}", variable)), variable),
        (decide(inventories.EIGHT, *asked(f"0,{name}")), f"NVIDIA_VISIBLE_DEVICES={name}"),
        (
            decide(inventories.EIGHT, annotations={KEY: f"nvidia.com/gpu=0,{name}"}),
            f"annotation {KEY}: {name}",
        ),
        (
            decide(inventories.EIGHT, mounts=(mount,), rules=mounts),
            f"mounts below {mountlist.ROOT}: {name}",
        ),
    ):
        assert codes(plan) == ["group-not-there"]
        assert plan.reasons[0].message.startswith(f"{said}: this node has no ")
