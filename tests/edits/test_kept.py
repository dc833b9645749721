# SPDX-License-Identifier: Apache-2.0
"""What is worked out once for many containers is what would be worked out for each."""

import gc

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import errors, resolve
from nri_nvidia.edits import build, devices, driver, model, options, volume
from nri_nvidia.host import derived
from nri_nvidia.host import model as host
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
HOST = attrs.evolve(
    inventories.EIGHT,
    gpus=tuple(
        attrs.evolve(gpu, dri_nodes=(inventories.node(f"/dev/dri/card{gpu.index}", gpu.index),))
        for gpu in inventories.EIGHT.gpus
    ),
    extra_mounts=(
        host.ExtraMount(group="dri", source="/dev/dri/by-path", destination="/dev/dri/by-path"),
    ),
)
OWN = ("/dev", "/dev/dri", "/dev/dri/by-path", "/dev/shm", *PLACES)
CONTAINERS = st.builds(
    containers.Container,
    env=st.sampled_from(
        [
            (),
            (f"LD_LIBRARY_PATH={DIRECTORY}/lib64",),
            (f"LD_LIBRARY_PATH={DIRECTORY}/lib:{DIRECTORY}/lib64",),
            ("NAME=x",),
        ]
    ),
    mounts=st.lists(
        st.builds(
            containers.Mount,
            source=st.sampled_from(["/x", "tmpfs"]),
            destination=st.sampled_from(OWN),
            options=st.sampled_from([(), ("ro",)]),
        ),
        max_size=2,
    ).map(tuple),
    devices=st.sampled_from([(), (containers.Device(path="/dev/fuse", major=10, minor=229),)]),
    privileged=st.sampled_from([None, False, True]),
    user_namespace=st.booleans(),
)
REQUESTS = st.builds(
    request_model.GpuRequest,
    source=st.sampled_from(list(request_model.Source)),
    devices=st.sampled_from([("all",), ("0",)]),
    capabilities=CAPABILITIES,
    all_capabilities=st.booleans(),
    groups=st.sampled_from([(), (request_model.Group.GDS,)]),
    imex_channels=st.sampled_from([(), ("0",)]),
)
OPTIONS = st.builds(
    options.InjectOptions,
    library_dir=st.sampled_from([DIRECTORY, "/var/run/nvidia"]),
    layout=st.sampled_from(["files", "volume"]),
    cuda_compat=st.sampled_from(["auto", "never"]),
    env=st.sampled_from([(), ("NAME=y",)]),
    hook=st.sampled_from([None, options.HookOptions(report_socket="/s")]),
)
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


@given(
    REQUESTS, CONTAINERS, OPTIONS, st.integers(0, 8), st.booleans(), st.sampled_from(["", "7f"])
)
def test_what_is_made_for_many_is_what_each_would_get(  # noqa: PLR0917 - all that matters
    request, container, inject, count, ready, token
):
    """Whatever a container asks for and has of its own, it gets what is worked out for it alone."""
    allocation = resolve.Allocation(
        assigned=tuple(resolve.Assigned(gpu=gpu) for gpu in HOST.gpus[:count])
    )
    wanted = whole = None
    there = {}
    if inject.layout == "volume" and (wanted := volume.wanted(request.capabilities, HOST)):
        there = {wanted.name: "/volumes/a"} if ready else {}
        whole = volume.mount(wanted, there, container.mounts, inject.library_dir)
    for _ in range(2):  # made, and kept
        quick = outcome(
            lambda: build.build(
                request, allocation, HOST, container, inject, ready=there, token=token
            )
        )
        assert quick == outcome(
            lambda: build._build(
                request, allocation, HOST, container, inject,
                wanted=wanted, whole=whole, token=token,
            )
        )  # fmt: skip


def test_a_token_is_of_one_container():
    """All else of two containers that ask alike is shared, their tokens are not."""
    asked = request_model.GpuRequest(source=request_model.Source.ENV, devices=("all",))
    inject = options.InjectOptions(hook=options.HookOptions(report_socket="/s"))
    first, second = (
        build.build(
            asked, resolve.Allocation(), HOST, containers.Container(), inject, ready={}, token=name
        ).edits
        for name in ("1a", "2b")
    )
    assert first.mounts is second.mounts
    assert [edits.hooks[0].args[-2:] for edits in (first, second)] == [
        ("--token", "1a"), ("--token", "2b"),
    ]  # fmt: skip


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
