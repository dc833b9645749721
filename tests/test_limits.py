# SPDX-License-Identifier: Apache-2.0
"""What a choice of GPUs is held to: a number, and what others hold."""

import itertools

import attrs
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


INVENTORY = host.Inventory(gpus=(PLAIN, SPLIT, UNNAMED))
SHARING = model.GpuRequest(
    source=model.Source.SHARE,
    devices=("container main",),
    variable="annotation nri-nvidia/share.dbg",
    shares="main",
)


def member(identifier, name="main", sandbox="s"):
    return containers.Container(id=identifier, name=name, sandbox=sandbox)


@pytest.mark.parametrize(
    ("things", "devices"),
    [
        (("plain",), ("GPU-0",)),
        (("plain", "mig1"), ("GPU-0", "MIG-1")),
        (("mig0", "mig1"), ("MIG-0", "MIG-1")),
        (("unnamed",), ("0000:09:00.0",)),
    ],
)
def test_what_is_shared_has_the_names_of_what_is_held(things, devices):
    """A GPU without a UUID is named by its place; the reason tells whose they are."""
    held = [holding(thing, member("id1")) for thing in things]
    request, reason = limits.shared(member("id2", "dbg"), SHARING, held, INVENTORY)
    assert (request.devices, request.shares) == (devices, "main")
    assert "container main of this pod (id1) holds" in reason.message
    assert ", ".join(devices) in reason.message


def test_of_several_attempts_the_last_counts():
    """What an earlier container of the name held is not added."""
    held = [holding("plain", member("id1")), holding("mig0", member("id3"))]
    request, _ = limits.shared(member("id2", "dbg"), SHARING, held, INVENTORY)
    assert request.devices == ("MIG-0",)


@pytest.mark.parametrize(
    ("sandbox", "holder", "code"),
    [
        ("", member("id1", sandbox=""), "share-without-pod"),
        ("s", member("id1", sandbox=""), "nothing-to-share"),
        ("s", member("id1", sandbox="t"), "nothing-to-share"),
        ("s", member("id1", "dbg"), "nothing-to-share"),
    ],
)
def test_only_of_the_same_sandbox(sandbox, holder, code):
    """Where it is not known to be the same one nothing is shared, and the door is named."""
    asker = member("id2", "dbg", sandbox)
    with pytest.raises(errors.RequestError) as caught:
        limits.shared(asker, SHARING, [holding("plain", holder)], INVENTORY)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("holder", "shared_from", "asker", "shares", "free"),
    [
        ("main", "", "dbg", "main", True),
        ("dbg", "main", "main", "", True),
        ("dbg", "main", "two", "main", True),
        ("dbg", "main", "dbg", "main", True),
        ("dbg", "other", "two", "main", False),
        ("dbg", "main", "two", "", False),
        ("main", "", "dbg", "other", False),
        ("main", "", "dbg", "", False),
    ],
)
def test_who_shares_holds_together(holder, shared_from, asker, shares, free):
    """The container, and all that share its GPUs, in whichever order they are created."""
    for sandbox in ("s", "t", ""):
        held = attrs.evolve(
            holding("plain", member("id1", holder, sandbox)), shared_from=shared_from
        )
        request = attrs.evolve(SHARING, shares=shares)
        call = (member("id2", asker), request, [THINGS["plain"]], [held])
        if free and sandbox == "s":
            limits.require_free(*call)
        else:
            with pytest.raises(errors.PolicyError):
                limits.require_free(*call)


def test_who_only_looks_is_passed_over():
    """A holder that a rule lets share does not count."""
    held = attrs.evolve(holding("plain", member("id1")), shares=True)
    limits.require_free(member("id2", "x", "t"), REQUEST, [THINGS["plain"]], [held])
