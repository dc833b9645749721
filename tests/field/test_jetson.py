# SPDX-License-Identifier: Apache-2.0
"""Field cases: Jetsons, whose lists say what belongs to the GPU."""

import pytest

from nri_nvidia.host import tegra
from tests import inventories

from . import harness
from .harness import asked, codes, decide

LIB = "/usr/lib/aarch64-linux-gnu"
CUDA = f"{LIB}/tegra/libcuda.so.1.1"
CUBLAS = "/usr/local/cuda-10.2/targets/aarch64-linux/lib/libcublas.so.10"


@pytest.fixture
def board(tree):
    """A Jetson with the three usual lists, of which only what a test needs is there."""
    tree.put(tegra.RELEASE, "# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t186ref\n")
    tree.put("/dev.nodes", "c 489 0 0666 0 0 /dev/nvhost-gpu\n")
    tree.put(f"{tegra.DIRECTORY}/devices.csv", "dev, /dev/nvhost-gpu\ndev, /dev/nvmap\n")
    tree.put(f"{tegra.DIRECTORY}/drivers.csv", f"lib, {CUDA}\n")
    tree.library(CUDA, "libcuda.so.1")
    return tree


@pytest.mark.parametrize("value", ["all", "none"])
def test_further_lists_are_for_those_who_ask(board, value):
    """FC-066: the list of CUDA's own libraries counts with NVIDIA_REQUIRE_JETPACK alone."""
    board.put(f"{tegra.DIRECTORY}/cuda.csv", f"lib, {CUBLAS}\n")
    board.library(CUBLAS)
    found = board.scan()
    few = decide(found, *asked(value))
    assert few.created, few.reasons
    assert harness.mounted(few)[CUDA] == CUDA
    assert CUBLAS not in harness.mounted(few)
    for text, expected in (("csv-mounts=all", True), ("csv-mounts", False), ("all", False)):
        more = decide(found, *asked(value, f"NVIDIA_REQUIRE_JETPACK={text}"))
        assert (CUBLAS in harness.mounted(more)) == expected
        assert harness.nodes(more) == harness.nodes(few)


def test_the_list_of_newer_boards_is_one_too(board):
    """FC-066: devices.csv, drivers.csv and l4t.csv count, in any mix of them."""
    other = f"{LIB}/tegra/libnvos.so"
    board.library(other)
    board.put(f"{tegra.DIRECTORY}/l4t.csv", f"lib, {other}\n")
    given = harness.mounted(decide(board.scan(), *asked("all")))
    assert {CUDA, other} <= set(given)


def test_a_placeholder_is_mounted_over(board):
    """FC-067: images hold empty files at the paths of the lists; each list's file goes there."""
    link = f"{LIB}/tegra/libcuda.so"
    board.link(link, "libcuda.so.1.1")
    board.put(f"{tegra.DIRECTORY}/l4t.csv", f"sym, {link}\n")
    given = harness.mounted(decide(board.scan(), *asked("all")))
    assert given[CUDA] == given[link] == CUDA


def test_rights_of_the_board_are_kept(board):
    """FC-068: mode and group of nvmap are the host's, and the group that is needed is told."""
    board.put("/dev.nodes", "c 489 0 0666 0 0 /dev/nvhost-gpu\nc 10 61 0440 0 44 /dev/nvmap\n")
    plan = decide(board.scan(), *asked("all"))
    device = next(d for d in plan.edits.devices if d.path == "/dev/nvmap")
    assert (device.mode, device.uid, device.gid, device.access) == (0o440, 0, 44, "rw")
    assert codes(plan) == ["groups-needed"]
    assert "supplementary group 44" in plan.reasons[0].message
    assert "/dev/nvmap" in plan.reasons[0].message


def test_a_card_beside_the_processors_gpu(board):
    """FC-069: both are found; 0 is the processor's, 1 the card, whose node is by its own minor."""
    board.module("575.57.08")
    board.majors(nvidia=195, nvidia_uvm=511)
    board.gpu("0005:01:00.0", 2, inventories.UUIDS[0])
    lines = ["489 0 0666 0 0 /dev/nvhost-gpu", "195 2 0666 0 0 /dev/nvidia2",
             "195 255 0666 0 0 /dev/nvidiactl", "511 0 0666 0 0 /dev/nvidia-uvm",
             "511 1 0666 0 0 /dev/nvidia-uvm-tools"]  # fmt: skip
    board.put("/dev.nodes", "".join(f"c {line}\n" for line in lines))
    board.put(f"{tegra.DIRECTORY}/devices.csv", "dev, /dev/nvhost-gpu\ndev, /dev/nvidia*\n")
    found = board.scan()
    both = harness.nodes(decide(found, *asked("all")))
    assert {"/dev/nvhost-gpu", "/dev/nvidia2", "/dev/nvidia-uvm"} <= set(both)
    assert "/dev/nvidia2" not in harness.nodes(decide(found, *asked("0")))
    card = decide(found, *asked("1"))
    assert {"/dev/nvidia2", "/dev/nvidiactl", "/dev/nvhost-gpu"} <= set(harness.nodes(card))
    assert harness.nodes(decide(found, *asked(inventories.UUIDS[0]))) == harness.nodes(card)
    assert decide(found, *asked("2")).created is False
