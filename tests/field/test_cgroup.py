# SPDX-License-Identifier: Apache-2.0
"""Field cases: the GPU is lost while the container runs."""

import asyncio
import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.render import nri, oci
from nri_nvidia.request import container as containers
from tests import inventories

from . import harness, strategies
from .harness import asked, capable, decide


@pytest.mark.parametrize(("value", "minor"), [("0", 0), ("3", 3), (inventories.UUIDS[7], 7)])
@pytest.mark.parametrize("uvm", [509, 511, 234])
def test_devices_and_their_rules_are_in_the_spec(value, minor, uvm, tmp_path):
    """FC-001: four nodes, four allow rules by number, and no hook that would touch a cgroup."""
    changed = inventories.with_gpus(
        *(inventories.gpu(i) for i in range(8)),
        control=inventories.model.ControlNodes(
            ctl=inventories.node("/dev/nvidiactl", 255),
            uvm=inventories.node("/dev/nvidia-uvm", 0, uvm),
            uvm_tools=inventories.node("/dev/nvidia-uvm-tools", 1, uvm),
        ),
    )
    plan = decide(changed, *asked(value))
    spec = oci.patched({"linux": {"resources": {"devices": [DENY]}}}, plan.edits)
    numbers = [(195, 255), (uvm, 0), (uvm, 1), (195, minor)]
    assert [(d["major"], d["minor"]) for d in spec["linux"]["devices"]] == numbers
    rules = spec["linux"]["resources"]["devices"]
    assert rules[0] == DENY
    assert [(r["type"], r["major"], r["minor"], r["allow"]) for r in rules[1:]] == [
        ("c", *pair, True) for pair in numbers
    ]
    (hook,) = plan.edits.hooks
    assert not [argument for argument in hook.args if "cgroup" in argument or "195" in argument]


DENY = {"allow": False, "access": "rwm"}


@settings(max_examples=150)
@given(data=st.data(), inventory=strategies.hosts(), capabilities=strategies.CAPABILITIES)
def test_what_is_recorded_is_what_the_spec_holds(data, inventory, capabilities):
    """FC-003: each device of the plan has one entry and one allow rule, in both renderings."""
    value = data.draw(strategies.asks(inventory))
    present = data.draw(st.lists(st.sampled_from([g.node for g in inventory.gpus]), max_size=2))
    before = [
        {"path": n.path, "type": "c", "major": n.major, "minor": n.minor}
        for n in dict.fromkeys(present)
    ]
    devices = tuple(containers.Device(**device) for device in before)
    more = data.draw(strategies.further(inventory))
    plan = decide(inventory, *asked(value, capable(capabilities), *more), devices=devices)
    assert plan.decision is pipeline.Decision.INJECT, plan.reasons
    spec = oci.patched({"linux": {"devices": before}}, plan.edits)
    entries = collections.Counter(d["path"] for d in spec["linux"]["devices"])
    assert set(entries.values()) <= {1}
    rules = collections.Counter(
        (r["major"], r["minor"]) for r in spec["linux"].get("resources", {}).get("devices", ())
    )
    assert rules == {(d.major, d.minor): 1 for d in plan.edits.devices}
    answer = nri.adjustment(plan.edits).linux.devices
    assert [(d.path, d.major, d.minor) for d in answer] == [
        (d.path, d.major, d.minor) for d in plan.edits.devices
    ]
    for item in plan.assigned:
        assert entries[item.gpu.node.path] == 1


def test_an_update_of_resources_strips_nothing(together, live):
    """FC-004: whatever a kubelet updates and however often, the answer is empty."""

    async def body(pair):
        adjusted = await pair.create(1, *asked("0"))
        assert adjusted.linux.devices
        (plugin,) = pair.runtime.plugins
        assert not plugin.events & 1 << (api.Event.UPDATE_CONTAINER - 1)
        # Pod, container and resources are fields that we have no use for: they arrive all the same.
        told = api.CreateContainerRequest(
            pod=api.PodSandbox(id="p"), container=pair.container(1, *asked("0"))
        )
        for _ in range(2):
            reply = await plugin.stub.update_container(
                api.Empty().parse(bytes(told)), timeout=pair.runtime.request_timeout
            )
            assert bytes(reply) == b""
        assert (await pair.status())["gpus"][0]["containers"]

    together(body, live(gpus=harness.gpus(1)))


def test_nodes_that_come_after_the_daemon(together, live):
    """FC-005: a uvm node that udev makes late is in the next container; nothing is restarted."""
    directory = live(
        gpus=harness.gpus(2), missing_nodes=("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    )
    config = directory.parent / "config.toml"
    config.write_text("host.create_device_nodes = false\n")

    async def body(pair):
        said = await pair.refused(1, *asked("all"))
        assert "/dev/nvidia-uvm is missing" in said
        pid = pair.daemon.pid
        for name, minor in (("nvidia-uvm", 0), ("nvidia-uvm-tools", 1)):
            harness.node(directory, name, 511, minor)
        adjusted = await pair.create(2, *asked("all"))
        names = [device.path for device in adjusted.linux.devices]
        assert {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} <= set(names)
        assert (await pair.status())["pid"] == pid

    together(body, directory, "--config", str(config))


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/nvidia-container-runtime-hook",
        "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook",
        "/usr/bin/nvidia-container-toolkit",
        "/usr/bin/nvidia-cdi-hook",
        "/usr/bin/nvidia-ctk",
    ],
)
@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer"])
def test_another_hook_is_seen_and_left_to_its_work(path, stage):
    """FC-006: where a hook of NVIDIA's stack is in the spec nothing is added, and that is said."""
    hook = containers.Hook(stage=stage, path=path, args=(path, "prestart"))
    plan = decide(inventories.EIGHT, *asked("all"), hooks=(hook,))
    assert (plan.decision, harness.codes(plan)) == (pipeline.Decision.IGNORE, ["other-injector"])
    assert path in plan.reasons[0].message
    assert not plan.edits


@pytest.mark.parametrize("path", ["/usr/bin/oci-nvidia-logger", "/opt/hooks/seccomp", "/nvidia"])
def test_a_hook_of_somebody_else_is_no_injector(path):
    """FC-006: a hook with another purpose changes nothing."""
    hook = containers.Hook(stage="prestart", path=path)
    assert decide(inventories.EIGHT, *asked("0"), hooks=(hook,)).edits


def test_the_nodes_are_there_again_after_their_removal(together, live):
    """FC-005: the GPU's own node, taken away while the daemon runs, is made for the next one."""
    directory = live(gpus=harness.gpus(1))

    async def body(pair):
        await pair.create(1, *asked("0"))
        (directory / "dev/nvidia0").unlink()
        await pair.create(2, *asked("0"))
        assert await asyncio.to_thread((directory / "dev/nvidia0").is_char_device)

    together(body, directory)
