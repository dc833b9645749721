# SPDX-License-Identifier: Apache-2.0
"""Nodes of every kind that come, go or change while an inventory is kept."""

import os
import stat

import pytest

from nri_nvidia.host import cache
from nri_nvidia.testing import host, host_kernel

SPEC = host.HostSpec(gpus=(host.GpuSpec(),), nvml=False)
CHANNELS = "dev/nvidia-caps-imex-channels"


@pytest.fixture
def top(tmp_path):
    host.build(tmp_path / "host", SPEC)
    return tmp_path / "host"


@pytest.fixture
def kept(top):
    """A cache that has looked once and would look again only for a reason."""
    found = cache.Cache(host.options_for(top))
    found.get()
    return found


def make(top, name, major, minor, mode=0o666):
    host_kernel.make_node(top / "dev" / name, ("c", major, minor, mode, 0, 0))


@pytest.mark.parametrize("group", host_kernel.GROUPS)
def test_a_groups_nodes_appear_and_go(top, kept, group):
    """The next look has the nodes of a module that was loaded, and not those of one unloaded."""
    assert kept.get().extra_nodes == ()
    for name, major, minor in host_kernel.GROUPS[group]:
        make(top, name, major, minor)
    paths = {node.path for _, node in kept.get().extra_nodes}
    assert paths == {f"/dev/{name}" for name, _, _ in host_kernel.GROUPS[group]}
    for name, _, _ in host_kernel.GROUPS[group]:
        (top / "dev" / name).unlink()
    assert kept.get().extra_nodes == ()


def test_what_comes_with_gpudirect_storage_appears_late(top, kept):
    """A cufile.json that is written after the nodes were seen is found."""
    make(top, "nvidia-fs0", 506, 0)
    assert kept.get().extra_mounts == ()
    (top / "etc/cufile.json").write_text("{}")
    (top / "run/udev").mkdir(parents=True)
    found = [mount.destination for mount in kept.get().extra_mounts]
    assert found == ["/run/udev", "/etc/cufile.json"]


def test_channels_appear_and_go(top, kept):
    """A node that nvidia-modprobe made is known, one that was removed is not."""
    assert kept.get().imex_channels == ()
    for number in (3, 20):
        make(top, f"nvidia-caps-imex-channels/channel{number}", 507, number)
    assert [node.minor for node in kept.get().imex_channels] == [3, 20]
    (top / CHANNELS / "channel3").unlink()
    assert [node.minor for node in kept.get().imex_channels] == [20]


def test_a_channel_is_made_once(top, kept):
    """Asked for, it has the driver's rights; one that is there is left as it is, others are not made."""
    kept.make_channels([7])
    status = (top / CHANNELS / "channel7").stat()
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (507, 7)
    assert stat.S_IMODE(status.st_mode) == 0o666
    (top / CHANNELS / "channel7").chmod(0o600)
    kept.make_channels([7, 2048, 1 << 20])
    assert [path.name for path in (top / CHANNELS).iterdir()] == ["channel7"]
    assert [node.mode for node in kept.get().imex_channels] == [0o600]


def test_drm_nodes_and_their_links_appear_late(top, kept):
    """nvidia-drm loaded after the first look: card, render node and udev's links are found."""
    assert kept.get().gpus[0].dri_nodes == ()
    for name, minor in (("card1", 1), ("renderD129", 129)):
        drm = top / f"sys/bus/pci/devices/0000:07:00.0/drm/{name}"
        drm.mkdir(parents=True)
        make(top, f"dri/{name}", 226, minor, 0o660)
    found = kept.get()
    assert [node.path for node in found.gpus[0].dri_nodes] == [
        "/dev/dri/card1", "/dev/dri/renderD129",
    ]  # fmt: skip
    assert found.extra_mounts == ()
    (top / "dev/dri/by-path").mkdir()
    (top / "dev/dri/by-path/pci-0000:07:00.0-card").symlink_to("../card1")
    assert [mount.destination for mount in kept.get().extra_mounts] == ["/dev/dri/by-path"]
    (top / "dev/dri/card1").chmod(0o666)
    assert kept.get().gpus[0].dri_nodes[0].mode == 0o666
