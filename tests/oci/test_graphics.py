# SPDX-License-Identifier: Apache-2.0
"""What the hook makes for programs that draw: links to modules, and the application profile."""

import pytest

from . import bundles

OWN = f"usr/lib/{bundles.MULTIARCH}"
GBM = "gbm/nvidia-drm_gbm.so"
DRIVER = "xorg/modules/drivers/nvidia_drv.so"
PLACES = ["--place", f"{GBM}=lib64/libcuda.so.1", "--place", f"{DRIVER}=lib64/libnvidia-ml.so.1"]
PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"


def target(path):
    return path.readlink().as_posix()


def test_modules_of_a_debian_image(case, runtime):
    """libgbm's backend goes beside libgbm, X's driver where Debian's X looks; both lead to files."""
    case.make("debian")
    (case.root / OWN).mkdir(parents=True)
    (case.root / OWN / "libgbm.so.1").write_bytes(b"")
    (case.root / "usr/lib/xorg/modules").mkdir(parents=True)
    result = case.run(runtime, options=PLACES)
    assert (result.status, result.errors) == (0, "")
    assert target(case.root / OWN / GBM) == f"{bundles.LIBRARY_DIR}/lib64/libcuda.so.1"
    assert target(case.root / "usr/lib" / DRIVER).endswith("/lib64/libnvidia-ml.so.1")
    assert not (case.root / OWN / "xorg").exists()
    assert not (case.root / "usr/lib/gbm").exists()


def test_modules_of_a_fedora_image(case, runtime):
    """There both are below lib64."""
    case.make("fedora")
    for name in ("gbm", "xorg/modules/drivers"):
        (case.root / "usr/lib64" / name).mkdir(parents=True)
    assert case.run(runtime, options=PLACES).errors == ""
    assert (case.root / "usr/lib64" / GBM).is_symlink()
    assert (case.root / "usr/lib64" / DRIVER).is_symlink()
    assert not (case.root / "usr/lib").exists()


def test_an_image_without_a_use_for_modules(case, runtime):
    """Where neither libgbm nor X is, no directory is made."""
    before = {*case.make("debian").root.rglob("*")}
    assert case.run(runtime, options=PLACES).errors == ""
    made = {str(path.relative_to(case.root)) for path in {*case.root.rglob("*")} - before}
    assert not [path for path in made if "gbm" in path or "xorg" in path]


def test_a_module_of_the_images_own_stays(case):
    """What is there is kept, a link that leads nowhere too; the other one is made."""
    case.make("debian").put_driver_in_root()
    (case.root / OWN / "gbm").mkdir(parents=True)
    (case.root / OWN / GBM).symlink_to("own")
    (case.root / "usr/lib/xorg").mkdir()
    assert case.direct(*PLACES).report["ok"]
    assert target(case.root / OWN / GBM) == "own"
    assert (case.root / "usr/lib" / DRIVER).is_symlink()


@pytest.mark.parametrize("where", [f"{OWN}/gbm", OWN, "usr/lib/xorg", "usr/lib/xorg/modules"])
@pytest.mark.parametrize("how", ["/{}", "../../../../../../..{}", "/proc/1/root{}"])
def test_a_module_is_never_linked_outside_the_image(case, runtime, where, how):
    """Directories of the image that lead to the host's get their links inside the image, or none."""
    case.make("debian")
    outside = case.place / "outside"
    for name in ("gbm", "xorg/modules/drivers", "modules/drivers", "drivers"):
        (outside / name).mkdir(parents=True)
    (outside / "libgbm.so.1").write_bytes(b"")
    link = case.root / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(how.format(outside))
    before = bundles.snapshot(outside)
    case.run(runtime, options=PLACES)
    assert bundles.snapshot(outside) == before


def test_a_module_that_was_not_given(case):
    """A link to a file that is not in the driver's directory is not made."""
    case.make("debian").put_driver_in_root()
    (case.root / OWN / "gbm").mkdir(parents=True)
    assert case.direct("--place", f"{GBM}=lib64/libnone.so.1").report["ok"]
    assert not (case.root / OWN / GBM).is_symlink()


@pytest.mark.parametrize("text", ["", "a=b", "a/b", "a/b=", "../a/b=c", "a/b=../c", "/a/b=c"])
def test_only_places_below_can_be_named(case, text):
    """A place has a directory of its own, and neither part leads out."""
    case.make("debian").put_driver_in_root()
    result = case.direct("--place", text)
    assert f"--place does not take {text!r}" in result.errors


def test_the_profile_names_the_gpus(case, runtime):
    """The driver's file holds the mask; everybody can read it and its owner alone is root."""
    assert case.make("debian").run(runtime, options=["--profile", "8001"]).step("profile")["ok"]
    text = (case.root / PROFILE).read_text()
    assert text == (
        '{"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x8001]}],'
        '"rules":[{"pattern":[],"profile":"_container_"}]}'
    )
    assert (case.root / PROFILE).stat().st_mode & 0o777 == 0o444


def test_a_profile_of_the_image_is_replaced(case):
    """A file and a link at its name give way, and what the link led to is as it was."""
    case.make("debian").put_driver_in_root()
    (case.root / PROFILE).parent.mkdir(parents=True)
    (case.root / "etc/own").write_text("own")
    (case.root / PROFILE).symlink_to("../../own")
    assert case.direct("--profile", "1").report["ok"]
    assert "0x1]" in (case.root / PROFILE).read_text()
    assert (case.root / "etc/own").read_text() == "own"


def test_a_profiles_directory_cannot_lead_out(case):
    """A link of the image's is followed inside its root only."""
    case.make("debian").put_driver_in_root()
    outside = case.place / "outside"
    outside.mkdir()
    (case.root / "etc/nvidia").symlink_to(outside)
    result = case.direct("--profile", "1")
    assert not result.step("profile")["ok"]
    assert list(outside.iterdir()) == []


def test_no_gpu_no_profile(case, runtime):
    """Without the option there is neither the file nor the step."""
    result = case.make("debian").run(runtime)
    assert "profile" not in [step["name"] for step in result.report["steps"]]
    assert not (case.root / "etc/nvidia").exists()


@pytest.mark.parametrize("text", ["", "0x1", "1G", "FF", "1" * 17, "-1"])
def test_only_a_mask_is_taken(case, text):
    """It is a hexadecimal number of at most 64 bits, without a prefix."""
    case.make("debian").put_driver_in_root()
    assert f"--profile does not take {text!r}" in case.direct("--profile", text).errors
