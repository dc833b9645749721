# SPDX-License-Identifier: Apache-2.0
"""Who may have what reaches beyond a container's own GPUs, as `plan` shows it."""

import pytest

from .policies import MIG, POD, STRICT, mounted, rule, visible
from .test_plan import HOSTS, UUIDS

FABRIC = HOSTS / "rhel-fabric"
MANAGEMENT = visible("management.nvidia.com/gpu=all")
RIGHTS = {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"}
"""The nodes of MIG's `config` and `monitor`."""
ALLOWED, BEYOND = "allowed-by-rule", "strict-policy-beyond"


def env(name, value="all"):
    return ("--env", f"{name}={value}")


def nodes(found):
    return {device["path"] for device in (found["edits"] or {"devices": ()})["devices"]}


CONFIG, MONITOR = env("NVIDIA_MIG_CONFIG_DEVICES"), env("NVIDIA_MIG_MONITOR_DEVICES")


@pytest.mark.parametrize(
    ("kind", "asked", "code"),
    [
        ("mig-config", (*visible("all"), *CONFIG), "mig-management-unprivileged"),
        ("mig-monitor", (*visible("all"), *MONITOR), "mig-management-unprivileged"),
        ("management", MANAGEMENT, "management-unprivileged"),
    ],
)
def test_management_of_a_node(decided, kind, asked, code):
    """Compatible: privileged containers, as in NVIDIA's stack. Strict: those a rule allows."""
    gpus = rule("allow", devices=["all"])
    allowed = rule("allow", devices=[kind])

    def codes(settings, *more):
        decision, _, why, found = decided(settings, *POD, *asked, *more, host=MIG)
        return decision, why, bool(RIGHTS & nodes(found))

    assert codes("")[:2] == ("error", [code])
    assert codes("", "--privileged")[0] == "inject"
    assert codes('request.management_namespaces = ["team"]\n')[0] == "inject"
    assert codes(allowed) == ("inject", [ALLOWED], True)
    assert codes(rule("deny", devices=[kind]), "--privileged")[:2] == ("deny", ["denied-by-rule"])
    decision, why, manages = codes(STRICT + gpus, "--privileged")
    assert BEYOND in why
    assert not manages
    assert decision == ("ignore" if kind == "management" else "inject")
    decision, why, _ = codes(STRICT + gpus + allowed)
    assert (decision, BEYOND in why) == ("inject", False)
    assert why.count(ALLOWED) == 2


@pytest.mark.parametrize(
    ("kind", "asked", "node"),
    [
        ("imex", env("NVIDIA_IMEX_CHANNELS", "0"), "/dev/nvidia-caps-imex-channels/channel0"),
        ("nvswitch", env("NVIDIA_NVSWITCH", "enabled"), "/dev/nvidia-nvswitchctl"),
    ],
)
def test_nodes_of_the_fabric(decided, kind, asked, node):
    """By strict they are left out, with a reason, and the GPUs are given all the same."""
    uuid = decided("", *visible("0"), host=FABRIC)[3]["gpus"][0]["uuid"]
    asked = (*POD, *visible(uuid), *asked)

    def given(settings):
        decision, gpus, why, found = decided(settings, *asked, host=FABRIC)
        return decision, gpus, why, node in nodes(found)

    assert given("") == ("inject", [0], [], True)
    assert given(STRICT) == ("inject", [0], [BEYOND], False)
    assert given(STRICT + rule("allow", devices=[kind])) == ("inject", [0], [ALLOWED], True)
    # A rule that names no kind is about GPUs.
    assert given(STRICT + rule("allow"))[2:] == ([BEYOND, ALLOWED], False)
    refusing = rule("ignore", devices=[kind])
    assert given(refusing) == ("inject", [0], ["ignored-by-rule"], False)
    assert given(rule("deny", devices=[kind]))[:3] == ("deny", [], ["denied-by-rule"])


def test_channels_that_were_mounted_are_allocated(decided):
    """The device plugin mounts them beside the GPUs, so strict lets them be."""
    settings = f"{STRICT}request.accept_volume_mounts = true\n"
    uuid = decided("", *visible("0"), host=FABRIC)[3]["gpus"][0]["uuid"]
    found = decided(settings, *POD, *mounted(uuid), *mounted("imex/0"), host=FABRIC)
    assert found[:3] == ("inject", [0], [])
    assert "/dev/nvidia-caps-imex-channels/channel0" in nodes(found[3])


def test_part_of_a_list_is_ignored(decided):
    """A management name beside a UUID goes, with a reason; the UUID stays."""
    both = visible(f"{UUIDS[2]},management.nvidia.com/gpu=all")
    assert decided(STRICT, *POD, *both)[:3] == ("inject", [2], [BEYOND])
