# SPDX-License-Identifier: Apache-2.0
"""Which kind of host one is taken for, and where its driver and nodes are then found."""

import json
import pathlib

import attrs
import pytest

from nri_nvidia import cli
from nri_nvidia.host import cache, presets, record, scan
from nri_nvidia.host.options import Options
from tests import inventories
from tests.field import harness

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
V = "570.172.08"
SYSTEM = "/nix/store/9y8rbv2m9yzv6bnl2w7dk3cnlxx5pn6l-nixos-system-node-25.05"
GRAPHICS = "/nix/store/ckh3v6m7jz0l2vxzq3xwbz8d6yi7s7rp-graphics-drivers"
STORE = "/nix/store/4jqhk6cq1q1bndbm6bc3yb0k3vbw5hq7-nvidia-x11-570.172.08-6.12.31"
ROCKET = "/x86_64-bottlerocket-linux-gnu/sys-root/usr"
# Recorded host -> preset, directory of the libraries, nvidia-smi, the Vulkan ICD on the host.
EXPECTED = {
    "debian-8xh100": ("debian", "/usr/lib/x86_64-linux-gnu/nvidia/current",
                      "/usr/lib/nvidia/current/nvidia-smi", "/usr/share/vulkan/icd.d"),
    "ubuntu-1xl4": ("ubuntu", "/usr/lib/x86_64-linux-gnu", "/usr/bin/nvidia-smi",
                    "/usr/share/vulkan/icd.d"),
    "ubuntu-arm-1xgh200": ("ubuntu", "/usr/lib/aarch64-linux-gnu", "/usr/bin/nvidia-smi",
                           "/usr/share/vulkan/icd.d"),
    "rhel-2xt4": ("rhel", "/usr/lib64", "/usr/bin/nvidia-smi", "/usr/share/vulkan/icd.d"),
    "fedora-1xt4": ("rhel", "/usr/lib64", "/usr/bin/nvidia-smi", "/usr/share/vulkan/icd.d"),
    "suse-1xa100": ("suse", "/usr/lib64", "/usr/bin/nvidia-smi", "/usr/share/vulkan/icd.d"),
    "nixos-1xl4": ("nixos", f"{STORE}/lib", f"{SYSTEM}/sw/bin/nvidia-smi", f"{GRAPHICS}/share/vulkan/icd.d"),
    "talos-1xl4": ("talos", "/usr/local/glibc/usr/lib64", "/usr/local/glibc/usr/bin/nvidia-smi",
                   "/usr/local/glibc/usr/share/vulkan/icd.d"),
    "cos-1xt4": ("cos", "/home/kubernetes/bin/nvidia/lib64",
                 "/home/kubernetes/bin/nvidia/bin/nvidia-smi",
                 "/home/kubernetes/bin/nvidia/vulkan/icd.d"),
    "flatcar-1xa100": ("flatcar", f"/opt/nvidia/{V}/usr/lib64",
                       f"/opt/nvidia/{V}/usr/bin/nvidia-smi",
                       f"/opt/nvidia/{V}/usr/share/vulkan/icd.d"),
    "bottlerocket-1xl4": ("bottlerocket", f"{ROCKET}/lib/nvidia/tesla",
                          f"{ROCKET}/libexec/nvidia/tesla/bin/nvidia-smi",
                          f"{ROCKET}/share/vulkan/icd.d"),
    "operator-1xa100": ("operator", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
                        "/run/nvidia/driver/usr/bin/nvidia-smi",
                        "/run/nvidia/driver/usr/share/vulkan/icd.d"),
}  # fmt: skip
CONTROL = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
DEFAULT_LIBRARIES = {
    "libcuda.so.1", "libcudadebugger.so.1", "libnvidia-allocator.so.1", "libnvidia-cfg.so.1",
    "libnvidia-ml.so.1", "libnvidia-nvvm.so.4", "libnvidia-opencl.so.1",
    "libnvidia-ptxjitcompiler.so.1",
}  # fmt: skip


@pytest.fixture
def plan(capsys):
    """Plan a container on a host; give the edits."""

    def run(host, *arguments, config=None):
        given = ["plan", "--json", "--host", str(host), "--env", "NVIDIA_VISIBLE_DEVICES=all"]
        given += ["--config", str(config)] if config else []
        assert cli.main([*given, *arguments]) == 0
        return json.loads(capsys.readouterr().out)["edits"]

    return run


def look(name):
    return scan.scan(Options.for_recorded(str(HOSTS / name)))


@pytest.mark.parametrize("name", EXPECTED)
def test_the_preset_of_each_host_is_found(name):
    """The kind of each recorded host is told by its files, with nothing wrong on it."""
    found = look(name)
    assert found.preset == EXPECTED[name][0]
    assert found.preset_reason
    assert found.problems == ()
    assert found.dev_root == "/"


@pytest.mark.parametrize("name", EXPECTED)
def test_default_capabilities_on_each_host(plan, name):
    """Every GPU, the control nodes, and compute and utility by SONAME from the host's own place."""
    _preset, directory, smi, _vulkan = EXPECTED[name]
    edits = plan(HOSTS / name)
    gpus = [f"/dev/nvidia{gpu.minor}" for gpu in look(name).gpus]
    assert [device["path"] for device in edits["devices"]] == CONTROL + gpus
    assert {d["host_path"] for d in edits["devices"]} == {d["path"] for d in edits["devices"]}
    mounts = {m["destination"]: m["source"] for m in edits["mounts"]}
    libraries = {
        d.rpartition("/")[2]: s
        for d, s in mounts.items()
        if d.startswith("/usr/local/nvidia/lib64/")
    }
    assert set(libraries) > DEFAULT_LIBRARIES
    assert not {n for n in libraries if "GLX" in n or "encode" in n}
    assert {source.rpartition("/")[0] for source in libraries.values()} == {directory}
    assert mounts["/usr/local/nvidia/bin/nvidia-smi"] == smi
    assert all((HOSTS / name / source.lstrip("/")).exists() for source in mounts.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_all_capabilities_on_each_host(plan, name):
    """Graphics' files too, at the places where a container's loaders look, firmware where it is."""
    _preset, directory, _smi, vulkan = EXPECTED[name]
    edits = plan(HOSTS / name, "--env", "NVIDIA_DRIVER_CAPABILITIES=all")
    assert "/dev/nvidia-modeset" in [device["path"] for device in edits["devices"]]
    mounts = {m["destination"]: m["source"] for m in edits["mounts"]}
    version = look(name).driver_version
    graphics = mounts["/usr/local/nvidia/lib64/libGLX_nvidia.so.0"]
    assert graphics == f"{directory}/libGLX_nvidia.so.{version}"
    assert mounts["/etc/vulkan/icd.d/nvidia_icd.json"] == f"{vulkan}/nvidia_icd.json"
    assert f"/lib/firmware/nvidia/{version}/gsp_ga10x.bin" in mounts
    outside = [d for d in mounts if d.startswith(("/nix", "/home", "/opt", "/run/nvidia/"))]
    # What the loaders' files of NixOS name by its path, and nothing else.
    named = [f"{STORE}/lib/libGLX_nvidia.so.0", f"{STORE}/lib/libnvidia-opencl.so.1"]
    assert sorted(outside) == (named if name.startswith("nixos") else [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=debian\n", "debian"),
        ('ID="ubuntu"\n', "ubuntu"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\n", "ubuntu"),
        ("ID=raspbian\nID_LIKE=debian\n", "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "rhel"),
        ('ID="amzn"\nVERSION_ID="2023"\n', "rhel"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "suse"),
        ('ID="opensuse-tumbleweed"\n', "suse"),
        ("ID=flatcar\nID_LIKE=coreos\n", "flatcar"),
        ("ID=arch\n", "generic"),
        ("no line of the form\n", "generic"),
        ("", "generic"),
        (None, "generic"),
    ],
)
def test_distributions(tree, text, expected):
    """os-release decides by ID, then ID_LIKE; what it does not name is of no known kind."""
    if text is not None:
        tree.put("/usr/lib/os-release", text)
    choice = presets.choose(tree.recorded())
    assert choice.preset.name == expected
    assert "os-release" in choice.why


def test_a_named_preset_looks_in_its_own_places_alone(tree, plan, tmp_path):
    """host.preset = "cos" takes the driver there, whatever else holds the same version."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    tree.leading("/home/kubernetes/bin/nvidia/lib64", V)
    config = tmp_path / "config.toml"
    for name, place in (("auto", "/usr/lib64"), ("cos", "/home/kubernetes/bin/nvidia/lib64")):
        config.write_text(f'host.preset = "{name}"\nhost.create_device_nodes = true\n')
        tree.majors(nvidia=195, nvidia_uvm=511)
        tree.gpu("0000:01:00.0", 0, "GPU-11c0ffee-0000-4000-8000-000000000000")
        sources = {m["source"] for m in plan(tree.top, config=config)["mounts"]}
        assert sources == {f"{place}/libcuda.so.{V}", f"{place}/libnvidia-ml.so.{V}"}


@pytest.mark.parametrize("flavour", ["current", "tesla-535", "legacy-470xx"])
def test_a_named_preset_knows_every_flavour(tree, flavour):
    """host.preset = "debian" finds the loaded version in whichever flavour's directory it is."""
    place = "/usr/lib/x86_64-linux-gnu/nvidia"
    tree.module(V)
    tree.leading(f"{place}/{flavour}", V)
    tree.leading(f"{place}/other", "535.183.01")
    found = scan.scan(attrs.evolve(tree.recorded(), preset="debian"))
    assert found.files[0].source == f"{place}/{flavour}/libcuda.so.{V}"


def test_a_preset_that_is_none_is_refused(tmp_path, capsys):
    """The message lists the presets that there are."""
    (tmp_path / "c.toml").write_text('host.preset = "gentoo"\n')
    assert cli.main(["devices", "--config", str(tmp_path / "c.toml")]) == 2
    said = capsys.readouterr().err
    assert "host.preset" in said
    assert all(name in said for name in presets.NAMES)


def test_what_is_configured_stands(tree):
    """A configured driver root is kept, and the preset still named."""
    tree.module(V)
    tree.leading("/run/nvidia/driver/usr/lib64", V)
    tree.leading("/usr/lib64", V)
    found = scan.scan(tree.live(driver_root=str(tree.top)))
    assert (found.preset, found.driver_root) == ("operator", str(tree.top))
    assert found.files[0].source == f"{tree.top}/usr/lib64/libcuda.so.{V}"


def test_nodes_of_a_driver_container(tree):
    """The host's own /dev comes first; the container's is taken where only it has the nodes."""
    tree.module(V)
    tree.majors(nvidia=195)
    tree.leading("/run/nvidia/driver/usr/lib64", V)
    tree.node("/run/nvidia/driver/dev/nvidiactl", 195, 255)
    options = tree.live(driver_root="", dev_root="")
    assert scan.scan(options).control.ctl.host_path == (
        f"{tree.top}/run/nvidia/driver/dev/nvidiactl"
    )
    tree.node("/dev/nvidiactl", 195, 255)
    assert scan.scan(options).control.ctl.host_path == f"{tree.top}/dev/nvidiactl"


def test_nodes_of_a_recorded_driver_container(tree):
    """A recorded host's list of nodes names those below the container's root by whole paths."""
    tree.module(V)
    tree.majors(nvidia=195)
    tree.leading("/run/nvidia/driver/usr/lib64", V)
    tree.put("/dev.nodes", "c 195 255 0666 0 0 /run/nvidia/driver/dev/nvidiactl\n")
    found = tree.scan()
    assert found.dev_root == "/run/nvidia/driver"
    assert found.control.ctl.path == "/dev/nvidiactl"
    assert found.control.ctl.host_path == "/run/nvidia/driver/dev/nvidiactl"


def test_absolute_links_of_a_driver_container_stay_in_it(tree):
    """Debian's alternatives in the container lead to its own files, not to the host's."""
    root = "/run/nvidia/driver"
    tree.module(V)
    tree.leading(f"{root}/usr/lib/x86_64-linux-gnu/nvidia/current", V)
    tree.put(f"{root}/usr/lib/nvidia/current/nvidia-smi", b"#!", 0o755)
    tree.put("/usr/lib/nvidia/current/nvidia-smi", b"#! another", 0o755)
    tree.link(f"{root}/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    tree.link(f"{root}/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
    (smi,) = (file for file in tree.scan().files if file.names == ("nvidia-smi",))
    assert smi.source == f"{root}/usr/lib/nvidia/current/nvidia-smi"


@pytest.mark.parametrize("target", ["/", "../.."])
def test_a_driver_container_that_is_the_host_itself(tree, tmp_path, target):
    """A link to the root, as the operator makes where the host has the driver, means the root."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    tree.link("/run/nvidia/driver", target)
    found = tree.scan()
    assert (found.preset, found.driver_root) == ("operator", "/")
    assert found.files[0].source == f"/usr/lib64/libcuda.so.{V}"
    record.record(tree.recorded(), None, str(tmp_path / "r"))
    assert scan.scan(Options.for_recorded(str(tmp_path / "r"))) == found


def test_an_empty_driver_container_is_named(tree):
    """Without any driver the empty directory is a part of the sentence, and what to wait for."""
    tree.module(V)
    tree.at("/run/nvidia/driver/.").mkdir(exist_ok=True)
    (problem,) = tree.scan().problems
    assert problem.code == "driver-libraries-missing"
    assert "/run/nvidia/driver is empty" in problem.message
    assert "wait for the driver container" in problem.hint


def test_a_driver_container_that_comes_and_goes(tree):
    """The next look after its files appear, or after they are gone, is at the right root."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    kept = cache.Cache(tree.recorded())
    assert kept.get().driver_root == "/"
    tree.leading("/run/nvidia/driver/usr/lib64", V)
    assert kept.get().driver_root == "/run/nvidia/driver"
    (tree.top / "run/nvidia/driver").rename(tree.top / "run/nvidia/gone")
    assert kept.get().driver_root == "/"


@pytest.mark.parametrize("there", ["libnvidia-ml", "libcuda"])
def test_a_half_filled_driver_root(tree, there):
    """What is missing is named, with where it was looked for; computing without libcuda is refused."""
    root = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu"
    tree.module(V)
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.gpu("0000:01:00.0", 0, inventories.UUIDS[0])
    tree.library(f"{root}/{there}.so.{V}", f"{there}.so.1")
    found = tree.scan()
    (problem,) = found.problems
    absent = "libcuda" if there == "libnvidia-ml" else "libnvidia-ml"
    codes = {"libcuda": "driver-incomplete", "libnvidia-ml": "driver-library-missing"}
    assert problem.code == codes[absent]
    assert problem.message.startswith(
        f"{absent} of the driver {V} was not found below /run/nvidia/"
    )
    assert "/usr/lib/x86_64-linux-gnu" in problem.message
    decided = harness.decide(found, *harness.asked("0"))
    assert decided.created == (there == "libcuda")
    if not decided.created:
        assert problem.message in decided.reasons[-1].message
        assert "NVIDIA_DRIVER_CAPABILITIES=utility" in decided.reasons[-1].hint
    else:
        assert f"utility is asked for, and {problem.message}" in decided.reasons[-1].message
        assert decided.reasons[-1].code == problem.code
        quiet = harness.decide(found, *harness.asked("0", harness.capable("compute")))
        assert problem.code not in harness.codes(quiet)
    assert harness.decide(
        found, *harness.asked("0", harness.capable("utility"))
    ).created == (there == "libnvidia-ml")  # fmt: skip


def test_a_driver_container_of_another_version(tree):
    """The sentence names both versions and the root that holds the other one."""
    tree.module(V)
    tree.leading("/run/nvidia/driver/usr/lib64", "560.35.05")
    (problem,) = tree.scan().problems
    assert problem.code == "driver-version-mismatch"
    for word in (V, "560.35.05", "/run/nvidia/driver"):
        assert word in problem.message


def test_a_named_preset_whose_places_are_not_there(tree):
    """Each directory that was looked for is in the sentence."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    found = scan.scan(attrs.evolve(tree.recorded(), preset="cos"))
    (problem,) = found.problems
    for place in presets.PRESETS["cos"].libraries:
        assert place in problem.message
