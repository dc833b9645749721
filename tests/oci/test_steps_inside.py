# SPDX-License-Identifier: Apache-2.0
"""What some containers get besides: each further step of the hook is held by the same view."""

import shutil

import pytest

from nri_nvidia.oci import compat

from . import bundles, weakened
from .weakened import both_ways


@pytest.fixture
def canary(place):
    """A directory of the host with a library."""
    bundles.make_library(place / "canary/libhost.so.1")
    return place / "canary"


def test_cve_2024_0132_a_compatibility_library_that_is_the_hosts(case, runtime, canary):
    """A newer CUDA driver that is a link out of the image is none; in a chroot it would be used."""
    # Of its own: crun makes a mount read-only after the hook, and a chroot shows it as it is.
    driver = shutil.copytree(case.toolbox.driver, case.place / "driver")
    mounts = [bundles.bind(driver, bundles.LIBRARY_DIR)]
    options = ["--compat", "550.163.01"]
    outcome = {}
    for name, ready in both_ways(case, *weakened.CHROOT):
        folder = ready.root / "usr/local/cuda/compat"
        folder.mkdir(parents=True)
        (folder / "libcuda.so.999.1").symlink_to(f"/proc/1/root{canary}/libhost.so.1")
        result = ready.run(runtime, ["/bin/quiet"], mounts=mounts, options=options)
        assert result.step("compat")["ok"]
        outcome[name] = (ready.root / compat.COMPAT_LINK[1:]).is_symlink()
    assert outcome == {"with": False, "without": True}


def test_cve_2025_23267_a_profile_by_a_link(case, runtime, canary):
    """The driver's application profile is not written where a link in the image leads."""
    outcome = {}
    for name, ready in both_ways(case, *weakened.CHROOT):
        (ready.root / "etc/nvidia").symlink_to(f"/proc/1/root{canary}")
        ready.run(runtime, ["/bin/quiet"], options=["--profile", "1"])
        outcome[name] = bool(list(canary.rglob("10-container.conf")))
    assert outcome == {"with": False, "without": True}


def test_cve_2024_0134_a_module_by_a_link(case, runtime, canary):
    """A link to one of the driver's modules is not made in a directory of the host."""
    options = ["--place", "gbm/nvidia-drm_gbm.so=lib64/libcuda.so.1"]
    outcome = {}
    for name, ready in both_ways(case, *weakened.CHROOT):
        (ready.root / "usr/lib").mkdir(parents=True, exist_ok=True)
        (ready.root / "usr/lib/gbm").symlink_to(f"/proc/1/root{canary}")
        ready.run(runtime, ["/bin/quiet"], options=options)
        outcome[name] = (canary / "nvidia-drm_gbm.so").is_symlink()
    assert outcome == {"with": False, "without": True}


def test_the_drivers_directory_is_not_written_to(case, runtime, place):
    """A prepared directory, which other containers have too, is read-only in the view.

    crun makes the container's own mount read-only after the hook only.
    """
    options, outcome = ["--alias", "libcuda.so=libcuda.so.1"], {}
    writable = (
        "restrict(open_in(view, place), writable=False)",
        ("restrict(open_in(view, place), writable=True)"),
    )
    for name, ready in both_ways(case, writable):
        driver = shutil.copytree(case.toolbox.driver, place / f"driver-{name}")
        before = bundles.snapshot(driver)
        mounts = [bundles.bind(driver, bundles.LIBRARY_DIR)]
        ready.run(runtime, ["/bin/quiet"], mounts=mounts, options=options)
        outcome[name] = bundles.snapshot(driver) != before
    assert outcome == {"with": False, "without": True}
