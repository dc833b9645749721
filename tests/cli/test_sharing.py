# SPDX-License-Identifier: Apache-2.0
"""A container that shares another one's GPUs, and policy over it, as `plan` shows it."""

import pytest

from nri_nvidia import cli

from .policies import MIG, POD, STRICT, rule, visible
from .test_plan import EIGHT, UUIDS

ANNOTATION = ("--annotation", "nri-nvidia/share.dbg=main")
DEBUG = (*POD, "--name", "dbg", *ANNOTATION)
HELD = ("--held", f"{UUIDS[3]}=main")
BOTH = (*HELD, "--held", f"{UUIDS[5]}=main")
EXCLUSIVE = "policy.exclusive = true\n"
SHARED, ALLOWED = "gpus-shared", "allowed-by-rule"


@pytest.mark.parametrize(
    ("arguments", "gpus", "code"),
    [
        (HELD, [3], SHARED),
        (BOTH, [3, 5], SHARED),
        ((*HELD, "--held", f"{UUIDS[5]}=other"), [3], SHARED),
        ((*HELD, "--device", "/dev/nvidia3"), [3], "devices-in-spec"),
        ((*HELD, "--device", "/dev/nvidia4", "--privileged"), [4], "privileged-sees-all"),
        ((*HELD, "--allocated", "none"), [3], SHARED),
        ((), [], "nothing-to-share"),
        (("--held", f"{UUIDS[3]}=other"), [], "nothing-to-share"),
        (("--held", f"{UUIDS[3]}=team/p/main"), [], "nothing-to-share"),
        (("--held", f"{UUIDS[3]}=other-pod/main"), [], "nothing-to-share"),
    ],
)
def test_what_the_other_container_holds(decided, arguments, gpus, code):
    """Exactly its devices are given, and of another pod's container of that name none."""
    decision, given, why, found = decided("", *DEBUG, *arguments)
    assert (decision, given) == ("inject" if gpus else "error", gpus)
    assert why[-1] == code
    assert found["request"]["source"] == "share"
    assert found["request"]["capabilities"] == ["compute", "utility"]
    if code == SHARED:
        assert found["request"]["devices"] == [UUIDS[index] for index in gpus]
    if not gpus:
        said, hint = found["reasons"][-1]["message"], found["reasons"][-1]["hint"]
        assert "container main of this pod holds no GPU now for dbg to share" in said
        assert "tries dbg again by itself; list main before it" in hint


def test_a_mig_device_is_shared_as_one(decided):
    """The device and not its GPU."""
    uuid = decided("", *visible("0:1"), host=MIG)[3]["gpus"][0]["mig"]["uuid"]
    decision, _, why, found = decided("", *DEBUG, "--held", f"{uuid}=main", host=MIG)
    assert (decision, why) == ("inject", [SHARED])
    assert [gpu["mig"]["uuid"] for gpu in found["gpus"]] == [uuid]


def test_a_container_has_its_own_capabilities(decided):
    """What it says for itself counts, as ever, and what it requires."""
    utility = ("--env", "NVIDIA_DRIVER_CAPABILITIES=utility")
    found = decided("", *DEBUG, *HELD, *utility)[3]
    assert found["request"]["capabilities"] == ["utility"]
    assert not any("libcuda" in mount["destination"] for mount in found["edits"]["mounts"])
    require = ("--env", "NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    assert decided("", *DEBUG, *HELD, *require)[0] == "error"


@pytest.mark.parametrize(
    ("settings", "decision", "codes"),
    [
        ("", "inject", [SHARED]),
        (STRICT, "ignore", ["strict-policy"]),
        (STRICT + rule("allow", sources=["share"]), "inject", [ALLOWED, SHARED]),
        (STRICT + rule("allow", devices=["share"]), "inject", [ALLOWED, SHARED]),
        (STRICT + rule("allow", namespaces=["team"]), "inject", [ALLOWED, SHARED]),
        (STRICT + rule("allow", namespaces=["x"], devices=["share"]), "ignore", ["strict-policy"]),
        (STRICT + rule("allow", devices=["all", "index", "uuid"]), "ignore", ["strict-policy"]),
        (STRICT + rule("allow", sources=["env", "pod-annotation"]), "ignore", ["strict-policy"]),
        (rule("deny", sources=["share"]), "deny", ["denied-by-rule"]),
        (rule("ignore", namespaces=["team"], devices=["share"]), "ignore", ["ignored-by-rule"]),
        (rule("deny", devices=["all", "index", "uuid"]), "inject", [SHARED]),
        (rule("allow", max_devices=2), "inject", [ALLOWED, SHARED]),
        (rule("allow", max_devices=1), "deny", [ALLOWED, "over-max-devices"]),
        (
            rule("allow", max_devices=1, over_max="ignore"),
            "ignore",
            [ALLOWED, SHARED, "over-max-devices"],
        ),
    ],
)
def test_policy_over_sharing(decided, settings, decision, codes):
    """It is a source and a kind of its own: compatible gives it, strict by a rule alone."""
    assert decided(settings, *DEBUG, *BOTH)[::2] == (decision, codes)


def test_strict_says_by_which_rule_it_would_be_had(decided):
    """With the pod's namespace; what was allocated to the container itself vouches for nothing."""
    for more in ((), ("--allocated", UUIDS[3]), ("--device", "/dev/nvidia3")):
        decision, _, _, found = decided(STRICT, *DEBUG, *HELD, *more)
        assert decision == "ignore"
        assert found["reasons"][-1]["hint"] == (
            'add to [[policy_rules]]: namespaces = ["team"], devices = ["share"], action = "allow"'
        )


@pytest.mark.parametrize(
    ("arguments", "decision"),
    [
        ((*DEBUG, *HELD), "inject"),
        ((*DEBUG, *HELD, "--held", f"{UUIDS[3]}=team/x/main"), "deny"),
        ((*DEBUG, *HELD, "--held", f"{UUIDS[3]}=another"), "deny"),
        ((*POD, "--name", "another", *visible(UUIDS[3]), *HELD), "deny"),
        ((*POD, "--name", "main", *visible(UUIDS[3]), *HELD), "inject"),
    ],
)
def test_exclusive_gpus(decided, arguments, decision):
    """Who shares with the holder is let in; nobody else of the pod, nor of another."""
    found = decided(EXCLUSIVE, *arguments)
    assert found[0] == decision
    if decision == "deny":
        assert found[2][-1] == "held-exclusively"


def test_in_words(capsys):
    """The request names the annotation and what it came to."""
    assert cli.main(["plan", "--host", str(EIGHT), *DEBUG, *HELD]) == 0
    out = capsys.readouterr().out
    assert (
        f"reason: annotation nri-nvidia/share.dbg: container main of this pod (main) holds "
        f"{UUIDS[3]}, and dbg shares that [gpus-shared]"
    ) in out
    assert f"request: annotation nri-nvidia/share.dbg: {UUIDS[3]}; capabilities" in out
