# SPDX-License-Identifier: Apache-2.0
"""Jetsons: the lists of the board, the GPU of the processor, and one on the PCI bus beside it."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import cli
from nri_nvidia.host import cache, model, scan, tegra
from nri_nvidia.host.options import Options
from nri_nvidia.testing import host_jetson, stubs

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
XAVIER, ORIN, THOR = (HOSTS / f"jetson-{name}" for name in ("xavier", "orin", "thor"))
LIB = "/usr/lib/aarch64-linux-gnu"
INSIDE = "/usr/local/nvidia/lib64"


@pytest.fixture
def plan(capsys):
    """Plan a container on a host; give the exit status and the document."""

    def run(value, *env, host=XAVIER):
        given = [part for pair in (f"NVIDIA_VISIBLE_DEVICES={value}", *env)
                 for part in ("--env", pair)]  # fmt: skip
        status = cli.main(["plan", "--json", "--host", str(host), *given])
        return status, json.loads(capsys.readouterr().out)

    return run


def nodes(found):
    return [device["path"] for device in found["edits"]["devices"]]


def mounts(found):
    return {m["destination"]: m["source"] for m in found["edits"]["mounts"]}


def look(host):
    return scan.scan(Options.for_recorded(str(host)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dev, /dev/nvmap\n", [("dev", "/dev/nvmap")]),
        ("  lib ,/usr/lib/a.so  \n\nsym,/usr/lib/b.so", [("lib", "/usr/lib/a.so"),
                                                        ("sym", "/usr/lib/b.so")]),
        ("dir, /usr/src/x/\r\n", [("dir", "/usr/src/x")]),
        ("lib, /a/../b//c.so\n", [("lib", "/b/c.so")]),
        ("lib, //a.so\n", [("lib", "/a.so")]),
        ("lib, relative.so\nfile, /a\nlib /a\n, /a\nlib,\n# lib, /a\n", []),
        ("lib, /with, comma.so\n", [("lib", "/with, comma.so")]),
    ],
)  # fmt: skip
def test_lines(text, expected):
    """Two fields, trimmed, of a known kind with an absolute path; all other lines are none."""
    assert [(entry.kind, entry.path) for entry in tegra.parse(text)] == expected


@pytest.mark.parametrize("value", ["all", "0"])
def test_nodes_of_the_lists(plan, value):
    """Those of the lists that exist, with the host's rights, patterns included; no other."""
    status, found = plan(value)
    assert status == 0
    assert nodes(found) == [
        "/dev/fb0", "/dev/nvhost-as-gpu", "/dev/nvhost-ctrl", "/dev/nvhost-ctrl-gpu",
        "/dev/nvhost-gpu", "/dev/nvmap",
    ]  # fmt: skip
    _status, found = plan(value, host=ORIN)
    assert {"/dev/dri/card0", "/dev/dri/card1", "/dev/dri/renderD128"} <= set(nodes(found))
    assert "/dev/nvgpu/igpu0/ctrl" in nodes(found)


@pytest.mark.parametrize(("host", "own"), [(XAVIER, "tegra"), (ORIN, "nvidia"), (THOR, "nvidia")])
@pytest.mark.parametrize("capabilities", ["compute,utility", "all"])
def test_files_of_the_lists(plan, host, own, capabilities):
    """Each at its path, links also where they lead, libraries besides by SONAME; once each."""
    status, found = plan("all", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}", host=host)
    given = mounts(found)
    assert status == 0
    cuda = f"{LIB}/{own}/libcuda.so.1.1"
    for name in (
        f"{own}/libcuda.so.1.1",
        f"{own}/libcuda.so.1",
        f"{own}/libcuda.so",
        "libcuda.so",
    ):
        assert given[f"{LIB}/{name}"] == cuda
    assert given[f"{INSIDE}/libcuda.so.1"] == cuda
    assert given[f"{INSIDE}/libnvrm_gpu.so"] == f"{LIB}/{own}/libnvrm_gpu.so"
    icd = f"{LIB}/{own}/nvidia_icd.json"
    assert given["/etc/vulkan/icd.d/nvidia_icd.json"] == given[icd] == icd
    assert given["/usr/share/nvidia-api"] == "/usr/share/nvidia-api"
    assert given["/etc/nv_tegra_release"] == "/etc/nv_tegra_release"
    plugin = f"{LIB}/gstreamer-1.0/libgstnvvidconv.so"
    assert given[plugin] == plugin
    assert f"{INSIDE}/libgstnvvidconv.so" not in given  # nobody loads a plugin by its name
    assert not [place for place in given if "not-here" in place]
    args = found["edits"]["hooks"][0]["args"]
    assert "libcuda.so=libcuda.so.1" in args


def test_none_gives_the_files_alone(plan):
    """`none` means none: the toolkit gives everything for it, and no GPU was asked for."""
    status, found = plan("none")
    assert (status, nodes(found), found["gpus"]) == (0, [], [])
    assert f"{INSIDE}/libcuda.so.1" in mounts(found)


@pytest.mark.parametrize("value", ["1", "tegra", "GPU-12345678", "0:0", host_jetson.UUID])
def test_what_is_not_there(plan, value):
    """The board has GPU 0, whose UUID is not known without NVML."""
    status, found = plan(value)
    assert (status, found["decision"]) == (1, "error")


@pytest.mark.parametrize("value", [host_jetson.UUID, host_jetson.UUID.upper()])
def test_the_uuid_of_an_orin(plan, value):
    """NVML gives it without a prefix and without a PCI address; it names GPU 0."""
    status, found = plan(value, host=ORIN)
    assert status == 0
    (gpu,) = found["gpus"]
    assert (gpu["index"], gpu["uuid"], gpu["bus_id"]) == (0, host_jetson.UUID, "")
    assert found["driver_version"] == "540.4.0"


def test_a_card_beside_the_processor(plan):
    """GPU 0 is the processor's, those of the PCI bus follow; each has its own nodes."""
    own = [
        "/dev/nvidia-modeset",
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvmap",
    ]
    assert sorted(nodes(plan("0", host=THOR)[1])) == own
    card = ["/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
            "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvmap"]  # fmt: skip
    assert sorted(nodes(plan("1", host=THOR)[1])) == card
    assert set(nodes(plan("all", host=THOR)[1])) == {*own, *card}
    by_uuid = plan(host_jetson.uuid_of(1), host=THOR)[1]
    assert [gpu["index"] for gpu in by_uuid["gpus"]] == [1]


def test_the_board_is_told():
    """Name, release and preset are those of the board's own files."""
    found = look(XAVIER)
    assert (found.preset, found.platform, found.driver_version) == ("jetson", "tegra", "35.4.1")
    assert found.gpus[0].name == "NVIDIA Jetson AGX Xavier Developer Kit"
    assert "/dev/nvhost-gpu" in found.preset_reason
    assert [look(host).problems for host in (XAVIER, ORIN, THOR)] == [(), (), ()]


def test_a_board_without_lists(tree, plan):
    """No list: the sentence names the directory and what to install; nothing is given."""
    tree.put("/proc/devices", "Character devices:\n")
    tree.put("/etc/nv_tegra_release", "# R35 (release), REVISION: 4.1, GCID: 1\n")
    (problem, unreachable) = tree.scan().problems
    assert tegra.DIRECTORY in problem.message
    assert "JetPack" in problem.hint
    assert tegra.DIRECTORY in unreachable.message
    for value in ("all", "0"):
        status, found = plan(value, host=tree.top)
        assert (status, found["decision"]) == (1, "error")


def test_a_list_that_names_nothing_there(tree, plan):
    """With lists of another board no node is found, and no container is created without a GPU."""
    tree.put("/proc/devices", "Character devices:\n")
    tree.put("/etc/nv_tegra_release", "# R35 (release), REVISION: 4.1, GCID: 1\n")
    tree.put(f"{tegra.DIRECTORY}/devices.csv", "dev, /dev/nvhost-gpu\n")
    status, found = plan("all", host=tree.top)
    assert status == 1
    assert "no node" in found["reasons"][0]["message"]


def test_links_of_a_list_stay_below_the_driver_root(tree):
    """An absolute or climbing link leads to the tree's own file; a loop leads nowhere."""
    tree.put("/etc/nv_tegra_release", "# R35 (release), REVISION: 4.1, GCID: 1\n")
    tree.put("/srv/real.so", stubs.shared_object("libreal.so"))
    tree.link(f"{LIB}/libabsolute.so", "/srv/real.so")
    tree.link(f"{LIB}/libclimbing.so", "../../../../../../../srv/real.so")
    tree.link(f"{LIB}/libloop.so", "libloop.so")
    lines = "".join(f"sym, {LIB}/lib{n}.so\n" for n in ("absolute", "climbing", "loop"))
    tree.put(f"{tegra.DIRECTORY}/l4t.csv", lines)
    found = {f.destination: f.source for f in tree.scan().files if f.destination}
    assert found == {
        "/srv/real.so": "/srv/real.so",
        f"{LIB}/libabsolute.so": "/srv/real.so",
        f"{LIB}/libclimbing.so": "/srv/real.so",
        "/etc/nv_tegra_release": "/etc/nv_tegra_release",
    }


def test_changes_are_seen(tree):
    """A new list, a new line and a file that appears are in the next Inventory."""
    tree.put("/etc/nv_tegra_release", "# R35 (release), REVISION: 4.1, GCID: 1\n")
    tree.put("/dev.nodes", "c 489 0 0660 0 44 /dev/nvhost-gpu\n")
    kept = cache.Cache(tree.recorded())
    assert kept.get().platform is model.Platform.TEGRA
    tree.put(f"{tegra.DIRECTORY}/devices.csv", "dev, /dev/nvhost-gpu\n")
    assert [node.path for node in kept.get().gpus[0].nodes] == ["/dev/nvhost-gpu"]
    tree.put(f"{tegra.DIRECTORY}/drivers.csv", f"lib, {LIB}/nvidia/libcuda.so.1.1\n")
    assert [f for f in kept.get().files if "cuda" in f.source] == []
    tree.library(f"{LIB}/nvidia/libcuda.so.1.1", "libcuda.so.1")
    assert [f for f in kept.get().files if "cuda" in f.source] != []


def test_an_image_for_servers_is_not_refused(plan):
    """A requirement of a driver's version says nothing of a Jetson, whose software counts else."""
    status, _found = plan("all", "NVIDIA_REQUIRE_DRIVER=driver>=470")
    assert status == 0


@pytest.mark.parametrize(
    ("name", "platform"),
    [("NVIDIA Thor", "tegra"), ("Orin (nvgpu)", "tegra"), ("NVIDIA RTX A6000", "pci"),
     ("NVIDIA Thorium 3000", "pci")],
)  # fmt: skip
def test_a_processors_gpu_is_told_by_its_name(tree, name, platform):
    """With the nvidia module the name tells; a board that has a card alone is a PCI host."""
    tree.put(tegra.RELEASE, "# R38 (release), REVISION: 2.0, GCID: 1\n")
    tree.module("580.00")
    tree.gpu("0000:01:00.0", 0, host_jetson.uuid_of(0), Model=name)
    assert tree.scan().platform == platform


@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            ["dev", "lib", "sym,", "dir , /a", "/", "..", ",", "\n", "\0", "/usr/lib/../x", " "]
        )
    ).map("".join)
)
def test_any_text_is_a_list(text):
    """Whatever a file holds, its entries are of known kinds with plain absolute paths."""
    for entry in tegra.parse(text):
        assert entry.kind in {"dev", "dir", "lib", "sym"}
        assert entry.path.startswith("/")
        assert not entry.path.startswith("//")
        assert not {"", ".", ".."} & set(entry.path.split("/")[1:-1])
