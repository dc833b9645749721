# SPDX-License-Identifier: Apache-2.0
"""Driver files held against an oracle: NVIDIA's files, as Debian splits them into packages."""

import itertools
import os
import platform
from pathlib import Path

import pytest

from nri_nvidia import pipeline
from nri_nvidia.host import catalog, options, scan
from nri_nvidia.request import container as containers
from nri_nvidia.request import model

from . import real_driver

CAPABILITIES = [str(capability) for capability in model.Capability]
PAIRS = ["all", *CAPABILITIES, *map(",".join, itertools.combinations(CAPABILITIES, 2))]


@pytest.fixture(scope="module")
def packages():
    return real_driver.record()


@pytest.fixture(scope="module")
def host(packages, tmp_path_factory):
    return real_driver.build(packages, tmp_path_factory.mktemp("packages") / "host")


@pytest.fixture(scope="module")
def inventory(host):
    return scan.scan(options.Options.for_recorded(str(host)))


def given(inventory, capabilities):
    """Decide over a container; give the sources of its mounts."""
    env = ("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    plan = pipeline.plan(containers.Container(env=env), inventory, pipeline.Policy())
    assert plan.decision is pipeline.Decision.INJECT, plan.reasons
    return {mount.source for mount in plan.edits.mounts}


@pytest.mark.parametrize("capabilities", PAIRS)
def test_a_capability_has_its_packages(packages, inventory, capabilities):
    """Each capability, all, and each pair have exactly the files of the packages they mean."""
    asked = set(CAPABILITIES) if capabilities == "all" else set(capabilities.split(","))
    wanted = real_driver.expected(packages, asked)
    found = given(inventory, capabilities)
    assert found - wanted == set()
    assert wanted - found == set()


def test_every_package_and_file_has_its_class(packages):
    """The table names each package that there is, and each exception is there."""
    names = {name.partition(":")[0] for name in packages["packages"]}
    assert names - set(real_driver.PACKAGES) - real_driver.NOTHING == set()
    whole = [path for paths in packages["packages"].values() for path in paths]
    unused = [each for each in real_driver.NOT_GIVEN if not any(p.startswith(each) for p in whole)]
    assert unused == []
    assert {n for n, paths in packages["packages"].items() if not paths} <= real_driver.NOTHING
    narrow = [name for name in packages["packages"] if name.endswith(":i386")]
    assert bool(narrow) == (platform.machine() == "x86_64")


def test_a_whole_driver_has_no_faults(inventory):
    """Nothing that a library of these packages needs is missing, in either word size."""
    assert [problem.message for problem in inventory.problems] == []


def test_nothing_is_lost_through_an_absolute_link(packages, host, inventory):
    """What Debian's alternatives lead to is given, though each link is absolute.

    The toolkit takes such a link for one of the machine's own root where the driver is below
    another, and skips the file.
    """
    wanted = set()
    for directory, _, names in os.walk(host):
        for path in (Path(directory, name) for name in names):
            if path.is_symlink() and path.readlink().is_absolute():
                hop = host / path.readlink().relative_to("/")
                while hop.is_symlink():
                    step = hop.readlink()
                    hop = host / step.relative_to("/") if step.is_absolute() else hop.parent / step
                wanted.add(f"/{hop.relative_to(host)}")
    assert len(wanted) > 30
    kept = {path for path in wanted if any(map(path.startswith, real_driver.NOT_GIVEN))}
    found = given(inventory, "all")
    assert {os.path.realpath(f"{host}{path}") for path in wanted - kept} <= {
        f"{host}{path}" for path in found
    }


def test_nothing_of_the_drivers_version_is_lost(packages, inventory):
    """The toolkit gives every library of the version; so does `all`, whatever its name."""
    version = packages["version"]
    there = {
        path
        for paths in packages["packages"].values()
        for path in paths
        if path.endswith(f".so.{version}")
    }
    assert len(there) > 40
    assert there - given(inventory, "all") == set()


def test_each_loader_file_leads_to_a_library_that_is_given(host, inventory):
    """The library that a loader's file names is among the container's, by that name."""
    names = {name for file in inventory.files for name in file.names}
    texts = {
        file.destination: (host / file.source[1:]).read_text()
        for file in inventory.files
        if file.kind == "config" and not file.destination.startswith("/usr/share/X11")
    }
    assert len(texts) >= 6
    for place, text in texts.items():
        assert any(f'"{name}"' in text or text.strip() == name for name in names), place


def test_each_module_is_the_drivers(inventory):
    """X's modules and GBM's backend are found under the names by which they are loaded."""
    links = {link for file in inventory.files for link in file.links}
    assert links == {
        *(f"{place}/{name}" for name, place in catalog.XORG_MODULES.items()),
        *catalog.BACKENDS.values(),
    }
