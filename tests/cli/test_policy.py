# SPDX-License-Identifier: Apache-2.0
"""Each preset and each kind of rule, as `plan` shows what comes of it."""

import pathlib

import pytest

from .policies import MIG, POD, STRICT, mounted, rule, visible
from .test_plan import UUIDS

EVERY = [*range(8)]
ALLOWED, IGNORED, DENIED = "allowed-by-rule", "ignored-by-rule", "denied-by-rule"


@pytest.mark.parametrize(
    ("arguments", "gpus", "codes"),
    [
        ((*POD, *visible("all")), [], ["strict-policy"]),
        ((*POD, *visible("nvidia.com/gpu=all")), [], ["strict-policy"]),
        ((*POD, *visible("nvidia.com/gpu=gpu0")), [], ["strict-policy"]),
        ((*POD, *visible("ALL")), [], ["strict-policy"]),
        ((*POD, *visible("0")), [], ["strict-policy"]),
        ((*POD, *visible("0::2")), [], ["strict-policy"]),
        ((*POD, *visible("0:1")), [], ["strict-policy"]),
        ((*POD, *visible("0000:07:00.0")), [], ["strict-policy"]),
        ((*POD, *visible(f"{UUIDS[0]},1")), [], ["strict-policy"]),
        ((*POD, "--env", "CUDA_VERSION=10.0"), [], ["strict-policy"]),
        (("--pod", "p", *visible("all")), [], ["strict-policy"]),
        ((*POD, *visible(UUIDS[3])), [3], []),
        ((*POD, *visible(UUIDS[3][:12])), [3], []),
        ((*POD, *visible(f"nvidia.com/gpu={UUIDS[3]}")), [3], []),
        ((*POD, *visible(f"{UUIDS[3]}::1")), [3], []),
        ((*POD, *visible("all"), "--device", "/dev/nvidia2"), [2], ["devices-in-spec"]),
        ((*POD, *visible("all"), "--allocated", UUIDS[1]), [1], ["narrowed-to-allocated"]),
        ((*POD, "--annotation", "cdi.k8s.io/x=nvidia.com/gpu=4"), [4], []),
        (visible("0,1"), [0, 1], []),
        (visible("all"), EVERY, []),
    ],
)
def test_strict_gives_a_pod_what_was_allocated(decided, arguments, gpus, codes):
    """By names that can be guessed a pod gets nothing; outside of pods all is as ever."""
    decision, given, why, found = decided(STRICT, *arguments)
    assert (given, why) == (gpus, codes)
    assert decision == ("inject" if gpus else "ignore")
    if not gpus:
        assert "[[policy_rules]]" in found["reasons"][-1]["hint"]


def test_strict_takes_lists_that_were_mounted(decided):
    """What a device plugin mounts counts, by whatever name."""
    settings = f"{STRICT}request.accept_volume_mounts = true\n"
    for device, gpus in (("2", [2]), ("all", EVERY), (UUIDS[5], [5])):
        assert decided(settings, *POD, *mounted(device))[:3] == ("inject", gpus, [])


def test_strict_does_not_take_a_pods_own_annotation(decided):
    """Its author wrote it, so it is no better than a variable."""
    settings = f"{STRICT}request.accept_pod_annotations = true\n"
    own = ("--annotation", "nvidia.cdi.k8s.io=nvidia.com/gpu=all")
    assert decided(settings, *POD, *own)[:3] == ("ignore", [], ["strict-policy"])


def test_strict_gives_the_driver_without_a_gpu(decided):
    """`none` gives files and no device of a GPU, so it needs no rule."""
    decision, gpus, why, found = decided(STRICT, *POD, *visible("none"))
    assert (decision, gpus, why) == ("inject", [], [])
    assert "/dev/nvidia0" not in {device["path"] for device in found["edits"]["devices"]}


@pytest.mark.parametrize(
    ("keys", "arguments", "codes"),
    [
        ({"namespaces": ["team"]}, (), [ALLOWED]),
        ({"namespaces": ["other", "te*"]}, (), [ALLOWED]),
        ({"namespaces": ["other"]}, (), ["strict-policy"]),
        ({"labels": {"gpu": "yes"}}, ("--label", "gpu=yes"), [ALLOWED]),
        ({"labels": {"gpu": "*"}}, ("--label", "gpu=2"), [ALLOWED]),
        ({"labels": {"gpu": "yes"}}, ("--label", "gpu=no"), ["strict-policy"]),
        ({"labels": {"gpu": "yes"}}, (), ["strict-policy"]),
        ({"runtime_handlers": ["kata*"]}, ("--runtime-handler", "kata-qemu"), [ALLOWED]),
        ({"runtime_handlers": ["kata*"]}, ("--runtime-handler", "runsc"), ["strict-policy"]),
        ({"runtime_handlers": ["kata*"]}, (), ["strict-policy"]),
        ({"runtime_handlers": ["kata", ""]}, (), [ALLOWED]),
        ({"privileged": True}, ("--privileged",), [ALLOWED]),
        ({"privileged": True}, (), ["strict-policy"]),
        ({"privileged": False}, (), [ALLOWED]),
        ({"sources": ["env"]}, (), [ALLOWED]),
        ({"sources": ["mount"]}, (), ["strict-policy"]),
        ({"sources": ["image", "pod"]}, (), [ALLOWED]),
        ({"devices": ["all"]}, (), [ALLOWED]),
        ({"devices": ["index", "uuid"]}, (), ["strict-policy"]),
        ({"devices": ["mig-config"]}, (), ["strict-policy"]),
        ({"max_devices": 8}, (), [ALLOWED]),
        ({"name": "ours"}, (), [ALLOWED]),
    ],
)
def test_conditions_of_a_rule(decided, keys, arguments, codes):
    """A rule allows what meets all its conditions; else the preset holds."""
    settings = STRICT + rule("allow", **keys)
    decision, gpus, why, found = decided(settings, *POD, *visible("all"), *arguments)
    assert why == codes
    assert (decision, gpus) == (("inject", EVERY) if codes == [ALLOWED] else ("ignore", []))
    if codes == [ALLOWED]:
        named = f" ({keys['name']})" if "name" in keys else ""
        assert f"allowed by policy_rules[1]{named}" in found["reasons"][0]["message"]


def test_annotation_of_a_rule(decided):
    """A rule may ask for an annotation, whose name has dots and a slash."""
    asks = '[[policy_rules]]\naction = "deny"\nannotations = {"example.com/gpu" = "no*"}\n'
    told = ("--annotation", "example.com/gpu=nothing")
    assert decided(asks, *POD, *visible("0"), *told)[:3] == ("deny", [], [DENIED])
    assert decided(asks, *POD, *visible("0"))[:2] == ("inject", [0])


@pytest.mark.parametrize(
    ("devices", "keys", "meets"),
    [
        ("0,1", ["index"], True),
        (f"0,{UUIDS[1]}", ["index"], True),
        (UUIDS[1], ["index"], False),
        ("nvidia.com/gpu=all", ["all"], True),
        ("nvidia.com/gpu=0", ["cdi"], True),
        ("nvidia.com/gpu=0", ["index"], True),
        ("0", ["cdi"], False),
        ("none", ["none"], True),
        ("none", ["all", "index", "uuid"], False),
    ],
)
def test_refusing_needs_one_kind_and_allowing_all(decided, devices, keys, meets):
    """A rule that denies meets a list which holds one of its kinds."""
    decision = decided(rule("deny", devices=keys), *POD, *visible(devices))[0]
    assert decision == ("deny" if meets else "inject")


def test_allowing_a_list_needs_every_kind_in_it(decided):
    """A UUID does not bring an index along."""
    settings = STRICT + rule("allow", devices=["uuid"])
    assert decided(settings, *POD, *visible(f"0,{UUIDS[1]}"))[2] == ["strict-policy"]
    both = STRICT + rule("allow", devices=["uuid", "index"])
    assert decided(both, *POD, *visible(f"0,{UUIDS[1]}"))[1] == [0, 1]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (rule("ignore"), ("ignore", [], [IGNORED])),
        (rule("deny"), ("deny", [], [DENIED])),
        (rule("allow") + rule("deny"), ("inject", [0, 1], [ALLOWED])),
        (rule("deny", namespaces=["x"]) + rule("ignore"), ("ignore", [], [IGNORED])),
        (rule("allow", max_devices=2), ("inject", [0, 1], [ALLOWED])),
        (rule("allow", max_devices=1), ("deny", [], [ALLOWED, "over-max-devices"])),
        (
            rule("allow", max_devices=1, over_max="ignore"),
            ("ignore", [], [ALLOWED, "over-max-devices"]),
        ),
    ],
)
def test_actions_and_their_order(decided, rules, expected):
    """The first rule that is met decides, in either preset, also against what would be given."""
    assert decided(rules, *POD, *visible("0,1"))[:3] == expected
    assert decided(STRICT + rules, *POD, *visible("0,1"))[:3] == expected


def test_rule_of_a_refusal_is_named(decided):
    """The message has what was asked, the rule's number and its name."""
    rules = rule("deny", namespaces=["no"]) + rule("deny", name="nobody")
    found = decided(rules, *POD, *visible("0"))[3]
    message = "NVIDIA_VISIBLE_DEVICES=0 is denied by policy_rules[2] (nobody)"
    assert found["reasons"][-1]["message"] == message


def test_maximum_counts_mig_devices(decided):
    """`all` is as many devices as it gives."""
    settings = rule("allow", max_devices=1)
    decision, _, why, found = decided(settings, *POD, *visible("all"), host=MIG)
    assert (decision, why[-1]) == ("deny", "over-max-devices")
    assert "devices, and policy_rules[1] allows 1" in found["reasons"][-1]["message"]


IMAGE = ("--image-env", "NVIDIA_VISIBLE_DEVICES=all")


@pytest.mark.parametrize(
    ("sources", "arguments", "codes"),
    [
        (["image"], IMAGE, [ALLOWED]),
        (["pod"], IMAGE, ["strict-policy"]),
        (["pod"], ("--image-env", "PATH=/bin", *visible("all")), [ALLOWED]),
        (["image"], ("--image-env", "PATH=/bin", *visible("all")), ["strict-policy"]),
        (["image"], ("--image-env", "CUDA_VERSION=10.0"), [ALLOWED]),
        (["pod"], visible("all"), ["image-not-known", "strict-policy"]),
    ],
)
def test_image_and_pod_are_told_apart(decided, sources, arguments, codes):
    """Who set the variable can matter; where that is not known strict allows nothing by it."""
    settings = STRICT + rule("allow", sources=sources)
    assert decided(settings, *POD, *arguments)[2] == codes


def test_compatible_refuses_nothing_for_an_image_that_is_not_known(decided):
    """Where it is not known who set the variable, compatible is on the container's side."""
    settings = rule("ignore", sources=["image"])
    assert decided(settings, *POD, *IMAGE)[:3] == ("ignore", [], [IGNORED])
    found = decided(settings, *POD, *visible("0"))
    assert found[:3] == ("inject", [0], ["image-not-known"])


HELD = f"{UUIDS[3]}=ns/pod/c"


@pytest.mark.parametrize(
    ("devices", "held", "refused"),
    [
        ("3", (HELD,), True),
        ("2", (HELD,), False),
        ("all", (HELD,), True),
        ("none", (HELD,), False),
        ("3", (), False),
    ],
)
def test_exclusive_gpus(decided, devices, held, refused):
    """A GPU that another container holds is refused, naming that one."""
    holders = [word for each in held for word in ("--held", each)]
    settings = "policy.exclusive = true\n"
    decision, _, why, found = decided(settings, *POD, *visible(devices), *holders)
    assert decision == ("deny" if refused else "inject")
    if refused:
        assert why == ["held-exclusively"]
        assert f"GPU 3 ({UUIDS[3]}) is held by ns/pod/c" in found["reasons"][0]["message"]
    assert decided("", *POD, *visible(devices), *holders)[0] == "inject"


@pytest.mark.parametrize(
    ("devices", "held", "refused"),
    [("0:0", "0:0", True), ("0:0", "0:1", False), ("0:0", "0", True), ("0", "0:1", True)],
)
def test_exclusive_mig_devices(decided, devices, held, refused):
    """Each is held by itself; a whole GPU and a device of it exclude each other."""
    gpu = decided("", *POD, *visible(held), host=MIG)[3]["gpus"][0]
    uuid = gpu["mig"]["uuid"] if gpu["mig"] else gpu["uuid"]
    for written in (uuid, uuid.upper()):
        arguments = (*POD, *visible(devices), "--held", f"{written}=ns/pod/c")
        decision = decided("policy.exclusive = true\n", *arguments, host=MIG)[0]
        assert decision == ("deny" if refused else "inject")


def test_the_readmes_example(decided):
    """The rules that the README shows do what it says of them."""
    readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    section = readme.partition("\n## Policy\n")[2].partition("\n## ")[0]
    settings = section.partition("```toml\n")[2].partition("```")[0]
    assert settings

    def given(namespace, *arguments):
        return decided(settings, "--namespace", namespace, "--pod", "p", *arguments)[:2]

    known = ("--image-env", "PATH=/bin")
    assert given("gpu-monitoring", *visible("all"), *known) == ("inject", EVERY)
    assert given("ml-1", *visible("0,1"), *known) == ("inject", [0, 1])
    assert given("ml-1", *visible("all"), *known) == ("deny", [])
    assert given("ml-1", *IMAGE) == ("ignore", [])
    assert given("web", *visible("all"), *known) == ("ignore", [])
    assert given("web", *visible(UUIDS[2]), *known) == ("inject", [2])


def test_who_shares_takes_no_part_in_exclusiveness(decided):
    """A rule can let a container look at GPUs that others hold."""
    settings = "policy.exclusive = true\n" + rule("allow", shares=True)
    assert decided(settings, *POD, *visible("all"), "--held", HELD)[:2] == ("inject", EVERY)


@pytest.mark.parametrize("devices", ["all", "ALL", "nvidia.com/gpu=all"])
def test_allocation_that_is_not_there(decided, devices):
    """Nothing of it can be given: the container is refused rather than left without a GPU."""
    decision, gpus, why, found = decided("", *visible(devices), "--allocated", "GPU-gone")
    assert (decision, gpus, why) == ("error", [], ["allocated-not-there"])
    assert "GPU-gone" in found["reasons"][0]["message"]
    assert decided("", *visible(devices), "--allocated", "none")[0] == "ignore"
