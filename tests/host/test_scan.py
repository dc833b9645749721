# SPDX-License-Identifier: Apache-2.0
"""Recorded hosts, each scanned as a whole."""

import json
import pathlib

import attrs
import pytest

from nri_nvidia.host import report, scan
from nri_nvidia.host.model import FileKind, Inventory
from nri_nvidia.host.options import Options
from nri_nvidia.testing import host

HOSTS = pathlib.Path(__file__).parent.parent / "hosts"


def look(name: str) -> Inventory:
    return scan.scan(Options.for_recorded(str(HOSTS / name)))


def codes(inventory: Inventory) -> list[str]:
    return [problem.code for problem in inventory.problems]


def test_eight_gpus_with_nvml():
    """A whole node: order, numbers, what NVML adds, nodes and files."""
    found = look("debian-8xh100")
    assert (found.driver_version, found.cuda_version) == ("550.163.01", "12.4")
    assert (found.nvml_state, found.layout, found.hardware) == ("ok", "debian", True)
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert [gpu.node.host_path for gpu in found.gpus] == [f"/dev/nvidia{n}" for n in range(8)]
    assert {gpu.compute_capability for gpu in found.gpus} == {"9.0"}
    control = found.control
    nodes = (control.ctl, control.uvm, control.uvm_tools, control.modeset)
    assert [(n.major, n.minor, n.exists) for n in nodes] == [
        (195, 255, True),
        (511, 0, True),
        (511, 1, True),
        (195, 254, True),
    ]
    assert found.problems == ()


def test_without_nvml_proc_alone_tells_the_gpus():
    """The same node whose NVML is silent has the same GPUs, without what NVML adds."""
    silent, whole = look("debian-8xh100-no-nvml"), look("debian-8xh100")
    assert silent.nvml_state == "absent"
    assert [(g.index, g.uuid, g.minor, g.node) for g in silent.gpus] == [
        (g.index, g.uuid, g.minor, g.node) for g in whole.gpus
    ]
    assert {gpu.compute_capability for gpu in silent.gpus} == {""}


def test_files_of_nearly_every_kind_are_found():
    """Libraries, programs, firmware, sockets and loader files come with a place or names."""
    found = look("ubuntu-1xl4")
    assert set(FileKind) - {file.kind for file in found.files} == {FileKind.LISTED, FileKind.XORG}
    for file in found.files:
        assert bool(file.names) != bool(file.destination)
        assert file.source.startswith("/")
        assert not file.source.startswith(str(HOSTS))


def test_missing_uvm_nodes_count_as_made():
    """The recorded host lacks them; its daemon would make them from /proc/devices."""
    uvm = look("ubuntu-1xl4").control.uvm
    assert (uvm.exists, uvm.major, uvm.host_path) == (True, 511, "/dev/nvidia-uvm")


def test_drm_nodes_are_those_of_the_pci_device():
    """card and render numbers have nothing to do with the minor."""
    (gpu,) = look("ubuntu-1xl4").gpus
    assert gpu.minor == 0
    assert [(n.path, n.mode, n.gid) for n in gpu.dri_nodes] == [
        ("/dev/dri/card1", 0o660, 44),
        ("/dev/dri/renderD129", 0o660, 106),
    ]


def test_mig_devices_come_with_their_capability_nodes():
    """NVML's instances and the MIG tree's nodes belong together by the GPU's minor."""
    found = look("debian-mig")
    first, second = found.gpus
    assert (first.mig_enabled, second.mig_enabled) == (True, False)
    assert [(m.index, m.gi, m.ci, m.profile) for m in first.mig_devices] == [
        (0, 1, 0, "1g.10gb"),
        (1, 2, 0, "3g.40gb"),
    ]
    caps = dict(found.caps_nodes)
    assert sorted(caps) == [
        "config",
        "gpu0/gi1/access",
        "gpu0/gi1/ci0/access",
        "gpu0/gi2/access",
        "gpu0/gi2/ci0/access",
        "monitor",
    ]
    assert (caps["config"].mode, caps["gpu0/gi1/access"].mode) == (0o400, 0o444)


def test_divided_gpu_is_known_without_nvml():
    """Instances in /proc mean that MIG is on, though their UUIDs are not known."""
    found = look("debian-mig-no-nvml")
    assert [gpu.mig_enabled for gpu in found.gpus] == [True, False]
    assert found.gpus[0].mig_devices == ()


def test_minor_is_not_the_index():
    """The node follows the minor, the index PCI order."""
    found = look("debian-minors-swapped")
    assert [(g.index, g.minor, g.node.path) for g in found.gpus] == [
        (0, 1, "/dev/nvidia1"),
        (1, 0, "/dev/nvidia0"),
    ]
    assert found.nvml_state == "ok"


def test_other_order_of_nvml_is_a_mismatch():
    """Where NVML counts otherwise an index means nothing, and the problem says so."""
    found = look("debian-nvml-order")
    assert (found.nvml_state, codes(found)) == ("mismatch", ["gpu-order-mismatch"])
    assert [gpu.index for gpu in found.gpus] == [0, 1]


def test_excluded_gpu_has_no_index_and_no_node():
    """It is listed, but the others count as if it were not there."""
    found = look("debian-excluded")
    assert [(g.index, g.excluded, g.node is None) for g in found.gpus] == [
        (0, False, False),
        (-1, True, True),
        (1, False, False),
    ]
    assert [gpu.minor for gpu in found.usable] == [0, 2]


def test_uninitialised_gpu_has_no_uuid():
    """The driver has not touched it yet; it keeps its index and node."""
    found = look("debian-uninitialised")
    assert [(g.index, bool(g.uuid), g.node.exists) for g in found.gpus] == [
        (0, True, True),
        (1, False, True),
    ]


def test_upgrade_in_between_gives_no_files():
    """Module and libraries differ: both versions are told."""
    found = look("debian-mismatch")
    assert (found.driver_version, found.libraries_version) == ("570.124.06", "570.133.07")
    assert (found.files, codes(found)) == ((), ["driver-version-mismatch"])


def test_unloaded_module_is_told_where_there_is_a_gpu():
    """Hardware without the module: no GPUs, no nodes, a problem with the command."""
    found = look("debian-module-unloaded")
    assert (found.driver_version, found.gpus, found.hardware) == ("", (), True)
    assert codes(found) == ["driver-not-loaded"]


def test_node_without_gpu_is_clean():
    """No hardware, no driver: an empty Inventory without problems."""
    found = look("no-gpu")
    said = {"preset": "debian", "preset_reason": "/etc/os-release says ID=debian"}
    assert found == Inventory(**said)


@pytest.mark.parametrize("name", sorted(host.recorded_specs()))
def test_recorded_hosts_are_what_the_builder_makes(name, tmp_path):
    """Every file and link in tests/hosts comes from the builder, byte for byte."""
    host.build(tmp_path / name, host.recorded_specs()[name])
    assert content(tmp_path / name) == content(HOSTS / name)


def test_no_other_recorded_hosts_are_there():
    """Each directory has a spec, so that it can be made again."""
    assert {path.name for path in HOSTS.iterdir()} == set(host.recorded_specs())


def content(top: pathlib.Path) -> dict[str, object]:
    return {
        str(path.relative_to(top)): str(path.readlink())
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode & 0o111)
        for path in top.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_gpu_that_only_nvml_shows_is_added(tree):
    """A driver whose /proc has no entry for a GPU still gives it, with its node."""
    tree.module("550.163.01")
    tree.majors(nvidia=195)
    gpu = report.ReportGpu(
        index=0,
        uuid="GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab",
        minor=4,
        bus_id="0000:07:00.0",
        name="NVIDIA L4",
    )
    nvml = report.Report(driver_version="550.163.01", gpus=(gpu,))
    found = scan.scan(tree.recorded(), nvml)
    assert [(g.index, g.uuid, g.node.path, g.name) for g in found.gpus] == [
        (0, gpu.uuid, "/dev/nvidia4", "NVIDIA L4")
    ]


def test_nvml_gives_the_uuid_that_proc_lacks(tree):
    """A GPU which NVML has just initialised is joined by its address."""
    tree.module("550.163.01")
    tree.majors(nvidia=195)
    tree.gpu("0000:07:00.0", 0, "GPU-????????-????-????-????-????????????")
    gpu = report.ReportGpu(
        index=0, uuid="GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab", minor=0, bus_id="0000:07:00.0"
    )
    nvml = report.Report(driver_version="550.163.01", gpus=(gpu,))
    assert scan.scan(tree.recorded(), nvml).gpus[0].uuid == gpu.uuid


def test_gpu_that_nvml_cannot_describe_is_told(tree):
    """What NVML says of a lost GPU is that GPU's problem, or the host's for one not in /proc."""
    tree.module("550.163.01")
    tree.gpu("0000:07:00.0", 0, "GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab")
    said = ("GPU 0: GPU is lost", "GPU 1: Unknown Error")
    nvml = report.Report(driver_version="550.163.01", errors=said)
    found = scan.scan(tree.recorded(), nvml)
    assert [gpu.problem for gpu in found.gpus] == ["NVML cannot describe it: GPU is lost"]
    problems = [p.message for p in found.problems if p.code == "gpu-not-answering"]
    assert problems == [
        "NVML cannot describe GPU 1: Unknown Error",
        "GPU 0 (0000:07:00.0): NVML cannot describe it: GPU is lost",
    ]


def test_gpu_that_nvml_may_not_be_asked_about_is_given(tree):
    """A process that may not open a GPU says nothing about it; that it may not is told."""
    tree.module("550.163.01")
    tree.gpu("0000:07:00.0", 0, "GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab")
    said = ("GPU 0: Insufficient Permissions",)
    found = scan.scan(tree.recorded(), report.Report(driver_version="550.163.01", errors=said))
    assert found.gpus[0].problem == ""
    assert "gpu-not-answering" in {problem.code for problem in found.problems}


def test_wrong_recorded_document_is_a_problem(tree):
    """A host whose nvml.json cannot be read is one whose NVML is silent, and says why."""
    tree.put("/nvml.json", json.dumps({"gpus": 1}))
    found = tree.scan()
    assert found.nvml_state == "absent"
    assert "nvml-document" in codes(found)


def test_a_gpu_that_a_recorded_document_describes_wrongly(tree):
    """What is wrong is that GPU's problem, by which it is not given; the other is as ever."""
    uuids = [f"GPU-836c0c09-2b1d-4d5a-9b7e-{number:012}" for number in (0, 1)]
    tree.module("550.163.01")
    for number, uuid in enumerate(uuids):
        tree.gpu(f"0000:0{number + 7}:00.0", number, uuid)
    whole = {"index": 0, "uuid": uuids[0], "minor": 0, "bus_id": "00000000:07:00.0", "new": 1}
    broken = {"index": 1, "minor": 1, "bus_id": "00000000:08:00.0"}
    tree.put("/nvml.json", json.dumps({"driver_version": "550.163.01", "gpus": [whole, broken]}))
    found = tree.scan()
    assert found.nvml_state == "ok"
    assert [gpu.problem for gpu in found.gpus] == [
        "", "NVML cannot describe it: NVML document: gpus[1].uuid is missing",
    ]  # fmt: skip


def test_nvml_of_another_version_is_told(tree):
    """NVML of a library that does not fit the module is not taken silently."""
    tree.module("550.163.01")
    found = scan.scan(tree.recorded(), report.Report(driver_version="550.54.14"))
    assert "nvml-version-mismatch" in codes(found)


def test_inventory_is_plain_data():
    """It can be shown as JSON by attrs.asdict."""
    found = attrs.asdict(look("debian-mig"))
    assert json.loads(json.dumps(found, default=sorted))["gpus"][0]["index"] == 0
