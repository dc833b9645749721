# SPDX-License-Identifier: Apache-2.0
"""The recorded cases about nodes, run on hosts that are built for them."""

import posixpath

from nri_nvidia import pipeline, resolve
from nri_nvidia.edits import devices, model
from nri_nvidia.host import proc, reach, root
from nri_nvidia.render import cdi
from nri_nvidia.request import container as containers
from nri_nvidia.request import mountlist, parse
from tests import inventories
from tests.cases import test_cases
from tests.cases.test_cases import NOW, expect_error, of, rules
from tests.host.conftest import tree

__all__ = ["tree"]

CHANNELS = "/dev/nvidia-caps-imex-channels/"
EXTRA = ("/dev/nvidia-fs", "/dev/infiniband/", "/dev/gdrdrv", "/dev/nvidia-nvswitch", CHANNELS)


def host(tree, given):
    """Build the host of a case: one GPU with its driver, and what the case lists."""
    tree.module("550.163.01")
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.leading("/usr/lib64", "550.163.01")
    tree.library("/usr/lib64/libnvidia-encode.so.550.163.01", "libnvidia-encode.so.1")
    tree.library("/usr/lib64/libnvidia-ngx.so.550.163.01", "libnvidia-ngx.so.1")
    tree.gpu("0000:01:00.0", 0, inventories.UUIDS[0])
    lines = [
        f"c {100 + at} {at} 0666 0 0 {path}" for at, path in enumerate(given["existing_nodes"])
    ]
    tree.put("/dev.nodes", "".join(f"{line}\n" for line in lines))
    for path in given.get("files", ()):
        if path.endswith("/"):
            tree.at(f"{path}data")
        else:
            tree.put(path, "{}")
    return tree.scan()


def decided(found, env, **more):
    shown = containers.Container(env=tuple(f"{k}={v}" for k, v in env.items()), **more)
    return pipeline.plan(shown, found, pipeline.Policy())


@of("device-nodes")
def test_nodes(name, tree):
    """Capabilities and switches give the recorded nodes and mounts."""
    given, expected = NOW[name]["input"], NOW[name]["expected"]
    listed = {"existing_nodes": (), **given.get("host", {})}
    found = host(tree, listed)
    if "env" in given:
        plan = decided(found, given["env"])
        paths = [device.path for device in plan.edits.devices]
        wanted = expected.get("nodes", expected.get("extra_nodes"))
        assert sorted(path for path in paths if path.startswith(EXTRA)) == sorted(wanted)
        extra = ("/etc/cufile.json", "/run/udev")
        mounts = [mount.destination for mount in plan.edits.mounts if mount.destination in extra]
        assert sorted(mounts) == sorted(expected.get("mounts", ()))
        assert (plan.request is not None) == expected.get("gpu_container", True)
        return
    env = {
        "NVIDIA_VISIBLE_DEVICES": ",".join(given["request"]),
        "NVIDIA_DRIVER_CAPABILITIES": given["driver_capabilities"],
    }
    plan = decided(found, env)
    assert plan.created, plan.reasons
    assert sorted(device.path for device in plan.edits.devices) == expected["nodes"]


@of("imex")
def test_imex(name, tree):
    """Channels are asked for and given as recorded, and what cannot be is refused."""
    given, expected = NOW[name]["input"], NOW[name]["expected"]
    if "imex_request" not in given:
        shown = test_cases.container(given)
        request = parse.parse(shown, rules(given["config"])).request
        channels = list(request.imex_channels) if request else []
        assert channels == expected["imex_channels"]
        return
    found = host(tree, given["host"])
    mounts = tuple(
        containers.Mount(source="/dev/null", destination=f"{mountlist.ROOT}/imex/{channel}")
        for channel in given["imex_request"]
    )
    shown = containers.Container(env=("NVIDIA_VISIBLE_DEVICES=0",), mounts=mounts)
    given_rules = pipeline.Policy(request=rules({"accept_volume_mounts": True}))

    def nodes():
        plan = pipeline.plan(shown, found, given_rules)
        if not plan.created:
            raise plan.refusal()
        paths = [device.path for device in plan.edits.devices]
        return [path for path in paths if path.startswith(CHANNELS)]

    if "error_contains" in expected:
        expect_error(expected, nodes)
    else:
        assert nodes() == expected["nodes"]


@of("mig")
def test_mig(name, tree):
    """Lines of mig-minors are read or skipped as recorded; an unknown capability is an error."""
    given, expected = NOW[name]["input"], NOW[name]["expected"]
    if "line" in given:
        tree.put("/proc/driver/nvidia-caps/mig-minors", f"{given['line']}\n")
        found = proc.mig_minors(root.Root(str(tree.top), True))
        wanted = {} if expected.get("skipped") else {expected["cap"]: expected["minor"]}
        assert found == wanted
        return
    gpu = inventories.gpu(0, minor=given["gpu_minor"], mig_enabled=True)
    mig = inventories.mig(given["gi"], given["ci"])
    error = reach.out_of_reach(gpu, mig, inventories.with_gpus(gpu))
    assert error is not None

    def refused():
        raise error

    expect_error(expected, refused)


@of("device-edits")
def test_edits(name):
    """A node's path in a specification, and when its group means that it is for more than root."""
    given, expected = NOW[name]["input"], NOW[name]["expected"]
    if "path" in given:
        edit = model.DeviceEdit(path=given["path"], host_path=given["host_path"], major=1, minor=2)
        (node,) = cdi.container_edits(model.ContainerEdits(devices=(edit,)))["deviceNodes"]
        assert {key: node[key] for key in ("path", "hostPath") if key in node} == expected
        return
    # Where the toolkit gives the process a further group, the container's own node is for all.
    mode = int(given["node_mode"] or "0660", 8)
    path = posixpath.join("/dev/dri", "card1")
    dri = inventories.node(path, 1, 226, mode=mode, gid=given["node_gid"])
    gpu = inventories.gpu(0, dri_nodes=(dri,))
    found = inventories.with_gpus(gpu)
    assigned = resolve.Allocation(assigned=(resolve.Assigned(gpu=gpu),))
    edits = devices.build(frozenset({"graphics"}), assigned, found, ())
    (edit,) = [device for device in edits.devices if device.path == path]
    assert (edit.mode == mode | 0o666) == bool(expected["additional_gids"])
    assert edit.mode in {mode, mode | 0o666}
