# SPDX-License-Identifier: Apache-2.0
"""What a spec already holds: MIG devices by their capability nodes, and other injectors' hooks."""

import pytest

from nri_nvidia.edits import present
from nri_nvidia.request import container as containers
from tests import inventories
from tests.field.harness import asked, codes, decide, nodes

MIG = inventories.mig_host()
CAPS = dict(MIG.caps_nodes)
FIRST, SECOND = (mig.uuid for mig in MIG.gpus[0].mig_devices)


def in_spec(*instances, gpus=(0,), known=True):
    """Give nodes as a device plugin passes them: GPUs', and those of GPU 0's instances."""
    found = [MIG.gpus[index].node for index in gpus]
    for gi in instances:
        found += [CAPS[f"gpu0/gi{gi}/access"], CAPS[f"gpu0/gi{gi}/ci0/access"]]
    return tuple(
        containers.Device(path=node.path, major=node.major, minor=node.minor)
        if known
        else containers.Device(path=node.path)
        for node in found
    )


def given(plan):
    return [f"{i.gpu.index}:{i.mig.index}" if i.mig else str(i.gpu.index) for i in plan.assigned]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("held", "value", "expected", "differs"),
    [
        (([1], [0]), "all", ["0:0"], False),
        (([1], [0]), "0", ["0:0"], False),
        (([1], [0]), FIRST, ["0:0"], False),
        (([1], [0]), "0:1", ["0:0"], True),
        (([1], [0]), SECOND, ["0:0"], True),
        (([1], [0]), "0:0,0:1", ["0:0"], True),
        (([1], [0]), "1", ["0:0"], True),
        (([1], [0]), "9", ["0:0"], True),
        (([1, 2], [0]), "all", ["0:0", "0:1"], False),
        (([1, 2], [0]), "0:1", ["0:0", "0:1"], True),
        (([2], [0, 1]), "all", ["0:1", "1"], False),
        (([2], [0, 1]), "1,0:1", ["0:1", "1"], False),
        (([2], [0, 1]), "1,0:0", ["0:1", "1"], True),
        (([], [0]), "0:1", ["0:1"], False),
        (([], [0]), "all", ["0"], False),
        (([], [1]), "0:1", ["1"], True),
    ],
)
def test_mig_devices_of_a_spec_are_the_list(held, value, expected, differs, known):
    """No instance's nodes are added to those of another; where they differ it is told."""
    instances, gpus = held
    plan = decide(MIG, *asked(value), devices=in_spec(*instances, gpus=gpus, known=known))
    assert given(plan) == expected
    assert codes(plan) == ["devices-in-spec-differ" if differs else "devices-in-spec"]
    listed = ", ".join(expected) if instances or expected != ["0:1"] else "0"
    assert f"the nodes of GPU {listed}" in plan.reasons[0].message
    added = {path for path in nodes(plan) if "caps" in path}
    assert not added or not instances


def test_part_of_an_instances_nodes_is_no_instance():
    """With the GPU instance's node alone a program cannot compute: the request says which it is."""
    held = (*in_spec(), containers.Device(path=CAPS["gpu0/gi1/access"].path, major=508, minor=12))
    plan = decide(MIG, *asked("0:0"), devices=held)
    assert given(plan) == ["0:0"]
    assert nodes(plan)[-1] == CAPS["gpu0/gi1/ci0/access"].path


@pytest.mark.parametrize("kind", ["b", "p"])
def test_another_kind_of_node_at_a_place_is_refused(kind):
    """A block device or FIFO with a GPU's numbers is not the GPU, and hides it."""
    other = containers.Device(path="/dev/nvidia1", type=kind, major=195, minor=1)
    plan = decide(inventories.EIGHT, *asked("1"), devices=(other,))
    assert codes(plan) == ["device-path-taken"]
    assert f"the device {kind} 195:1" in plan.reasons[0].message


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("nvidia-container-runtime-hook", True),
        ("nvidia-container-toolkit", True),
        ("nvidia-container-cli", True),
        ("oci-nvidia-hook", True),
        ("nvidia-cdi-hook", True),
        ("nvidia-ctk", True),
        ("nvidia-modprobe", False),
        ("nvidia-container-runtime-hook-2", False),
        ("my-nvidia-ctk", False),
    ],
)
@pytest.mark.parametrize("end", ["", ".real"])
def test_hooks_of_others(name, end, other):
    """A hook is known by its program's name, wherever that is."""
    hook = containers.Hook(stage="prestart", path=f"/opt/x/{name}{end}")
    assert bool(present.served(containers.Container(hooks=(hook,)))) is other
