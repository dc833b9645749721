# SPDX-License-Identifier: Apache-2.0
"""Field cases: IMEX channels, groups of nodes, and the right to manage MIG."""

import os
import pathlib
import stat

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.request import extras, model
from nri_nvidia.testing import host_kernel, host_spec
from tests import inventories

from . import harness
from .harness import asked, codes, decide, mounted, nodes

CHANNELS = "/dev/nvidia-caps-imex-channels"
ONE = harness.gpus(1)
A, B = (host_spec.MigSpec(gi=gi) for gi in (1, 2))
DIVIDED = host_spec.GpuSpec(mig_enabled=True, mig=(A, B))
CAPS = "/dev/nvidia-caps/nvidia-cap"


def channels(plan):
    return [path for path in nodes(plan) if path.startswith(CHANNELS)]


def imex(value):
    return asked("0", f"NVIDIA_IMEX_CHANNELS={value}")


def by_mounts(*names):
    root = "/var/run/nvidia-container-devices"
    return tuple(
        harness.containers.Mount(source="/dev/null", destination=f"{root}/imex/{name}")
        for name in names
    )


def test_channels_that_are_there_are_given_and_others_named(tmp_path):
    """FC-132: `0,5` where only channel 0 is there, and may not be made, names channel 5."""
    found = harness.built(tmp_path, create=False, gpus=ONE, imex_channels=(0,))
    assert channels(decide(found, *imex("0"))) == [f"{CHANNELS}/channel0"]
    refused = decide(found, *imex("0,5"))
    assert (refused.decision, codes(refused)) == (
        pipeline.Decision.ERROR,
        ["imex-channel-missing"],
    )
    assert "IMEX channel 5" in refused.reasons[-1].message
    assert "mknod" in refused.reasons[-1].hint
    assert channels(decide(found, *asked("0"))) == []


@pytest.mark.parametrize("value", ["a", "-1", "1048576", "0x1", "1.0", "channel", "channel-1"])
def test_channels_that_cannot_be_are_named(tmp_path, value):
    """FC-132: what is no number, or too large a one, is an error that names it."""
    found = harness.built(tmp_path, gpus=ONE, imex_channels=(0,))
    refused = decide(found, *imex(value))
    assert codes(refused) == ["invalid-imex-channel"]
    assert f"IMEX channel {value}:" in refused.reasons[-1].message


@pytest.mark.parametrize("value", ["", "void", "none", "all", "0,all", ","])
def test_values_that_ask_for_no_channel(tmp_path, value):
    """FC-132: an unset or empty variable is none, and so is `all` from the environment."""
    found = harness.built(tmp_path, gpus=ONE, imex_channels=(0, 1))
    plan = decide(found, *imex(value))
    assert (plan.created, channels(plan)) == (True, [])


def test_a_channel_without_a_node_is_given_by_its_numbers(tmp_path):
    """FC-132: where nodes may be made the driver's own number of channels is the limit."""
    found = harness.built(tmp_path, gpus=ONE)
    plan = decide(found, *imex("2047,channel3"))
    given_nodes = [(d.path, d.major, d.minor, d.mode) for d in plan.edits.devices[-2:]]
    major = host_kernel.MAJORS["nvidia-caps-imex-channels"]
    assert given_nodes == [
        (f"{CHANNELS}/channel2047", major, 2047, 0o666),
        (f"{CHANNELS}/channel3", major, 3, 0o666),
    ]
    refused = decide(found, *imex("2048"))
    assert codes(refused) == ["imex-channel-missing"]
    assert "0-2047" in refused.reasons[-1].message
    inside = decide(found, *imex("3"), user_namespace=True)
    assert codes(inside) == ["device-node-missing"]


def test_the_drivers_parameter_is_the_number_of_channels(tmp_path):
    """FC-132: NVreg_ImexChannelCount counts, as /proc/driver/nvidia/params shows it."""
    harness.built(tmp_path, gpus=ONE)
    with (tmp_path / "proc/driver/nvidia/params").open("a") as params:
        params.write("ImexChannelCount: 4\n")
    found = harness.look(tmp_path)
    assert decide(found, *imex("3")).created
    assert "0-3" in decide(found, *imex("4")).reasons[-1].message


def test_a_list_of_channels_has_an_end(tmp_path):
    """FC-132: one container cannot have thousands of nodes made, nor hold up others by asking."""
    found = harness.built(tmp_path, gpus=ONE)
    every = ",".join(map(str, range(2048)))
    assert len(channels(decide(found, *imex(every)))) == 2048
    refused = decide(found, *imex(f"{every},channel0"))
    assert codes(refused) == ["too-many-imex-channels"]


def test_a_node_without_imex_says_so(tmp_path):
    """FC-132: a driver without channels is an error, not a container that waits for its peers."""
    harness.built(tmp_path, gpus=ONE)
    devices = tmp_path / "proc/devices"
    devices.write_text(devices.read_text().replace("507 nvidia-caps-imex-channels\n", ""))
    refused = decide(harness.look(tmp_path), *imex("0"))
    assert codes(refused) == ["imex-channel-missing"]
    assert "no IMEX channels" in refused.reasons[-1].message


def test_channels_by_mounts(tmp_path):
    """FC-132: mounts win over the variable, and `all` there is every channel that has a node."""
    found = harness.built(tmp_path, gpus=ONE, imex_channels=(0, 7))
    rules = harness.requests(accept_volume_mounts=True)
    plan = decide(found, *imex("0"), rules=rules, mounts=by_mounts("7"))
    assert channels(plan) == [f"{CHANNELS}/channel7"]
    plan = decide(found, *imex("0"), rules=rules, mounts=by_mounts("7", "all"))
    assert channels(plan) == [f"{CHANNELS}/channel0", f"{CHANNELS}/channel7"]
    none = harness.built(tmp_path / "none", gpus=ONE)
    refused = decide(none, *asked("0"), rules=rules, mounts=by_mounts("all"))
    assert codes(refused) == ["imex-channel-missing"]


def test_channels_and_groups_by_cdi_names(tmp_path):
    """FC-132, FC-133: the device plugin's names of them are no GPUs, and mean the same."""
    found = harness.built(tmp_path, gpus=ONE, imex_channels=(0,), groups=("gds", "mofed"))
    names = "nvidia.com/gpu=0,nvidia.com/imex-channel=0,nvidia.com/mofed=all"
    rules = harness.requests(annotation_prefixes=("cdi.k8s.io/",))
    plan = decide(found, rules=rules, annotations={"cdi.k8s.io/nvidia-device-plugin_1": names})
    assert harness.indices(plan) == [0]
    assert channels(plan) == [f"{CHANNELS}/channel0"]
    assert "/dev/infiniband/uverbs0" in nodes(plan)
    assert "/dev/nvidia-fs0" not in nodes(plan)


def test_the_operator_may_ignore_channels(tmp_path):
    """FC-132: with request.ignore_imex_channels no request for one counts."""
    found = harness.built(tmp_path, gpus=ONE)
    rules = harness.requests(ignore_imex_channels=True)
    assert channels(decide(found, *imex("0"), rules=rules)) == []


@pytest.mark.parametrize("group", model.Group)
def test_a_group_is_given_by_its_variable_alone(tmp_path, group):
    """FC-133: `enabled` gives the group's nodes, any other value or none gives nothing."""
    found = harness.built(tmp_path, gpus=ONE, groups=host_spec.GROUPS)
    before = nodes(decide(found, *asked("0")))
    name = extras.variable(group)
    plan = decide(found, *asked("0", f"{name}=enabled"))
    added = [d for d in plan.edits.devices if d.path not in before]
    wanted = {f"/dev/{path}": pair for path, *pair in host_kernel.GROUPS[group]}
    assert {d.path: [d.major, d.minor] for d in added} == wanted
    assert all((d.mode, d.access) == (0o666, "rw") for d in added)
    assert plan.reasons == ()
    extra = {"/run/udev", "/etc/cufile.json"} & set(mounted(plan))
    assert len(extra) == (2 if group is model.Group.GDS else 0)
    for value in ("true", "1", "Enabled", "enabled ", "disabled", ""):
        assert nodes(decide(found, *asked("0", f"{name}={value}"))) == before


@pytest.mark.parametrize("group", model.Group)
@pytest.mark.parametrize("devices", ["0", "none", "all"])
def test_a_group_that_is_not_there_is_said(tmp_path, group, devices):
    """FC-133: an explicit request for what the node lacks is a finding, and the container starts."""
    found = harness.built(tmp_path, gpus=ONE)
    plan = decide(found, *asked(devices, f"{extras.variable(group)}=enabled"))
    assert plan.created
    assert codes(plan) == ["group-not-there"]
    assert extras.variable(group) in plan.reasons[0].message
    assert not {"/run/udev", "/etc/cufile.json"} & set(mounted(plan))


def test_the_gdrcopy_node_is_made_from_its_major(tmp_path):
    """FC-133: its module announces no device; the node has minor 0 of the major gdrdrv."""
    missing = {"gpus": ONE, "groups": ("gdrcopy",), "missing_nodes": ("/dev/gdrdrv",)}
    found = harness.built(tmp_path / "one", **missing)
    plan = decide(found, *asked("0", "NVIDIA_GDRCOPY=enabled"))
    (node,) = [d for d in plan.edits.devices if d.path == "/dev/gdrdrv"]
    assert (node.major, node.minor, node.mode) == (505, 0, 0o666)
    found = harness.built(tmp_path / "two", create=False, **missing)
    assert codes(decide(found, *asked("0", "NVIDIA_GDRCOPY=enabled"))) == ["group-not-there"]


def test_a_mount_of_the_containers_own_is_kept(tmp_path):
    """FC-133: who mounts another cufile.json, or all of /etc, keeps it, and that is said."""
    found = harness.built(tmp_path, gpus=ONE, groups=("gds",))
    for place, left in (("/etc/cufile.json", "/run/udev"), ("/run", "/etc/cufile.json")):
        mounts = (harness.containers.Mount(source="/srv", destination=place, type="bind"),)
        plan = decide(found, *asked("0", "NVIDIA_GDS=enabled"), mounts=mounts)
        assert plan.created
        assert left in mounted(plan)
        assert len({"/run/udev", "/etc/cufile.json"} & set(mounted(plan))) == 1
        assert "users-mount-kept" in codes(plan)


@given(which=st.sets(st.sampled_from(sorted(model.Group))), devices=st.sampled_from(["0", "none"]))
def test_no_group_comes_without_being_asked(which, devices):
    """FC-133: any choice of groups gives the nodes of these and of no other."""
    extra = {
        group: inventories.node(f"/dev/{name}", minor, major)
        for group, listed in host_kernel.GROUPS.items()
        for name, major, minor in listed[:1]
    }
    found = attrs.evolve(inventories.EIGHT, extra_nodes=tuple(extra.items()))
    env = [f"{extras.variable(group)}=enabled" for group in which]
    plan = decide(found, *asked(devices, *env))
    paths = {node.path for node in extra.values()}
    assert {path for path in nodes(plan) if path in paths} == {
        extra[group].path for group in which
    }


@pytest.mark.parametrize("value", ["all", "ALL", " all"])
def test_who_may_watch_mig_has_that_capability_alone(tmp_path, value):
    """FC-025: MONITOR gives nvidia-cap2 and not nvidia-cap1, CONFIG cap1 and the instances'."""
    found = harness.built(tmp_path, gpus=(DIVIDED, *ONE))
    plan = decide(found, *asked("1", f"NVIDIA_MIG_MONITOR_DEVICES={value}"), privileged=True)
    assert [path for path in nodes(plan) if path.startswith(CAPS)] == [f"{CAPS}2"]
    plan = decide(found, *asked("all", f"NVIDIA_MIG_CONFIG_DEVICES={value}"), privileged=True)
    minors = [harness.cap_minor(0, mig.gi, ci) for mig in (A, B) for ci in (None, 0)]
    wanted = {f"{CAPS}{minor}" for minor in (1, *minors)}
    assert {path for path in nodes(plan) if path.startswith(CAPS)} == wanted
    modes = {d.path: d.mode for d in plan.edits.devices}
    assert modes[f"{CAPS}1"] == 0o400


def test_a_whole_gpu_in_mig_mode_with_the_right_to_divide_it(tmp_path):
    """FC-025: CONFIG with a GPU by its index gives the nodes of that GPU's instances, too."""
    found = harness.built(tmp_path, gpus=(DIVIDED, DIVIDED))
    plan = decide(found, *asked("1", "NVIDIA_MIG_CONFIG_DEVICES=all"), privileged=True)
    minors = [harness.cap_minor(1, mig.gi, ci) for mig in (A, B) for ci in (None, 0)]
    wanted = {f"{CAPS}{minor}" for minor in (1, *minors)}
    assert {path for path in nodes(plan) if path.startswith(CAPS)} == wanted


@pytest.mark.parametrize("kind", ["CONFIG", "MONITOR"])
def test_who_may_not_manage_mig_is_refused(tmp_path, kind):
    """FC-025: not privileged, another value than `all`, single MIG devices, a host without MIG."""
    found = harness.built(tmp_path / "mig", gpus=(DIVIDED, *ONE))
    name = f"NVIDIA_MIG_{kind}_DEVICES"
    cases = (
        (False, asked("all", f"{name}=all"), "mig-management-unprivileged"),
        (None, asked("all", f"{name}=all"), "mig-management-unprivileged"),
        (True, asked("all", f"{name}=0"), "mig-management-not-all"),
        (True, asked("0:0", f"{name}=all"), "mig-management-with-mig-device"),
    )
    for privileged, env, code in cases:
        plan = decide(found, *env, privileged=privileged)
        assert (plan.created, codes(plan)[-1]) == (False, code)
        assert name in plan.reasons[-1].message
    assert decide(found, *asked("all", f"{name}="), privileged=False).created
    whole = harness.built(tmp_path / "whole", gpus=ONE)
    plan = decide(whole, *asked("all", f"{name}=all"), privileged=True)
    assert codes(plan) == ["mig-capability-missing"]


def test_the_daemon_makes_a_channels_node(together, live):
    """FC-132: the node is made on the host with the driver's rights, and its link for systemd."""
    directory = live(gpus=ONE)
    place = directory / CHANNELS[1:] / "channel5"

    async def body(pair):
        await pair.create(1, *asked("0"))
        assert not place.parent.exists()
        adjusted = await pair.create(2, *imex("5"))
        assert adjusted.linux.devices[-1].path == f"{CHANNELS}/channel5"
        status = place.stat()
        numbers = (os.major(status.st_rdev), os.minor(status.st_rdev))
        assert numbers == (host_kernel.MAJORS["nvidia-caps-imex-channels"], 5)
        assert stat.S_IMODE(status.st_mode) == 0o666
        link = directory / f"dev/char/{numbers[0]}:5"
        assert link.readlink() == pathlib.Path("../nvidia-caps-imex-channels/channel5")
        assert "IMEX channel 2048" in await pair.refused(3, *imex("2048"))

    together(body, directory)


def test_the_daemon_makes_no_channel_where_it_may_not(together, live, tmp_path):
    """FC-132: with creation off nothing is made, and the refusal has the command."""
    directory = live(gpus=ONE, imex_channels=(0,))
    config = tmp_path / "config.toml"
    config.write_text("host.create_device_nodes = false\n")

    async def body(pair):
        assert "channel5" not in str(await pair.create(1, *imex("0")))
        assert "mknod" in await pair.refused(2, *imex("0,5"))
        assert [path.name for path in (directory / CHANNELS[1:]).iterdir()] == ["channel0"]

    together(body, directory, "--config", str(config))
