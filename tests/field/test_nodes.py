# SPDX-License-Identifier: Apache-2.0
"""Field cases: device nodes that are missing, elsewhere, or have other numbers than expected."""

import itertools
import os
import stat

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia import cli, pipeline
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.host import options, scan
from nri_nvidia.nri import convert
from nri_nvidia.oci import bundle
from nri_nvidia.testing import host_spec
from tests import inventories

from . import harness
from .harness import asked, capable, codes, decide, indices, nodes

UVM = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
ONE = harness.gpus(1)


@pytest.mark.parametrize(
    "missing", [UVM, UVM[:1], UVM[1:], ("/dev/nvidiactl",), ("/dev/nvidia0",)]
)
def test_missing_nodes_are_made_with_the_kernels_numbers(live, missing):
    """FC-017: the nodes are made on the host, mode 0666, and are in the spec."""
    directory = live(gpus=ONE, missing_nodes=missing)
    plan = decide(scan.scan(harness.host.options_for(directory)), *asked("0"))
    given_nodes = {d.path: (d.major, d.minor) for d in plan.edits.devices}
    numbers = {UVM[0]: (511, 0), UVM[1]: (511, 1), "/dev/nvidiactl": (195, 255)}
    for path in missing:
        found = os.stat(directory / path[1:])
        assert stat.S_ISCHR(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o666
        pair = (os.major(found.st_rdev), os.minor(found.st_rdev))
        assert pair == given_nodes[path] == numbers.get(path, (195, 0))


@pytest.mark.parametrize("missing", [UVM, UVM[:1], UVM[1:]])
def test_missing_nodes_are_told_where_they_may_not_be_made(tmp_path, missing):
    """FC-017: with creation off the first missing node is named, and the command that makes it."""
    found = harness.built(tmp_path, create=False, gpus=ONE, missing_nodes=missing)
    for value in ("0", "all", "none"):
        plan = decide(found, *asked(value))
        assert (plan.decision, codes(plan)) == (pipeline.Decision.ERROR, ["device-node-missing"])
        assert f"{missing[0]} is missing" in plan.reasons[-1].message
        assert plan.reasons[-1].hint == "run: nvidia-modprobe -u -c 0"
    assert decide(found, *asked("0", capable("utility"))).created


def test_the_modeset_node_is_for_display(tmp_path):
    """FC-018: without it compute is complete; display has it made, or says why it cannot be."""
    spec = {"gpus": ONE, "missing_nodes": ("/dev/nvidia-modeset",)}
    found = harness.built(tmp_path / "one", **spec)
    compute = decide(found, *asked("0", capable("compute,utility")))
    assert (compute.created, compute.reasons) == (True, ())
    assert "/dev/nvidia-modeset" not in nodes(compute)
    display = decide(found, *asked("0", capable("display")))
    (node,) = [d for d in display.edits.devices if d.path == "/dev/nvidia-modeset"]
    assert (node.major, node.minor) == (195, 254)
    found = harness.built(tmp_path / "two", create=False, **spec)
    assert decide(found, *asked("0")).created
    refused = decide(found, *asked("0", capable("display")))
    assert "/dev/nvidia-modeset is missing" in refused.reasons[-1].message


@pytest.mark.parametrize("create", [False, True])
def test_all_capabilities_on_a_server_without_modeset(tmp_path, create):
    """FC-018: `all`, which many images ask for, does without that node, and says so."""
    found = harness.built(
        tmp_path, create=create, gpus=ONE, missing_nodes=("/dev/nvidia-modeset",)
    )
    unloaded = attrs.evolve(found, control=attrs.evolve(found.control, modeset=None))
    for each in (found, unloaded):
        plan = decide(each, *asked("0", capable("all")))
        assert plan.created, plan.reasons
        left_out = each is unloaded or not create
        assert codes(plan) == ["display-left-out"] * left_out
        assert ("/dev/nvidia-modeset" in nodes(plan)) is not left_out
        assert "libGLX_nvidia.so.0" in harness.libraries(plan)
    named = decide(unloaded, *asked("0", capable("display,all")))
    assert named.created
    assert not decide(unloaded, *asked("0", capable("display"))).created


@pytest.mark.parametrize("missing", [UVM, UVM[1:], ("/dev/nvidiactl",), ("/dev/nvidia1",)])
def test_a_node_is_not_ready_without_its_nodes(tmp_path, missing, capsys):
    """FC-019: what the usual containers need and is missing is a problem that names it."""
    top = tmp_path / "host"
    harness.built(top, gpus=harness.gpus(2), missing_nodes=missing)
    config = tmp_path / "config.toml"
    config.write_text("host.create_device_nodes = false\n")
    assert cli.main(["devices", "--host", str(top), "--config", str(config)]) == 1
    said = capsys.readouterr().out
    for path in missing:
        assert f"{path} is missing" in said
    assert cli.main(["devices", "--host", str(top)]) == 0  # they would be made


def test_a_module_that_is_missing_is_told(tmp_path):
    """FC-019: where the kernel does not know nvidia-uvm the problem names the module."""
    top = tmp_path / "host"
    harness.built(top, gpus=ONE)
    devices = top / "proc/devices"
    lines = devices.read_text().splitlines(keepends=True)
    devices.write_text("".join(line for line in lines if "nvidia-uvm" not in line))
    found = harness.look(top)
    assert {problem.code for problem in found.problems} == {"kernel-module-not-loaded"}
    assert "nvidia-uvm" in found.problems[0].hint


def test_libraries_and_nodes_in_different_roots(tree):
    """FC-020, FC-037: files come from the driver root, nodes from /dev; containers see plain paths."""
    tree.module("550.54.14")
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.gpu("0000:01:00.0", 0, inventories.UUIDS[0])
    for name, major, minor in (("nvidia0", 195, 0), ("nvidiactl", 195, 255),
                               ("nvidia-uvm", 511, 0), ("nvidia-uvm-tools", 511, 1)):  # fmt: skip
        tree.node(f"/dev/{name}", major, minor)
    for root, directory in (("run/nvidia/driver", "usr/lib64"),
                            ("snap/docker/current/graphics", "lib/x86_64-linux-gnu")):  # fmt: skip
        tree.leading(f"/{root}/{directory}", "550.54.14")
        tree.at(f"/{root}/dev/.keep").touch()
        given_root = f"{tree.top}/{root}"
        plan = decide(scan.scan(tree.live(driver_root=given_root)), *asked("0"))
        assert plan.created, plan.reasons
        source = harness.libraries(plan)["libcuda.so.1"]
        assert source == f"{given_root}/{directory}/libcuda.so.550.54.14"
        for device in plan.edits.devices:
            assert device.host_path == f"{tree.top}{device.path}"
            assert device.path.startswith("/dev/nvidia")


def test_the_minor_has_nothing_to_do_with_drm(tmp_path):
    """FC-021: beside an integrated GPU the card is card1, and its node is nvidia0 all the same."""
    found = harness.built(tmp_path, gpus=ONE, drm=True, missing_nodes=("/dev/nvidia0",))
    (gpu,) = found.gpus
    assert [node.path for node in gpu.dri_nodes] == ["/dev/dri/card1", "/dev/dri/renderD129"]
    assert [p for p in nodes(decide(found, *asked("all"))) if p[-1].isdigit()] == ["/dev/nvidia0"]


@settings(max_examples=60)
@given(minors=st.lists(st.integers(0, 253), min_size=1, max_size=8, unique=True), data=st.data())
def test_an_index_is_pci_order_and_no_minor(minors, data):
    """FC-070: index I is the I-th GPU by PCI address, whatever its minor."""
    gpus = [inventories.gpu(index, minor=minor) for index, minor in enumerate(minors)]
    index = data.draw(st.integers(0, len(gpus) - 1))
    plan = decide(inventories.with_gpus(*gpus), *asked(str(index)))
    assert nodes(plan)[-1] == f"/dev/nvidia{minors[index]}"


def test_bus_order_decides_on_a_whole_host(tmp_path):
    """FC-070: bus 01 with minor 1 is index 0, and the table shows index, minor, UUID and bus."""
    specs = (host_spec.GpuSpec(bus=1, minor=1), host_spec.GpuSpec(bus=2, minor=0))
    found = harness.built(tmp_path, gpus=specs)
    assert nodes(decide(found, *asked("0")))[-1] == "/dev/nvidia1"
    assert [(g.index, g.minor, g.bus_id) for g in found.gpus] == [
        (0, 1, "0000:01:00.0"), (1, 0, "0000:02:00.0"),
    ]  # fmt: skip


FOUR = harness.gpus(4)
BROKEN = {
    "unreadable": "",
    "no minor": "Model: NVIDIA H100\nBus Location: {bus}\n",
    "garbage": "\0\xff" * 40,
    "odd minor": "Bus Location: {bus}\nDevice Minor: two\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("place", range(4))
def test_one_broken_gpu_does_not_hide_the_others(tmp_path, text, place):
    """FC-087, FC-124: `all` gives the healthy ones and says why one is left out; it is no answer."""
    top = tmp_path / "host"
    harness.built(top, gpus=FOUR, nvml=False)
    bus = host_spec.bus_id_of(host_spec.GpuSpec(), place)
    (top / f"proc/driver/nvidia/gpus/{bus}/information").write_text(
        text.format(bus=bus), encoding="latin-1"
    )
    found = harness.look(top)
    healthy = [index for index in range(4) if index != place]
    everything = decide(found, *asked("all"))
    assert indices(everything) == healthy
    assert codes(everything) == ["gpu-left-out"]
    for word in (f"GPU {place}", bus, "Device Minor"):
        assert word in everything.reasons[0].message
    assert everything.reasons[0].message.count(bus) == 1
    assert indices(decide(found, *asked(str(healthy[0])))) == healthy[:1]
    for value in (str(place), f"{healthy[0]},{place}"):
        refused = decide(found, *asked(value))
        assert refused.decision is pipeline.Decision.ERROR
        assert f"GPU {place}" in refused.reasons[-1].message
        assert "Device Minor" in refused.reasons[-1].message
    (problem,) = found.problems
    assert "Device Minor" in problem.message


@pytest.mark.parametrize(
    "present", [p for n in range(4) for p in itertools.combinations(range(4), n)]
)
def test_what_has_no_node_is_no_gpu_of_all(tmp_path, present):
    """FC-087, FC-115: where nodes are not made, `all` is what /dev holds, with a reason for the rest."""
    missing = tuple(f"/dev/nvidia{at}" for at in range(4) if at not in present)
    found = harness.built(tmp_path, create=False, gpus=FOUR, missing_nodes=missing)
    plan = decide(found, *asked("all"))
    if not present:
        assert (plan.created, codes(plan)) == (False, ["device-node-missing"])
        assert "/dev/nvidia0 is missing" in plan.reasons[-1].message
        return
    assert indices(plan) == list(present)
    assert codes(plan) == ["gpu-left-out"] * len(missing)
    for at in range(4):
        assert decide(found, *asked(str(at))).created is (at in present)


def test_a_lost_mig_device_does_not_hide_the_others(tmp_path):
    """FC-087: the same for MIG devices: one whose capability node cannot be had is left out."""
    migs = (host_spec.MigSpec(gi=1), host_spec.MigSpec(gi=2))
    gpu = host_spec.GpuSpec(mig_enabled=True, mig=migs)
    cap = f"/dev/nvidia-caps/nvidia-cap{harness.cap_minor(0, 2, 0)}"
    found = harness.built(tmp_path, create=False, gpus=(gpu,), missing_nodes=(cap,))
    plan = decide(found, *asked("all"))
    assert [item.mig.gi for item in plan.assigned] == [1]
    assert codes(plan) == ["gpu-left-out"]
    assert cap in plan.reasons[0].message
    assert not decide(found, *asked("0:1")).created


def test_a_user_namespace_takes_devices_of_the_hosts_own_dev(tree):
    """FC-110: with another dev root it is refused for that reason; without one it is given."""
    tree.module("550.54.14")
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.gpu("0000:01:00.0", 0, inventories.UUIDS[0])
    tree.leading("/usr/lib64", "550.54.14")
    tree.at("/dev/null")
    elsewhere = scan.scan(tree.live())
    plan = decide(elsewhere, *asked("0"), user_namespace=True)
    assert (plan.decision, codes(plan)) == (pipeline.Decision.ERROR, ["user-namespace-dev-root"])
    assert "host.dev_root" in plan.reasons[-1].hint
    assert decide(elsewhere, *asked("0")).created
    own = scan.scan(attrs.evolve(options.Options.for_recorded(str(tree.top))))
    assert decide(own, *asked("0"), user_namespace=True).created


@pytest.mark.parametrize("kinds", [[], ["pid", "mount"], ["pid", "user", "mount"], ["user"]])
def test_a_user_namespace_is_seen_in_every_door(kinds):
    """FC-110: NRI and config.json both tell of a container's user namespace."""
    listed = [bytes(api.LinuxNamespace(type=kind, path="/proc/7/ns/x")) for kind in kinds]
    shown = api.Container(id="c", linux=api.LinuxContainer(namespaces=listed))
    spec = {"linux": {"namespaces": [{"type": kind} for kind in kinds]}}
    for container in (convert.container(bytes(shown), convert.Pod()), bundle.container(spec)):
        assert container.user_namespace is ("user" in kinds)


@pytest.mark.parametrize("mode", [0o660, 0o666])
def test_nodes_that_belong_to_a_group(tmp_path, mode):
    """FC-068: where the driver's nodes are for a group, that is said with the field that gives it."""
    harness.built(tmp_path, gpus=ONE)
    place = tmp_path / "dev.nodes"
    rights = f"{mode:04o} 0 44"
    place.write_text(place.read_text().replace("0666 0 0 /dev/nvidia", f"{rights} /dev/nvidia"))
    plan = decide(harness.look(tmp_path), *asked("0"))
    assert {(d.mode, d.gid) for d in plan.edits.devices} == {(mode, 44)}
    assert codes(plan) == (["groups-needed"] if mode == 0o660 else [])
    assert all("supplementalGroups: [44]" in reason.hint for reason in plan.reasons)
