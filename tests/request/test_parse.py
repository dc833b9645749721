# SPDX-License-Identifier: Apache-2.0
"""How a container's request is read, beyond the recorded cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.request import container, model, mountlist, parse, policy
from nri_nvidia.request import rules as access_rules
from tests import inventories
from tests.field import harness

RULES = policy.RequestPolicy()


def read(*env, rules=RULES, **more):
    return parse.parse(container.Container(env=env, **more), rules)


def test_entry_without_equals_sign_means_nothing():
    """An image's rubbish in its environment is not an error of the container."""
    assert read("NVIDIA_VISIBLE_DEVICES", "garbage") == parse.Parsed()
    assert read("garbage", "NVIDIA_VISIBLE_DEVICES=0").request.devices == ("0",)


def test_later_entry_wins():
    """Engines append the user's values after the image's."""
    parsed = read("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void")
    assert parsed.request is None


@pytest.mark.parametrize("value", ["", " ", ",", "void", " void ", "void,void"])
def test_not_a_gpu_container(value):
    """Empty and `void` are nothing at all, and there is nothing to say of it."""
    assert read(f"NVIDIA_VISIBLE_DEVICES={value}") == parse.Parsed()


@pytest.mark.parametrize(
    ("value", "devices", "lost"),
    [
        ("0,void", None, "0"),
        ("void,all,9", None, "all, 9"),
        ("none,9", (), "9"),
        ("all,GPU-typo", ("all",), "GPU-typo"),
        ("all,none", ("all",), "none"),
        ("1,none,1", (), "1"),
        ("0,nvidia.com/gpu=all", ("0", "nvidia.com/gpu=all"), "0"),
        ("0,ALL", ("0", "ALL"), "0"),
        ("all,all", ("all",), ""),
        ("all,nvidia.com/gpu=all", ("all",), ""),
        ("0,1,0", ("0", "1"), ""),
    ],
)
def test_what_a_keyword_leaves_without_effect_is_said(value, devices, lost):
    """One keyword decides over a list, as in NVIDIA's stack; the other members are named."""
    parsed = read(f"NVIDIA_VISIBLE_DEVICES={value}")
    assert (parsed.request and parsed.request.devices) == devices
    assert [reason.code for reason in parsed.reasons] == ["devices-without-effect"] * bool(lost)
    assert not lost or f": {lost} has no effect" in parsed.reasons[0].message


def test_lists_of_annotations_and_mounts():
    """A CDI name like a keyword decides there; beside it a channel keeps its effect."""
    asked = {"cdi.k8s.io/x": "nvidia.com/gpu=0,nvidia.com/gpu=all,nvidia.com/imex-channel=2"}
    parsed = read(annotations=asked)
    assert parsed.request.imex_channels == ("2",)
    (reason,) = parsed.reasons
    assert reason.message.startswith("annotation cdi.k8s.io/x: nvidia.com/gpu=0,nvidia.com/gpu=a")
    assert reason.message.endswith(": nvidia.com/gpu=0 has no effect")


def test_several_variables_are_one_list():
    """What one resource variable says may leave another's without effect."""
    rules = policy.RequestPolicy(swarm_resources=("A", "B"))
    parsed = read("A=0", "B=none", rules=rules)
    assert parsed.request.devices == ()
    assert parsed.reasons[0].message.startswith("A,B=0,none: none decides alone")


def test_mounts_that_do_not_count_are_told():
    """Where nothing else is asked for, the setting that keeps a mount from counting is named."""
    claim = container.Mount(source="/dev/null", destination=f"{mountlist.ROOT}/0")
    (reason,) = read(mounts=(claim,)).reasons
    assert reason.code == "volume-mounts-not-accepted"
    assert f"{mountlist.ROOT} name 0" in reason.message
    assert "request.accept_volume_mounts" in reason.message
    assert read("NVIDIA_VISIBLE_DEVICES=1", mounts=(claim,)).reasons == ()
    rules = policy.RequestPolicy(accept_env_when_unprivileged=False)
    parsed = read("NVIDIA_VISIBLE_DEVICES=1", mounts=(claim,), rules=rules)
    assert [each.code for each in parsed.reasons] == [
        "environment-not-accepted", "volume-mounts-not-accepted",
    ]  # fmt: skip


def test_unprivileged_environment_can_be_refused_with_a_reason():
    """With the switch off a request is set aside, never silently; a privileged one counts."""
    rules = policy.RequestPolicy(accept_env_when_unprivileged=False)
    parsed = read("NVIDIA_VISIBLE_DEVICES=0", rules=rules)
    assert parsed.request is None
    assert [reason.code for reason in parsed.reasons] == ["environment-not-accepted"]
    assert read("NVIDIA_VISIBLE_DEVICES=void", rules=rules) == parse.Parsed()
    privileged = read("NVIDIA_VISIBLE_DEVICES=0", rules=rules, privileged=True)
    assert privileged.request.devices == ("0",)


def test_mount_root_needs_a_separator():
    """A mount beside the root is no request (upstream compares the text alone)."""
    rules = policy.RequestPolicy(accept_volume_mounts=True)
    beside = container.Mount(
        source="/dev/null", destination="/var/run/nvidia-container-devicesX/2"
    )
    assert read(rules=rules, mounts=(beside,)) == parse.Parsed()


def test_unknown_capability_is_refused_and_the_request_is_kept():
    """The message lists the known names; what was read before is shown."""
    parsed = read("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,foo")
    assert parsed.error.code == "unsupported-capability"
    assert "foo" in parsed.error.message
    assert "compat32, compute, display" in parsed.error.message
    assert parsed.request.devices == ("0",)


def test_capability_of_the_node_that_is_off_is_told_from_an_unknown_one():
    """What the node does not support is named as that."""
    rules = policy.RequestPolicy(supported_capabilities=frozenset({model.Capability.UTILITY}))
    parsed = read("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=video", rules=rules)
    assert "not supported on this node" in parsed.error.message


@given(st.lists(st.text()), st.text(), st.text(), st.text(), st.booleans())
def test_any_environment_gives_a_value(junk, devices, capabilities, cuda, mounts):
    """No environment raises: the outcome is a request, none, or an error as a value."""
    parsed = read(
        *junk,
        f"NVIDIA_VISIBLE_DEVICES={devices}",
        f"NVIDIA_DRIVER_CAPABILITIES={capabilities}",
        f"CUDA_VERSION={cuda}",
        rules=policy.RequestPolicy(accept_volume_mounts=mounts),
    )
    request = parsed.request
    assert request is None or "" not in request.devices
    assert parsed.error is None or parsed.error.message


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (["A=1", "B=9"], "A,B=9: no such GPU"),
        (["B=9"], "B=9: no such GPU"),
        (["A=9", "NVIDIA_VISIBLE_DEVICES=1"], "A=9: no such GPU"),
        (["NVIDIA_VISIBLE_DEVICES=9"], "NVIDIA_VISIBLE_DEVICES=9: no such GPU"),
    ],
)
def test_resource_variables_are_named_together(env, said):
    """What several variables make up is told by all their names, not by that of the first."""
    rules = harness.requests(swarm_resources=("A", "B"))
    assert harness.decide(inventories.EIGHT, *env, rules=rules).reasons[0].message.startswith(said)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (["A=0", "B=1"], "A=0 B=1 is ignored"),
        (["B=1", "NVIDIA_VISIBLE_DEVICES=2"], "B=1 is ignored"),
        (["CUDA_VERSION=12.0"], "the default of an old CUDA image is ignored"),
    ],
)
def test_what_is_not_accepted_is_told_as_it_was_set(env, said):
    """Each variable with its own value."""
    rules = policy.RequestPolicy(swarm_resources=("A", "B"), accept_env_when_unprivileged=False)
    assert read(*env, rules=rules).reasons[0].message.startswith(said)


@pytest.mark.parametrize(
    ("image", "action", "created"),
    [
        ({"A": "0", "B": "1"}, "image", False),
        ({"A": "0"}, "image", True),
        ({"A": "0", "B": "2"}, "pod", False),
        ({"A": "0", "B": "1"}, "pod", True),
    ],
)
def test_variables_of_an_image_and_a_pod(image, action, created):
    """A list of which one variable is the pod's own is the pod's."""
    rule = access_rules.Rule(
        number=1, action=access_rules.Action.DENY, sources=frozenset({access_rules.Source(action)})
    )
    rules = harness.requests(swarm_resources=("A", "B"), access=access_rules.Access(rules=(rule,)))
    context = pipeline.Context(image=access_rules.Image(env=image))
    plan = harness.decide(inventories.EIGHT, "A=0", "B=1", rules=rules, context=context)
    assert plan.created is created


def test_huge_version_is_refused():
    """A number of thousands of digits is no version and no crash."""
    parsed = read("CUDA_VERSION=" + "9" * 10000)
    assert parsed.error.code == "invalid-cuda-version"


def test_every_channel_cannot_be_asked_for_by_a_variable():
    """By a CDI name as little as by the channels' own variable; an annotation can (upstream)."""
    name = "nvidia.com/imex-channel="
    asked = read(f"NVIDIA_VISIBLE_DEVICES=0,{name}all").request
    assert (asked.devices, asked.imex_channels) == (("0",), ())
    asked = read(f"NVIDIA_VISIBLE_DEVICES=0,{name}2,{name}none").request
    assert asked.imex_channels == ("2",)
    asked = read(annotations={"cdi.k8s.io/x": f"nvidia.com/gpu=0,{name}all"}).request
    assert asked.imex_channels == ("all",)
