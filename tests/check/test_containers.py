# SPDX-License-Identifier: Apache-2.0
"""Containers seen from /proc: their driver, their cgroup, what they may open."""

import os
import pathlib
import subprocess

import attrs
import pytest

from nri_nvidia.check import containers, driver, inside, model
from nri_nvidia.host import root as roots

from . import nodes

DEVICES = pathlib.Path("/sys/fs/cgroup/devices")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("12:devices:/kubepods/x\n0::/y\n", "/sys/fs/cgroup/devices/kubepods/x/cgroup.procs"),
        ("7:cpu,devices:/a\n", "/sys/fs/cgroup/devices/a/cgroup.procs"),
        ("0::/kubepods.slice/x.scope\n", "/sys/fs/cgroup/kubepods.slice/x.scope/cgroup.procs"),
        ("0::/\n", ""),
        ("", ""),
        ("rubbish", ""),
    ],
)
def test_cgroup_of_devices(groups, expected):
    """The devices hierarchy of version 1, else the one of version 2; not its root."""
    assert containers.device_group(groups) == expected


@pytest.mark.skipif(
    not os.access(DEVICES / "devices.deny", os.W_OK),
    reason="rules of a cgroup of version 2 are programs that only a runtime loads; needs root",
)
def test_permission_that_was_lost():
    """A member of a cgroup without a device's rule is told what it may not open, nothing else."""
    group = DEVICES / f"nri-nvidia-test-{os.getpid()}"
    group.mkdir()
    try:
        given = {"/dev/nvidia0": "/dev/null", "/dev/nvidiactl": "/dev/zero", "gone": "/dev/no"}
        assert [*containers.refused(str(group / "cgroup.procs"), given)] == []
        (group / "devices.deny").write_text("c 1:3 rwm")
        assert [*containers.refused(str(group / "cgroup.procs"), given)] == ["/dev/nvidia0"]
        assert (group / "cgroup.procs").read_text() == ""
    finally:
        group.rmdir()


def test_cgroup_that_cannot_be_entered(tmp_path):
    """Then nothing is known, and nothing is claimed."""
    assert [*containers.refused(str(tmp_path / "none" / "cgroup.procs"), {"a": "/dev/null"})] == []


def test_finding_names_the_node_and_the_container():
    """What to do is to recreate that container."""
    holder = model.Holder(
        pid=7, container=nodes.ID, version="550.163.01", denied=("/dev/nvidia0",)
    )
    from tests import inventories

    facts = model.Facts(inventory=inventories.EIGHT, holders=(holder,))
    (found,) = [f for f in driver.findings(facts) if f.code == "device-permission-lost"]
    assert "/dev/nvidia0" in found.message
    assert found.command == f"crictl rm -f {nodes.ID[:12]}"


def test_container_of_this_machine(tmp_path):
    """A process with a driver's library mounted in its own namespace is a holder, and no other."""
    library = tmp_path / "libcuda.so.535.1.2"
    library.write_text("")
    place = tmp_path / "place"
    place.write_text("")
    script = f"mount -n --bind {library} {place} && echo here && read line"
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"here\n"
        found = containers.holders(roots.Root(), "/usr/local/nvidia", None)
        process.communicate(b"\n")
    mine = [holder for holder in found if holder.version == "535.1.2"]
    assert [attrs.evolve(holder, container="") for holder in mine] == [
        model.Holder(pid=process.pid, container="", version="535.1.2")
    ]


def test_container_that_the_daemon_knows_is_named():
    """By pod, and so is what to do; the daemon's own word for all of them is not repeated."""
    from nri_nvidia.check import report
    from tests import inventories

    known = {"id": nodes.ID, "namespace": "ns", "pod": "p", "name": "c"}
    told = {"code": "stale-driver", "message": "these containers", "hint": "recreate them"}
    status = {
        "runtime": {"registered": True}, "missed": [], "containers": [known], "findings": [told],
    }  # fmt: skip
    other = model.Holder(pid=8, container="", version="535.1.2")
    holder = model.Holder(pid=7, container=nodes.ID, version="535.1.2")
    facts = model.Facts(uid=0, status=status, inventory=inventories.EIGHT, holders=(holder, other))
    first, second = report.findings(facts)
    assert first.message.startswith("container ns/p/c (process 7) holds the driver's files")
    assert first.command == "kubectl -n ns delete pod p"
    assert second.message.startswith("the container of process 8 ")


def test_inside_of_a_container(tmp_path):
    """By its id: what shadows the driver there, and what its image lacks for graphics."""
    node = nodes.Node(tmp_path / "node")
    root = roots.Root(str(node.top), recorded=True)
    assert inside.look(root, nodes.ID, "/usr/local/nvidia") is None
    node.container(300, "550.163.01", environment=("LD_LIBRARY_PATH=/opt/drv",))
    node.write("proc/300/root/opt/drv/libcuda.so.1", "")
    node.write("proc/300/root/usr/lib/x86_64-linux-gnu/libX11.so.6", "")
    assert inside.look(root, nodes.ID, "/usr/local/nvidia") == inside.Inside(
        pid=300, shadows=("/opt/drv/libcuda.so.1",), lacking=("libXext.so.6",)
    )
    assert inside.look(root, nodes.ID[:8], "/usr/local/nvidia") is None
