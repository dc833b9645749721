# SPDX-License-Identifier: Apache-2.0
"""Field cases: MIG devices that come, go, and are spelled in three ways."""

import asyncio
import json
import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.host import scan
from nri_nvidia.testing import host_kernel, host_spec
from tests import inventories

from . import harness, strategies
from .harness import asked, codes, decide, nodes

V = "550.163.01"
CAPS = "/proc/driver/nvidia/capabilities/gpu0/mig"
A, B = (host_spec.MigSpec(gi=gi) for gi in (1, 2))


def divided(*migs):
    return host_spec.GpuSpec(mig_enabled=True, mig=migs)


def uuid(mig):
    return host_spec.mig_uuid_of(divided(A, B), 0, mig)


@pytest.mark.parametrize("mode", [0o444, 0o400, 0o666])
def test_capability_nodes_follow_the_kernels_own_numbers(tree, mode):
    """FC-022, FC-026: minor and mode are those of the access files, and the nodes are made."""
    tree.module(V)
    tree.majors(nvidia=195, nvidia_uvm=511, nvidia_caps=237)
    tree.at("/dev/null")
    tree.gpu("0000:07:00.0", 0, inventories.UUIDS[0])
    tree.leading("/usr/lib64", V)
    for path, minor in (("gi1/access", 12), ("gi1/ci0/access", 13)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        tree.put(f"{CAPS}/{path}", text)
    tree.put("/nvml.json", json.dumps(nvml(("MIG-00000000-0000-4000-8000-00000000000a", 1))))
    found = scan.scan(tree.live(), scan.report.parse((tree.top / "nvml.json").read_bytes()))
    plan = decide(found, *asked("0:0"))
    for minor in (12, 13):
        path = f"/dev/nvidia-caps/nvidia-cap{minor}"
        assert plan.created, plan.reasons
        (device,) = [d for d in plan.edits.devices if d.path == path]
        assert (device.major, device.minor, device.mode) == (237, minor, mode)
        status = os.stat(f"{tree.top}{path}")
        assert (os.minor(status.st_rdev), stat.S_IMODE(status.st_mode)) == (minor, mode)


def nvml(*devices):
    """Write NVML's document for one GPU with MIG devices."""
    gpu = {"index": 0, "uuid": inventories.UUIDS[0], "minor": 0, "bus_id": "00000000:07:00.0",
           "mig_enabled": True,
           "mig_devices": [{"index": at, "uuid": name, "gi": gi, "ci": 0}
                           for at, (name, gi) in enumerate(devices)]}  # fmt: skip
    return {"driver_version": V, "gpus": [gpu]}


@pytest.mark.parametrize(("mode", "owner"), [(0o444, (0, 0)), (0o440, (0, 44)), (0o400, (7, 8))])
def test_rights_of_a_node_that_is_there_are_kept(tree, mode, owner):
    """FC-026: mode, uid and gid of the host's node go into the spec."""
    tree.module(V)
    tree.majors(nvidia=195, nvidia_uvm=511, nvidia_caps=237)
    tree.at("/dev/null")
    tree.gpu("0000:07:00.0", 0, inventories.UUIDS[0])
    tree.leading("/usr/lib64", V)
    for path, minor in (("gi1/access", 12), ("gi1/ci0/access", 13)):
        tree.put(f"{CAPS}/{path}", f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
        tree.node(f"/dev/nvidia-caps/nvidia-cap{minor}", 237, minor, mode)
        os.chown(tree.at(f"/dev/nvidia-caps/nvidia-cap{minor}"), *owner)
    document = json.dumps(nvml(("MIG-00000000-0000-4000-8000-00000000000a", 1)))
    plan = decide(scan.scan(tree.live(), scan.report.parse(document)), *asked("all"))
    caps = [d for d in plan.edits.devices if "nvidia-caps" in d.path]
    assert [(d.mode, d.uid, d.gid) for d in caps] == [(mode, *owner)] * 2


def test_instances_that_are_replaced(together, live):
    """FC-023, FC-026: a destroyed one is unknown, its successor is given; nothing is restarted."""
    directory = live(gpus=(divided(A),))

    async def body(pair):
        await asyncio.to_thread(pair.daemon.nvml_answered)
        await pair.create(1, *asked(uuid(A)))
        harness.become(directory, "proc", "nvml.json", gpus=(divided(B),))
        # NVML has to be asked anew, and no container waits for that: until then it is refused.
        await asyncio.to_thread(pair.daemon.until, lambda: known(pair, uuid(B)), "the new device")
        adjusted = await pair.create(2, *asked(uuid(B)))
        caps = [d.path for d in adjusted.linux.devices if "nvidia-caps" in d.path]
        assert caps == [
            f"/dev/nvidia-caps/nvidia-cap{harness.cap_minor(0, 2, ci)}" for ci in (None, 0)
        ]
        said = await pair.refused(3, *asked(uuid(A)))
        assert "no such MIG device" in said
        assert uuid(B) in said
        assert "no such MIG device" not in await pair.refused(4, *asked("9"))

    together(body, directory)


def known(pair, name):
    gpus = pair.daemon.status()["gpus"]
    return name in [mig["uuid"] for gpu in gpus for mig in gpu["mig_devices"]]


@pytest.mark.parametrize("value", [uuid(A), "0:0", "MIG-GPU-{gpu}/1/0"])
def test_instance_of_before_a_reboot_is_no_other_one(tmp_path, value):
    """FC-026: without the asked instance it is an error, however it is spelled; nothing is given."""
    value = value.format(gpu=host_spec.uuid_of(divided(), 0).removeprefix("GPU-"))
    found = harness.built(tmp_path, gpus=(divided(), *harness.gpus(1)))
    plan = decide(found, *asked(value))
    assert (plan.decision, codes(plan)) == (pipeline.Decision.ERROR, ["no-such-mig-device"])
    assert "this node has none" in plan.reasons[-1].message


def test_three_spellings(tmp_path):
    """FC-024: index, new and old UUID form mean the same device, and the same one counts once."""
    found = harness.built(tmp_path, gpus=(divided(A, B), *harness.gpus(1)))
    parent = found.gpus[0].uuid

    def given_instances(value):
        plan = decide(found, *asked(value))
        assert plan.created, plan.reasons
        assert len(set(nodes(plan))) == len(nodes(plan))
        return [item.mig and item.mig.gi for item in plan.assigned]

    assert given_instances("0:1") == [2]
    assert given_instances(f"MIG-{parent}/1/0") == [1]
    assert given_instances(f"0:0,{uuid(A)},MIG-{parent}/1/0") == [1]
    assert given_instances(f"{uuid(B)},0:0") == [1, 2]
    assert given_instances("all") == [1, 2, None]
    whole = decide(found, *asked("0"))
    assert (whole.created, codes(whole)) == (True, ["gpu-in-mig-mode"])


@settings(max_examples=100)
@given(inventory=strategies.hosts(), data=st.data())
def test_every_spelling_gives_one_device_and_its_three_nodes(inventory, data):
    """FC-024: for any MIG device of any node all spellings agree, in any case of letters."""
    pairs = [(gpu, mig) for gpu in inventory.gpus for mig in gpu.mig_devices]
    if not pairs:
        return
    gpu, mig = data.draw(st.sampled_from(pairs))
    spellings = [mig.uuid, f"{gpu.index}:{mig.index}", f"MIG-{gpu.uuid}/{mig.gi}/{mig.ci}"]
    spellings += [spellings[0].upper(), spellings[2].lower()]
    chosen = data.draw(st.lists(st.sampled_from(spellings), min_size=1, max_size=5))
    plan = decide(inventory, *asked(",".join(chosen)))
    assert [(item.gpu, item.mig) for item in plan.assigned] == [(gpu, mig)]
    assert nodes(plan)[3] == f"/dev/nvidia{gpu.minor}"
    assert len([path for path in nodes(plan) if "nvidia-caps" in path]) == 2


def test_capability_minors_have_the_drivers_scheme():
    """FC-022: the simulated hosts number capabilities as mig-minors does."""
    assert host_kernel.cap_minor(0, 0, None) == 3
