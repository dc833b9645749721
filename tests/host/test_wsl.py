# SPDX-License-Identifier: Apache-2.0
"""Hosts in WSL 2: one node, the files of Windows' driver, GPUs that only NVML tells apart."""

import json
import pathlib

import attrs
import pytest

from nri_nvidia import cli
from nri_nvidia.host import cache, model, scan
from nri_nvidia.host.options import Options
from nri_nvidia.testing import host_spec, host_wsl

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
TWO = HOSTS / "wsl-2xrtx4090"
STORE = f"/{host_wsl.STORE}"
LIB = "/usr/lib/wsl/lib"
UUIDS = [host_spec.uuid_of(host_spec.GpuSpec(), at) for at in range(2)]


@pytest.fixture
def plan(capsys):
    """Plan a container on a host; give the exit status and the document."""

    def run(value, *env, host=TWO):
        given = [part for pair in (f"NVIDIA_VISIBLE_DEVICES={value}", *env)
                 for part in ("--env", pair)]  # fmt: skip
        status = cli.main(["plan", "--json", "--host", str(host), *given])
        return status, json.loads(capsys.readouterr().out)

    return run


def paths(found):
    return [device["path"] for device in found["edits"]["devices"]]


def mounts(found):
    return {m["destination"]: m["source"] for m in found["edits"]["mounts"]}


@pytest.mark.parametrize("host", [TWO, HOSTS / "wsl-no-nvml"])
def test_all_gives_the_node_and_the_files(plan, host):
    """The libraries by SONAME from Windows' directory, the driver's store at its own path."""
    status, found = plan("all", host=host)
    assert (status, found["reasons"], paths(found)) == (0, [], ["/dev/dxg"])
    (node,) = found["edits"]["devices"]
    assert (node["major"], node["minor"], node["mode"]) == (10, 125, 0o666)
    given = mounts(found)
    inside = "/usr/local/nvidia"
    assert given[f"{inside}/lib64/libdxcore.so"] == f"{LIB}/libdxcore.so"
    assert given[f"{LIB}/libdxcore.so"] == f"{LIB}/libdxcore.so"
    assert given[f"{inside}/lib64/libcuda.so.1"].startswith(f"{LIB}/libcuda.so")
    assert given[f"{inside}/lib64/libnvidia-ml.so.1"] == f"{LIB}/libnvidia-ml.so.1"
    assert given[f"{inside}/bin/nvidia-smi"] == f"{STORE}/nvidia-smi"
    names = {d.removeprefix(f"{STORE}/") for d in given if d.startswith(STORE)}
    assert names == {
        "libcuda.so.1.1", "libcuda_loader.so", "libnvidia-ptxjitcompiler.so.1",
        "libnvidia-nvvm.so.4", "libnvidia-ml.so.1", "libnvidia-ml_loader.so",
        "libnvdxgdmal.so.1", "nvcubins.bin", "nvoptix.bin", "nvldumdx.dll", "nvidia-smi",
    }  # fmt: skip
    assert all(given[d] == d for d in given if d.startswith(STORE))
    assert not [s for s in given.values() if "iigd" in s or "d3d12" in s]


def test_capabilities_choose_among_the_libraries(plan):
    """Video's and graphics' libraries come where they are asked for."""
    _status, few = plan("all")
    _status, more = plan("all", "NVIDIA_DRIVER_CAPABILITIES=all")
    assert paths(more) == ["/dev/dxg"]
    assert {d.rpartition("/")[2] for d in set(mounts(more)) - set(mounts(few))} == {
        "libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvidia-opticalflow.so.1",
        "libnvoptix.so.1",
    }  # fmt: skip


def test_none_gives_the_files_alone(plan):
    """`none` means here what it means elsewhere."""
    status, found = plan("none")
    assert (status, paths(found), found["gpus"]) == (0, [], [])
    assert "/usr/local/nvidia/lib64/libcuda.so.1" in mounts(found)


@pytest.mark.parametrize("value", ["1", UUIDS[1], UUIDS[1][:12]])
def test_one_of_two_gpus(plan, value):
    """The node is given, and it is said that it stands for the other GPU too."""
    status, found = plan(value)
    assert (status, paths(found)) == (0, ["/dev/dxg"])
    assert [(gpu["index"], gpu["uuid"], gpu["minor"]) for gpu in found["gpus"]] == [
        (1, UUIDS[1], -1)
    ]
    (reason,) = found["reasons"]
    assert reason["code"] == "gpus-not-apart"
    assert "GPU 0 too" in reason["message"]


@pytest.mark.parametrize("value", ["2", "GPU-99999999", "0:0"])
def test_a_gpu_that_is_not_there(plan, value):
    """What NVML does not know is refused, though the one node would be the same."""
    status, found = plan(value)
    assert (status, found["decision"]) == (1, "error")


def test_without_nvml_they_count_as_one(plan):
    """Index 0 stands for what is behind the node; nothing else is known."""
    host = HOSTS / "wsl-no-nvml"
    assert plan("0", host=host)[0] == 0
    assert plan("1", host=host)[0] == 1
    found = scan.scan(Options.for_recorded(str(host)))
    assert (found.driven, found.driver_version, found.nvml_state) == (True, "", "absent")


def test_without_nvidias_driver(tree, plan):
    """A WSL with another vendor's driver has no NVIDIA GPU, and says where it was looked for."""
    tree.put("/dev.nodes", "c 10 125 0666 0 0 /dev/dxg\n")
    tree.library(f"{LIB}/libdxcore.so")
    tree.library("/usr/lib/wsl/drivers/u0420529.inf_amd64_94ad5a6c4d1a04e2/libamd.so")
    found = tree.scan()
    (problem,) = found.problems
    assert (found.preset, found.hardware) == ("wsl", False)
    assert "/usr/lib/wsl/drivers" in problem.message
    assert plan("all", host=tree.top)[1]["decision"] == "ignore"
    assert plan("0", host=tree.top)[0] == 1


def test_a_preset_without_its_node(tree, plan):
    """host.preset = "wsl" on a host without /dev/dxg is refused by that name."""
    tree.library(f"{LIB}/libcuda.so.1")
    tree.library(f"{LIB}/libdxcore.so")
    found = scan.scan(attrs.evolve(tree.recorded(), preset="wsl"))
    (problem,) = found.problems
    assert problem.code == "device-node-missing"
    assert "/dev/dxg is missing" in problem.message


def test_a_driver_module_is_no_wsl(tree):
    """A node of that name on a host with the module loaded does not make it WSL."""
    tree.module("570.172.08")
    tree.put("/dev.nodes", "c 10 125 0666 0 0 /dev/dxg\n")
    assert tree.scan().platform is model.Platform.PCI


def test_an_updated_driver_is_seen(tree):
    """Windows' update brings another directory of the store; the next look has that one."""
    tree.put("/dev.nodes", "c 10 125 0666 0 0 /dev/dxg\n")
    tree.library(f"{LIB}/libcuda.so.1")
    tree.library(f"{LIB}/libdxcore.so")
    tree.library("/usr/lib/wsl/drivers/nv_x.inf_1/libcuda_loader.so")
    kept = cache.Cache(tree.recorded())
    assert "/usr/lib/wsl/drivers/nv_x.inf_1/libcuda_loader.so" in sources(kept)
    (tree.top / "usr/lib/wsl/drivers/nv_x.inf_1").rename(
        tree.top / "usr/lib/wsl/drivers/nv_x.inf_2"
    )
    assert "/usr/lib/wsl/drivers/nv_x.inf_2/libcuda_loader.so" in sources(kept)
    assert not [s for s in sources(kept) if "inf_1" in s]


def sources(kept):
    return [file.source for file in kept.get().files]
