# SPDX-License-Identifier: Apache-2.0
"""Field cases: where the driver's files are on a host, and where they go in a container."""

import asyncio
import posixpath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.host import cache, model, scan
from nri_nvidia.request import container as containers
from nri_nvidia.testing import host_spec, stubs
from tests import inventories

from . import harness
from .harness import LIBRARY_DIR, asked, capable, codes, decide

V = "550.54.14"
PLACES = {
    "FC-027 Talos": ("/usr/local/glibc/usr/lib", "/usr/local/bin"),
    "FC-030 COS": ("/home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia/bin"),
    "FC-031 Flatcar": (f"/opt/nvidia/{V}/usr/lib64", f"/opt/nvidia/{V}/usr/bin"),
    "FC-036 Yocto": ("/usr/lib", "/usr/bin"),
    "Debian": ("/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/nvidia/current"),
    "RHEL": ("/usr/lib64", "/usr/bin"),
}
UNRELATED = stubs.library_cache(
    [(f"libz{n}.so.1", f"/usr/lib/libz{n}.so.1", 64) for n in range(32)]
)


@pytest.fixture
def node(tree):
    """A host with one GPU and no driver files yet."""
    tree.module(V)
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.gpu("0000:01:00.0", 0, inventories.UUIDS[0])
    return tree


@pytest.mark.parametrize("cached", [None, UNRELATED, b"", b"junk"])
@pytest.mark.parametrize(("directory", "programs"), PLACES.values(), ids=PLACES)
def test_driver_is_found_without_the_cache(node, directory, programs, cached):
    """FC-027, FC-030, FC-031, FC-036: with no ld.so.cache, or one without the driver, all is found."""
    node.leading(directory, V)
    node.put(f"{programs}/nvidia-smi", b"#!/bin/sh\n", 0o755)
    node.library("/usr/lib/libz0.so.1")
    if cached is not None:
        node.put("/etc/ld.so.cache", cached)
    plan = decide(node.scan(), *asked("0"))
    assert plan.created, plan.reasons
    assert harness.libraries(plan) == {
        "libcuda.so.1": f"{directory}/libcuda.so.{V}",
        "libnvidia-ml.so.1": f"{directory}/libnvidia-ml.so.{V}",
    }
    assert harness.mounted(plan)[f"{LIBRARY_DIR}/bin/nvidia-smi"] == f"{programs}/nvidia-smi"
    args = plan.edits.hooks[0].args
    assert args[args.index("--link") + 1] == "nvidia-smi"  # into the PATH of a standard image


def test_a_board_with_one_library(node):
    """FC-036: libcuda alone is enough; the container has it by its SONAME."""
    node.module("35.4.1")
    node.library("/usr/lib/libcuda.so.35.4.1", "libcuda.so.1")
    plan = decide(node.scan(), *asked("all"))
    assert harness.libraries(plan) == {"libcuda.so.1": "/usr/lib/libcuda.so.35.4.1"}


def test_link_farm_leads_to_the_store(node):
    """FC-028: sources are the store's files, names plain; nothing of libc and nothing below /nix."""
    store = f"/nix/store/0abc-nvidia-x11-{V}/lib"
    node.library(f"{store}/libcuda.so.{V}", "libcuda.so.1", needed=["libc.so.6", "libm.so.6"])
    node.library(f"{store}/libnvidia-ml.so.{V}", "libnvidia-ml.so.1", needed=["libc.so.6"])
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        real = name.replace(".1", f".{V}")
        node.link(f"/run/opengl-driver/lib/{name}", f"{store}/{real}")
    for name in ("libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"):
        node.library(f"/nix/store/1glibc/lib/{name}")
        node.link(f"/run/opengl-driver/lib/{name}", f"/nix/store/1glibc/lib/{name}")
    plan = decide(node.scan(), *asked("0", capable("all")))
    assert harness.libraries(plan) == {
        "libcuda.so.1": f"{store}/libcuda.so.{V}",
        "libnvidia-ml.so.1": f"{store}/libnvidia-ml.so.{V}",
    }
    assert not [d for d in harness.mounted(plan) if d.startswith("/nix") or "libc.so" in d]


@pytest.mark.parametrize("loaded", [V, "535.183.01"])
def test_versioned_trees_are_chosen_by_the_module(node, loaded):
    """FC-031: of two trees the loaded module's is used, whichever that is."""
    node.module(loaded)
    for version in (V, "535.183.01"):
        node.leading(f"/opt/nvidia/{version}/usr/lib64", version)
    plan = decide(node.scan(), *asked("0"))
    source = harness.libraries(plan)["libcuda.so.1"]
    assert source == f"/opt/nvidia/{loaded}/usr/lib64/libcuda.so.{loaded}"


@pytest.mark.parametrize("there", ["nothing", "other version", "matching"])
def test_an_empty_driver_root(node, there):
    """FC-032: it is not ready, and says so by name; the host's own root serves if it matches."""
    node.at("/run/nvidia/driver/.keep").touch()
    for name in ("/dev/nvidia0", "/dev/nvidiactl"):
        node.node(name, 195, 0 if name.endswith("0") else 255)
    if there != "nothing":
        node.leading("/usr/lib64", V if there == "matching" else "570.86.15")
    root = f"{node.top}/run/nvidia/driver"
    found = scan.scan(node.live(driver_root=root))
    plan = decide(found, *asked("0", capable("utility")))
    assert root in found.problems[0].message
    if there == "matching":
        assert (plan.created, codes(plan)) == (True, ["driver-root-empty"])
        assert next(problem.code for problem in found.problems) == "driver-root-empty"
        assert harness.libraries(plan)["libnvidia-ml.so.1"].startswith(f"{node.top}/usr/lib64/")
    else:
        assert (plan.created, codes(plan)) == (False, ["driver-files-missing"])
        assert root in plan.reasons[-1].message


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_program_behind_alternatives(node, hops):
    """FC-034: the real file is mounted under the well-known name, however many links lead there."""
    node.leading("/usr/lib/x86_64-linux-gnu/nvidia/current", V)
    node.put("/usr/lib/nvidia/tesla/nvidia-smi", b"#!/bin/sh\n", 0o755)
    target = "/usr/lib/nvidia/tesla/nvidia-smi"
    for hop in range(hops - 1):
        node.link(f"/etc/alternatives/nvidia--{hop}", target)
        target = f"/etc/alternatives/nvidia--{hop}"
    node.link("/usr/bin/nvidia-smi", target)
    files = harness.mounted(decide(node.scan(), *asked("0")))
    assert files[f"{LIBRARY_DIR}/bin/nvidia-smi"] == "/usr/lib/nvidia/tesla/nvidia-smi"


ICD = "/usr/share/vulkan/icd.d/nvidia_icd.json"
EGL = "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"


@pytest.mark.parametrize("name", [ICD, EGL, "/usr/bin/nvidia-smi"])
@pytest.mark.parametrize("by_link", [False, True])
def test_a_file_that_is_gone_by_the_next_container(node, name, by_link):
    """FC-034: what was deleted, or dangles, is left out; the container is created."""
    node.leading("/usr/lib64", V)
    real = node.put("/opt/vendor/file" if by_link else name, b"{}", 0o755)
    if by_link:
        node.link(name, "/opt/vendor/file")
    kept = cache.Cache(node.recorded())
    before = harness.mounted(decide(kept.get(), *asked("0", capable("all"))))
    real.unlink()
    plan = decide(kept.get(), *asked("0", capable("all")))
    assert plan.created
    (gone,) = set(before) - set(harness.mounted(plan))
    assert posixpath.basename(gone) == posixpath.basename(name)


COPIES = ("/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib")


@pytest.mark.parametrize("first", COPIES)
@pytest.mark.parametrize("second", COPIES)
def test_two_copies_of_the_driver(node, first, second):
    """FC-035: the loaded version's copy is used for all libraries, the other one is reported."""
    node.leading(first, "535.183.01")
    node.leading(second, V)
    found = node.scan()
    plan = decide(found, *asked("0"))
    assert {path.rpartition("/")[0] for path in harness.libraries(plan).values()} == {second}
    (problem,) = [p for p in found.problems if p.code == "driver-second-copy"]
    assert "535.183.01" in problem.message


@pytest.mark.parametrize("what", ["nothing is there", "no program", "closed to users"])
def test_a_hook_that_could_not_run_is_given_to_nobody(together, live, what, place):
    """FC-038: with a hook that runtimes could not start GPU containers are refused, by that reason."""
    interpreter = place / "python3"
    if what != "nothing is there":
        interpreter.write_text("#!/bin/sh\nexit 3\n")
        interpreter.chmod(0o755 if what == "no program" else 0o700)
    config = place / "config.toml"
    config.write_text(f'hook.interpreter = "{interpreter}"\n')

    async def body(pair):
        said = await pair.refused(1, *asked("0"))
        assert str(interpreter) in said
        assert bytes(await pair.create(2, "PATH=/bin")) == b""
        (finding,) = [f for f in (await pair.status())["findings"] if "hook" in f["code"]]
        assert str(interpreter) in finding["message"]

    together(body, live(gpus=harness.gpus(1)), "--config", str(config))


def test_a_hook_that_is_taken_away_is_put_back(together, live):
    """FC-051: a cleaner that takes the hook's file does not fail the next container."""

    async def body(pair):
        for number in range(2):
            adjusted = await pair.create(number, *asked("0"))
            args = adjusted.hooks.create_container[0].args
            script = next(path for path in args if path.endswith("nri-nvidia-hook"))
            await asyncio.to_thread(harness.os.unlink, script)

    together(body, live(gpus=harness.gpus(1)))


def test_the_runtime_finds_each_part_of_the_hook_by_an_absolute_path():
    """FC-038, FC-051: nothing of the hook's command line is looked up in a PATH."""
    (hook,) = decide(inventories.EIGHT, *asked("0")).edits.hooks
    assert hook.path.startswith("/")
    assert hook.args[0] == hook.path
    assert hook.args[3].startswith("/")


def test_vulkan_without_its_loaders_file(node):
    """FC-039: with graphics asked, a driver whose ICD is missing is told; else nobody is bothered."""
    node.leading("/usr/lib64", V)
    node.library(f"/usr/lib64/libGLX_nvidia.so.{V}", "libGLX_nvidia.so.0")
    without_modeset = {"display-left-out", "modeset-left-out"}
    for capabilities, expected in (("graphics", ["vulkan-icd-missing"]), ("display", None),
                                   ("compute,utility", []), ("all", ["vulkan-icd-missing"])):  # fmt: skip
        plan = decide(node.scan(), *asked("0", capable(capabilities)))
        if expected is not None:
            told = [code for code in codes(plan) if code not in without_modeset]
            assert (plan.created, told) == (True, expected)
    node.put("/etc/vulkan/icd.d/nvidia_icd.json", b"{}")
    assert codes(decide(node.scan(), *asked("0", capable("graphics")))) == ["modeset-left-out"]


def user(destination, *options, kind="bind"):
    return containers.Mount(
        source="/srv/volume", destination=destination, type=kind, options=("rbind", *options)
    )


def full(tmp_path):
    return harness.built(tmp_path, gpus=harness.gpus(1))


@pytest.mark.parametrize("options", [(), ("ro",)])
@pytest.mark.parametrize("place", ["/usr/lib/x86_64-linux-gnu", "/nix", "/lib64", "/opt/driver"])
def test_a_users_directory_of_libraries_is_not_ours(tmp_path, place, options):
    """FC-029: nothing of ours goes into a library directory that the user has mounted."""
    plan = decide(full(tmp_path), *asked("0", capable("all")), mounts=(user(place, *options),))
    assert (plan.created, codes(plan)) == (True, [])
    assert not [d for d in harness.mounted(plan) if d.startswith(f"{place}/")]
    assert "libcuda.so.1" in harness.libraries(plan)


@pytest.mark.parametrize("place", ["/etc", "/etc/vulkan", "/lib/firmware", "/usr/share"])
@pytest.mark.parametrize("options", [(), ("ro",)])
def test_no_file_is_made_in_a_users_directory(tmp_path, place, options):
    """FC-029, FC-103: files with a place of their own stay out of the user's mounts, and it is said.

    To mount there, a runtime would leave an empty file in the user's directory, often the host's.
    """
    plan = decide(full(tmp_path), *asked("0", capable("all")), mounts=(user(place, *options),))
    if plan.created:
        assert not [d for d in harness.mounted(plan) if d.startswith(f"{place}/")]
        left = {c for c in codes(plan) if c != "vulkan-icd-missing"}
        assert left <= {"users-mount-kept", "loader-cache-hidden"}
        assert left or not [d for d in harness.mounted(decide(full(tmp_path / "x"), *asked("0")))
                            if d.startswith(f"{place}/")]  # fmt: skip


@pytest.mark.parametrize("place", ["/run", "/var/run", "/tmp", "/run/nvidia-persistenced"])
@pytest.mark.parametrize("options", [(), ("ro",)])
@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_a_socket_that_has_no_place_fails_nothing(tmp_path, place, options, kind):
    """FC-060, FC-103: with /run or /tmp mounted, read-only even, the container gets its GPU."""
    found = full(tmp_path)
    plan = decide(found, *asked("0"), mounts=(user(place, *options, kind=kind),))
    assert plan.created, plan.reasons
    assert "libcuda.so.1" in harness.libraries(plan)
    sockets = [d for d in harness.mounted(plan) if d.startswith(("/run/", "/tmp/"))]
    if options and place != "/tmp":
        assert not [d for d in sockets if d.startswith("/run/nvidia-persistenced")]
        assert "users-mount-kept" in codes(plan)
    elif not options:
        assert "/run/nvidia-persistenced/socket" in sockets


@pytest.mark.parametrize(
    "place", [LIBRARY_DIR, f"{LIBRARY_DIR}/lib64", f"{LIBRARY_DIR}/bin/nvidia-smi"]
)
def test_a_users_mount_at_our_place_is_kept(tmp_path, place):
    """FC-103: a mount of the user's at or above one of ours wins, and the reason names it."""
    plan = decide(full(tmp_path), *asked("0"), mounts=(user(place),))
    assert (plan.created, codes(plan)) == (True, ["users-mount-kept"])
    assert place in plan.reasons[0].message
    assert not [d for d in harness.mounted(plan) if f"{d}/".startswith(f"{place}/")]


def test_a_users_own_program_stays(tmp_path):
    """FC-103: nvidia-smi that the user mounts at /usr/bin is none of our destinations."""
    plan = decide(full(tmp_path), *asked("0"), mounts=(user("/usr/bin/nvidia-smi"),))
    assert plan.created
    assert "/usr/bin/nvidia-smi" not in harness.mounted(plan)


PARTS = st.sampled_from(["usr", "local", "nvidia", "lib64", "bin", "etc", "run", "lib", "firmware",
                         "share", "vulkan", "icd.d", "tmp", "var", "OpenCL", "vendors"])  # fmt: skip
MOUNTS = st.builds(
    lambda parts, options, kind: user("/" + "/".join(parts), *options, kind=kind),
    st.lists(PARTS, min_size=1, max_size=4),
    st.sampled_from([(), ("ro",)]),
    st.sampled_from(["bind", "tmpfs"]),
)
FILES = (
    *inventories.FILES,
    *(
        model.DriverFile(
            kind=model.FileKind.CONFIG,
            source=f"/usr/share/{name}",
            destination=f"/etc/{name}",
            capabilities=frozenset({"graphics", "compute"}),
        )
        for name in ("OpenCL/vendors/nvidia.icd", "vulkan/icd.d/nvidia_icd.json")
    ),
)


@settings(max_examples=300)
@given(mounts=st.lists(MOUNTS, max_size=4, unique_by=lambda mount: mount.destination))
def test_no_mount_of_a_user_is_covered_or_written_to(mounts):
    """FC-029, FC-103: whatever a user has mounted, no mount of ours is at its place or fails on it."""
    found = inventories.with_gpus(inventories.gpu(0), files=FILES)
    plan = decide(found, *asked("0", capable("all")), mounts=tuple(mounts))
    if not plan.created:
        assert codes(plan) == ["no-place-for-driver-files"]
        above = [m for m in mounts if "ro" in m.options]
        assert any(f"{LIBRARY_DIR}/".startswith(f"{m.destination}/") for m in above)
        return
    for destination in harness.mounted(plan):
        for mount in mounts:
            assert destination != mount.destination
            if destination.startswith(f"{mount.destination}/"):
                assert "ro" not in mount.options
                own = destination.startswith(f"{LIBRARY_DIR}/")
                assert own or mount.type == "tmpfs" or destination.startswith(("/run/", "/tmp/"))


def test_32_bit_libraries_are_told_by_their_header(node):
    """FC-065: with compat32 both are given, to different places; without it the 64-bit one."""
    node.leading("/usr/lib/x86_64-linux-gnu", V)
    node.leading("/usr/lib/i386-linux-gnu", V, bits=32)
    node.library("/usr/lib/x86_64-linux-gnu/odd/libcuda.so.1")
    found = node.scan()
    plain = decide(found, *asked("0", capable("compute")))
    assert [d for d in harness.mounted(plain) if "libcuda" in d] == [
        f"{LIBRARY_DIR}/lib64/libcuda.so.1"
    ]
    both = harness.mounted(decide(found, *asked("0", capable("compute,compat32"))))
    assert {d: s for d, s in both.items() if "libcuda" in d} == {
        f"{LIBRARY_DIR}/lib64/libcuda.so.1": f"/usr/lib/x86_64-linux-gnu/libcuda.so.{V}",
        f"{LIBRARY_DIR}/lib32/libcuda.so.1": f"/usr/lib/i386-linux-gnu/libcuda.so.{V}",
    }


@pytest.mark.parametrize("swap", [False, True])
def test_word_size_is_not_the_directorys(node, swap):
    """FC-065: libraries in each other's directories go where their ELF class says."""
    places = ["/usr/lib64", "/usr/lib32"]
    wide, narrow = reversed(places) if swap else places
    node.leading(wide, V)
    node.leading(narrow, V, bits=32)
    plan = decide(node.scan(), *asked("0", capable("compute,compat32")))
    assert harness.libraries(plan)["libcuda.so.1"].startswith(f"{wide}/")
    assert harness.libraries(plan, 32)["libcuda.so.1"].startswith(f"{narrow}/")


def test_an_absent_driver_is_the_reason_for_every_layout(tmp_path):
    """FC-032: a loaded module without any files is refused by where they were looked for."""
    for layout in host_spec.LAYOUTS:
        found = harness.built(tmp_path / layout, gpus=harness.gpus(1), layout=layout, libraries="",
                              nvml=False)  # fmt: skip
        plan = decide(found, *asked("0"))
        assert plan.decision is pipeline.Decision.ERROR
        assert "host.driver_root" in plan.reasons[-1].hint


@pytest.mark.parametrize("value", ["all", "none", "void", "0"])
def test_windows_subsystem(tree, value):
    """FC-033: told by /dev/dxg; both directories' files; none without the node, void nothing."""
    tree.put("/dev.nodes", "c 10 125 0666 0 0 /dev/dxg\n")
    for name in ("libdxcore.so", "libcuda.so.1"):
        tree.library(f"/usr/lib/wsl/lib/{name}")
    tree.put("/usr/lib/wsl/lib/nvidia-smi", b"#!/bin/sh\n", 0o755)
    loader = "/usr/lib/wsl/drivers/nv_x.inf_1/libcuda_loader.so"
    tree.library(loader)
    plan = decide(tree.scan(), *asked(value))
    assert plan.created, plan.reasons
    assert harness.nodes(plan) == ([] if value in {"none", "void"} else ["/dev/dxg"])
    given = harness.mounted(plan)
    if value == "void":
        assert given == {}
        return
    assert given[loader] == loader
    assert given[f"{LIBRARY_DIR}/bin/nvidia-smi"] == "/usr/lib/wsl/lib/nvidia-smi"
    assert set(harness.libraries(plan)) == {"libdxcore.so", "libcuda.so.1"}
