# SPDX-License-Identifier: Apache-2.0
"""What is worked out once for many containers is what would be worked out for each."""

import gc

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import errors, resolve
from nri_nvidia.edits import devices, driver, model
from nri_nvidia.host import derived
from nri_nvidia.request import container as containers
from nri_nvidia.request import model as request_model
from tests import inventories

DIRECTORY = "/usr/local/nvidia"
PLACES = (
    "/", "/usr", "/usr/local", DIRECTORY, f"{DIRECTORY}/lib64", f"{DIRECTORY}/lib64/libcuda.so.1",
    f"{DIRECTORY}/lib64/other", f"{DIRECTORY}2", "/usr/local/nvidia/", "//usr/local/./nvidia/bin",
    "/run", "/var/run", "/var/run/nvidia-persistenced", "/run/nvidia-persistenced/socket",
    "/lib", "/lib/firmware/nvidia", "/data", "/usr/lib", "relative",
)  # fmt: skip
MOUNTS = st.lists(
    st.builds(
        containers.Mount,
        source=st.just("/x"),
        destination=st.sampled_from(PLACES),
        type=st.sampled_from(["bind", "tmpfs"]),
        options=st.sampled_from([(), ("ro",)]),
    ),
    max_size=4,
).map(tuple)
CAPABILITIES = st.frozensets(st.sampled_from(list(request_model.Capability)))
WHOLE = model.MountEdit(source="/var/lib/volume", destination=DIRECTORY)


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except errors.Error as error:
        return str(error)


@given(CAPABILITIES, MOUNTS, st.sampled_from([None, WHOLE]))
def test_mounts_that_change_nothing_are_found_exactly(capabilities, mounts, whole):
    """With any mounts of its own a container gets what a whole look at them gives."""
    inventory = inventories.EIGHT
    own = {
        driver._place(m.destination): m for m in sorted(mounts, key=lambda m: "ro" in m.options)
    }
    quick = outcome(driver.build, capabilities, inventory, mounts, DIRECTORY, whole)
    assert quick == outcome(driver._build, capabilities, inventory, own, DIRECTORY, whole)


@given(CAPABILITIES, st.sets(st.sampled_from(["/dev/nvidia0", "/dev/nvidiactl", "/dev/fuse"])))
def test_devices_that_change_nothing_are_found_exactly(capabilities, paths):
    """With any devices in its spec a container gets the nodes that are missing from it."""
    inventory = inventories.EIGHT
    allocation = resolve.Allocation(
        assigned=tuple(resolve.Assigned(gpu=gpu) for gpu in inventory.gpus[:2])
    )
    spec = [containers.Device(path=path) for path in sorted(paths)]
    quick = outcome(devices.build, capabilities, allocation, inventory, spec)
    taken = {device.path: device for device in spec}
    assert quick == outcome(devices._build, capabilities, allocation.assigned, inventory, taken)


def test_answers_are_shared():
    """Two containers that ask alike have the same mounts, not equal ones."""
    asked = frozenset({request_model.Capability.COMPUTE})
    first, _ = driver.build(asked, inventories.EIGHT, (), DIRECTORY)
    second, _ = driver.build(asked, inventories.EIGHT, (), DIRECTORY)
    assert first is second


def test_results_go_with_their_inventory():
    """An equal Inventory has its own results, and those of one that is gone are gone."""
    calls = []

    @derived.kept
    def count(inventory, value):
        calls.append(value)
        return len(inventory.gpus)

    first, second = (attrs.evolve(inventories.EIGHT) for _ in range(2))
    assert [count(first, 1), count(first, 1), count(second, 1), count(first, 2)] == [8] * 4
    assert calls == [1, 1, 2]
    number = id(first)
    assert number in derived._results
    del first
    gc.collect()
    assert number not in derived._results


def test_results_are_bounded():
    """However many sets are asked for, a bounded number is kept."""

    @derived.kept
    def same(_inventory, value):
        return value

    inventory = attrs.evolve(inventories.EIGHT)
    assert [same(inventory, number) for number in range(1000)] == [*range(1000)]
    assert len(derived._results[id(inventory)][1]) <= derived._MOST


def test_what_is_raised_is_raised_again():
    """A refusal is worked out each time: nothing of the one before is in it."""

    @derived.kept
    def refuse(_inventory):
        raise errors.HostError("no")

    for _ in range(2):
        with pytest.raises(errors.HostError, match="no"):
            refuse(inventories.EIGHT)
