# SPDX-License-Identifier: Apache-2.0
"""Files that graphics needs besides libraries, where hosts keep them."""

import pytest

from nri_nvidia.host.model import FileKind

V = "550.54.14"
GLX = f"libglxserver_nvidia.so.{V}"
LIB64 = "/usr/lib64"
DEBIAN = "/usr/lib/x86_64-linux-gnu/nvidia/current"


@pytest.fixture
def node(tree):
    """A host with a driver's two leading libraries."""
    tree.module(V)
    tree.leading(LIB64, V)
    return tree


def found(tree, kind):
    return {
        file.source: file.destination or file.names
        for file in tree.scan().files
        if file.kind is kind
    }


@pytest.mark.parametrize(
    ("driver", "extension"),
    [
        (f"{LIB64}/nvidia/xorg", f"{LIB64}/nvidia/xorg"),
        (f"{LIB64}/xorg/modules/drivers", f"{LIB64}/xorg/modules/extensions"),
        (f"{LIB64}/xorg/modules/updates/drivers", f"{LIB64}/xorg/modules/updates/extensions"),
        ("/usr/lib/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions"),
        ("/usr/X11R6/lib64/modules/drivers", "/usr/X11R6/lib64/modules/extensions"),
    ],
)
def test_modules_of_the_x_server(node, driver, extension):
    """Both are found in each place where installers put them, the one by its version."""
    node.library(f"{driver}/nvidia_drv.so")
    node.library(f"{extension}/{GLX}", "libglxserver_nvidia.so")
    node.library(f"{extension}/libglxserver_nvidia.so.535.183.01")
    assert found(node, FileKind.XORG) == {
        f"{driver}/nvidia_drv.so": ("nvidia_drv.so",),
        f"{extension}/{GLX}": ("libglxserver_nvidia.so",),
    }


def test_modules_of_the_libraries_flavour_go_first(tree):
    """Of two flavours of Debian's the modules are those of the version in use."""
    tree.module(V)
    tree.leading("/usr/lib/x86_64-linux-gnu/nvidia/tesla-550", V)
    tree.leading(DEBIAN, "535.183.01")
    for flavour in ("current", "tesla-550"):
        tree.library(f"/usr/lib/nvidia/{flavour}/nvidia_drv.so")
    tree.link(
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so", "/usr/lib/nvidia/current/nvidia_drv.so"
    )
    assert list(found(tree, FileKind.XORG)) == ["/usr/lib/nvidia/tesla-550/nvidia_drv.so"]


@pytest.mark.parametrize(
    ("place", "inside"),
    [
        ("/usr/share/nvidia/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin"),
        (f"{DEBIAN}/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin"),
        ("/usr/local/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        ("/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        (
            "/etc/nvidia/current/nvidia-drm-outputclass.conf",
            "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
        ),
        (
            "/etc/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
            "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
        ),
    ],
)
def test_one_place_in_containers(tree, place, inside):
    """Wherever a distribution keeps it, with the flavour too, a container has it in one place."""
    tree.module(V)
    tree.leading(DEBIAN, V)
    tree.put(place, "text")
    assert found(tree, FileKind.CONFIG) == {place: inside}


def test_the_usual_name_goes_before_the_flavours(tree):
    """A file that the administrator has put at the usual name is the one, not the packaged one."""
    tree.module(V)
    tree.leading(DEBIAN, V)
    name = "nvidia-drm-outputclass.conf"
    tree.put(f"/etc/nvidia/current/{name}", "packaged")
    tree.put(f"/etc/X11/xorg.conf.d/{name}", "own")
    assert list(found(tree, FileKind.CONFIG)) == [f"/etc/X11/xorg.conf.d/{name}"]


@pytest.mark.parametrize(
    "names",
    [("nvidia_icd.json", "nvidia_icd.x86_64.json"), ("nvidia_icd.json", "nvidia_icd.json")],
)
def test_vulkan_is_told_of_the_driver_once(node, names):
    """An installer's file beside a package's: with both, programs would see each GPU twice."""
    for place, name in zip(("/etc", "/usr/share"), names, strict=True):
        node.put(f"{place}/vulkan/icd.d/{name}", "{}")
    assert list(found(node, FileKind.CONFIG).values()) == [f"/etc/vulkan/icd.d/{names[0]}"]


def test_optix_is_graphics(node):
    """The ray tracer's library, what it loads and its data come with graphics, and not else."""
    for name in ("libnvoptix", "libnvidia-rtcore"):
        node.library(f"{LIB64}/{name}.so.{V}", f"{name}.so.1")
    node.put("/usr/share/nvidia/nvoptix.bin", "data")
    chosen = [
        file.capabilities
        for file in node.scan().files
        if "optix" in file.source or "rtcore" in file.source
    ]
    assert chosen == [{"graphics"}] * 3


def test_the_allocator_serves_both(node):
    """CUDA's allocator is EGL's backend for GBM as well; only the 64-bit one is linked for that."""
    node.library(f"{LIB64}/libnvidia-allocator.so.{V}", "libnvidia-allocator.so.1")
    node.library(f"/usr/lib/libnvidia-allocator.so.{V}", "libnvidia-allocator.so.1", bits=32)
    files = {f.kind: f for f in node.scan().files if "allocator" in f.source}
    assert [file.capabilities for file in files.values()] == [{"compute", "graphics"}] * 2
    assert files[FileKind.LIBRARY].links == ("gbm/nvidia-drm_gbm.so",)
    assert files[FileKind.LIBRARY32].links == ()


@pytest.mark.parametrize("program", ["nvidia-xconfig", "nvidia-imex", "nvidia-imex-ctl"])
def test_programs_of_the_toolkit(node, program):
    """What only the toolkit gives of programs is given too."""
    node.put(f"/usr/bin/{program}", "#!", 0o755)
    assert found(node, FileKind.BINARY) == {f"/usr/bin/{program}": (program,)}


def test_library_without_a_version_in_its_name(node):
    """Some packages have libGLX_nvidia.so.0 itself: beside the driver it is one of its version."""
    needed = [f"libnvidia-glcore.so.{V}"]
    node.library(f"{LIB64}/libnvidia-glcore.so.{V}")
    node.library(f"{LIB64}/libGLX_nvidia.so.0", needed=needed)
    node.library("/usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.0")
    names = {file.names[0]: file.source for file in node.scan().files}
    assert names["libGLX_nvidia.so.0"] == f"{LIB64}/libGLX_nvidia.so.0"
    assert "libEGL_nvidia.so.0" not in names  # nothing tells what that one is of


def test_library_without_a_version_that_is_of_another(node):
    """What needs another driver's library is not taken, nor what has a versioned name beside it."""
    node.library(f"{LIB64}/libGLX_nvidia.so.0", needed=["libnvidia-glcore.so.535.183.01"])
    node.library(f"{LIB64}/libEGL_nvidia.so.0")
    node.library(f"{LIB64}/libEGL_nvidia.so.{V}", "libEGL_nvidia.so.0")
    sources = {file.source.rpartition("/")[2] for file in node.scan().files}
    assert sources & {"libGLX_nvidia.so.0", "libEGL_nvidia.so.0"} == set()
    assert f"libEGL_nvidia.so.{V}" in sources


def as_given(tree, version):
    """Write a driver as a container of ours has it: by SONAME, the version in the content alone."""
    place = "/usr/local/nvidia/lib64"
    tree.library(f"{place}/libcuda.so.1")
    path = tree.library(f"{place}/libnvidia-ml.so.1")
    path.write_bytes(path.read_bytes() + f"\0{version}\0".encode())
    tree.library(f"{place}/libnvidia-gpucomp.so.{version}")


def test_driver_that_was_given_to_this_host(tree):
    """A host that is a container of ours can give the driver on: nodes of clusters in containers."""
    tree.module(V)
    as_given(tree, V)
    inventory = tree.scan()
    assert inventory.problems == ()
    assert [file.names[0] for file in inventory.files] == [
        "libcuda.so.1", f"libnvidia-gpucomp.so.{V}", "libnvidia-ml.so.1",
    ]  # fmt: skip


def test_given_driver_of_another_version(tree):
    """One that does not hold the loaded version is none, and that is said."""
    tree.module("550.90.07")
    as_given(tree, V)
    inventory = tree.scan()
    assert inventory.files == ()
    assert [problem.code for problem in inventory.problems] == ["driver-libraries-missing"]
