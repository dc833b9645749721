# SPDX-License-Identifier: Apache-2.0
"""The builder of simulated hosts."""

import errno
import os
import pathlib
import subprocess

import attrs
import pytest

from nri_nvidia.host import model, options, scan
from nri_nvidia.testing import host, host_spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (host.HostSpec(gpus=(host.GpuSpec(mig=(host.MigSpec(gi=1),)),)), "MIG is off"),
        (host.HostSpec(gpus=(host.GpuSpec(model="T4", mig_enabled=True),)), "has no MIG"),
        (host.HostSpec(gpus=(host.GpuSpec(minor=254),)), "254 and 255"),
        (host.HostSpec(gpus=(host.GpuSpec(minor=0), host.GpuSpec(minor=0))), "same minor"),
        (host.HostSpec(gpus=(host.GpuSpec(bus=9), host.GpuSpec(bus=9))), "same PCI address"),
        (host.HostSpec(gpus=(host.GpuSpec(bus=9), host.GpuSpec(bus=8))), "not in PCI order"),
        (host.HostSpec(gpus=(host.GpuSpec(model="X1"),)), "is none of"),
        (host.HostSpec(layout="gentoo"), "layout 'gentoo' is none of"),
        (host.HostSpec(layout="ubuntu-arm"), "is recorded"),
        (host.HostSpec(libraries="535.183.01"), "do not fit the module"),
        (host.HostSpec(driver="five"), "no driver version"),
        (host.HostSpec(gpus=(host.GpuSpec(),), hardware=False), "without hardware"),
        (host.HostSpec(gpus=(host.GpuSpec(),), nvml_order=(1,)), "no order of 1"),
        (
            host.HostSpec(gpus=(host.GpuSpec(mig_enabled=True, excluded=True),)),
            "does not use this GPU",
        ),
        (
            host.HostSpec(gpus=(host.GpuSpec(mig_enabled=True, mig=(host.MigSpec(gi=1),) * 2),)),
            "same instance ids",
        ),
        (
            host.HostSpec(
                gpus=(host.GpuSpec(mig_enabled=True, mig=(host.MigSpec(gi=1, profile="big"),)),)
            ),
            "no MIG profile",
        ),
    ],
)
def test_impossible_host_is_refused(spec, words, tmp_path):
    """The checker names what cannot be, and nothing is written."""
    assert words in "; ".join(host_spec.check(spec))
    with pytest.raises(ValueError, match="impossible host"):
        host.build(tmp_path / "host", spec)
    assert not (tmp_path / "host").exists()


def test_directory_in_use_is_refused(tmp_path):
    """A host is never built over something else."""
    (tmp_path / "mine").touch()
    with pytest.raises(FileExistsError):
        host.build(tmp_path, host.HostSpec())


@pytest.fixture(scope="module")
def top(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("live") / "host"
    spec = host.HostSpec(
        gpus=(host.GpuSpec(), host.GpuSpec()),
        compat32=True,
        missing_nodes=("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    )
    host.build(directory, spec)
    return directory


def test_given_node_without_driver_answers_enxio(top):
    """Opening a node reaches the kernel, which has no driver for the number."""
    with pytest.raises(OSError) as caught:
        os.open(top / "dev/nvidia0", os.O_RDWR)
    assert caught.value.errno == errno.ENXIO


def test_missing_nodes_are_made_by_a_scan(top):
    """What the host lacks and the kernel's table names is made by the first look."""
    assert not (top / "dev/nvidia-uvm").exists()
    uvm = scan.scan(host.options_for(top)).control.uvm
    assert uvm.exists
    assert os.stat(top / "dev/nvidia-uvm").st_rdev == os.makedev(511, 0)


def test_libcuda_loads_and_finds_no_device(top):
    """The simulated libcuda is real code: cuInit answers CUDA_ERROR_NO_DEVICE."""
    files = scan.scan(host.options_for(top)).files
    source = next(f.source for f in files if f.names[:1] == ("libcuda.so.1",))
    script = f"import ctypes; print(ctypes.CDLL({source!r}).cuInit(0))"
    output = subprocess.run(["python3", "-c", script], check=True, capture_output=True, text=True)
    assert output.stdout == "100\n"


def test_every_stub_is_accepted_by_the_loader(top):
    """The libraries without code can be opened like real ones, with what they need."""
    directory = top / "usr/lib/x86_64-linux-gnu/nvidia/current"
    names = sorted(path.name for path in directory.iterdir())
    script = f"import ctypes\nfor name in {names}: ctypes.CDLL(name)"
    environment = {"LD_LIBRARY_PATH": str(directory), "PATH": os.environ["PATH"]}
    subprocess.run(["python3", "-c", script], check=True, env=environment)
    assert len(names) > 30


def test_nvidia_smi_lists_the_gpus(top):
    """The simulated nvidia-smi asks the simulated NVML."""
    directory = top / "usr/lib/x86_64-linux-gnu/nvidia/current"
    output = subprocess.run(
        [str(top / "usr/lib/nvidia/current/nvidia-smi"), "-L"],
        check=True,
        capture_output=True,
        text=True,
        env={"LD_LIBRARY_PATH": str(directory)},
    ).stdout
    uuids = [gpu.uuid for gpu in scan.scan(host.options_for(top)).gpus]
    assert [line.rpartition("UUID: ")[2] for line in output.splitlines()] == [
        f"{uuid})" for uuid in uuids
    ]


def test_nodes_become_a_list_where_they_cannot_be_made(tmp_path, monkeypatch):
    """Without the right to make nodes the host has `dev.nodes`, and can be used as recorded."""

    def refused(*_arguments, **_more):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refused)
    host.build(tmp_path / "h", host.HostSpec(gpus=(host.GpuSpec(),)))
    assert "c 195 0 0666 0 0 /dev/nvidia0\n" in (tmp_path / "h/dev.nodes").read_text()


@pytest.mark.parametrize("layout", [n for n in host_spec.LAYOUTS if not n.endswith("-arm")])
def test_every_layout_is_found_by_a_scan(tmp_path, layout):
    """Each layout's driver is found whole, 32-bit libraries among it."""
    spec = host.HostSpec(gpus=(host.GpuSpec(),), layout=layout, compat32=True)
    host.build(tmp_path / "h", spec)
    found = scan.scan(attrs.evolve(host.options_for(tmp_path / "h"), driver_root=""))
    kinds = [file.kind.value for file in found.files]
    assert (kinds.count("library"), kinds.count("library32"), kinds.count("binary")) == (25, 7, 5)
    assert kinds.count("socket") == 2
    assert found.problems == ()


@pytest.mark.parametrize("layout", host_spec.LAYOUTS)
def test_graphics_of_every_layout_is_found_by_a_scan(tmp_path, layout):
    """X's two modules, EGL's platforms and what leads to them are found, each once."""
    spec = host.HostSpec(gpus=(host.GpuSpec(),), layout=layout, graphics=True, recorded=True)
    host.build(tmp_path / "h", spec)
    files = scan.scan(options.Options.for_recorded(str(tmp_path / "h"))).files
    modules = {file.names: file.links for file in files if file.kind is model.FileKind.XORG}
    assert modules == {
        ("nvidia_drv.so",): ("xorg/modules/drivers/nvidia_drv.so",),
        ("libglxserver_nvidia.so",): ("xorg/modules/extensions/libglxserver_nvidia.so",),
    }
    configs = [file.destination for file in files if file.kind is model.FileKind.CONFIG]
    assert sorted(configs) == [
        "/etc/OpenCL/vendors/nvidia.icd",
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
        "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    ]
    platforms = {file.names[0] for file in files if "libnvidia-egl-" in file.source}
    assert platforms == {"libnvidia-egl-wayland.so.1", "libnvidia-egl-gbm.so.1"}


def test_command_line_builds_a_host(tmp_path):
    """`python -m nri_nvidia.testing.host` makes what its options say."""
    given = [str(tmp_path / "h"), "--gpus", "2", "--mig", "--layout", "rhel", "--recorded"]
    assert host.main([*given, "--driver", "535.183.01"]) == 0
    from nri_nvidia.host.options import Options

    found = scan.scan(Options.for_recorded(str(tmp_path / "h")))
    assert (found.driver_version, found.layout) == ("535.183.01", "rhel")
    assert [len(gpu.mig_devices) for gpu in found.gpus] == [7, 7]


def test_command_line_says_what_is_impossible(tmp_path, capsys):
    """An impossible host is one line on stderr and exit status 1."""
    assert host.main([str(tmp_path / "h"), "--driver", "x"]) == 1
    assert "impossible host" in capsys.readouterr().err
