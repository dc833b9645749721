# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of CDI names, of NVIDIA's device plugin and of its runtime's modes."""

import pytest

from nri_nvidia import pipeline
from nri_nvidia.request import container as containers
from nri_nvidia.request import names, parse, policy
from tests import inventories
from tests.cases import test_cases as recorded
from tests.oci import test_attacks, test_defences

# Which tests show on real runtimes what comes of an attack.
ATTACKS = {
    "security-CVE-2025-23267-ldcache-link": (
        test_defences,
        "test_cve_2025_23267_a_cache_by_a_link",
    ),
    "security-bindir-symlink": (test_defences, "test_cve_2024_0134_links_by_paths_of_the_host"),
    "security-mount-leak": (test_attacks, "test_mounts_are_not_propagated"),
}


def decide(given, rules):
    shown = recorded.container(given)
    return pipeline.plan(shown, inventories.EIGHT, pipeline.Policy(request=rules))


def in_kind(device, kind):
    """Give an id as a name of CDI, as the toolkit completes it."""
    return device if names.qualified(device) else f"{kind}={device}"


@recorded.of("cdi-requests")
def test_cdi_requests(name):
    """Ids and names of any channel are the recorded names, or are refused."""
    given, expected = recorded.NOW[name]["input"], recorded.NOW[name]["expected"]
    config = {"accept_volume_mounts": True, **given.get("config", {})}
    if "error_contains" in expected:
        recorded.expect_error(expected, lambda: refuse(decide(given, recorded.rules(config))))
        return
    request = parse.parse(recorded.container(given), recorded.rules(config)).request
    devices = request.devices or ("none",)
    kind = given["default_kind"]
    assert [in_kind(device, kind) for device in devices] == expected["devices"]


def refuse(plan):
    if not plan.created:
        raise plan.refusal()


@recorded.of("k8s-device-plugin")
def test_what_the_device_plugin_hands_on(name):
    """What it gives for the devices that were allocated is read as these devices."""
    given, expected = recorded.NOW[name]["input"], recorded.NOW[name]["expected"]
    mounts = [containers.Mount(source=s, destination=d) for s, d in expected.get("mounts", ())]
    # Devices of the CRI are in the spec before a plugin sees it, and NVIDIA's set this.
    done = ["NVIDIA_VISIBLE_DEVICES=void"] if "cdi_devices" in expected else []
    shown = containers.Container(
        env=(*(f"{k}={v}" for k, v in expected.get("env", {}).items()), *done),
        mounts=tuple(mounts),
        annotations=expected.get("annotations", {}),
    )
    request = parse.parse(shown, policy.RequestPolicy(accept_volume_mounts=True)).request
    allocated = [] if done else given["device_ids"]
    if not allocated and not given.get("imex_channels"):
        assert request is None
        return
    assert [device.rpartition("=")[2] for device in request.devices] == allocated
    assert list(request.imex_channels) == given.get("imex_channels", [])
    assert {str(group) for group in request.groups} == {
        group for group in ("gds", "mofed") if given.get(group)
    }


@recorded.of("nri-plugin")
def test_in_the_place_of_nvidias_nri_plugin(name):
    """A pod's annotation is served as that plugin would, management by namespace included."""
    given, expected = recorded.NOW[name]["input"], recorded.NOW[name]["expected"]
    shown = containers.Container(
        name=given["container"],
        namespace=given["pod_namespace"],
        annotations=given["pod_annotations"],
        pod_annotations=given["pod_annotations"],
    )
    rules = policy.RequestPolicy(
        accept_pod_annotations=True, management_namespaces=tuple(given["allowed_namespaces"])
    )
    plan = pipeline.plan(shown, inventories.EIGHT, pipeline.Policy(request=rules))
    wanted = expected["cdi_devices"]
    if wanted is None:
        assert plan.request is None
    elif wanted == ["management.nvidia.com/gpu=0"]:
        assert plan.request.wants_all
        assert plan.request.mig_management
    else:
        assert list(plan.request.devices) == wanted
        assert plan.decision is pipeline.Decision.INJECT


@pytest.mark.parametrize("name", [n for n in recorded.NOW if n.startswith("mode-request-")])
def test_no_mode_is_needed(name):
    """Whatever mode the toolkit picks for a request, names and ids are served alike."""
    given = recorded.NOW[name]["input"]
    plan = decide(given, recorded.rules(given.get("config", {})))
    asked = [names.plain(device) for device in plan.request.devices]
    indices = [item.gpu.index for item in plan.assigned]
    assert indices == (list(range(8)) if "all" in asked else sorted(set(map(int, asked))))


@recorded.of("security")
def test_attacks(name):
    """The hook's environment has nothing of the image's; the rest is shown on real runtimes."""
    given = recorded.NOW[name]["input"]
    if "image_env" in given:
        env = {"NVIDIA_VISIBLE_DEVICES": "0", **given["image_env"]}
        (hook,) = decide({"env": env}, policy.RequestPolicy()).edits.hooks
        assert hook.env
        assert not any(key in entry for entry in hook.env for key in given["image_env"])
        return
    module, function = ATTACKS[name]
    assert hasattr(module, function)
