# SPDX-License-Identifier: Apache-2.0
"""Field cases that `nri-nvidia check` tells apart."""

import json
import tomllib

import pytest

from nri_nvidia.check import containers, driver, model
from nri_nvidia.host import options, scan
from nri_nvidia.host import root as roots
from tests import inventories
from tests.check import nodes

SYSTEMD = nodes.CONFIG


@pytest.fixture
def node(tmp_path):
    return nodes.Node(tmp_path / "node")


def codes(found):
    return [finding["code"] for finding in found]


def test_missing_device_links(node, capsys):
    """FC-002: each link /dev/char/MAJOR:MINOR that is missing is told with the command for it."""
    node.write("versions.json", json.dumps({"runc": "1.1.5", "systemd": "252"}))
    found = scan.scan(options.Options.for_recorded(str(node.top)))
    links = {f"/dev/char/{n.major}:{n.minor}": n.path for n in found.nodes if n.exists}
    for link in links:
        node.path(link).unlink()
    _, findings = node.findings(capsys)
    commands = [f["command"] for f in findings if f["code"] == "dev-char-link-missing"]
    assert sorted(commands) == sorted(
        f"ln -sfn ../{path.removeprefix('/dev/')} {link}" for link, path in links.items()
    )
    node.path("dev/char/195:0").symlink_to("../other")
    _, findings = node.findings(capsys)
    wrong = next(f for f in findings if f["code"] == "dev-char-link-wrong")
    assert "../other" in wrong["message"]


def test_another_injector_on_the_node(node, capsys):
    """FC-006: one that works by a hook is told, though no container has met it yet."""
    node.write(
        "etc/containers/oci/hooks.d/h.json", '{"path": "/usr/bin/nvidia-container-runtime-hook"}'
    )
    assert codes(node.findings(capsys)[1]) == ["other-hook"]


def test_permission_lost_and_driver_changed_are_told_apart(node, capsys):
    """FC-007: the rule of a cgroup is gone, or the files on disk are newer than the module."""
    holder = model.Holder(
        pid=7, container=nodes.ID, version="550.163.01", denied=("/dev/nvidia0",)
    )
    facts = model.Facts(inventory=inventories.EIGHT, holders=(holder,))
    assert [finding.code for finding in driver.findings(facts)] == ["device-permission-lost"]
    node.write("sys/module/nvidia/version", "535.54.03\n")
    node.path("nvml.json").unlink()
    _, findings = node.findings(capsys)
    assert codes(findings) == ["driver-version-mismatch"]
    assert "535.54.03" in findings[0]["message"]
    assert "on disk are 550.163.01" in findings[0]["message"]


def test_ld_library_path_that_shadows_the_driver(node, capsys):
    """FC-059: an image's own libcuda before the host's is told, that of the host is not."""
    value = "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/opt/drv"
    node.container(300, "550.163.01", environment=(value,))
    node.write("proc/300/root/usr/local/nvidia/lib64/libcuda.so.1", "")
    node.path("proc/300/root/opt/drv").mkdir(parents=True)
    assert node.findings(capsys) == (0, [])
    node.write("proc/300/root/opt/drv/libcuda.so.1", "")
    _, findings = node.findings(capsys)
    assert codes(findings) == ["library-path-shadows-driver"]
    assert "/opt/drv/libcuda.so.1" in findings[0]["message"]


def test_switches_without_their_manager(node, capsys):
    """FC-061: NVSwitches without nv-fabricmanager are told, and that is CUDA's error 802."""
    node.write("proc/driver/nvidia-nvswitch/devices/0", "")
    _, findings = node.findings(capsys)
    assert codes(findings) == ["fabric-manager-missing"]
    assert "802" in findings[0]["message"]
    node.process(103, "/usr/bin/nv-fabricmanager", "-c", "x")
    assert node.findings(capsys) == (0, [])


@pytest.mark.parametrize("version", [2, 3, 4])
def test_nri_that_is_off(node, capsys, version):
    """FC-108: NRI switched off is told with what to write, which nobody but the user writes."""
    path = node.path("etc/containerd/config.toml")
    text = f'version = {version}\n[plugins."io.containerd.nri.v1.nri"]\n  disable = true\n'
    path.write_text(text)
    _, findings = node.findings(capsys)
    assert codes(findings) == ["nri-off"]
    assert path.read_text() == text
    table = tomllib.loads(findings[0]["detail"])["plugins"]["io.containerd.nri.v1.nri"]
    assert table == {"disable": False}


def test_one_command_names_each_cause_first(tmp_path, capsys):
    """FC-127: one command names the cause of each of these hosts first, needs no GPU, and JSON."""
    hosts = {
        "dev-char-link-missing": lambda node: node.path("dev/char/195:0").unlink(),
        "driver-version-mismatch": lambda node: (
            node.write("sys/module/nvidia/version", "535.54.03\n"), node.path("nvml.json").unlink(),
        ),
        "nri-off": lambda node: node.write(
            "etc/containerd/config.toml", 'version = 3\ndisabled_plugins = ["io.containerd.nri.v1.nri"]'
        ),
    }  # fmt: skip
    for code, fault in hosts.items():
        node = nodes.Node(tmp_path / code)
        node.write("versions.json", json.dumps({"containerd": "2.1.9"}))
        fault(node)
        _, findings = node.findings(capsys)
        assert findings[0]["code"] == code
        assert all(finding["command"] for finding in findings)


def test_what_was_given_and_taken_out(node):
    """FC-109: a container that was given a node and runs without it is found, others are not."""
    node.container(300, "550.163.01")
    dev = node.path("proc/300/root/dev")
    dev.mkdir(parents=True)
    root = roots.Root(str(node.top), recorded=True)
    inventory = scan.scan(options.Options.for_recorded(str(node.top)))
    known = {
        "id": nodes.ID,
        "namespace": "ns",
        "pod": "p",
        "name": "c",
        "gpus": [inventory.gpus[1].uuid],
    }
    unborn = {**known, "id": "f" * 64}
    (lost,) = containers.stripped(root, [known, unborn], inventory)
    assert (lost.container, lost.pid, lost.nodes) == (nodes.ID, 300, ("/dev/nvidia1",))
    status = {"runtime": {"registered": True}, "containers": [known], "findings": [], "missed": []}
    facts = model.Facts(inventory=inventory, stripped=(lost,), status=status)
    (found,) = driver.findings(facts)
    assert found.code == "adjustment-not-applied"
    assert "container ns/p/c (process 300) was to get /dev/nvidia1" in found.message
    (dev / "nvidia1").touch()
    assert containers.stripped(root, [known], inventory) == ()
