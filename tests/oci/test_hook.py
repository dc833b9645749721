# SPDX-License-Identifier: Apache-2.0
"""What a container has after the hook, under each real runtime."""

import os
import shutil

import pytest

from . import bundles

LIB64 = f"{bundles.LIBRARY_DIR}/lib64"
OWN = f"/lib/{bundles.MULTIARCH}"


@pytest.mark.parametrize("kind", ["debian", "fedora"])
def test_a_program_finds_the_driver(case, runtime, kind):
    """A program that needs libcuda.so.1 starts, on images of both families."""
    result = case.make(kind).run(runtime)
    assert (result.status, result.errors) == (0, "")
    assert result.output.endswith("/driver/lib64/libcuda.so.1\n")
    found = bundles.cached(case.root)
    assert {name: found[name] for name in bundles.LIBRARIES} == {
        name: [f"{LIB64}/{name}"] for name in bundles.LIBRARIES
    }
    assert found["libc.so.6"] == [OWN + "/libc.so.6" if kind == "debian" else "/lib64/libc.so.6"]


NO_LDCONFIG = ("--ldconfig", "/none")


@pytest.mark.parametrize("kind", ["debian", "fedora"])
def test_a_program_finds_the_driver_without_ldconfig(case, runtime, kind):
    """In an image with a cache of its own the driver is found, and ldconfig is not needed."""
    case.make(kind)
    if kind == "fedora":  # whose ldconfig searches that anyway
        (case.root / "etc/ld.so.conf.d/own.conf").write_text("/lib64\n")
    bundles.ldconfig(case.root)
    before = bundles.cached(case.root)
    result = case.run(runtime, options=NO_LDCONFIG)
    assert (result.status, result.errors) == (0, "")
    assert result.output.endswith("/driver/lib64/libcuda.so.1\n")
    added = {name: [f"{LIB64}/{name}"] for name in bundles.LIBRARIES}
    assert bundles.cached(case.root) == {**before, **added}


def test_driver_files_mounted_one_by_one_without_ldconfig(case, runtime):
    """Each file being a mount of its own, all are listed, with the names that links give them."""
    case.make("debian")
    bundles.ldconfig(case.root)
    libraries = case.toolbox.driver / "lib64"
    mounts = [bundles.bind(libraries / name, f"{LIB64}/{name}") for name in bundles.LIBRARIES]
    options = [*NO_LDCONFIG, "--alias", "libcuda.so=libcuda.so.1"]
    result = case.run(runtime, mounts=mounts, options=options)
    assert result.step("ldcache")["ok"]
    found = bundles.cached(case.root)
    names = {*bundles.LIBRARIES, "libcuda.so"}
    assert {name: found[name] for name in names} == {name: [f"{LIB64}/{name}"] for name in names}


def test_links_of_modules_leave_the_images_cache_as_good(case):
    """A link that the hook makes in a folder's folder is no reason to run ldconfig."""
    folder = case.make("debian").put_driver_in_root().root / OWN[1:]
    bundles.make_library(folder / "libgbm.so.1")
    bundles.ldconfig(case.root)
    os.utime(folder, (1, 1))
    place = "gbm/nvidia-drm_gbm.so=lib64/libcuda.so.1"
    result = case.direct("--place", place, *NO_LDCONFIG)
    assert result.report["ok"], result.report
    assert (folder / "gbm/nvidia-drm_gbm.so").is_symlink()
    assert folder.stat().st_mtime == 1


def test_a_volume_of_the_user_makes_no_difference(case, runtime, place):
    """A mount in a folder that is searched is not looked into, by ldconfig or without it."""
    case.make("debian")
    bundles.ldconfig(case.root)
    volume = place / "volume"
    bundles.make_library(volume / "libown.so.1")
    mounts = [*case.driver, bundles.bind(volume, "/usr/lib", ["bind", "rw"])]
    result = case.run(runtime, mounts=mounts, options=NO_LDCONFIG)
    assert (result.status, result.errors) == (0, "")
    assert "libown.so.1" not in bundles.cached(case.root)


def test_the_report_tells_what_was_done(case, runtime):
    """One datagram holds token, container id, and the outcome of each step."""
    bundles.ldconfig(case.make("debian").root)
    report = case.run(runtime).report
    assert report is not None
    assert report.pop("id").startswith("nri-nvidia-test-")
    assert isinstance(report.pop("duration_ms"), int)
    steps = report.pop("steps")
    assert steps.pop(0)["name"] == "proc"
    names = ("view", "links", "ldcache")
    assert steps == [{"name": name, "ok": True, "message": ""} for name in names]
    assert report == {"token": "secret", "ok": True}


def test_the_report_tells_why_ldconfig_was_run(case):
    """A container that takes longer to start has a reason that can be read."""
    case.make("debian").put_driver_in_root()
    message = case.direct().step("ldcache")["message"]
    assert message == "ldconfig was run: the image has no /etc/ld.so.cache"


def test_the_files_it_makes(case, runtime):
    """Only the link, the drop-in, and the cache are new; all belong to root and can be read."""
    case.make("debian")
    before = {path for path in case.root.rglob("*") if not path.is_relative_to(case.root / "dev")}
    case.run(runtime)
    after = {path for path in case.root.rglob("*") if not path.is_relative_to(case.root / "dev")}
    names = {str(path.relative_to(case.root)) for path in after - before}
    made = {"etc/ld.so.cache", "etc/ld.so.conf.d/00-nri-nvidia.conf", "usr/bin/nvidia-smi"}
    assert names == made | {"usr/local", "usr/local/nvidia"}  # the latter by the runtime
    drop_in = case.root / "etc/ld.so.conf.d/00-nri-nvidia.conf"
    assert drop_in.read_text() == f"{LIB64}\n"
    assert drop_in.stat().st_mode & 0o777 == 0o644
    assert (case.root / "etc/ld.so.cache").stat().st_mode & 0o777 == 0o644
    assert (case.root / "usr/bin/nvidia-smi").readlink().as_posix() == (
        f"{bundles.LIBRARY_DIR}/bin/nvidia-smi"
    )


def test_driver_files_mounted_one_by_one(case, runtime):
    """Each file being a mount of its own, all are listed."""
    driver = case.toolbox.driver
    mounts = [
        bundles.bind(path, f"{bundles.LIBRARY_DIR}/{path.relative_to(driver)}")
        for path in sorted(driver.rglob("*"))
        if path.is_file()
    ]
    result = case.make("debian").run(runtime, mounts=mounts)
    assert (result.status, result.errors) == (0, "")
    assert set(bundles.LIBRARIES) < set(bundles.cached(case.root))


def test_further_names_of_a_library_are_listed(case, runtime):
    """With libraries mounted one by one a link gives libcuda.so.1 the name libcuda.so too."""
    libraries = case.toolbox.driver / "lib64"
    mounts = [bundles.bind(libraries / name, f"{LIB64}/{name}") for name in bundles.LIBRARIES]
    options = ["--alias", "libcuda.so=libcuda.so.1", "--alias", "libnone.so=libnone.so.1"]
    case.make("debian").run(runtime, mounts=mounts, options=options)
    assert (case.root / LIB64[1:] / "libcuda.so").readlink().as_posix() == "libcuda.so.1"
    found = bundles.cached(case.root)
    assert found["libcuda.so"] == [f"{LIB64}/libcuda.so"]
    assert "libnone.so" not in found
    assert not (case.root / LIB64[1:] / "libnone.so").is_symlink()


def test_32_bit_libraries_are_listed_where_they_are(case, runtime):
    """LIBRARY_DIR/lib32 has a line in the drop-in when the driver has such a directory."""
    driver = case.place / "driver"
    shutil.copytree(case.toolbox.driver, driver)
    (driver / "lib32").mkdir()
    mounts = [bundles.bind(driver, bundles.LIBRARY_DIR)]
    case.make("debian").run(runtime, mounts=mounts)
    drop_in = case.root / "etc/ld.so.conf.d/00-nri-nvidia.conf"
    assert drop_in.read_text() == f"{LIB64}\n{bundles.LIBRARY_DIR}/lib32\n"


def test_musl_keeps_its_own_path(case, runtime):
    """On Alpine the folder follows the image's entries in musl's path file; no cache is made."""
    case.make("musl")
    path = case.root / f"etc/ld-musl-{bundles.MACHINE}.path"
    path.write_text("/opt/x:/usr/lib\n")
    result = case.run(runtime, ["/bin/quiet"])
    assert (result.status, result.errors) == (0, "")
    assert path.read_text() == f"/opt/x:/usr/lib\n{LIB64}\n"
    assert not (case.root / "etc/ld.so.cache").exists()


def test_musl_without_a_path_file_keeps_its_defaults(case):
    """Without the file musl searches /lib, /usr/local/lib, /usr/lib; they stay, each once."""
    case.make("musl").put_driver_in_root()
    for _ in range(2):
        report = case.direct().report
        assert report["ok"]
        assert any("needs gcompat" in step["message"] for step in report["steps"])
    path = case.root / f"etc/ld-musl-{bundles.MACHINE}.path"
    assert path.read_text().split() == ["/lib", "/usr/local/lib", "/usr/lib", LIB64]


def test_musl_is_told_by_its_loader(case):
    """An image with musl's loader and nothing of glibc's is a musl image, whatever its name."""
    case.make("musl").put_driver_in_root()
    (case.root / "etc/alpine-release").unlink()
    assert case.direct().report["ok"]
    assert (case.root / f"etc/ld-musl-{bundles.MACHINE}.path").exists()


def test_an_image_without_a_loader_needs_nothing(case, runtime):
    """A static program in an otherwise empty image starts, and the root stays empty."""
    result = case.make("empty").run(runtime, ["/bin/quiet"])
    assert (result.status, result.errors) == (0, "")
    assert result.report["ok"]
    assert result.step("ldcache")["message"] == "this image has no loader of shared libraries"
    assert not (case.root / "etc").exists()


def test_an_image_with_a_loader_and_no_etc(case):
    """What glibc's loader needs is made in an image that has but the loader."""
    case.make("debian").put_driver_in_root()
    shutil.rmtree(case.root / "etc")
    assert case.direct().report["ok"]
    assert (case.root / "etc/ld.so.conf").read_text() == "include /etc/ld.so.conf.d/*.conf\n"
    assert set(bundles.LIBRARIES) < set(bundles.cached(case.root))


def test_the_images_own_libraries_resolve_as_before(case):
    """Names that an image has in several places keep their order, the driver's go first."""
    case.make("debian").put_driver_in_root()
    for folder in ("opt/first", "opt/second", "usr/lib"):
        for name in ("libown.so.1", "libcuda.so.1"):
            bundles.make_library(case.root / folder / name)
    (case.root / "etc/ld.so.conf.d/zz.conf").write_text("/opt/second\n/opt/first\n")
    bundles.ldconfig(case.root)
    before = bundles.cached(case.root)
    assert before["libown.so.1"] == ["/opt/second/libown.so.1", "/opt/first/libown.so.1",
                                     "/usr/lib/libown.so.1"]  # fmt: skip
    assert case.direct().report["ok"]
    after = bundles.cached(case.root)
    assert after.pop("libcuda.so.1") == [f"{LIB64}/libcuda.so.1", *before.pop("libcuda.so.1")]
    assert after.pop("libnvidia-ml.so.1") == [f"{LIB64}/libnvidia-ml.so.1"]
    assert after == before


def test_a_compat_drop_in_of_the_image_stays_first(case):
    """CUDA's forward compatibility, listed in 00-compat.conf or the like, beats the driver."""
    case.make("debian").put_driver_in_root()
    bundles.make_library(case.root / "usr/local/cuda/compat/libcuda.so.1")
    (case.root / "etc/ld.so.conf.d/00-cuda-compat.conf").write_text("/usr/local/cuda/compat\n")
    case.direct()
    assert bundles.cached(case.root)["libcuda.so.1"][0] == "/usr/local/cuda/compat/libcuda.so.1"


def test_a_configuration_that_includes_no_drop_ins(case):
    """The driver is listed too where the image's ld.so.conf includes nothing, and comes first."""
    case.make("debian").put_driver_in_root()
    bundles.make_library(case.root / "opt/own/libcuda.so.1")
    (case.root / "etc/ld.so.conf").write_text("/opt/own\n")
    case.direct()
    assert bundles.cached(case.root)["libcuda.so.1"] == [
        f"{LIB64}/libcuda.so.1",
        "/opt/own/libcuda.so.1",
    ]
    assert (case.root / "etc/ld.so.conf").read_text() == "/opt/own\n"


def test_a_later_ldconfig_in_the_container_keeps_the_driver(case):
    """The drop-in makes a user's own run of ldconfig list the same."""
    case.make("debian").put_driver_in_root()
    case.direct()
    before = bundles.cached(case.root)
    bundles.ldconfig(case.root)
    assert bundles.cached(case.root) == before


@pytest.mark.parametrize("target", ["/var/cache/own", "../var/cache/own", "/nowhere/at/all"])
def test_a_cache_that_is_a_link(case, target):
    """A link in the cache's place gives way to a cache that the loader reads."""
    case.make("debian").put_driver_in_root()
    (case.root / "var/cache").mkdir(parents=True)
    (case.root / "etc/ld.so.cache").symlink_to(target)
    assert case.direct().report["ok"]
    assert not (case.root / "etc/ld.so.cache").is_symlink()
    assert set(bundles.LIBRARIES) < set(bundles.cached(case.root))


def test_what_is_in_usr_bin_already_stays(case):
    """No file and no link in /usr/bin is replaced; that is no failure."""
    case.make("debian").put_driver_in_root()
    (case.root / "usr/bin/nvidia-smi").symlink_to("/opt/own")
    assert case.direct().step("links") == {"name": "links", "ok": True, "message": ""}
    assert (case.root / "usr/bin/nvidia-smi").readlink().as_posix() == "/opt/own"


def test_no_link_without_a_target(case):
    """A program that the driver directory lacks is named; the others are linked."""
    case.make("debian").put_driver_in_root()
    result = case.direct("--link", "nvidia-debugdump")
    message = "not linked, since /usr/local/nvidia/bin has no nvidia-debugdump"
    assert result.step("links") == {"name": "links", "ok": False, "message": message}
    assert (case.root / "usr/bin/nvidia-smi").is_symlink()
    assert not (case.root / "usr/bin/nvidia-debugdump").is_symlink()


def test_steps_can_be_skipped(case):
    """With --skip a step is neither done nor in the report."""
    case.make("debian").put_driver_in_root()
    result = case.direct("--skip", "proc", "--skip", "links", "--skip", "ldcache")
    assert [step["name"] for step in result.report["steps"]] == ["view"]
    assert not (case.root / "usr/bin/nvidia-smi").is_symlink()
    assert not (case.root / "etc/ld.so.cache").exists()


def test_a_read_only_container(case, runtime):
    """The root that the runtime itself makes read-only gets its cache all the same."""
    result = case.make("debian").run(
        runtime, change=lambda document: document["root"].update(readonly=True)
    )
    assert (result.status, result.errors) == (0, "")
    assert result.output.endswith("libcuda.so.1\n")


def test_many_hooks_on_one_root(case):
    """Hooks that run at once on the same root all succeed, and leave a whole cache."""
    case.make("debian").put_driver_in_root()
    (case.bundle / "config.json").write_text('{"root": {"path": "rootfs"}}')
    results = bundles.start_many(8, case.hook, f'{{"bundle": "{case.bundle}"}}')
    assert results == [(0, "")] * 8
    assert set(bundles.LIBRARIES) < set(bundles.cached(case.root))
    assert list(case.root.rglob(".nri-nvidia*")) == []
