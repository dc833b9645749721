# SPDX-License-Identifier: Apache-2.0
"""Rules as values: kinds of names, which rule meets a claim, and what no name gets past strict."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.request import container as containers
from nri_nvidia.request import policy, rules
from tests import inventories

UUIDS = inventories.UUIDS
STRICT = rules.Access(preset=rules.Preset.STRICT)
KINDS = rules.Kind


def decide(*env, access=STRICT, inventory=inventories.EIGHT, context=None, **more):
    shown = containers.Container(env=env, **{"namespace": "team", "pod": "p", **more})
    settings = pipeline.Policy(request=policy.RequestPolicy(access=access))
    return pipeline.plan(shown, inventory, settings, context)


def access(*actions, preset=rules.Preset.COMPATIBLE, **conditions):
    """Give rules of these actions, all with the same conditions."""
    return rules.Access(
        preset=preset,
        rules=tuple(
            rules.Rule(number=number, action=rules.Action(action), **conditions)
            for number, action in enumerate(actions, 1)
        ),
    )


@pytest.mark.parametrize(
    ("device", "kinds"),
    [
        ("0", {KINDS.INDEX}),
        ("3::1", {KINDS.INDEX}),
        ("0:1", {KINDS.INDEX}),
        ("0000:07:00.0", {KINDS.INDEX}),
        ("07:00.0", {KINDS.INDEX}),
        ("all", {KINDS.ALL}),
        ("ALL", {KINDS.ALL}),
        (UUIDS[0], {KINDS.UUID}),
        (UUIDS[0].lower(), {KINDS.UUID}),
        (UUIDS[0][:12], {KINDS.UUID}),
        (f"{UUIDS[0]}::7", {KINDS.UUID}),
        ("MIG-4a0c9f4e-0000-5000-8000-000000000000", {KINDS.UUID}),
        (f"MIG-{UUIDS[0]}/1/0", {KINDS.UUID}),
        ("4a0c9f4e-1111-5222-8333-444455556666", {KINDS.UUID}),
        ("nvidia.com/gpu=all", {KINDS.CDI, KINDS.ALL}),
        ("nvidia.com/gpu=none", {KINDS.CDI, KINDS.NONE}),
        ("nvidia.com/gpu=gpu0", {KINDS.CDI, KINDS.INDEX}),
        ("nvidia.com/gpu=mig0:1", {KINDS.CDI, KINDS.INDEX}),
        ("runtime.nvidia.com/gpu=1", {KINDS.CDI, KINDS.INDEX}),
        (f"nvidia.com/gpu={UUIDS[0]}", {KINDS.CDI, KINDS.UUID}),
        ("management.nvidia.com/gpu=all", {KINDS.MANAGEMENT}),
        ("nonsense", {KINDS.UUID}),
    ],
)
def test_kinds_of_names(device, kinds):
    """What a name is, by the id in it; what names nothing known is left to be refused as that."""
    assert rules.kinds(device) == kinds


PLACES = [*map(str, range(9)), "0000:07:00.0", "7:0.0", "00000000:0F:00.0", "0:0", "gpu0", "all"]
DRESSES = ["{}", "nvidia.com/gpu={}", "runtime.nvidia.com/gpu={}", " {} ", "{}::1", "0{}", "{},"]
NAMES = st.one_of(
    st.builds(lambda place, dress: dress.format(place), st.sampled_from(PLACES),
              st.sampled_from(DRESSES)),
    st.sampled_from(UUIDS),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
)  # fmt: skip


@given(names=st.lists(NAMES, max_size=4), cuda=st.booleans())
def test_no_variable_gives_a_pod_a_gpu_that_it_does_not_name_by_uuid(names, cuda):
    """Whatever a strict node's pod writes, each GPU that it gets is in it by its UUID."""
    value = ",".join(names)
    env = (f"NVIDIA_VISIBLE_DEVICES={value}", *(["CUDA_VERSION=10.0"] if cuda else []))
    plan = decide(*env)
    for item in plan.assigned:
        assert item.gpu.uuid[:12].lower() in value.lower()


@given(
    value=NAMES,
    namespace=st.sampled_from(["team", "other"]),
    numbers=st.permutations(["allow", "ignore", "deny"]),
)
def test_the_first_rule_that_is_met_decides(value, namespace, numbers):
    """The order is all that counts among rules of the same conditions."""
    decided = access(*numbers, namespaces=("team",))
    plan = decide(f"NVIDIA_VISIBLE_DEVICES={value}", access=decided, namespace=namespace)
    if plan.request is None or namespace == "other":
        assert plan.rule is None
        return
    if plan.rule is None:  # it was refused before there was anything to judge
        assert plan.decision is pipeline.Decision.ERROR
        return
    assert plan.rule.number == 1
    expected = {"allow": None, "ignore": "ignore", "deny": "deny"}[numbers[0]]
    assert expected in {None, str(plan.decision)}


@pytest.mark.parametrize(
    ("pattern", "namespace", "meets"),
    [("*", "x", True), ("*", "", False), ("a?", "ab", True), ("a?", "abc", False),
     ("A*", "ab", False), ("a", "a", True)],
)  # fmt: skip
def test_patterns_of_namespaces(pattern, namespace, meets):
    """As in a shell, with the case of letters; no container outside of pods is in any."""
    rule = rules.Rule(number=1, action=rules.Action.DENY, namespaces=(pattern,))
    assert rules.meets(rule, containers.Container(namespace=namespace)) is meets


@pytest.mark.parametrize(
    ("patterns", "handler", "meets"),
    [(("kata*",), "kata-qemu", True), (("kata",), "kata-qemu", False), (("kata*",), "", False),
     (("*",), "", True), (("", "kata"), "", True), (("",), "runc", False), ((), "kata", True)],
)  # fmt: skip
def test_patterns_of_runtime_handlers(patterns, handler, meets):
    """As of namespaces, but that the default handler has an empty name and can be meant by it."""
    rule = rules.Rule(number=1, action=rules.Action.DENY, runtime_handlers=patterns)
    assert rules.meets(rule, containers.Container(runtime_handler=handler)) is meets


IMAGES = {"image": {"NVIDIA_VISIBLE_DEVICES": "0"}, "pod": {"PATH": "/bin"}}


@pytest.mark.parametrize(
    ("source", "setter", "action", "preset"),
    [
        *itertools.product(
            ["image", "pod"], ["image", "pod", None], ["allow", "deny"], rules.Preset
        )
    ],
)
def test_who_set_a_variable(source, setter, action, preset):
    """Known, it is as it is; not known, it is as the preset's side would have it, and told."""
    env = "NVIDIA_VISIBLE_DEVICES=0"
    chosen = access(action, preset=preset, sources=frozenset({rules.Source(source)}))
    image = rules.Image(env=IMAGES[setter]) if setter else rules.Image(problem="it is away")
    plan = decide(env, access=chosen, context=pipeline.Context(image=image))
    if setter:
        met = source == setter
    else:
        met = (action == "allow") == (preset is rules.Preset.COMPATIBLE)
    assert (plan.rule is not None) is met
    unsure = [reason for reason in plan.reasons if reason.code == "image-not-known"]
    assert [reason.message.endswith(": it is away") for reason in unsure] == [True] * (not setter)


def test_the_image_is_asked_for_only_where_it_can_matter():
    """A rule that names both, or `env` as well, or another namespace, does not need to know."""
    shown = containers.Container(namespace="team")

    def wanted(*sources, **conditions):
        named = frozenset(map(rules.Source, sources))
        return rules.wants_image(shown, access("deny", sources=named, **conditions))

    assert wanted("image")
    assert wanted("pod", "mount")
    assert not wanted("image", "pod")
    assert not wanted("env", "image")
    assert not wanted("mount")
    assert not wanted("image", namespaces=("other",))


def test_without_rules_nothing_is_judged():
    """NVIDIA's behaviour is what there was before there were rules."""
    plan = decide("NVIDIA_VISIBLE_DEVICES=all", access=rules.Access())
    assert (len(plan.assigned), plan.reasons, plan.rule) == (8, (), None)
