# SPDX-License-Identifier: Apache-2.0
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia.host import devices, nodes
from nri_nvidia.host.model import DeviceNode

CAPS = "/proc/driver/nvidia/capabilities"


def access(minor: int, mode: int = 292) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def test_existing_node_is_given_as_it_is(tree):
    """Numbers, mode and owner are those of the node on the host."""
    tree.majors(nvidia=195)
    tree.node("/dev/nvidia3", 195, 3, 0o640)
    os.chown(tree.at("/dev/nvidia3"), 0, 44)
    known = devices.tables(tree.live())
    assert devices.gpu(known, 3) == DeviceNode(
        path="/dev/nvidia3",
        host_path=f"{tree.top}/dev/nvidia3",
        major=195,
        minor=3,
        mode=0o640,
        gid=44,
    )


def test_missing_uvm_nodes_are_made(tree):
    """With the major in /proc/devices both nodes are made, mode 0666, whatever the umask."""
    tree.majors(nvidia_uvm=511)
    tree.at("/dev/x")
    control = devices.control(devices.tables(tree.live()))
    found = [(node.minor, node.exists) for node in (control.uvm, control.uvm_tools)]
    assert found == [(0, True), (1, True)]
    status = os.lstat(tree.at("/dev/nvidia-uvm-tools"))
    assert stat.S_ISCHR(status.st_mode)
    assert (status.st_rdev, stat.S_IMODE(status.st_mode)) == (os.makedev(511, 1), 0o666)


def test_node_is_not_made_when_that_is_off(tree):
    """With creation off nothing is written, and the problem names the command."""
    tree.majors(nvidia_uvm=511)
    tree.at("/dev/x")
    uvm = devices.control(devices.tables(tree.live(create_device_nodes=False))).uvm
    assert not uvm.exists
    assert "/dev/nvidia-uvm is missing" in uvm.problem
    assert f"mknod -m 666 {tree.top}/dev/nvidia-uvm c 511 0" in uvm.problem
    assert os.listdir(tree.top / "dev") == []


def test_new_node_takes_mode_and_owner_from_the_driver(tree):
    """DeviceFileMode, UID and GID of the module's parameters are honoured."""
    tree.majors(nvidia=195)
    tree.at("/dev/x")
    tree.put(
        "/proc/driver/nvidia/params",
        'DeviceFileUID: 7\nDeviceFileGID: 44\nDeviceFileMode: 432\nRegistryDwords: ""\n',
    )
    node = devices.gpu(devices.tables(tree.live()), 0)
    assert (node.mode, node.uid, node.gid) == (0o660, 7, 44)
    status = os.lstat(tree.at("/dev/nvidia0"))
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o660, 7, 44)


def test_wrong_numbers_are_a_problem_with_both(tree):
    """A node of another device is left alone; the sentence says what it is and should be."""
    tree.majors(nvidia=195)
    tree.node("/dev/nvidia0", 195, 7)
    node = devices.gpu(devices.tables(tree.live()), 0)
    assert not node.exists
    assert "195:7" in node.problem
    assert "195:0" in node.problem
    assert os.lstat(tree.at("/dev/nvidia0")).st_rdev == os.makedev(195, 7)


def test_nothing_is_made_over_a_file(tree):
    """A regular file in the place of a node stays, and is a problem."""
    tree.majors(nvidia=195)
    tree.put("/dev/nvidiactl", "mine")
    node = devices.control(devices.tables(tree.live())).ctl
    assert not node.exists
    assert "is not a character device" in node.problem
    assert tree.at("/dev/nvidiactl").read_text() == "mine"


def test_nothing_is_made_over_a_dangling_link(tree):
    """A link to nothing is not followed when the node is made."""
    tree.majors(nvidia=195)
    tree.link("/dev/nvidia0", "/dev/elsewhere")
    node = devices.gpu(devices.tables(tree.live()), 0)
    assert not node.exists
    assert os.listdir(tree.top / "dev") == ["nvidia0"]


def test_dev_root_without_dev_is_a_problem(tree):
    """Where there is no /dev at all, the sentence says so."""
    tree.majors(nvidia=195)
    node = devices.gpu(devices.tables(tree.live()), 0)
    assert not node.exists
    assert f"there is no {tree.top}/dev to make it in" in node.problem
    assert not (tree.top / "dev").exists()


def test_unknown_major_is_no_node(tree):
    """Without uvm in /proc/devices the kernel does not know it: None, no invention."""
    tree.majors(nvidia=195)
    tree.at("/dev/x")
    known = devices.tables(tree.live())
    control = devices.control(known)
    assert (control.uvm, control.uvm_tools, control.modeset) == (None, None, None)
    assert devices.gpu(known, -1) is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/proc/modules", "nvidia_modeset 1540096 0 - Live 0x0 (PO)\n"),
        ("/sys/module/nvidia_modeset/refcnt", "0\n"),
    ],
)
def test_modeset_node_is_made_where_its_module_is_loaded(tree, path, text):
    """nvidia_modeset has no major of its own; the module tells."""
    tree.majors(nvidia=195)
    tree.at("/dev/x")
    tree.put(path, text)
    node = devices.control(devices.tables(tree.live())).modeset
    assert (node.major, node.minor, node.exists) == (195, 254, True)


def test_capability_nodes_are_made_from_the_mig_tree(tree):
    """Instances in /proc without nodes get them, in a new nvidia-caps directory, by mode."""
    tree.majors(nvidia=195, nvidia_caps=508)
    tree.at("/dev/x")
    tree.put(f"{CAPS}/mig/config", access(1, 256))
    tree.put(f"{CAPS}/gpu0/mig/gi1/access", access(12))
    tree.put(f"{CAPS}/gpu0/mig/gi1/ci0/access", access(13))
    found = dict(devices.caps(devices.tables(tree.live()), ()))
    assert {name: (n.path, n.minor, n.mode) for name, n in found.items()} == {
        "config": ("/dev/nvidia-caps/nvidia-cap1", 1, 0o400),
        "gpu0/gi1/access": ("/dev/nvidia-caps/nvidia-cap12", 12, 0o444),
        "gpu0/gi1/ci0/access": ("/dev/nvidia-caps/nvidia-cap13", 13, 0o444),
    }
    status = os.lstat(tree.at("/dev/nvidia-caps/nvidia-cap12"))
    assert (status.st_rdev, stat.S_IMODE(status.st_mode)) == (os.makedev(508, 12), 0o444)


def test_capabilities_nobody_uses_get_no_nodes(tree):
    """mig-minors lists what could be; a node is for an instance that is, in /proc or by name."""
    tree.majors(nvidia_caps=508)
    tree.at("/dev/x")
    tree.put(
        "/proc/driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi2/access 21\n",
    )
    known = devices.tables(tree.live())
    found = devices.caps(known, ["gpu0/gi1/access", "gpu9/gi9/access"])
    assert [name for name, _node in found] == ["config", "gpu0/gi1/access", "monitor"]


def test_recorded_host_takes_nodes_from_its_list(tree):
    """`dev.nodes` stands for nodes, and paths are the recorded host's own."""
    tree.majors(nvidia=195)
    tree.put("/dev.nodes", "c 195 1 0640 0 44 /dev/nvidia1\nc 195 255 0666 0 0 /dev/nvidiactl\n")
    known = devices.tables(tree.recorded())
    assert devices.gpu(known, 1) == DeviceNode(
        path="/dev/nvidia1", host_path="/dev/nvidia1", major=195, minor=1, mode=0o640, gid=44
    )


def test_recorded_host_counts_missing_nodes_as_made(tree):
    """Nothing is written, yet the node is there as the host would make it."""
    tree.majors(nvidia=195)
    assert devices.gpu(devices.tables(tree.recorded()), 1).exists
    assert sorted(os.listdir(tree.top)) == ["proc"]


def test_recorded_host_with_creation_off_lacks_the_node(tree):
    """With creation off a recorded host's missing node is missing."""
    from nri_nvidia.host.options import Options

    tree.majors(nvidia=195)
    given = Options.for_recorded(str(tree.top), create_device_nodes=False)
    node = devices.gpu(devices.tables(given), 1)
    assert not node.exists
    assert node.problem == "/dev/nvidia1 is missing; run: nvidia-modprobe -c 1"


def test_nodes_on_request_are_found_by_group(tree):
    """GDS, MOFED, gdrcopy and NVSwitch nodes come with their group; IMEX channels by number."""
    lines = [
        "c 234 0 0666 0 0 /dev/nvidia-fs0",
        "c 231 192 0666 0 0 /dev/infiniband/uverbs0",
        "c 10 58 0666 0 0 /dev/infiniband/rdma_cm",
        "c 240 0 0666 0 0 /dev/gdrdrv",
        "c 238 255 0666 0 0 /dev/nvidia-nvswitchctl",
        "c 238 0 0666 0 0 /dev/nvidia-nvswitch0",
        "c 507 10 0666 0 0 /dev/nvidia-caps-imex-channels/channel10",
        "c 507 2 0666 0 0 /dev/nvidia-caps-imex-channels/channel2",
    ]
    tree.put("/dev.nodes", "\n".join(lines))
    known = devices.tables(tree.recorded())
    assert [(group, node.path) for group, node in devices.on_request(known)] == [
        ("gds", "/dev/nvidia-fs0"),
        ("mofed", "/dev/infiniband/rdma_cm"),
        ("mofed", "/dev/infiniband/uverbs0"),
        ("gdrcopy", "/dev/gdrdrv"),
        ("nvswitch", "/dev/nvidia-nvswitch0"),
        ("nvswitch", "/dev/nvidia-nvswitchctl"),
    ]
    assert [node.minor for node in devices.imex_channels(known)] == [2, 10]


@given(st.text(max_size=200))
def test_any_list_of_nodes_is_read(text):
    """Garbage in `dev.nodes` is skipped."""
    for path, status in nodes.parse_listed(text).items():
        assert path.startswith("/")
        assert status[0] in {"b", "c"}


@given(st.lists(st.sampled_from(["c", "195", "0", "0666", "-1", "/dev/x", "\n", "9" * 30])))
def test_any_words_of_a_list_give_sound_numbers(words):
    """Numbers in `dev.nodes` are never negative."""
    for status in nodes.parse_listed(" ".join(words)).values():
        assert min(status[1:]) >= 0
