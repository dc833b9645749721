# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia.host import proc
from nri_nvidia.host.root import Root

UUID = "GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab"


@pytest.fixture
def root(tree):
    return Root(str(tree.top))


def test_gpu_is_read_from_its_information_file(tree, root):
    """Model, UUID, address and minor come from the file."""
    tree.gpu("0000:07:00.0", 3, UUID, Model="NVIDIA H100 80GB HBM3")
    assert proc.gpus(root) == (
        proc.ProcGpu(bus_id="0000:07:00.0", uuid=UUID, minor=3, name="NVIDIA H100 80GB HBM3"),
    )


def test_gpus_come_in_pci_order_not_in_that_of_names(tree, root):
    """Addresses are compared as numbers, domain first."""
    for number, bus in enumerate(
        ("0001:01:00.0", "0000:ff:00.0", "0000:0a:1f.0", "10000:01:00.0")
    ):
        tree.gpu(bus, number, UUID.replace("ab", f"{number:02x}"))
    assert [gpu.bus_id for gpu in proc.gpus(root)] == [
        "0000:0a:1f.0",
        "0000:ff:00.0",
        "0001:01:00.0",
        "10000:01:00.0",
    ]


def test_uninitialised_gpu_has_no_uuid(tree, root):
    """Question marks in the place of a UUID mean that there is none yet."""
    tree.gpu("0000:07:00.0", 0, "GPU-????????-????-????-????-????????????")
    assert proc.gpus(root)[0].uuid == ""


def test_excluded_gpu_is_marked(tree, root):
    """`GPU Excluded: Yes` is told."""
    tree.gpu("0000:07:00.0", 0, UUID, **{"GPU Excluded": "Yes"})
    tree.gpu("0000:08:00.0", 1, UUID, **{"GPU Excluded": "No"})
    assert [gpu.excluded for gpu in proc.gpus(root)] == [True, False]


def test_gpu_without_a_readable_file_still_counts_by_its_directory(tree, root):
    """A directory named by an address is a GPU, though nothing more is known of it."""
    tree.put("/proc/driver/nvidia/gpus/0000:07:00.0/other")
    tree.put("/proc/driver/nvidia/gpus/nonsense/information", "Model: x\n")
    assert proc.gpus(root) == (proc.ProcGpu(bus_id="0000:07:00.0"),)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8", "550.163.01"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build",
            "570.86.10",
        ),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  470.256.02  Thu", "470.256.02"),
        ("NVRM version: something else", ""),
        ("", ""),
    ],
)
def test_version_is_read_from_proc_where_sysfs_has_none(tree, root, text, version):
    """Both the closed and the open module's line are understood."""
    tree.put("/proc/driver/nvidia/version", text)
    assert proc.module_version(root) == version


def test_version_of_sysfs_goes_first(tree, root):
    """/sys/module/nvidia/version is the module that is loaded."""
    tree.module("570.124.06")
    tree.put("/proc/driver/nvidia/version", "NVRM version: NVIDIA Kernel Module  1.2.3  x")
    assert proc.module_version(root) == "570.124.06"


@pytest.mark.parametrize("name", ["nvidia", "nvidia-frontend"])
def test_either_name_of_the_main_major_gives_both(tree, root, name):
    """Drivers before 550 say `nvidia-frontend`, later ones `nvidia`."""
    tree.put("/proc/devices", f"Character devices:\n195 {name}\n511 nvidia-uvm\n")
    assert proc.majors(root) == {"nvidia": 195, "nvidia-frontend": 195, "nvidia-uvm": 511}


def test_garbage_in_the_list_of_majors_is_skipped(tree, root):
    """Lines that are not a number and one name are no devices; block devices do not count."""
    tree.put(
        "/proc/devices",
        "Character devices:\nx nvidia\n 195 nvidia extra\n  508 nvidia-caps\n\nBlock devices:\n"
        "195 nvidia\n",
    )
    assert proc.majors(root) == {"nvidia-caps": 508}


def test_mig_minors_are_read_line_by_line(tree, root):
    """Exactly two fields, a known capability and a number; anything else is skipped."""
    tree.put(
        "/proc/driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu0 5\n"
        "gpu0/gi1/access\ngpu0/gi1/access x\ngpu0/gi1/access 12 13\n../../etc 7\n",
    )
    assert proc.mig_minors(root) == {
        "config": 1,
        "monitor": 2,
        "gpu0/gi0/access": 3,
        "gpu0/gi0/ci0/access": 4,
    }


def test_capabilities_are_those_that_exist(tree, root):
    """The MIG tree's access files give minor and mode."""
    top = "/proc/driver/nvidia/capabilities"
    line = "DeviceFileMinor: {}\nDeviceFileMode: {}\nDeviceFileModify: 1\n"
    tree.put(f"{top}/mig/config", line.format(1, 256))
    tree.put(f"{top}/gpu1/mig/gi7/access", line.format(201, 292))
    tree.put(f"{top}/gpu1/mig/gi7/ci0/access", line.format(202, 292))
    assert proc.capabilities(root) == {
        "config": proc.Capability(minor=1, mode=0o400),
        "gpu1/gi7/access": proc.Capability(minor=201, mode=0o444),
        "gpu1/gi7/ci0/access": proc.Capability(minor=202, mode=0o444),
    }


@pytest.mark.parametrize(
    ("vendor", "kind", "expected"),
    [("0x10de", "0x030000", True), ("0x10de", "0x030200", True), ("0x10de", "0x040300", False),
     ("0x8086", "0x030000", False), ("", "", False)],
)  # fmt: skip
def test_hardware_is_a_display_device_of_nvidia(tree, root, vendor, kind, expected):
    """An NVIDIA sound function or another vendor's display is no GPU of ours."""
    tree.put("/sys/bus/pci/devices/0000:07:00.0/vendor", vendor)
    tree.put("/sys/bus/pci/devices/0000:07:00.0/class", kind)
    assert proc.hardware(root) is expected


def test_an_empty_host_has_nothing(root):
    """Nothing there is no error."""
    assert proc.gpus(root) == ()
    assert (proc.module_version(root), proc.majors(root), proc.hardware(root)) == ("", {}, False)
    assert (proc.mig_minors(root), proc.capabilities(root), proc.parameters(root)) == ({}, {}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000:07:00.0", "0000:07:00.0"), ("0000:0A:1F.0", "0000:0a:1f.0"),
     ("00010000:07:00.0", "10000:07:00.0"), ("0000:07:00", "0000:07:00.0"),
     ("07:00.0", ""), ("", ""), ("0000:07:00.9", "")],
)  # fmt: skip
def test_addresses_take_one_form(text, expected):
    """NVML's eight-digit domain and upper case become sysfs' form."""
    assert proc.normal_bus_id(text) == expected


def test_numbers_that_no_device_has(tmp_path):
    """A major or minor beyond the kernel's is read as none, and makes no node that cannot be."""
    for name, text in (
        ("devices", "4096 nvidia-uvm\n195 nvidia\n"),
        ("driver/nvidia-caps/mig-minors", "gpu0/gi1/access 1048576\ngpu0/gi2/access 12\n"),
    ):
        (tmp_path / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / name).write_text(text)
    seen = Root(str(tmp_path))
    assert proc.majors(seen) == {"nvidia": 195, "nvidia-frontend": 195}
    assert proc.mig_minors(seen) == {"gpu0/gi2/access": 12}
    found = proc.parse_information("Device Minor: 1048576\n", "0000:07:00.0")
    assert found is not None
    assert found.minor == -1


@given(st.text(max_size=300), st.text(max_size=20))
def test_any_information_is_a_gpu_or_none(text, directory):
    """Garbage in an information file never raises and never makes up a UUID."""
    gpu = proc.parse_information(text, directory)
    assert gpu is None or gpu.uuid == "" or gpu.uuid.startswith("GPU-")


@given(st.lists(st.sampled_from([*"0123456789: ?-abcGPUYes\t\n", "Device Minor", "GPU UUID"])))
def test_any_fields_give_a_sound_minor(parts):
    """A minor is -1 or a number that fits."""
    gpu = proc.parse_information("".join(parts), "0000:07:00.0")
    assert gpu is not None
    assert -1 <= gpu.minor < 1 << 20
