# SPDX-License-Identifier: Apache-2.0
"""What a choice of GPUs is held to: a number, and what others hold."""

import itertools

import pytest

from nri_nvidia import errors, limits, resolve
from nri_nvidia.host import model as host
from nri_nvidia.request import container as containers
from nri_nvidia.request import model, rules

MIGS = tuple(
    host.MigDevice(index=index, uuid=f"MIG-{index}", gi=index + 1, ci=0, profile="1g.10gb")
    for index in range(2)
)
PLAIN = host.Gpu(index=0, uuid="GPU-0", minor=4, bus_id="0000:07:00.0")
SPLIT = host.Gpu(
    index=1, uuid="GPU-1", minor=5, bus_id="0000:08:00.0", mig_enabled=True, mig_devices=MIGS
)
UNNAMED = host.Gpu(index=2, uuid="", minor=6, bus_id="0000:09:00.0")
THINGS = {
    "plain": resolve.Assigned(gpu=PLAIN),
    "whole": resolve.Assigned(gpu=SPLIT),
    "mig0": resolve.Assigned(gpu=SPLIT, mig=MIGS[0]),
    "mig1": resolve.Assigned(gpu=SPLIT, mig=MIGS[1]),
    "unnamed": resolve.Assigned(gpu=UNNAMED),
}
REQUEST = model.GpuRequest(source=model.Source.ENV, devices=("0",))


def container(identifier="id2", name="c", uid="", pod="p"):
    return containers.Container(id=identifier, name=name, pod=pod, namespace="n", pod_uid=uid)


def holding(thing, holder):
    item = THINGS[thing]
    mig = item.mig.uuid if item.mig else ""
    return limits.Holding(gpu=item.gpu.uuid, minor=item.gpu.minor, mig=mig, container=holder)


def refusal(thing, held, asker=None, holder=None):
    asker = asker or container()
    holder = holder or container("id1", "h")
    try:
        limits.require_free(asker, REQUEST, [THINGS[thing]], [holding(held, holder)])
    except errors.PolicyError as error:
        return error
    return None


@pytest.mark.parametrize(("asked", "held"), [*itertools.product(THINGS, THINGS)])
def test_what_excludes_what(asked, held):
    """The same thing, and a whole GPU and a device of it; nothing else."""
    together = {asked, held}
    split = together <= {"whole", "mig0", "mig1"}
    expected = asked == held or (split and "whole" in together)
    assert (refusal(asked, held) is not None) is expected


def test_the_holder_is_named():
    """Namespace, pod, container and id, and the device by which it holds."""
    error = refusal("whole", "mig1")
    assert error.code == "held-exclusively"
    assert error.message == (
        "NVIDIA_VISIBLE_DEVICES=0: GPU 1 (GPU-1) is held by n/p/h (id1), by its MIG device MIG-1, "
        "and GPUs are exclusive on this node"
    )
    assert "MIG-0 is held by n/p/h" in refusal("mig0", "whole").message


@pytest.mark.parametrize(
    ("holder", "same"),
    [
        (container("id2", "x"), True),
        (container("id1", "c", uid="u"), True),
        (container("id1", "c", uid="v"), False),
        (container("id1", "d", uid="u"), False),
    ],
)
def test_an_earlier_attempt_is_no_other(holder, same):
    """The same id, or the same name in the same pod."""
    asker = container("id2", "c", uid="u")
    assert (refusal("plain", "plain", asker, holder) is None) is same


def test_containers_without_a_pod_are_told_by_id():
    """Two that have neither name nor pod are not one."""
    bare = [containers.Container(id=identifier) for identifier in ("a", "b")]
    assert refusal("plain", "plain", bare[0], bare[1])


@pytest.mark.parametrize(
    ("most", "over", "outcome"),
    [(None, "deny", 3), (3, "deny", 3), (2, "deny", "over-max-devices"), (2, "ignore", 0)],
)
def test_a_rules_number(most, over, outcome):
    """More than a rule allows is refused, or set aside; a MIG device is one."""
    rule = rules.Rule(
        number=7, action=rules.Action.ALLOW, max_devices=most, over_max=rules.Action(over)
    )
    chosen = resolve.Allocation(assigned=tuple(THINGS[name] for name in ("plain", "mig0", "mig1")))
    if isinstance(outcome, str):
        with pytest.raises(errors.PolicyError) as caught:
            limits.at_most(rule, REQUEST, chosen)
        assert caught.value.code == outcome
        assert "means 3 devices, and policy_rules[7] allows 2" in caught.value.message
        return
    found = limits.at_most(rule, REQUEST, chosen)
    assert (len(found.assigned), found.given) == (outcome, bool(outcome))


def test_no_rule_no_number():
    """Where no rule decided there is no limit."""
    chosen = resolve.Allocation(assigned=tuple(THINGS.values()))
    assert limits.at_most(None, REQUEST, chosen) == chosen
