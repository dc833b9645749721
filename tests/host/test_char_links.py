# SPDX-License-Identifier: Apache-2.0
import os

import pytest

from nri_nvidia.config import load
from nri_nvidia.host import cache, scan


@pytest.fixture
def host(tree):
    """A host with one GPU's node, the control node and no links."""
    tree.module("550.163.01")
    tree.majors(nvidia=195)
    tree.gpu("0000:07:00.0", 0, "GPU-836c0c09-0000-0000-0000-000000000000")
    tree.node("/dev/nvidia0", 195, 0)
    tree.node("/dev/nvidiactl", 195, 255)
    return tree


def links(tree) -> dict[str, str]:
    place = tree.top / "dev/char"
    return {path.name: os.readlink(path) for path in place.iterdir() if path.is_symlink()}


def found(tree, **changes) -> list[str]:
    """Scan as a live host; give the problems with links as code and message."""
    problems = scan.scan(tree.live(**changes)).problems
    return [f"{each.code}: {each.message}" for each in problems if "char" in each.code]


def test_missing_links_are_made(host):
    """Each node gets a relative link by its numbers, in a directory that is made if need be."""
    assert found(host) == []
    assert links(host) == {"195:0": "../nvidia0", "195:255": "../nvidiactl"}


def test_nodes_in_directories_are_linked_by_their_whole_path(host):
    """A capability's link leads to its place below nvidia-caps."""
    host.majors(nvidia=195, nvidia_caps=511)
    host.put("/proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\n")
    host.put("/proc/driver/nvidia-caps/mig-minors", "config 1\n")
    host.node("/dev/nvidia-caps/nvidia-cap1", 511, 1)
    assert found(host) == []
    assert links(host)["511:1"] == "../nvidia-caps/nvidia-cap1"
    assert (host.top / "dev/char/511:1").stat().st_rdev == os.makedev(511, 1)


def test_second_scan_changes_nothing(host):
    """Where the links are there, neither they nor their directory are touched."""
    found(host)
    before = [os.lstat(path) for path in sorted((host.top / "dev").rglob("*"))]
    assert found(host) == []
    assert [os.lstat(path) for path in sorted((host.top / "dev").rglob("*"))] == before


@pytest.mark.parametrize("target", ["/dev/nvidia0", "../other", "./../nvidia0"])
def test_link_to_the_same_device_is_right_however_it_is_spelled(host, target):
    """What counts is the device at its end; an absolute path is one below the dev root."""
    host.node("/dev/other", 195, 0)
    host.link("/dev/char/195:0", target)
    assert found(host) == []
    assert links(host)["195:0"] == target


@pytest.mark.parametrize("target", ["../other", "../nowhere", "../nvidiactl"])
def test_link_that_leads_elsewhere_is_left_and_told(host, target):
    """It may be someone's purpose: the problem names it, the others are made."""
    host.node("/dev/other", 10, 200)
    host.link("/dev/char/195:0", target)
    (problem,) = found(host)
    assert problem.startswith(
        f"dev-char-link-wrong: {host.top}/dev/char/195:0 leads to {target}, "
        f"which is not {host.top}/dev/nvidia0"
    )
    assert links(host) == {"195:0": target, "195:255": "../nvidiactl"}


def test_file_in_the_place_of_a_link_is_left_and_told(host):
    """A plain file is no link."""
    host.put("/dev/char/195:0", "mine")
    (problem,) = found(host)
    assert "/dev/char/195:0 is no link" in problem
    assert (host.top / "dev/char/195:0").read_text() == "mine"


def test_node_of_the_same_numbers_in_the_place_of_a_link_is_right(host):
    """Whoever names the device that way reaches it."""
    host.node("/dev/char/195:0", 195, 0)
    assert found(host) == []


def test_what_cannot_be_made_is_one_problem(host):
    """All numbers are in one sentence, with the reason and what to do."""
    host.put("/dev/char", "a file")
    problems = [p for p in scan.scan(host.live()).problems if p.code == "dev-char-link-missing"]
    (problem,) = problems
    assert f"{host.top}/dev/char lacks links for 195:255, 195:0" in problem.message
    assert "(Not a directory)" in problem.message
    assert "host.dev_char_symlinks = false" in problem.hint


def test_nothing_is_made_when_that_is_off(host):
    """With the option off there is no link and no problem."""
    assert found(host, dev_char_symlinks=False) == []
    assert not (host.top / "dev/char").exists()


def test_recorded_host_is_not_written_to(host):
    """A recorded host is only read."""
    scan.scan(host.recorded())
    assert not (host.top / "dev/char").exists()


def test_node_that_does_not_exist_has_no_link(host):
    """A link that would lead nowhere is not made."""
    (host.top / "dev/nvidia0").unlink()
    assert found(host, create_device_nodes=False) == []
    assert set(links(host)) == {"195:255"}


def test_link_that_was_removed_comes_back(host):
    """The kept inventory does not outlive its links."""
    kept = cache.Cache(host.live())
    scans = -1
    while kept.scans != scans:  # it is kept once no stamp is as young as the scan
        scans = kept.scans
        kept.get()
    (host.top / "dev/char/195:0").unlink()
    kept.get()
    assert set(links(host)) == {"195:0", "195:255"}


@pytest.mark.parametrize(("text", "made"), [("", True), ("host.dev_char_symlinks = false", False)])
def test_setting_of_the_configuration(text, made):
    """It is on by default, and the key switches it off."""
    given = load.load([load.Text(name="test", toml=text)])
    assert given.host_options().dev_char_symlinks is made
