# SPDX-License-Identifier: Apache-2.0
"""Settings of policy, and the faults in them."""

import pytest

from nri_nvidia.config import load, model
from nri_nvidia.request import rules

BAD = """\
policy = "strickt"
[[policy_rules]]
action = "permit"
namespaces = "ml"
[[policy_rules]]
name = "no action"
devices = ["all",
  "gpu"]
[[policy_rules]]
action = "deny"
max_devices = 2
sources = ["environment"]
labels = {a = 1}
namespace = ["x"]
[[policy_rules]]
action = "allow"
max_devices = 0
privileged = "yes"
[[policy_rules]]
action = "allow"
over_max = "ignore"
"""


def read(toml):
    return load.load([load.Text(name="c.toml", toml=toml)])


def faults(toml):
    with pytest.raises(model.Invalid) as caught:
        read(toml)
    return list(caught.value.faults)


def test_every_fault_of_a_rule_has_its_line():
    """File, line, rule and key, what is wrong, and what there is instead."""
    found = faults(BAD)
    assert [fault.split(": ")[:2] for fault in found] == [
        ["c.toml:1", "policy.preset"],
        ["c.toml:3", "policy_rules[1].action"],
        ["c.toml:4", "policy_rules[1].namespaces"],
        ["c.toml:5", "policy_rules[2].action"],
        ["c.toml:7", "policy_rules[2].devices"],
        ["c.toml:11", "policy_rules[3].max_devices"],
        ["c.toml:12", "policy_rules[3].sources"],
        ["c.toml:13", "policy_rules[3].labels"],
        ["c.toml:14", "policy_rules[3].namespace"],
        ["c.toml:17", "policy_rules[4].max_devices"],
        ["c.toml:18", "policy_rules[4].privileged"],
        ["c.toml:21", "policy_rules[5].over_max"],
    ]
    ends = [fault.split(": ", 2)[2] for fault in found]
    assert ends[0] == "'strickt' is none of compatible, strict"
    assert ends[1] == "'permit' is none of allow, ignore, deny"
    assert ends[3] == "is missing: write one of allow, ignore, deny"
    assert ends[4].startswith("gpu: there are none, all, index, uuid, cdi, share, management")
    assert ends[5] == 'says something only with action = "allow"'
    assert ends[8] == "unknown key (did you mean namespaces?)"


@pytest.mark.parametrize(
    ("toml", "key", "says"),
    [
        ("policy = 1", "policy", "1 is not a table, write [policy]"),
        ("policy_rules = 1", "policy_rules", "write [[policy_rules]]"),
        ("policy_rules = [1]", "policy_rules[1]", "write [[policy_rules]]"),
        ("[policy_rules]\naction = 1", "policy_rules", "write [[policy_rules]]"),
        ('policy.cri_socket = "x"', "policy.cri_socket", "not an absolute path"),
        ("policy.cri_timeout = 11", "policy.cri_timeout", "up to 10"),
    ],
)
def test_other_forms(toml, key, says):
    """What is no table or list is told how to be written."""
    (fault,) = faults(toml)
    assert fault.startswith(f"c.toml:1: {key}: ")
    assert says in fault


def test_both_ways_to_write_the_preset():
    """`policy = "strict"` is short for the table."""
    short, long = read('policy = "strict"'), read('[policy]\npreset = "strict"')
    assert short == long
    assert short.policy.preset == "strict"


def test_rules_of_a_later_text_take_the_place_of_the_earlier():
    """An order over two texts would be a matter of chance, so lists are not joined."""
    one = load.Text(name="a", toml='[[policy_rules]]\naction = "deny"\n')
    two = load.Text(name="b", toml='policy = "strict"\n[[policy_rules]]\naction = "allow"\n')
    assert [rule.action for rule in load.load([one, two]).policy_rules] == ["allow"]
    assert [rule.action for rule in load.load([two, one]).policy_rules] == ["deny"]
    assert load.load([two, one]).policy.preset == "strict"


def test_rules_reach_the_decision():
    """The settings become the values that decide, with numbers from 1."""
    toml = """
    policy = {preset = "strict", exclusive = true}
    [[policy_rules]]
    action = "deny"
    [[policy_rules]]
    name = "b"
    action = "allow"
    devices = ["all"]
    sources = ["pod"]
    labels = {x = "y"}
    """
    access = read(toml).rules(interpreter="/usr/bin/python3").request.access
    assert (access.preset, access.exclusive) == (rules.Preset.STRICT, True)
    assert [rule.number for rule in access.rules] == [1, 2]
    assert str(access.rules[1]) == "policy_rules[2] (b)"
    assert access.rules[1].devices == {rules.Kind.ALL}
    assert access.rules[1].labels == {"x": "y"}
