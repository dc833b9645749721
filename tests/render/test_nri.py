# SPDX-License-Identifier: Apache-2.0
import attrs
import pytest

from nri_nvidia import errors
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.edits import model
from nri_nvidia.render import nri
from nri_nvidia.ttrpc import wire

DEVICE = model.DeviceEdit(
    path="/dev/nvidia0", host_path="/dev/nvidia0", major=195, minor=0, mode=0, uid=0, gid=0
)
MOUNT = model.MountEdit(
    source="/usr/lib/libcuda.so.1", destination="/usr/local/nvidia/libcuda.so.1"
)
HOOK = model.HookEdit(
    stage="createContainer", path="/opt/hook", args=("hook", "run"), env=("PATH=/bin",), timeout=7
)


def sent(edits):
    """Give the answer as the runtime decodes it."""
    data = nri.encoded(edits)
    wire.check(api.CreateContainerResponse, data)
    return api.CreateContainerResponse().parse(data).adjust


def test_empty_edits_are_an_empty_answer():
    """A container that gets nothing is created exactly as without a plugin."""
    assert nri.encoded(model.ContainerEdits()) == b""


def test_everything_arrives():
    """Variables, mounts, devices and hooks are carried over."""
    adjust = sent(
        model.ContainerEdits(
            env=(("A", "1"), ("EMPTY", "")), mounts=(MOUNT,), devices=(DEVICE,), hooks=(HOOK,)
        )
    )
    assert [(pair.key, pair.value) for pair in adjust.env] == [("A", "1"), ("EMPTY", "")]
    [mount] = adjust.mounts
    assert (mount.source, mount.destination, mount.type) == (
        MOUNT.source,
        MOUNT.destination,
        "bind",
    )
    assert mount.options == ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    [device] = adjust.linux.devices
    assert (device.path, device.type, device.major, device.minor) == ("/dev/nvidia0", "c", 195, 0)
    [hook] = adjust.hooks.create_container
    assert (hook.path, hook.args, hook.env) == ("/opt/hook", ["hook", "run"], ["PATH=/bin"])
    assert hook.timeout.value == 7


def test_zeros_are_sent():
    """Mode, uid and gid 0 are present on the wire: an absent one would mean the runtime's choice.

    The library drops a wrapper that is made without its value.
    """
    assert bytes(api.LinuxDevice(uid=api.OptionalUInt32())) == b""
    assert bytes(api.LinuxDevice(uid=api.OptionalUInt32(value=0))) != b""
    adjust = nri.adjustment(model.ContainerEdits(devices=(DEVICE,)))
    data = bytes(adjust.linux.devices[0])
    assert {5, 6, 7} <= {number for number, _ in wire.fields(data)}


def test_a_hook_without_time_limit_has_no_timeout():
    """A present timeout of 0 would fail the hook at once."""
    edits = model.ContainerEdits(hooks=(attrs.evolve(HOOK, timeout=0),))
    data = bytes(nri.adjustment(edits).hooks.create_container[0])
    assert {number for number, _ in wire.fields(data)} == {1, 2, 3}


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        ("prestart", "prestart"),
        ("createRuntime", "create_runtime"),
        ("createContainer", "create_container"),
        ("startContainer", "start_container"),
        ("poststart", "poststart"),
        ("poststop", "poststop"),
    ],
)
def test_each_stage_has_its_place(stage, field):
    """OCI's names of the stages map to NRI's fields."""
    adjust = sent(model.ContainerEdits(hooks=(attrs.evolve(HOOK, stage=stage),)))
    assert len(getattr(adjust.hooks, field)) == 1


def test_destinations_are_clean():
    """Runtimes compare destinations byte by byte."""
    mount = attrs.evolve(MOUNT, destination="//a/./b//c/")
    assert sent(model.ContainerEdits(mounts=(mount,))).mounts[0].destination == "/a/b/c"


def test_a_bind_mount_says_its_propagation():
    """Without a propagation option a runtime may apply that of the mount before."""
    mount = attrs.evolve(MOUNT, options=("ro", "rbind"))
    assert sent(model.ContainerEdits(mounts=(mount,))).mounts[0].options[-1] == "rprivate"


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (
            {"mounts": (MOUNT, attrs.evolve(MOUNT, destination=MOUNT.destination + "/"))},
            "claim mount",
        ),
        ({"env": (("A", "1"), ("A", "2"))}, "claim variable A"),
        ({"devices": (DEVICE, DEVICE)}, "claim device /dev/nvidia0"),
        ({"env": (("-A", "1"),)}, "means removal"),
        ({"env": (("A=B", "1"),)}, "not a variable's name"),
        ({"mounts": (attrs.evolve(MOUNT, destination="a"),)}, "not absolute"),
        ({"mounts": (attrs.evolve(MOUNT, source="/\udcff"),)}, "not UTF-8"),
        ({"devices": (attrs.evolve(DEVICE, type=""),)}, "has type ''"),
        ({"hooks": (attrs.evolve(HOOK, env=()),)}, "no environment"),
        ({"hooks": (attrs.evolve(HOOK, stage="create"),)}, "unknown stage"),
    ],
)
def test_what_nri_would_misunderstand_is_refused(edits, reason):
    """Edits which a runtime would reject, drop or take for something else raise an error."""
    with pytest.raises(errors.Error, match=reason):
        nri.encoded(model.ContainerEdits(**edits))


def test_what_containers_share_does_not_leak():
    """Two containers differ by their hook's token alone: each has its own, the rest is equal."""
    hooks = [attrs.evolve(HOOK, args=("hook", "--token", token)) for token in ("one", "two", "")]
    answers = [
        sent(model.ContainerEdits(mounts=(MOUNT,), devices=(DEVICE,), hooks=(hook,)))
        for hook in hooks
    ]
    shown = [answer.hooks.create_container[0].args for answer in answers]
    assert shown == [list(hook.args) for hook in hooks]
    assert answers[0].mounts == answers[1].mounts
    assert answers[0].linux == answers[1].linux
    [bare] = sent(
        model.ContainerEdits(hooks=(attrs.evolve(HOOK, args=()),))
    ).hooks.create_container
    assert bare.args == []


def test_order_is_kept():
    """Mounts, arguments and hooks of a stage come in the order of the edits."""
    mounts = tuple(attrs.evolve(MOUNT, destination=f"/{number}") for number in range(200))
    hooks = tuple(attrs.evolve(HOOK, path=f"/opt/{number}") for number in range(3))
    adjust = sent(model.ContainerEdits(mounts=mounts, hooks=hooks))
    assert [mount.destination for mount in adjust.mounts] == [m.destination for m in mounts]
    assert [hook.path for hook in adjust.hooks.create_container] == [h.path for h in hooks]
    assert [list(hook.args) for hook in adjust.hooks.create_container] == [["hook", "run"]] * 3


def test_what_is_found_by_the_object_is_what_it_holds():
    """Equal mounts and devices in other objects are encoded alike, and any number of them."""
    kept = model.ContainerEdits(mounts=(model.MountEdit(source="/a", destination="/a"),))
    first = nri.encoded(kept)
    for number in range(300):
        mounts = (model.MountEdit(source=f"/{number}", destination="/a"),)
        found = nri.adjustment(model.ContainerEdits(mounts=mounts))
        assert found.mounts[0].source == f"/{number}"
        del mounts
    assert nri.encoded(kept) == first
    again = model.ContainerEdits(mounts=(model.MountEdit(source="/a", destination="/a"),))
    assert nri.encoded(again) == first
