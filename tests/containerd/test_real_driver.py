# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own user-space files, as Debian packages them, on a host whose kernel part is simulated.

Which file belongs to which capability is held against the packages that Debian made of them:
libcuda1 is compute, libnvidia-encode1 and libnvcuvid1 are video, libnvidia-ml1 and nvidia-smi are
utility.
"""

import json
import platform
import subprocess
from pathlib import Path

import pytest

from tests.host import real_driver

from . import daemons

LIBRARIES = "/usr/local/nvidia/lib64"

# libnvidia-container, nvc_info.c: the libraries of these capabilities, without `lib`.
NAMES = {
    "utility": ("nvidia-ml", "nvidia-cfg", "nvidia-nscq"),
    "compute": (
        "cuda", "cudadebugger", "nvidia-opencl", "nvidia-gpucomp", "nvidia-ptxjitcompiler",
        "nvidia-fatbinaryloader", "nvidia-allocator", "nvidia-compiler", "nvidia-pkcs11",
        "nvidia-pkcs11-openssl3", "nvidia-nvvm", "nvidia-tileiras",
    ),
    "video": ("vdpau_nvidia", "nvidia-encode", "nvidia-opticalflow", "nvcuvid"),
}  # fmt: skip
PACKAGES = {
    "compute": ("libcuda1", "libnvidia-ptxjitcompiler1", "nvidia-opencl-icd", "libnvidia-nvvm4"),
    "video": ("libnvidia-encode1", "libnvcuvid1", "libnvidia-opticalflow1"),
    "utility": ("libnvidia-ml1",),
}


@pytest.fixture(scope="session")
def packages() -> dict:
    """What contrib/setup unpacked: version, root and files by package."""
    return real_driver.record()


@pytest.fixture(scope="session")
def host(packages, tmp_path_factory) -> Path:
    """The packages' files with a kernel's texts and nodes; NVML cannot answer without a driver."""
    return real_driver.build(packages, tmp_path_factory.mktemp("real") / "host")


def plan(host: Path, capabilities: str) -> dict:
    done = subprocess.run(
        [daemons.COMMAND, "plan", "--host", str(host), "--format", "json",
         "--env", "NVIDIA_VISIBLE_DEVICES=all",
         "--env", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def sources(found: dict) -> set[str]:
    """Give the host files of a plan by name."""
    return {mount["source"].rpartition("/")[2] for mount in found["edits"]["mounts"]}


def held(packages: dict) -> set[str]:
    """Give the libraries that the packages hold, by file name."""
    return {file.rpartition("/")[2] for files in packages["packages"].values() for file in files}


@pytest.mark.parametrize("capability", NAMES)
def test_every_library_that_is_there_is_found(packages, host, capability):
    """For each name of the capability that some package holds, its file is in the plan."""
    given = sources(plan(host, capability))
    there = {
        f"lib{name}.so.{packages['version']}" for name in NAMES[capability]
    } & held(packages)  # fmt: skip
    assert there
    assert there <= given


@pytest.mark.parametrize("capability", PACKAGES)
def test_capabilities_follow_debians_packages(packages, host, capability):
    """A capability gives its own packages' libraries and none of another's."""
    given = sources(plan(host, capability))

    def versioned(names):
        return {
            file.rpartition("/")[2]
            for name in names
            for file in packages["packages"][name]
            if file.endswith(f".so.{packages['version']}")
        }

    assert versioned(PACKAGES[capability]) <= given
    # video brings compute's libraries with it.
    also = {"video": ("compute",)}.get(capability, ())
    for other in set(PACKAGES) - {capability, *also}:
        assert not versioned(PACKAGES[other]) & given
    assert ("nvidia-smi" in given) is (capability == "utility")


async def test_libraries_work_inside_a_container(engine, host, packages):
    """Each library that is given loads, with no dependency or symbol missing."""
    env = {
        "NVIDIA_VISIBLE_DEVICES": "0",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,video",
    }
    with daemons.running(engine.nri_socket, host):
        async with engine.pod() as pod, pod.container("debian-x11", env=env) as container:
            listed = (await container.probe("ls", LIBRARIES)).split()
            assert {"libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1"} <= set(listed)
            for name in listed:
                ldd = await container.exec(["/usr/bin/ldd", "-r", f"{LIBRARIES}/{name}"])
                assert ldd.code == 0, (name, ldd)
                assert "not found" not in ldd.stdout + ldd.stderr, (name, ldd)
                assert "undefined symbol" not in ldd.stdout + ldd.stderr, (name, ldd)
                loaded = await container.exec(["/probe-dlopen", name])
                assert loaded.code == 0, (name, loaded)
            # libvdpau knows its backend by these two names alone, the first in its own directory.
            place = f"/usr/lib/{platform.machine()}-linux-gnu/vdpau/libvdpau_nvidia.so.1"
            for name in (place, "libvdpau_nvidia.so"):
                loaded = await container.exec(["/probe-dlopen", name])
                assert loaded.code == 0, (name, loaded)
            smi = await container.exec(["/bin/sh", "-c", "nvidia-smi"])
            # 9 is what the real program says where there is no kernel driver to talk to.
            assert smi.code == 9, smi


async def test_graphics_inside_a_container(engine, host, packages):
    """Graphics' libraries load, 32-bit ones are listed beside, and EGL is told of the GPU."""
    env = {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "NVIDIA_DRIVER_CAPABILITIES": "graphics,ngx,compat32",
    }
    with daemons.running(engine.nri_socket, host):
        async with engine.pod() as pod, pod.container("debian-x11", env=env) as container:
            for name in (await container.probe("ls", LIBRARIES)).split():
                ldd = await container.exec(["/usr/bin/ldd", "-r", f"{LIBRARIES}/{name}"])
                absent = {
                    line.split()[0] for line in ldd.stdout.splitlines() if "not found" in line
                }
                # The image has no libgbm, and of the X server nothing at all.
                assert absent <= {"libgbm.so.1"}, (name, ldd)
                assert "undefined symbol" not in ldd.stdout or absent, (name, ldd)
            listed = await container.exec(["/sbin/ldconfig", "-p"])
            for name in (
                "libGLX_nvidia.so.0",
                "libEGL_nvidia.so.0",
                f"libnvidia-glcore.so.{packages['version']}",
            ):
                lines = [line for line in listed.stdout.splitlines() if f"\t{name} " in line]
                assert [line.rpartition("/")[0].rpartition(" ")[2] for line in lines] == [
                    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib32",
                ], listed.stdout  # fmt: skip
            profile = await container.exec(
                ["/bin/cat", "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"]
            )
            assert '"EGLVisibleDGPUDevices",0x2]' in profile.stdout
            for place in ("/etc/vulkan/icd.d/nvidia_icd.json",
                          "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
                          "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"):  # fmt: skip
                found = await container.exec(["/bin/cat", place])
                assert "nvidia" in found.stdout, place
