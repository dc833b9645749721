# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own user-space files, as Debian packages them, on a host whose kernel part is simulated.

Which file belongs to which capability is held against the packages that Debian made of them:
libcuda1 is compute, libnvidia-encode1 and libnvcuvid1 are video, libnvidia-ml1 and nvidia-smi are
utility.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nri_nvidia.testing import host_kernel, host_spec

from . import conftest, daemons

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
    record = conftest.CACHE / "driver/driver.json"
    if not record.exists():
        pytest.fail(f"there are no driver packages: {conftest.SETUP}")
    return json.loads(record.read_text("utf-8"))


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="session")
def host(packages, tmp_path_factory) -> Path:
    """The packages' files with a kernel's texts and nodes; NVML cannot answer without a driver."""
    top = tmp_path_factory.mktemp("real") / "host"
    shutil.copytree(packages["root"], top, symlinks=True, copy_function=link)
    spec = host_spec.HostSpec(
        gpus=(host_spec.GpuSpec(),) * 2, driver=packages["version"], nvml=False, sockets=False
    )
    host_kernel.write(top, spec)
    return top


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
            smi = await container.exec(["/bin/sh", "-c", "nvidia-smi"])
            # 9 is what the real program says where there is no kernel driver to talk to.
            assert smi.code == 9, smi
