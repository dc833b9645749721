# SPDX-License-Identifier: Apache-2.0
"""Loading the driver's kernel modules, with a program that only stands for modprobe."""

import pathlib

import attrs
import pytest

from nri_nvidia.host import modules, scan
from nri_nvidia.host.model import ControlNodes, Inventory
from tests import inventories

from .conftest import Tree

BARE = Inventory(hardware=True)


def tool(tree: Tree, script: str) -> str:
    """Write a program that notes its arguments and then does what a test wants."""
    log = tree.top / "log"
    return str(tree.put("/sbin/modprobe", f'#!/bin/sh\necho "$*" >> {log}\n{script}\n', 0o755))


def logged(tree: Tree) -> list[str]:
    place = tree.top / "log"
    return place.read_text().splitlines() if place.exists() else []


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        (Inventory(), ()),
        (BARE, ("nvidia", "nvidia-uvm", "nvidia-modeset")),
        (inventories.EIGHT, ()),
        (
            attrs.evolve(inventories.EIGHT, control=attrs.evolve(inventories.CONTROL, uvm=None)),
            ("nvidia-uvm",),
        ),
        (attrs.evolve(BARE, driver_version="1.2"), ("nvidia-uvm", "nvidia-modeset")),
        (
            attrs.evolve(inventories.EIGHT, control=ControlNodes(uvm=inventories.CONTROL.uvm)),
            ("nvidia-modeset",),
        ),
        (attrs.evolve(BARE, gpus=(inventories.gpu(0, nodes=(inventories.CONTROL.ctl,)),)), ()),
    ],
)
def test_what_a_host_lacks(inventory, expected):
    """Only hosts with a GPU on the PCI bus lack modules, and the driver's own goes first."""
    assert modules.missing(inventory) == expected


def test_modules_are_loaded_one_after_the_other(tree):
    """Each by its name, by the program that the kernel itself uses."""
    program = tool(tree, "exit 0")
    tree.put("/proc/sys/kernel/modprobe", f"{program}\n")
    assert modules.load(tree.live(), ["nvidia", "nvidia-uvm"]) == ()
    assert logged(tree) == ["nvidia", "nvidia-uvm"]


def test_a_driver_roots_own_modules_are_taken(tree):
    """Where that holds the running kernel's modules they are looked for there."""
    program = tool(tree, "exit 0")
    tree.put("/proc/sys/kernel/osrelease", "6.1.0-test\n")
    tree.put("/run/nvidia/driver/lib/modules/6.1.0-test/modules.dep")
    root = str(tree.top / "run/nvidia/driver")
    assert modules.load(tree.live(modprobe=program, driver_root=root), ["nvidia"]) == ()
    assert logged(tree) == [f"--dirname {root} nvidia"]


def test_without_the_driver_the_others_are_not_tried(tree):
    """What modprobe says is the reason, and the command is in the hint."""
    program = tool(tree, "echo 'modprobe: FATAL: Module nvidia not found.' >&2; exit 1")
    (problem,) = modules.load(tree.live(modprobe=program), ["nvidia", "nvidia-uvm"])
    assert logged(tree) == ["nvidia"]
    assert problem.code == "module-not-loaded"
    assert "nvidia cannot be loaded: modprobe: FATAL: Module nvidia not found." in problem.message
    assert problem.hint.startswith(f"{program} nvidia")


def test_one_that_fails_does_not_keep_the_next(tree):
    """nvidia-modeset is tried though nvidia-uvm could not be loaded."""
    program = tool(tree, '[ "$1" = nvidia-modeset ]')
    problems = modules.load(tree.live(modprobe=program), ["nvidia-uvm", "nvidia-modeset"])
    assert logged(tree) == ["nvidia-uvm", "nvidia-modeset"]
    assert ["nvidia-uvm cannot be loaded: exit status 1" in p.message for p in problems] == [True]


def test_a_program_that_hangs_is_given_up(tree):
    """At the limit it is killed, with what it started."""
    program = tool(tree, f"echo $$ > {tree.top}/pid; exec sleep 1000")
    (problem,) = modules.load(tree.live(modprobe=program, modules_timeout=0.3), ["nvidia-uvm"])
    assert "did not end within 0.3 s" in problem.message
    assert not pathlib.Path("/proc", (tree.top / "pid").read_text().strip()).exists()


def test_a_program_that_is_not_there_is_told(tree):
    """The path that was tried is named."""
    (problem,) = modules.load(tree.live(modprobe=f"{tree.top}/none"), ["nvidia"])
    assert f"{tree.top}/none cannot be run: No such file or directory" in problem.message


def test_a_scan_loads_nothing(tree):
    """Who only looks changes nothing, whatever the options allow."""
    tree.put("/sys/bus/pci/devices/0000:07:00.0/vendor", "0x10de\n")
    tree.put("/sys/bus/pci/devices/0000:07:00.0/class", "0x030200\n")
    program = tool(tree, "exit 0")
    found = scan.scan(tree.live(modprobe=program, load_modules=True))
    assert modules.missing(found) == ("nvidia", "nvidia-uvm", "nvidia-modeset")
    assert logged(tree) == []
