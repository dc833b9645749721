# SPDX-License-Identifier: Apache-2.0
"""Where distributions and installers keep the driver, as people met it."""

import pytest

from nri_nvidia.host import scan
from nri_nvidia.host.model import FileKind
from nri_nvidia.testing import stubs

V = "550.54.14"


def cuda(inventory) -> str:
    return next(file.source for file in inventory.files if file.names[:1] == ("libcuda.so.1",))


@pytest.mark.parametrize(
    ("directory", "layout"),
    [
        ("/usr/lib/x86_64-linux-gnu/nvidia/current", "debian"),
        ("/usr/lib/x86_64-linux-gnu/nvidia/tesla-470", "debian"),
        ("/usr/lib/x86_64-linux-gnu", "ubuntu"),
        ("/usr/lib64", "rhel"),
        ("/usr/lib64/nvidia", "rhel"),
        ("/usr/lib", "generic"),
        ("/usr/lib/nvidia-384", "generic"),
        ("/lib64", "rhel"),
        ("/usr/local/glibc/usr/lib", "talos"),
        ("/home/kubernetes/bin/nvidia/lib64", "cos"),
        (f"/opt/nvidia/{V}/usr/lib64", "flatcar"),
    ],
)
def test_known_directories_need_no_cache(tree, directory, layout):
    """The driver is found in each usual directory without ld.so.cache or ldconfig."""
    tree.module(V)
    tree.leading(directory, V)
    inventory = tree.scan()
    assert cuda(inventory) == f"{directory}/libcuda.so.{V}"
    assert (inventory.libraries_version, inventory.layout) == (V, layout)


def test_unusual_directory_is_found_by_the_cache(tree):
    """ld.so.cache leads to directories that nobody would guess."""
    tree.module(V)
    tree.leading("/srv/odd", V)
    tree.put(
        "/etc/ld.so.cache",
        stubs.library_cache([("libcuda.so.1", f"/srv/odd/libcuda.so.{V}", 64)]),
    )
    assert cuda(tree.scan()) == f"/srv/odd/libcuda.so.{V}"


def test_damaged_cache_falls_back_to_directories(tree):
    """A cache cut in half gives no exception and no odd path."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    lines = [("libcuda.so.1", f"/gone/{number}/libcuda.so.1", 64) for number in range(20)]
    data = stubs.library_cache(lines)
    tree.put("/etc/ld.so.cache", data[: len(data) // 2])
    inventory = tree.scan()
    assert cuda(inventory) == f"/usr/lib64/libcuda.so.{V}"
    assert inventory.problems == ()


def test_nixos_link_farm_leads_to_the_store(tree):
    """Absolute links resolve inside the tree, the source is the store's file, no libc comes in."""
    tree.module(V)
    store = f"/nix/store/abc-nvidia-x11-{V}/lib"
    tree.leading(store, V)
    tree.link("/run/opengl-driver/lib", store)
    tree.link(f"{store}/libcuda.so.1", f"libcuda.so.{V}")
    tree.library(f"{store}/libc.so.6")
    inventory = tree.scan()
    assert cuda(inventory) == f"{store}/libcuda.so.{V}"
    assert inventory.layout == "nixos"
    assert all("libc.so" not in file.source for file in inventory.files)


def test_debian_alternatives_lead_to_the_real_program(tree):
    """/usr/bin/nvidia-smi by /etc/alternatives is given as the real file, by its usual name."""
    tree.module(V)
    tree.leading("/usr/lib/x86_64-linux-gnu/nvidia/current", V)
    tree.put("/usr/lib/nvidia/current/nvidia-smi", b"#!", 0o755)
    tree.link("/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    tree.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
    (smi,) = (file for file in tree.scan().files if file.kind is FileKind.BINARY)
    assert (smi.source, smi.names) == ("/usr/lib/nvidia/current/nvidia-smi", ("nvidia-smi",))


def test_programs_of_the_libraries_flavour_go_first(tree):
    """With two flavours installed, nvidia-smi is that of the version in use."""
    tree.module("470.256.02")
    tree.leading("/usr/lib/x86_64-linux-gnu/nvidia/current", V)
    tree.leading("/usr/lib/x86_64-linux-gnu/nvidia/tesla-470", "470.256.02")
    for flavour in ("current", "tesla-470"):
        tree.put(f"/usr/lib/nvidia/{flavour}/nvidia-smi", b"#!", 0o755)
    tree.link("/usr/bin/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    (smi,) = (file for file in tree.scan().files if file.kind is FileKind.BINARY)
    assert smi.source == "/usr/lib/nvidia/tesla-470/nvidia-smi"


def test_program_that_cannot_be_run_is_none(tree):
    """A file without an x bit and a directory of the name are no programs."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    tree.put("/usr/bin/nvidia-smi", b"#!", 0o644)
    tree.put("/usr/bin/nvidia-debugdump/x")
    assert [f for f in tree.scan().files if f.kind is FileKind.BINARY] == []


def test_the_current_tree_of_flatcar(tree):
    """A tree that is not called like its version is found by the link to it."""
    tree.module(V)
    tree.leading("/opt/nvidia/nvidia-lts/usr/lib64", V)
    tree.put("/opt/nvidia/nvidia-lts/usr/bin/nvidia-smi", b"#!", 0o755)
    tree.link("/opt/nvidia/current", "nvidia-lts")
    inventory = tree.scan()
    assert cuda(inventory) == f"/opt/nvidia/nvidia-lts/usr/lib64/libcuda.so.{V}"
    assert [f.source for f in inventory.files if f.kind is FileKind.BINARY] == [
        "/opt/nvidia/nvidia-lts/usr/bin/nvidia-smi"
    ]


def test_versioned_tree_is_chosen_by_the_module(tree):
    """Of two trees below /opt/nvidia the loaded version's is used."""
    tree.module(V)
    for version in ("535.183.01", V):
        tree.leading(f"/opt/nvidia/{version}/usr/lib64", version)
        tree.put(f"/opt/nvidia/{version}/usr/bin/nvidia-smi", b"#!", 0o755)
    inventory = tree.scan()
    assert cuda(inventory) == f"/opt/nvidia/{V}/usr/lib64/libcuda.so.{V}"
    assert [f.source for f in inventory.files if f.kind is FileKind.BINARY] == [
        f"/opt/nvidia/{V}/usr/bin/nvidia-smi"
    ]


def test_board_with_a_single_library_is_enough(tree):
    """A small system with one libcuda and no cache is served by the directory scan."""
    tree.library("/usr/lib/libcuda.so.35.4.1", "libcuda.so.1")
    inventory = tree.scan()
    assert (cuda(inventory), inventory.libraries_version) == (
        "/usr/lib/libcuda.so.35.4.1",
        "35.4.1",
    )


def test_libraries_and_nodes_may_have_different_roots(tree, tmp_path):
    """Sources are below the driver root, nodes below the dev root, paths in a container plain."""
    driver = "/run/nvidia/driver"
    tree.module(V)
    tree.majors(nvidia=195)
    tree.gpu("0000:07:00.0", 0, "GPU-836c0c09-2b1d-4d5a-9b7e-0123456789ab")
    tree.leading(f"{driver}/usr/lib64", V)
    tree.node("/dev/nvidia0", 195, 0)
    inventory = scan.scan(tree.live(driver_root=f"{tree.top}{driver}"))
    assert cuda(inventory) == f"{tree.top}{driver}/usr/lib64/libcuda.so.{V}"
    assert inventory.gpus[0].node.path == "/dev/nvidia0"
    assert inventory.gpus[0].node.host_path == f"{tree.top}/dev/nvidia0"


def test_empty_driver_root_is_not_ready(tree):
    """A driver root that exists but holds nothing gives a problem, and no files."""
    tree.module("999.99.99")
    tree.at("/run/nvidia/driver/x")
    inventory = scan.scan(tree.live(driver_root=f"{tree.top}/run/nvidia/driver"))
    assert inventory.files == ()
    assert "driver-libraries-missing" in {p.code for p in inventory.problems}


def test_empty_driver_root_gives_way_to_a_fitting_host(tree):
    """Where the host's own root has the module's version, that is used, and it is said."""
    tree.module(V)
    tree.at("/run/nvidia/driver/x")
    options = tree.live(driver_root=f"{tree.top}/run/nvidia/driver")
    tree.leading("/usr/lib64", V)
    inventory = scan.scan(options)
    assert cuda(inventory) == f"{tree.top}/usr/lib64/libcuda.so.{V}"
    assert [problem.code for problem in inventory.problems] == ["driver-root-empty"]


def test_firmware_is_found_in_the_kernels_order(tree):
    """`updates` goes before the plain directory; only the GSP's files of this version count."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    tree.link("/lib", "usr/lib")
    tree.put(f"/usr/lib/firmware/nvidia/{V}/gsp_ga10x.bin")
    tree.put(f"/usr/lib/firmware/nvidia/{V}/gsp_tu10x.bin")
    tree.put(f"/usr/lib/firmware/nvidia/{V}/other.bin")
    tree.put("/usr/lib/firmware/nvidia/535.1.1/gsp_old.bin")
    tree.put(f"/usr/lib/firmware/updates/nvidia/{V}/gsp_ga10x.bin")
    found = [f for f in tree.scan().files if f.kind is FileKind.FIRMWARE]
    assert [(f.source, f.destination) for f in found] == [
        (
            f"/usr/lib/firmware/updates/nvidia/{V}/gsp_ga10x.bin",
            f"/lib/firmware/updates/nvidia/{V}/gsp_ga10x.bin",
        ),
        (
            f"/usr/lib/firmware/nvidia/{V}/gsp_tu10x.bin",
            f"/lib/firmware/nvidia/{V}/gsp_tu10x.bin",
        ),
    ]
    assert all(file.capabilities == frozenset() for file in found)


def test_firmware_path_of_the_kernels_parameter_goes_first(tree):
    """/sys/module/firmware_class/parameters/path is looked at before all others."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    tree.put("/sys/module/firmware_class/parameters/path", "/srv/firmware\n")
    for top in ("/srv/firmware", "/lib/firmware"):
        tree.put(f"{top}/nvidia/{V}/gsp_ga10x.bin")
    found = [f.source for f in tree.scan().files if f.kind is FileKind.FIRMWARE]
    assert found == [f"/srv/firmware/nvidia/{V}/gsp_ga10x.bin"]


def test_loader_files_go_to_their_standard_place(tree):
    """A Vulkan ICD below /usr/share is placed below /etc; one that is gone is no error."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    tree.put("/usr/share/vulkan/icd.d/nvidia_icd.json", "{}")
    tree.put("/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1")
    tree.link("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/etc/alternatives/gone")
    found = [f for f in tree.scan().files if f.kind is FileKind.CONFIG]
    assert [(f.source, f.destination, set(f.capabilities)) for f in found] == [
        ("/etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd", {"compute"}),
        (
            "/usr/share/vulkan/icd.d/nvidia_icd.json",
            "/etc/vulkan/icd.d/nvidia_icd.json",
            {"graphics"},
        ),
    ]


NAMED = {
    "OpenCL/vendors/nvidia.icd": ("/etc", "{}\n", "libnvidia-opencl.so.1"),
    "vulkan/icd.d/nvidia_icd.json": ("/usr/share", '{{"ICD": {{"library_path": "{}"}}}}',
                                     "libGLX_nvidia.so.0"),
    "vulkan/implicit_layer.d/nvidia_layers.json": (
        "/usr/share", '{{"layer": {{"library_path": "{}"}}}}', "libGLX_nvidia.so.0"),
    "glvnd/egl_vendor.d/10_nvidia.json": ("/usr/share", '{{"ICD": {{"library_path": "{}"}}}}',
                                          "libEGL_nvidia.so.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("whole", [True, False])
def test_library_named_by_a_loaders_file(tree, name, whole):
    """One that is named by its whole path, as in NixOS, is at that path in a container, too."""
    top, text, library = NAMED[name]
    place = f"/nix/store/abc-nvidia-x11-{V}/lib"
    tree.module(V)
    tree.leading("/usr/lib64", V)
    tree.library(f"{place}/{library}.{V}", library)
    tree.link(f"{place}/{library}", f"{library}.{V}")
    tree.put(f"{top}/{name}", text.format(f"{place}/{library}" if whole else library))
    listed = [file for file in tree.scan().files if file.kind is FileKind.LISTED]
    assert [(file.source, file.destination) for file in listed] == (
        [(f"{place}/{library}.{V}", f"{place}/{library}")] if whole else []
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"ICD": 3}', '{"ICD": {"library_path": ["/x.so"]}}', "/etc/shadow\n",
     '{"ICD": {"library_path": "/etc/shadow"}}', '{"ICD": {"library_path": "/gone/libcuda.so.1"}}',
     '{"ICD": {"library_path": "/usr/lib64"}}', "/usr/lib64/libc.so.6\n", "{" * 100_000],
)  # fmt: skip
def test_a_loaders_file_that_names_no_library_of_the_driver(tree, text):
    """Nothing but a file of the driver's names is given for what such a file says."""
    tree.module(V)
    tree.leading("/usr/lib64", V)
    tree.library("/usr/lib64/libc.so.6")
    tree.put("/etc/shadow", "secret")
    tree.put("/usr/share/vulkan/icd.d/nvidia_icd.json", text)
    tree.put("/etc/OpenCL/vendors/nvidia.icd", text)
    assert [file for file in tree.scan().files if file.kind is FileKind.LISTED] == []
