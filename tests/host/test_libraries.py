# SPDX-License-Identifier: Apache-2.0
import pytest

from nri_nvidia.host import libraries
from nri_nvidia.host.model import FileKind
from nri_nvidia.host.root import Root
from nri_nvidia.testing import stubs

LIB = "/usr/lib/x86_64-linux-gnu"
V = "550.163.01"


def find(tree, module=V, paths=()):
    return libraries.find(Root(str(tree.top), True), paths, module)


def sources(found) -> dict[str, str]:
    return {file.names[0]: file.source for file in found.files}


def codes(found) -> list[str]:
    return [problem.code for problem in found.problems]


def test_files_of_the_loaded_version_are_chosen(tree):
    """Of two installed versions the module's is used for every library, the other reported."""
    tree.leading("/usr/lib", "535.183.01")
    tree.library("/usr/lib/libnvidia-encode.so.535.183.01", "libnvidia-encode.so.1")
    tree.leading(LIB, V)
    found = find(tree)
    assert sources(found) == {
        "libcuda.so.1": f"{LIB}/libcuda.so.{V}",
        "libnvidia-ml.so.1": f"{LIB}/libnvidia-ml.so.{V}",
    }
    assert codes(found) == ["driver-second-copy"]
    assert "also found 535.183.01" in found.problems[0].message


def test_version_that_does_not_fit_the_module_gives_no_files(tree):
    """The problem names both versions and what to do; nothing is mixed in."""
    tree.leading(LIB, "570.133.07")
    found = find(tree, "570.124.06")
    assert (found.files, found.version, codes(found)) == (
        (),
        "570.133.07",
        ["driver-version-mismatch"],
    )
    assert "570.124.06" in found.problems[0].message
    assert "570.133.07" in found.problems[0].message
    assert "reboot or reload" in found.problems[0].hint


def test_without_a_module_the_installed_version_is_used(tree):
    """A tree of libraries alone has the version of its libcuda."""
    tree.leading(LIB, V)
    assert find(tree, "").version == V


def test_no_libraries_at_all_is_a_problem_only_with_a_module(tree):
    """A loaded module without files is reported; a host without either is a CPU node."""
    assert codes(find(tree)) == ["driver-libraries-missing"]
    assert codes(find(tree, "")) == []


def test_broken_soname_link_does_not_matter_where_the_file_is(tree):
    """libcuda.so.1 may point to a removed version; the file is used and offered by SONAME."""
    tree.leading(LIB, "575.64")
    tree.link(f"{LIB}/libcuda.so.1", "libcuda.so.575.57.08")
    found = find(tree, "575.64")
    assert sources(found)["libcuda.so.1"] == f"{LIB}/libcuda.so.575.64"
    assert codes(found) == []


def test_broken_link_is_reported_where_nothing_else_is(tree):
    """With no file of a library left, its dangling link is a problem that names it."""
    tree.leading(LIB, V)
    tree.link(f"{LIB}/libnvidia-encode.so.1", f"libnvidia-encode.so.{V}")
    found = find(tree)
    assert codes(found) == ["driver-library-damaged"]
    assert f"{LIB}/libnvidia-encode.so.1" in found.problems[0].message


@pytest.mark.parametrize("data", [b"", b"not an object", stubs.shared_object("x")[:100]])
def test_damaged_file_is_never_given(tree, data):
    """An empty or cut library is left out and reported."""
    tree.leading(LIB, V)
    tree.put(f"{LIB}/libnvcuvid.so.{V}", data)
    found = find(tree)
    assert "libnvcuvid.so.1" not in sources(found)
    assert codes(found) == ["driver-library-damaged"]


@pytest.mark.parametrize("library", ["libcuda", "libnvidia-ml", "libnvcuvid"])
@pytest.mark.parametrize("data", [b"", b"not an object", None])
def test_a_32_bit_copy_does_not_hide_a_damaged_one(tree, library, data):
    """What is wrong is told of the file that programs need, with its path; None is a dead link."""
    tree.leading(LIB, V)
    tree.leading("/usr/lib/i386-linux-gnu", V, bits=32)
    tree.library(f"/usr/lib/i386-linux-gnu/libnvcuvid.so.{V}", "libnvcuvid.so.1", bits=32)
    path = f"{LIB}/{library}.so.{V}"
    tree.at(path).unlink(missing_ok=True)
    if data is None:
        path = f"{LIB}/{library}.so.1"
        tree.link(path, f"{library}.so.{V}")
    else:
        tree.put(path, data)
    found = find(tree)
    assert codes(found) == ["driver-library-damaged"]
    assert found.problems[0].message.startswith(f"{library} cannot be given to containers: {path}")


@pytest.mark.parametrize("library", ["libcuda", "libnvidia-ml"])
@pytest.mark.parametrize("link", [True, False])
def test_half_of_an_upgrade_is_told_as_one(tree, library, link):
    """Where the loaded version's file is gone and another's there, both are named, and a reboot."""
    tree.leading(LIB, V)
    tree.at(f"{LIB}/{library}.so.{V}").rename(tree.at(f"{LIB}/{library}.so.580.82.07"))
    if link:
        tree.link(f"{LIB}/{library}.so.1", f"{library}.so.{V}")
    (problem,) = (p for p in find(tree).problems if p.message.startswith(f"{library} "))
    assert f"of the driver {V} was not found" in problem.message
    assert problem.message.endswith("what is there of it is 580.82.07")
    assert problem.hint.startswith("reboot or reload")


def test_foreign_architecture_is_passed_over_silently(tree):
    """Cross-built copies for another machine are no problem and are not given."""
    tree.leading(LIB, V)
    tree.leading("/usr/lib/aarch64-linux-gnu", V, machine=stubs.EM_AARCH64)
    tree.library(f"/usr/lib64/libnvcuvid.so.{V}", "libnvcuvid.so.1", machine=stubs.EM_AARCH64)
    found = find(tree)
    assert sorted(sources(found)) == ["libcuda.so.1", "libnvidia-ml.so.1"]
    assert codes(found) == []


def test_recorded_host_of_another_architecture_uses_its_own(tree):
    """A recorded arm64 host's libraries are chosen on any machine."""
    tree.leading("/usr/lib/aarch64-linux-gnu", V, machine=stubs.EM_AARCH64)
    assert len(find(tree).files) == 2


def test_32_bit_libraries_are_a_kind_of_their_own(tree):
    """The word size in the file decides, not the directory."""
    tree.leading("/usr/lib64", V)
    tree.leading("/usr/lib", V, bits=32)
    found = find(tree)
    assert [(file.kind, file.source) for file in found.files] == [
        (FileKind.LIBRARY, f"/usr/lib64/libcuda.so.{V}"),
        (FileKind.LIBRARY, f"/usr/lib64/libnvidia-ml.so.{V}"),
        (FileKind.LIBRARY32, f"/usr/lib/libcuda.so.{V}"),
        (FileKind.LIBRARY32, f"/usr/lib/libnvidia-ml.so.{V}"),
    ]


def test_names_are_soname_then_what_programs_open(tree):
    """libcuda is also opened without a number; a library whose SONAME is its full name has it."""
    tree.leading(LIB, V)
    tree.library(f"{LIB}/libnvidia-glvkspirv.so.{V}")
    tree.library(f"{LIB}/libnvidia-opticalflow.so.{V}", "libnvidia-opticalflow.so.1")
    assert [file.names for file in find(tree).files] == [
        ("libcuda.so.1", "libcuda.so"),
        (f"libnvidia-glvkspirv.so.{V}",),
        ("libnvidia-ml.so.1", "libnvidia-ml.so"),
        ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
    ]


def test_library_without_soname_goes_by_its_file_name(tree):
    """No DT_SONAME: the file's own name is what a program opens."""
    tree.leading(LIB, V)
    tree.put(f"{LIB}/libnvidia-cbl.so.{V}", stubs.shared_object(""))
    assert sources(find(tree))[f"libnvidia-cbl.so.{V}"] == f"{LIB}/libnvidia-cbl.so.{V}"


def test_capabilities_follow_the_groups(tree):
    """Each library is selected by its group's capability."""
    tree.leading(LIB, V)
    for name in ("libnvcuvid", "libnvoptix", "libnvidia-ngx"):
        tree.library(f"{LIB}/{name}.so.{V}", f"{name}.so.1")
    assert {file.names[0]: set(file.capabilities) for file in find(tree).files} == {
        "libcuda.so.1": {"compute"},
        "libnvidia-ml.so.1": {"utility"},
        "libnvcuvid.so.1": {"video"},
        "libnvoptix.so.1": {"graphics"},
        "libnvidia-ngx.so.1": {"ngx"},
    }


def test_what_a_library_needs_comes_with_its_capabilities(tree):
    """Needs are followed through, also to driver files that no group names; libc is none."""
    tree.leading(LIB, V)
    tree.library(
        f"{LIB}/libEGL_nvidia.so.{V}",
        "libEGL_nvidia.so.0",
        needed=(f"libnvidia-glsi.so.{V}", "libc.so.6"),
    )
    tree.library(f"{LIB}/libnvidia-glsi.so.{V}", needed=(f"libnvidia-new.so.{V}", "libcuda.so.1"))
    tree.library(f"{LIB}/libnvidia-new.so.{V}", needed=("libc.so.6",))
    tree.library(f"{LIB}/libc.so.6")
    found = {file.names[0]: set(file.capabilities) for file in find(tree).files}
    assert found[f"libnvidia-new.so.{V}"] == {"graphics"}
    assert found["libcuda.so.1"] == {"compute", "graphics"}
    assert "libc.so.6" not in found


def test_needed_driver_file_that_is_missing_is_reported(tree):
    """A library that could not be loaded in the container is a problem naming both."""
    tree.leading(LIB, V)
    tree.library(f"{LIB}/libnvidia-eglcore.so.{V}", needed=(f"libnvidia-gpucomp.so.{V}",))
    (problem,) = find(tree).problems
    assert problem.code == "driver-library-missing"
    assert f"libnvidia-gpucomp.so.{V}" in problem.message
    assert f"libnvidia-eglcore.so.{V}" in problem.message


def test_libraries_with_a_version_of_their_own_are_taken(tree):
    """Some follow their own numbers; the newest is taken, once."""
    tree.leading(LIB, V)
    for version in ("1.1.9", "1.1.13"):
        tree.library(f"{LIB}/libnvidia-egl-wayland.so.{version}", "libnvidia-egl-wayland.so.1")
    tree.library(f"{LIB}/libnvidia-api.so.1", "libnvidia-api.so.1")
    found = sources(find(tree))
    assert found["libnvidia-egl-wayland.so.1"].endswith("1.1.13")
    assert found["libnvidia-api.so.1"] == f"{LIB}/libnvidia-api.so.1"


def test_own_version_never_lets_another_driver_in(tree):
    """A library with its own numbers is not taken from another driver's installation."""
    tree.leading(LIB, V)
    tree.library(f"{LIB}/libnvidia-nvvm.so.535.183.01", "libnvidia-nvvm.so.4")
    assert "libnvidia-nvvm.so.4" not in sources(find(tree))
    tree.library(f"{LIB}/libnvidia-nvvm.so.4.0.0", "libnvidia-nvvm.so.4")
    assert sources(find(tree))["libnvidia-nvvm.so.4"] == f"{LIB}/libnvidia-nvvm.so.4.0.0"


def test_vendor_neutral_names_are_the_drivers_only_by_what_they_need(tree):
    """libGL of a build without GLVND depends on the driver's core; GLVND's does not."""
    tree.leading(LIB, "340.108")
    tree.library(f"{LIB}/libnvidia-glcore.so.340.108")
    needed = ("libnvidia-glcore.so.340.108",)
    tree.library(f"{LIB}/libGL.so.340.108", "libGL.so.1", needed=needed)
    tree.library(f"{LIB}/libEGL.so.340.108", "libEGL.so.1")
    found = sources(find(tree, "340.108"))
    assert "libGL.so.1" in found
    assert "libEGL.so.1" not in found


def test_configured_directories_replace_the_search(tree):
    """With library_search_paths nothing else is looked at."""
    tree.leading(LIB, V)
    tree.leading("/srv/driver", V)
    found = find(tree, paths=("/srv/driver",))
    assert sources(found)["libcuda.so.1"] == f"/srv/driver/libcuda.so.{V}"
    assert found.directories == ("/srv/driver",)


def test_forward_compatibility_directory_is_no_driver(tree):
    """libcuda of a CUDA toolkit's compat directory is never the host's driver."""
    tree.library("/usr/local/cuda/compat/libcuda.so.560.35.05", "libcuda.so.1")
    cache = [("libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.560.35.05", 64)]
    tree.put("/etc/ld.so.cache", stubs.library_cache(cache))
    assert find(tree, "").version == ""


def test_library_of_a_later_driver_is_given(tree):
    """A name that no table knows counts by the loaded driver's version, with what computes or draws."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    for name in ("libnvidia-future", "libnvidia-gtk3", "libglxserver_nvidia"):
        tree.library(f"/usr/lib64/{name}.so.{V}")
    tree.library("/usr/lib64/libnvidia-past.so.535.183.01")
    found = {file.names[0]: file.capabilities for file in tree.scan().files}
    assert found.pop(f"libnvidia-future.so.{V}") == {"compute", "graphics"}
    assert set(found) == {"libcuda.so.1", "libnvidia-ml.so.1"}


def test_later_drivers_library_goes_with_what_needs_it(tree):
    """Where a known library needs the new one, it is selected by that one's capability alone."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    new = f"libnvidia-future.so.{V}"
    tree.library(f"/usr/lib64/{new}")
    tree.library(f"/usr/lib64/libnvidia-encode.so.{V}", "libnvidia-encode.so.1", needed=[new])
    found = {file.names[0]: file.capabilities for file in tree.scan().files}
    assert found[new] == {"video"}
