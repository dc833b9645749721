# SPDX-License-Identifier: Apache-2.0
"""Field cases: the driver changes while the daemon runs, and lists that grow stale."""

import asyncio
import os
import posixpath
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.host import cache
from nri_nvidia.testing import host_spec, stubs

from . import harness
from .harness import asked, capable, codes, decide

ONE = harness.gpus(1)
KERNEL = ("sys", "proc", "nvml.json")
FILES = ("usr", "etc", "opt")


@pytest.mark.parametrize("value", ["all", "0", host_spec.uuid_of(host_spec.GpuSpec(), 0), "none"])
@pytest.mark.parametrize("libraries", ["", "550.163.01"])
def test_module_that_is_not_loaded_is_the_reason(value, libraries, tmp_path):
    """FC-009: without the module the reason is that, not a path, and there is no hook."""
    found = harness.built(tmp_path, gpus=ONE, driver="", libraries=libraries, nvml=False)
    plan = decide(found, *asked(value))
    assert (plan.decision, codes(plan)) == (pipeline.Decision.ERROR, ["driver-not-loaded"])
    assert "modprobe" in plan.reasons[-1].hint
    assert value in plan.reasons[-1].message
    assert not plan.edits


def test_module_that_is_unloaded_meanwhile(together, live):
    """FC-009: rmmod between two containers is seen by the second, and a new load by the third."""
    directory = live(gpus=ONE)

    async def body(pair):
        await pair.create(1, *asked("all"))
        (directory / "proc/driver/nvidia").rename(directory / "gone-proc")
        (directory / "sys/module/nvidia").rename(directory / "gone-sys")
        assert "driver is not loaded" in await pair.refused(2, *asked("all"))
        (directory / "gone-proc").rename(directory / "proc/driver/nvidia")
        (directory / "gone-sys").rename(directory / "sys/module/nvidia")
        await pair.create(3, *asked("all"))

    together(body, directory)


def given_files(adjusted):
    return {mount.destination: mount.source for mount in adjusted.mounts}


def test_containers_of_before_an_upgrade_are_listed(together, live):
    """FC-010: who holds the old driver's files is shown with both versions; a new one is not."""
    directory = live(gpus=ONE, driver="535.161.07", cuda="12.2")

    async def body(pair):
        await pair.create(1, *asked("0"))
        assert not [f for f in (await pair.status())["findings"] if f["code"] == "stale-driver"]
        harness.become(directory, *KERNEL, *FILES, gpus=ONE, driver="535.171.04", cuda="12.2")
        await pair.create(2, *asked("0"))
        found = await pair.status()
        assert [(c["driver_version"], c["stale"]) for c in found["containers"]] == [
            ("535.161.07", True),
            ("535.171.04", False),
        ]
        (finding,) = [f for f in found["findings"] if f["code"] == "stale-driver"]
        for word in ("team/pod/c1", "535.161.07", "535.171.04"):
            assert word in finding["message"]
        assert "c2" not in finding["message"]
        shown = await asyncio.to_thread(pair.daemon.ask, "status")
        assert finding["message"] in " ".join(shown.stdout.split())  # it fills lines

    together(body, directory)


def test_containers_of_before_the_daemon_are_listed_too(together, live):
    """FC-010: of a container that an earlier daemon served the mounts tell its driver."""
    directory = live(gpus=ONE)
    node = api.LinuxDevice(path="/dev/nvidia0", type="c", major=195, minor=0)
    mount = api.Mount(
        destination="/usr/local/nvidia/lib64/libcuda.so.1",
        source="/usr/lib/x86_64-linux-gnu/libcuda.so.535.161.07",
        type="bind",
    )
    old = api.Container(
        id="old",
        pod_sandbox_id="p",
        name="old",
        env=[*asked("0")],
        mounts=[bytes(mount)],
        linux=api.LinuxContainer(devices=[bytes(node)]),
    )

    async def body(pair):
        found = await pair.until(lambda status: status["containers"] and status, "the old one")
        assert [(c["driver_version"], c["stale"]) for c in found["containers"]] == [
            ("535.161.07", True)
        ]

    together(body, directory, containers=[old])


@pytest.mark.parametrize("layout", ["debian", "ubuntu", "rhel", "cache"])
def test_upgrade_without_a_signal(together, live, layout):
    """FC-011: after all files were replaced only new ones are given, and each of them exists."""
    directory = live(gpus=ONE, driver="550.54.14", layout=layout)

    async def body(pair):
        await pair.create(1, *asked("all", capable("all")))
        harness.become(directory, *KERNEL, *FILES, gpus=ONE, driver="550.67", layout=layout)
        sources = given_files(await pair.create(2, *asked("all", capable("all")))).values()
        assert not [path for path in sources if "550.54.14" in path]
        assert [path for path in sources if "libEGL_nvidia.so.550.67" in path]
        assert [path for path in sources if not os.path.exists(path)] == []

    together(body, directory)


VERSIONS = st.tuples(st.integers(470, 590), st.integers(10, 299), st.integers(0, 99)).map(
    lambda parts: f"{parts[0]}.{parts[1]}.{parts[2]:02}"
)


@settings(max_examples=15, deadline=None)
@given(module=VERSIONS, libraries=VERSIONS)
def test_module_and_libraries_that_differ(scratch, module, libraries):
    """FC-012: both versions are named, with what to do; equal ones are no error."""
    top = scratch()
    plan = decide(installed(top, module, libraries), *asked("0"))
    if module == libraries:
        assert plan.created
        return
    assert (plan.decision, codes(plan)) == (pipeline.Decision.ERROR, ["driver-version-mismatch"])
    assert module in plan.reasons[-1].message
    assert libraries in plan.reasons[-1].message
    assert "reboot or reload" in plan.reasons[-1].hint


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_versions_the_modules_is_used(tmp_path, order):
    """FC-012: with both on disk the loaded module's files are given, whichever came first."""
    versions = ["570.124.06", "570.133.07"]
    found = installed(tmp_path, versions[0], *(versions[at] for at in order))
    plan = decide(found, *asked("0"))
    assert plan.driver_version == versions[0]
    given_sources = harness.libraries(plan).values()
    assert given_sources
    assert not [path for path in given_sources if not path.endswith(versions[0])]


def installed(top, module, *versions):
    """Look at a host with a module and libraries of some versions."""
    spec = host_spec.HostSpec(gpus=ONE, recorded=True, nvml=False, layout="ubuntu", libraries="")
    harness.host.build(top, spec)
    (top / "sys/module/nvidia/version").write_text(f"{module}\n")
    for version in versions:
        for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
            path = top / f"usr/lib/x86_64-linux-gnu/{name}.so.{version}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stubs.shared_object(f"{name}.so.1"))
    return harness.look(top)


@pytest.mark.parametrize("target", ["libcuda.so.575.57.08", "/nowhere/libcuda.so", "libcuda.so.1"])
def test_soname_link_to_what_is_gone(tmp_path, target):
    """FC-013: a link to a removed version, to nothing or to itself hides the file that is there."""
    top = tmp_path / "host"
    installed(top, "575.64", "575.64")
    (top / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to(target)
    plan = decide(harness.look(top), *asked("0"))
    assert harness.libraries(plan)["libcuda.so.1"].endswith("/libcuda.so.575.64")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_cache_that_is_damaged(scratch, data):
    """FC-013: a cut or changed ld.so.cache gives no exception and no odd path."""
    top = scratch()
    spec = host_spec.HostSpec(gpus=ONE, recorded=True, layout="cache")
    harness.host.build(top, spec)
    installed_sources = set(harness.libraries(decide(harness.look(top), *asked("0"))).values())
    cache = top / "etc/ld.so.cache"
    content = bytearray(cache.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 8)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cache.write_bytes(bytes(content))
    plan = decide(harness.look(top), *asked("0"))
    assert set(harness.libraries(plan).values()) <= installed_sources
    assert plan.created or codes(plan) == ["driver-files-missing"]
    shutil.rmtree(top)


def test_names_in_a_container_do_not_change_with_the_driver(tmp_path):
    """FC-014: on two versions the destinations differ only where the driver's own names do."""
    versions = ("550.54.14", "550.67")
    plain = []
    for version in versions:
        found = harness.built(tmp_path / version, gpus=ONE, driver=version)
        destinations = harness.mounted(decide(found, *asked("0", capable("all"))))
        own = {d for d in destinations if version in d}
        assert all(re.search(rf"\.so\.{version}$|^/lib/firmware/", d) for d in own), own
        assert posixpath.basename("libcuda.so.1") in map(posixpath.basename, destinations)
        plain.append({d.replace(version, "VERSION") for d in destinations})
    assert plain[0] == plain[1]


def test_daemon_that_is_there_before_the_driver(together, tmp_path):
    """FC-015: untouched without a driver, refused while it is half there, then given; no restart."""
    directory = tmp_path / "node"
    directory.mkdir()

    async def body(pair):
        pid = pair.daemon.pid
        assert bytes(await pair.create(1, "PATH=/bin")) == b""
        assert bytes(await pair.create(2, *asked("all"))) == b""
        device = tmp_path / "sys/bus/pci/devices/0000:07:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        # The kernel shows no device without its files either: a look may come at any moment.
        (tmp_path / "sys").rename(directory / "sys")
        assert "not loaded" in await pair.refused(3, *asked("all"))
        shutil.rmtree(directory / "sys")
        await asyncio.to_thread(harness.host.build, directory, host_spec.HostSpec(gpus=ONE))
        adjusted = await pair.create(4, *asked("all"))
        assert adjusted.linux.devices[-1].path == "/dev/nvidia0"
        assert (await pair.status())["pid"] == pid

    together(body, directory)


LATE = ["run/nvidia-persistenced/socket", "tmp/nvidia-mps", "usr/bin/nvidia-debugdump",
        "etc/OpenCL/vendors/nvidia.icd", "usr/share/vulkan/icd.d/nvidia_icd.json",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json", "usr/share/X11/xorg.conf.d/10-nvidia.conf",
        "usr/lib64/xorg/modules/drivers/nvidia_drv.so", "etc/nvidia/lib64/nvoptix.bin",
        "usr/lib64/nvoptix.bin", "lib/firmware/nvidia/550.163.01/gsp_ga10x.bin", "usr/lib64/libnvidia-encode.so.550.163.01"]  # fmt: skip


@pytest.mark.parametrize("late", LATE)
def test_file_that_comes_late(live, late):
    """FC-015: what a boot brings after the first look is in the next one, whatever its kind."""
    directory = live(gpus=ONE, layout="rhel")
    kept, place = directory.with_name("later"), directory / late
    if not os.path.lexists(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"{}") if "." in place.name else place.mkdir()
    place.rename(kept)
    for parent in place.parents:
        if parent != directory and not any(parent.iterdir()):
            parent.rmdir()
    cached = cache.Cache(harness.host.options_for(directory))
    before = sources(settled(cached))
    place.parent.mkdir(parents=True, exist_ok=True)
    kept.rename(place)
    (added,) = sources(cached.get()) - before
    assert added == str(place.resolve())


def settled(cached):
    """Look until the look is kept: only then can something new be overlooked."""
    found = cached.get()
    while (again := cached.get()) is not found:
        found = again
    return found


def sources(inventory):
    return {file.source for file in inventory.files}


def test_gpu_that_is_plugged_in_without_a_driver(tmp_path):
    """FC-015, FC-086: a kept look at a bare node ends when the bus has a GPU, driver or not."""
    harness.host.build(tmp_path / "x", host_spec.HostSpec(driver="", hardware=False, nvml=False))
    cached = cache.Cache(harness.host.options_for(tmp_path / "x"))
    assert not settled(cached).hardware
    device = tmp_path / "x/sys/bus/pci/devices/0000:07:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert codes(decide(cached.get(), *asked("all"))) == ["driver-not-loaded"]


def test_daemon_does_not_hold_the_driver(together, live):
    """FC-016: after a hundred containers nothing of it is open or mapped: rmmod would succeed."""
    directory = live(gpus=harness.gpus(2))

    async def body(pair):
        await asyncio.to_thread(pair.daemon.nvml_answered)
        for number in range(100):
            await pair.create(number, *asked("all", capable("all")))
        assert pair.daemon.nvidia_files() == []

    together(body, directory)
