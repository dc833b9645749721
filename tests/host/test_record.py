# SPDX-License-Identifier: Apache-2.0
"""Recordings of hosts: a scan finds the same in them, and nothing else of the host is there."""

import contextlib
import json
import os
import pathlib
import re
import stat
import tempfile

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia import cli, errors
from nri_nvidia.cli import devices
from nri_nvidia.host import record, report, scan
from nri_nvidia.host.options import Options
from nri_nvidia.testing import host, host_spec, stubs
from tests.host.conftest import Tree

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
NAMES = sorted(path.name for path in HOSTS.iterdir())
V = "570.172.08"


def plan(directory, capsys, *arguments):
    status = cli.main(["plan", "--json", "--host", str(directory), *arguments])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_decided_upon_like_the_host(name, tmp_path, capsys):
    """Inventory and plans of each recorded host and of its recording are the same."""
    assert cli.main(["devices", "--host", str(HOSTS / name), "--record", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    first = scan.scan(Options.for_recorded(str(HOSTS / name)))
    assert scan.scan(Options.for_recorded(str(tmp_path / "r"))) == first
    for value in ("all", "0", "none", "9"):
        asked = ("--env", f"NVIDIA_VISIBLE_DEVICES={value}",
                 "--env", "NVIDIA_DRIVER_CAPABILITIES=all")  # fmt: skip
        assert plan(tmp_path / "r", capsys, *asked) == plan(HOSTS / name, capsys, *asked)


@pytest.mark.parametrize("layout", ["debian", "operator", "nixos", "cache"])
def test_a_live_host(layout, tmp_path):
    """With real nodes, sockets and code: the same, by the paths that the host itself uses."""
    top = tmp_path / "host"
    slices = (host.MigSpec(gi=1), host.MigSpec(gi=2))
    host.build(
        top,
        host.HostSpec(
            gpus=(host.GpuSpec(mig_enabled=True, mig=slices), host.GpuSpec()),
            layout=layout,
            compat32=True,
            drm=True,
        ),
    )
    live = attrs.evolve(host.options_for(top), driver_root="", dev_char_symlinks=False)
    told = report.parse((top / "nvml.json").read_bytes())
    record.record(live, told, str(tmp_path / "r"))
    found = scan.scan(Options.for_recorded(str(tmp_path / "r")))
    assert plain(found) == plain(scan.scan(live, told), top)
    assert found.nvml_state == "ok"
    assert sum(path.stat().st_size for path in (tmp_path / "r").rglob("*") if path.is_file()) < 1e5


def plain(found, top="/nowhere"):
    """Give an Inventory as a document with the host's own paths, and no inode numbers."""
    text = json.dumps(devices.document(found), indent=1).replace(str(top), "")
    return re.sub(r'"identity": "[^"]*"', '"identity": ""', text).replace(
        '_root": ""', '_root": "/"'
    )


@pytest.fixture
def secretive(tree):
    """A host whose files hold what is nobody's business."""
    tree.module(V)
    tree.majors(nvidia=195)
    tree.leading("/usr/lib64", V)
    tree.put("/usr/bin/nvidia-smi", b"secret program", 0o755)
    tree.put("/etc/OpenCL/vendors/nvidia.icd", b"secret icd")
    tree.put("/usr/share/nvidia/nvoptix.bin", b"secret data")
    tree.put("/usr/share/X11/xorg.conf.d/10-nvidia.conf", b"secret conf")
    tree.put("/etc/os-release", "ID=rhel\nSECRET=secret\n")
    tree.put("/usr/lib64/libsecret.so.1", b"secret")
    tree.put("/proc/modules", "secretmodule 1 0 - Live 0x0\nnvidia_modeset 1 0 - Live 0x0\n")
    for name, vendor in (("0000:00:05.0", "0x8086"), ("0000:07:00.0", "0x10de")):
        tree.put(f"/sys/devices/pci/{name}/vendor", f"{vendor}\n")
        tree.put(f"/sys/devices/pci/{name}/class", "0x030200\n")
        tree.link(f"/sys/bus/pci/devices/{name}", f"../../../devices/pci/{name}")
    libraries = [("libcuda.so.1", "/usr/lib64/libcuda.so.1", 64),
                 ("libsecret.so.1", "/usr/lib64/libsecret.so.1", 64)]  # fmt: skip
    tree.put("/etc/ld.so.cache", stubs.library_cache(libraries))
    return tree


def test_nothing_else_is_in_it(secretive, tmp_path):
    """No content but of known texts; of other devices, modules and libraries not even names."""
    record.record(secretive.live(), None, str(tmp_path / "r"))
    names = [str(path.relative_to(tmp_path / "r")) for path in (tmp_path / "r").rglob("*")]
    texts = [path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert not [name for name in names if "secret" in name or "05.0" in name]
    assert not [text for text in texts if b"secret" in text]
    assert "usr/bin/nvidia-smi" in names
    assert "sys/devices/pci/0000:07:00.0/vendor" in names
    assert (tmp_path / "r/etc/os-release").read_text() == "ID=rhel\n"
    assert b"libcuda.so.1" in (tmp_path / "r/etc/ld.so.cache").read_bytes()
    assert "nvml.json" not in names


def test_libraries_are_stubs(tree, tmp_path):
    """A library of 16 MiB becomes some hundred bytes with its SONAME and what it needs."""
    tree.module(V)
    big = stubs.shared_object("libcuda.so.1", needed=["libc.so.6"]) + bytes(16 << 20)
    tree.put(f"/usr/lib64/libcuda.so.{V}", big)
    record.record(tree.live(), None, str(tmp_path / "r"))
    copy = tmp_path / f"r/usr/lib64/libcuda.so.{V}"
    assert copy.stat().st_size < 1000
    assert {b"libcuda.so.1", b"libc.so.6"} <= set(copy.read_bytes().split(b"\0"))


def test_version_that_only_the_content_tells(tree, tmp_path):
    """It is in the stub too, with nothing else of the library, so that a scan finds the same."""
    tree.module(V)
    given = tree.library("/usr/local/nvidia/lib64/libnvidia-ml.so.1")
    given.write_bytes(given.read_bytes() + f"secret {V} secret".encode())
    record.record(tree.live(), None, str(tmp_path / "r"))
    again = scan.scan(Options.for_recorded(str(tmp_path / "r")))
    assert [file.names[0] for file in again.files] == ["libnvidia-ml.so.1"]
    assert again.files == tree.scan().files
    texts = [path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert not [text for text in texts if b"secret" in text]


def test_links_lead_nowhere_out_of_it(tree, tmp_path):
    """Absolute and climbing links are kept as they are; what is behind them stays in the tree."""
    outside = tmp_path / "outside"
    outside.mkdir()
    tree.module(V)
    tree.leading(str(outside), V)  # in the tree, at the same path as the directory outside
    tree.link("/usr/lib64", str(outside))
    tree.put("/srv/smi", b"#!", 0o755)
    tree.link("/usr/bin/nvidia-smi", "../../../../../../../../../srv/smi")
    record.record(tree.live(), None, str(tmp_path / "r"))
    assert list(outside.iterdir()) == []
    assert os.readlink(tmp_path / "r/usr/lib64") == str(outside)
    assert (tmp_path / f"r/{outside}/libcuda.so.{V}").is_file()
    assert (tmp_path / "r/srv/smi").is_file()


def test_nodes_are_lines(tree, tmp_path):
    """A node becomes a line with its numbers and rights: nobody needs to be root to unpack it."""
    tree.module(V)
    tree.majors(nvidia=195)
    tree.node("/dev/nvidiactl", 195, 255, 0o660)
    os.chown(tree.top / "dev/nvidiactl", 0, 44)
    record.record(tree.live(create_device_nodes=False), None, str(tmp_path / "r"))
    assert (tmp_path / "r/dev.nodes").read_text() == "c 195 255 0660 0 44 /dev/nvidiactl\n"
    assert not [p for p in (tmp_path / "r").rglob("*") if stat.S_ISCHR(p.lstat().st_mode)]


def test_a_directory_in_use_is_refused(tree, tmp_path, capsys):
    """Nothing is written over, and what is there is named; an empty directory will do."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter").touch()
    tree.put("/proc/devices", "Character devices:\n")
    given = ["devices", "--host", str(tree.top), "--record"]
    assert cli.main([*given, str(tmp_path / "mine")]) == 2
    assert "letter" in capsys.readouterr().err
    assert cli.main([*given, str(tmp_path / "no/such")]) == 2
    assert "cannot be made" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main([*given, str(tmp_path / "empty")]) == 0


def test_a_driver_root_elsewhere_cannot_be_recorded(tree, tmp_path):
    """What is not below the host's root has no place in its recording, and that is said."""
    (tmp_path / "elsewhere").mkdir()
    options = tree.live(driver_root=str(tmp_path / "elsewhere"))
    with pytest.raises(errors.HostError, match="is not below"):
        record.record(options, None, str(tmp_path / "r"))


def test_a_configured_driver_root(tree, tmp_path, capsys):
    """The same configuration finds the driver in the recording where it is on the host."""
    tree.module(V)
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.gpu("0000:01:00.0", 0, host_spec.uuid_of(host_spec.GpuSpec(), 0))
    tree.leading("/srv/driver/usr/lib64", V)
    config = tmp_path / "c.toml"
    config.write_text('host.driver_root = "/srv/driver"\n')
    given = ("--config", str(config))
    assert cli.main(
        ["devices", "--host", str(tree.top), *given, "--record", str(tmp_path / "r")]
    ) == 0  # fmt: skip
    capsys.readouterr()
    asked = (*given, "--env", "NVIDIA_VISIBLE_DEVICES=0")
    status, found = plan(tmp_path / "r", capsys, *asked)
    assert (status, found) == plan(tree.top, capsys, *asked)
    sources = {mount["source"] for mount in found["edits"]["mounts"]}
    assert f"/srv/driver/usr/lib64/libcuda.so.{V}" in sources


PLACES = ["/usr", "/usr/lib", "/usr/lib64", "/lib64", "/lib", "/opt", "/opt/a", "/etc", "/srv/x"]
TARGETS = ["/usr/lib64", "usr/lib", "../lib", "/", "..", "/opt/a", "lib64", "/gone", "/srv/x",
           "../../../../../opt/a"]  # fmt: skip
NAMES = ["libcuda.so.1", f"libcuda.so.{V}", f"libnvidia-ml.so.{V}", "nvidia-smi"]


@settings(max_examples=60)
@given(
    links=st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(TARGETS)), max_size=5),
    files=st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(NAMES)), max_size=5),
)
def test_any_tangle_of_links(links, files):
    """Links that cross, climb and loop are found as on the host, and nothing is written outside."""
    with tempfile.TemporaryDirectory() as directory:
        top = pathlib.Path(directory)
        tree = Tree(top / "host")
        tree.module(V)
        tree.majors(nvidia=195, nvidia_uvm=511)
        for place, name in files:
            with contextlib.suppress(OSError):
                tree.library(f"{place}/{name}", name.replace(V, "1"))
                (tree.top / f"{place}/{name}".lstrip("/")).chmod(0o755)
        for place, target in links:
            with contextlib.suppress(OSError):
                tree.link(f"{place}/to", target)
            with contextlib.suppress(OSError):
                tree.link(place, target)
        before = sorted(map(str, top.rglob("*")))
        record.record(tree.recorded(), None, str(top / "r"))
        assert [x for x in sorted(map(str, top.rglob("*"))) if "/r" not in x[len(directory) :][:2]
                ] == before  # fmt: skip
        assert scan.scan(Options.for_recorded(str(top / "r"))) == tree.scan()


def test_the_command_on_a_live_host(tmp_path, capsys):
    """`devices --record` asks the host's own NVML; `plan` there and on the recording agree."""
    top = tmp_path / "host"
    host.build(top, host.HostSpec(gpus=(host.GpuSpec(), host.GpuSpec()), layout="operator"))
    config = tmp_path / "c.toml"
    config.write_text(f'host.root = "{top}"\nhost.dev_char_symlinks = false\n')
    live = ["--config", str(config)]
    assert cli.main(["devices", *live, "--record", str(tmp_path / "r")]) == 0
    assert json.loads((tmp_path / "r/nvml.json").read_text())["driver_version"] == "550.163.01"
    capsys.readouterr()
    asked = ["--env", "NVIDIA_VISIBLE_DEVICES=1", "--env", "NVIDIA_DRIVER_CAPABILITIES=all"]
    assert cli.main(["plan", "--json", *live, *asked]) == 0
    there = capsys.readouterr().out.replace(str(top), "")
    assert cli.main(["plan", "--json", "--host", str(tmp_path / "r"), *asked]) == 0
    assert capsys.readouterr().out == there
