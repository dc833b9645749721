# SPDX-License-Identifier: Apache-2.0
"""From a container to a decision, whole."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import errors, pipeline
from nri_nvidia.edits import model as edits_model
from nri_nvidia.edits import options
from nri_nvidia.host import model as host
from nri_nvidia.request import container
from tests import inventories
from tests.inventories import EIGHT, UUIDS

RULES = pipeline.Policy()


def decide(*env, inventory=EIGHT, rules=RULES, context=None, **more):
    shown = container.Container(env=env, **more)
    return pipeline.plan(shown, inventory, rules, context)


def paths(plan):
    return [device.path for device in plan.edits.devices]


def destinations(plan):
    return [mount.destination for mount in plan.edits.mounts]


def codes(plan):
    return [reason.code for reason in plan.reasons]


def test_two_gpus():
    """Two GPUs, their control nodes, the files of compute and utility, one hook."""
    plan = decide("NVIDIA_VISIBLE_DEVICES=0,2")
    assert plan.decision is pipeline.Decision.INJECT
    assert paths(plan) == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
        "/dev/nvidia2",
    ]
    assert destinations(plan) == [
        "/usr/local/nvidia/lib64/libcuda.so.1",
        "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
        "/usr/local/nvidia/bin/nvidia-smi",
        "/run/nvidia-persistenced/socket",
        "/lib/firmware/nvidia/550.163.01/gsp_tu10x.bin",
    ]
    (hook,) = plan.edits.hooks
    assert hook.stage == "createContainer"
    assert hook.env
    assert hook.args[:3] == (hook.path, "-I", "-S")
    assert "libcuda.so=libcuda.so.1" in hook.args
    assert plan.driver_version == "550.163.01"


def test_files_are_read_only_and_sockets_are_not_executable():
    """Mount options: driver files ro, sockets writable and noexec, all private."""
    for mount in decide("NVIDIA_VISIBLE_DEVICES=0").edits.mounts:
        assert "rprivate" in mount.options
        assert ("noexec" if mount.destination.endswith("socket") else "ro") in mount.options


@pytest.mark.parametrize(
    ("capabilities", "nodes"),
    [
        ("utility", []),
        ("compute", ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]),
        ("video", ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]),
        ("graphics", ["/dev/nvidia-modeset"]),
        ("display", ["/dev/nvidia-modeset"]),
        (",", []),
    ],
)
def test_control_nodes_follow_capabilities(capabilities, nodes):
    """nvidiactl always; uvm for compute and video; modeset for display and graphics."""
    plan = decide("NVIDIA_VISIBLE_DEVICES=1", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    assert paths(plan) == ["/dev/nvidiactl", *nodes, "/dev/nvidia1"]


def test_files_follow_capabilities():
    """video brings compute's libraries, display graphics', compat32 the 32-bit ones."""

    def libraries(capabilities):
        plan = decide("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
        return {d.removeprefix("/usr/local/nvidia/") for d in destinations(plan)}

    assert "lib64/libcuda.so.1" in libraries("video")
    assert "lib64/libnvidia-encode.so.1" in libraries("video")
    assert "lib64/libnvidia-encode.so.1" not in libraries("compute")
    assert "lib64/libGLX_nvidia.so.0" in libraries("display")
    assert "lib32/libcuda.so.1" in libraries("compute,compat32")
    assert "lib32/libcuda.so.1" not in libraries("compute")


def test_none_gives_the_driver_and_no_gpu():
    """`none`: files and control nodes."""
    plan = decide("NVIDIA_VISIBLE_DEVICES=none")
    assert plan.decision is pipeline.Decision.INJECT
    assert paths(plan) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert "/usr/local/nvidia/lib64/libcuda.so.1" in destinations(plan)


@pytest.mark.parametrize(
    "env", [(), ("NVIDIA_VISIBLE_DEVICES=",), ("NVIDIA_VISIBLE_DEVICES=void",)]
)
def test_nothing_asked_nothing_said(env):
    """A container that asks for nothing gets no edit and no reason."""
    plan = decide(*env, inventory=host.Inventory())
    assert plan == pipeline.Plan(decision=pipeline.Decision.IGNORE)
    assert not plan.edits


def test_missing_node_is_never_skipped():
    """A node that is needed and missing fails the creation with the command that makes it."""
    control = attrs.evolve(
        EIGHT.control, uvm=inventories.node("/dev/nvidia-uvm", 0, 511, exists=False)
    )
    broken = attrs.evolve(EIGHT, control=control)
    plan = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=broken)
    assert plan.decision is pipeline.Decision.ERROR
    assert codes(plan) == ["device-node-missing"]
    assert "mknod -m 666 /dev/nvidia-uvm c 511 0" in plan.reasons[-1].hint
    utility = decide(
        "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility", inventory=broken
    )
    assert utility.created


def test_module_that_is_not_loaded():
    """Without nvidia-uvm in the kernel compute is refused, naming the module."""
    control = attrs.evolve(EIGHT.control, uvm=None)
    plan = decide("NVIDIA_VISIBLE_DEVICES=0", inventory=attrs.evolve(EIGHT, control=control))
    assert codes(plan) == ["kernel-module-not-loaded"]
    assert "modprobe nvidia-uvm" in plan.reasons[-1].hint


def test_driver_without_libraries():
    """A loaded module and no library on disk is refused."""
    plan = decide("NVIDIA_VISIBLE_DEVICES=all", inventory=attrs.evolve(EIGHT, files=()))
    assert codes(plan) == ["driver-files-missing"]


def test_devices_of_the_spec_win():
    """GPU nodes that a device plugin passed are the answer; `all` adds files and no GPU."""
    plan = decide(
        "NVIDIA_VISIBLE_DEVICES=all",
        devices=(container.Device(path="/dev/nvidia3"), container.Device(path="/dev/nvidiactl")),
    )
    assert [item.gpu.index for item in plan.assigned] == [3]
    assert paths(plan) == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert codes(plan) == ["devices-in-spec"]
    assert "/usr/local/nvidia/lib64/libcuda.so.1" in destinations(plan)


@pytest.mark.parametrize("at", ["/usr/local/nvidia/lib64", "//usr/local/nvidia/./lib64/"])
def test_users_mount_wins(at):
    """A mount of the container's own at our place is kept, with a reason, however it is written."""
    mine = container.Mount(source="/x", destination=at, options=("rw",))
    plan = decide("NVIDIA_VISIBLE_DEVICES=0", mounts=(mine,))
    assert plan.created
    assert not [d for d in destinations(plan) if d.startswith("/usr/local/nvidia/lib64")]
    assert "/usr/local/nvidia/bin/nvidia-smi" in destinations(plan)
    assert codes(plan) == ["users-mount-kept"]


def test_read_only_mount_above_our_place_is_an_error():
    """Where the files cannot be put, the creation fails and names the mount."""
    above = container.Mount(source="/x", destination="/usr/local", options=("ro", "rbind"))
    plan = decide("NVIDIA_VISIBLE_DEVICES=0", mounts=(above,))
    assert codes(plan) == ["no-place-for-driver-files"]
    assert "/usr/local" in plan.reasons[-1].message


def test_own_traces_and_other_injectors_are_recognised():
    """There are never two owners of one container."""
    ours = decide("NVIDIA_VISIBLE_DEVICES=0").edits.hooks[0]
    again = decide(
        "NVIDIA_VISIBLE_DEVICES=0",
        hooks=(container.Hook(stage=ours.stage, path=ours.path, args=ours.args),),
    )
    assert (again.decision, codes(again)) == (pipeline.Decision.IGNORE, ["already-served"])
    toolkit = container.Hook(stage="prestart", path="/usr/bin/nvidia-container-runtime-hook")
    other = decide("NVIDIA_VISIBLE_DEVICES=0", hooks=(toolkit,))
    assert (other.decision, codes(other)) == (pipeline.Decision.IGNORE, ["other-injector"])


def test_allocation_of_the_kubelet():
    """`all` means what was allocated; a claim beyond that is denied; nothing allocated, nothing."""

    def given_to(*uuids):
        return pipeline.Context(allocated=frozenset(uuids))

    narrowed = decide("NVIDIA_VISIBLE_DEVICES=all", context=given_to(UUIDS[4]))
    assert [item.gpu.index for item in narrowed.assigned] == [4]
    denied = decide("NVIDIA_VISIBLE_DEVICES=1", context=given_to(UUIDS[4]))
    assert (denied.decision, codes(denied)) == (pipeline.Decision.DENY, ["not-allocated"])
    assert decide("NVIDIA_VISIBLE_DEVICES=all", context=given_to()).decision == "ignore"
    assert decide(f"NVIDIA_VISIBLE_DEVICES={UUIDS[4]}", context=given_to(UUIDS[4])).created


def test_refusal_is_the_last_reason():
    """What goes to the runtime is what is recorded."""
    plan = decide("NVIDIA_VISIBLE_DEVICES=9")
    assert str(plan.refusal()) == str(plan.reasons[-1])
    assert isinstance(plan.refusal(), errors.RequestError)


def test_token_and_switches_reach_the_hook():
    """A report is asked for only with a token; skipped steps are named."""
    hook = options.HookOptions(report_socket="/run/x.sock", skipped=("links",))
    rules = pipeline.Policy(inject=options.InjectOptions(hook=hook))
    args = decide(
        "NVIDIA_VISIBLE_DEVICES=0", rules=rules, context=pipeline.Context(hook_token="t")
    ).edits.hooks[0].args  # fmt: skip
    assert args[-4:] == ("--report", "/run/x.sock", "--token", "t")
    assert args[args.index("--skip") : args.index("--skip") + 2] == ("--skip", "links")
    off = pipeline.Policy(inject=options.InjectOptions(hook=None))
    assert not decide("NVIDIA_VISIBLE_DEVICES=0", rules=off).edits.hooks


def test_same_key_twice_is_our_defect_and_is_named():
    """A runtime would fail the container for it with a sentence that helps nobody."""
    one = edits_model.ContainerEdits(
        mounts=(edits_model.MountEdit(source="/a", destination="/x"),)
    )
    other = edits_model.ContainerEdits(
        mounts=(edits_model.MountEdit(source="/b", destination="/x"),)
    )
    assert one.merged(one) == one
    with pytest.raises(errors.Error, match="/x"):
        one.merged(other)


@given(
    env=st.lists(
        st.one_of(
            st.text(),
            st.builds("NVIDIA_VISIBLE_DEVICES={}".format, st.text()),
            st.builds(
                "NVIDIA_VISIBLE_DEVICES={}".format,
                st.lists(st.sampled_from(["0", "7", "all", "none", UUIDS[1], "0:0"])).map(
                    ",".join
                ),
            ),
            st.builds("NVIDIA_DRIVER_CAPABILITIES={}".format, st.text()),
        )
    ),
    device=st.sampled_from(["/dev/nvidia0", "/dev/nvidia5", "/dev/nvidiactl", "/dev/null"]),
    mount=st.sampled_from(["/usr", "/usr/local/nvidia/bin", "/data"]),
)
def test_plan_holds_together(env, device, mount):
    """Whatever is asked: a decision, unique keys, a reason for each refusal, edits for each GPU."""
    plan = decide(
        *env,
        devices=(container.Device(path=device),),
        mounts=(container.Mount(source="/x", destination=mount, options=("ro",)),),
    )
    assert plan.created or plan.reasons
    assert len(set(paths(plan))) == len(paths(plan))
    assert len(set(destinations(plan))) == len(destinations(plan))
    have = {*paths(plan), device}
    assert all(f"/dev/nvidia{item.gpu.minor}" in have for item in plan.assigned)
    assert bool(plan.edits) <= (plan.decision is pipeline.Decision.INJECT)
