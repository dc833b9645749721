# SPDX-License-Identifier: Apache-2.0
"""A host as CDI specifications: names, what each device brings, and the form."""

from pathlib import Path

import attrs
import pytest

from nri_nvidia import errors, pipeline
from nri_nvidia.config import load
from nri_nvidia.edits import model as edits_model
from nri_nvidia.host import cache, model
from nri_nvidia.host import options as host_options
from nri_nvidia.render import cdi, cdispec
from nri_nvidia.request import container as containers

ROOT = Path(__file__).parents[2]
HOSTS = ROOT / "tests/hosts"
RULES = pipeline.Policy()
WITH_GPUS = sorted(
    each.name
    for each in HOSTS.iterdir()
    if each.name not in {"no-gpu", "debian-module-unloaded", "debian-mismatch"}
)


def inventory(name):
    """Look at a recorded host."""
    host = cache.Cache(host_options.Options.for_recorded(str(HOSTS / name)))
    host.refresh_nvml()
    return host.get()


def given(host, *env, privileged=True):
    """Give what NRI's door gives."""
    plan = pipeline.plan(containers.Container(env=env, privileged=privileged), host, RULES)
    return plan.edits


def edits_of(document, name):
    """Give the edits of one device as an engine applies them: what is common, then its own."""
    (own,) = [d["containerEdits"] for d in document["devices"] if d["name"] == name]
    common = document.get("containerEdits", {})
    keys = ("deviceNodes", "mounts", "hooks")
    return {key: [*common.get(key, []), *own.get(key, [])] for key in keys}


@pytest.mark.parametrize("host", WITH_GPUS)
def test_a_device_brings_what_nri_gives(host):
    """The same nodes, files and one hook as a container that asks for it with all capabilities."""
    found = inventory(host)
    document = cdispec.make("gpu", found, RULES).document
    for device in document["devices"]:
        name = device["name"]
        asked = ("NVIDIA_DRIVER_CAPABILITIES=all", f"NVIDIA_VISIBLE_DEVICES={name}")
        expected = cdi.container_edits(given(found, *asked))
        shown = edits_of(document, name)
        for key, path in (("deviceNodes", "path"), ("mounts", "containerPath")):
            by_path = sorted(shown[key], key=lambda each: each[path])
            assert by_path == sorted(expected.get(key, []), key=lambda each: each[path])
        (hook,) = shown["hooks"]
        args = expected["hooks"][0]["args"]
        assert [arg for arg in args if arg in set(hook["args"])][:8] == hook["args"][:8]
        assert "--profile" not in hook["args"]
        assert "--token" not in hook["args"]


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("ubuntu-1xl4", {"all", "0", "GPU-a8a3e4b3-c0d1-5511-9f32-221961e6ef50"}),
        (
            "debian-mig",
            {"all", "0:0", "MIG-0a54cd11-2be5-5c08-86a2-1b18ab482c18", "0:1",
             "MIG-0f6a6f1f-c2fe-578e-9bd1-5f6dd9972924", "1",
             "GPU-a34d5d8b-fa88-5fd2-a0e3-fe42bd7a77f9"},
        ),
    ],
)  # fmt: skip
def test_devices_are_named_by_index_and_uuid(host, names):
    """A GPU in MIG mode is none itself."""
    made = cdispec.make("gpu", inventory(host), RULES)
    assert {name.removeprefix("nvidia.com/gpu=") for name in made.names} == names
    assert made.left_out == ()


def test_an_index_that_means_nothing_is_left_out():
    """Where NVML counts differently; and it is said."""
    made = cdispec.make("gpu", inventory("debian-nvml-order"), RULES)
    assert {name.partition("=")[2][:3] for name in made.names} == {"all", "GPU"}
    assert [reason.message[:2] for reason in made.left_out] == ["0:", "1:"]
    assert made.document["cdiVersion"] == "0.4.0"


@pytest.mark.parametrize("host", ["no-gpu", "debian-module-unloaded"])
def test_without_a_driver_there_is_none(host):
    """An engine would refuse an empty one."""
    with pytest.raises(errors.HostError) as caught:
        cdispec.make("gpu", inventory(host), RULES)
    assert caught.value.code == "no-cdi-device"


def test_files_are_mounted_one_by_one():
    """Whatever the layout for containers is: a prepared directory may be gone when it is used."""
    rules = attrs.evolve(RULES, inject=attrs.evolve(RULES.inject, layout="volume"))
    found = inventory("debian-8xh100")
    assert cdispec.make("gpu", found, rules) == cdispec.make("gpu", found, RULES)


def test_no_rule_holds_for_it():
    """Engines hand devices out by name, and ask nobody; a rule would only break the whole file."""
    toml = (
        'policy = "strict"\n[request]\nswarm_resources = ["X"]\n'
        'accept_env_when_unprivileged = false\n[[policy_rules]]\naction = "deny"\n'
    )
    config = load.load([load.Text(name="test", toml=toml)])
    rules = config.rules(interpreter=RULES.inject.hook.interpreter)
    found = inventory("debian-8xh100")
    assert cdispec.make("gpu", found, rules).names == cdispec.make("gpu", found, RULES).names


def test_a_nodes_owner_is_said():
    """Engines would else make it of the user and group of the container's process."""
    device = edits_model.DeviceEdit(path="/dev/a", host_path="/dev/a", major=1, minor=1, gid=44)
    (node,) = cdi.container_edits(edits_model.ContainerEdits(devices=(device,)))["deviceNodes"]
    assert (node["uid"], node["gid"]) == (0, 44)


def test_groups_are_kinds_of_their_own():
    """Each with its nodes alone; a channel is named by its number."""
    channel = model.DeviceNode(
        path="/dev/nvidia-caps-imex-channels/channel3",
        host_path="/dev/nvidia-caps-imex-channels/channel3",
        major=234, minor=3,
    )  # fmt: skip
    node = model.DeviceNode(path="/dev/gdrdrv", host_path="/dev/gdrdrv", major=235, minor=0)
    found = attrs.evolve(
        inventory("debian-8xh100"), extra_nodes=(("gdrcopy", node),), imex_channels=(channel,)
    )
    made = cdispec.make("gdrcopy", found, RULES)
    assert made.names == ("nvidia.com/gdrcopy=all",)
    assert [n["path"] for n in edits_of(made.document, "all")["deviceNodes"]] == ["/dev/gdrdrv"]
    imex = cdispec.make("imex-channel", found, RULES)
    assert imex.names == ("nvidia.com/imex-channel=3",)
    with pytest.raises(errors.HostError, match=r"no device of the kind nvidia\.com/gds"):
        cdispec.make("gds", found, RULES)
