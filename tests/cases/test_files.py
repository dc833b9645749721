# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of driver files, hooks, /proc and application profiles."""

import pytest

from nri_nvidia import pipeline
from nri_nvidia.edits import hooks, inside, model, options
from nri_nvidia.host import catalog, proc, root
from nri_nvidia.oci import procfs, steps
from nri_nvidia.request import container as containers
from nri_nvidia.testing import stubs
from tests.oci import bundles

from . import test_cases

VERSION = "550.163.01"
# What only the toolkit gives, or what is of no use without the other: beyond the old lists.
BEYOND = {
    "libnvidia-nvvm70": "mounted by the toolkit whatever its version",
    "libnvidia-sandboxutils": "the toolkit takes all of the driver's version",
    "libnvidia-api": "an option of the toolkit",
    "libnvidia-egl-gbm": "graphics files of the toolkit, as the next four",
    "libnvidia-egl-wayland": "",
    "libnvidia-egl-wayland2": "",
    "libnvidia-egl-xcb": "",
    "libnvidia-egl-xlib": "",
    "libnvidia-vulkan-producer": "graphics file of the toolkit",
    "libnvidia-present": "the toolkit takes all of the driver's version",
    "libnvidia-vksc-core": "the toolkit takes all of the driver's version",
    "libnvidia-allocator": "EGL's GBM platform needs it",
    "nvidia-imex": "a program of the toolkit, as the next two",
    "nvidia-imex-ctl": "",
    "nvidia-xconfig": "",
}


def of(*names):
    """Give the cases of some beginnings that apply, each by its name."""
    found = [name for name in test_cases.NOW if name.startswith(names)]
    assert found
    return pytest.mark.parametrize("name", found)


def look(name):
    return test_cases.NOW[name]["input"], test_cases.NOW[name]["expected"]


def plan(tree, *env):
    """Decide over a container that asks for all."""
    asked = containers.Container(env=("NVIDIA_VISIBLE_DEVICES=all", *env))
    return pipeline.plan(asked, tree.scan(), pipeline.Policy())


def with_gpu(tree, version):
    tree.module(version)
    tree.put("/sys/module/nvidia_modeset/refcnt", "0")
    tree.majors(nvidia=195, nvidia_uvm=511)
    tree.gpu("0000:07:00.0", 0, "GPU-00000000-1111-2222-3333-444444444444")


def own_name(source):
    """Give what a case calls a file: a library's name without `.so`, a program's."""
    return source.rpartition("/")[2].partition(".so")[0]


@of("files-compute-utility", "files-display", "files-graphics", "files-ngx")
def test_files_by_capability(name, tree):
    """On a host with all that is known a capability gives its list, and what the toolkit adds."""
    given, expected = look(name)
    with_gpu(tree, VERSION)
    for stem in set(catalog.LIBRARIES) - catalog.NEUTRAL:
        tree.library(f"/usr/lib64/{stem}.so.{VERSION}", f"{stem}.so.1")
    for program in catalog.BINARIES:
        tree.put(f"/usr/bin/{program}", "#!", 0o755)
    found = plan(tree, f"NVIDIA_DRIVER_CAPABILITIES={given['driver_capabilities']}")
    sources = [mount.source for mount in found.edits.mounts]
    names = {own_name(source) for source in sources}
    wanted = {*expected["libraries"], *expected["binaries"]}
    assert wanted - names == set()
    assert names - wanted - set(BEYOND) == set()


@of("files-jit-any")
def test_files_by_version(name, tree):
    """The version decides, in the library directory and in vdpau below it."""
    given, expected = look(name)
    with_gpu(tree, given["driver_version"])
    for path in given["host_files"]:
        tree.put(path, stubs.shared_object(f"{own_name(path)}.so.1"))
    found = plan(tree, "NVIDIA_DRIVER_CAPABILITIES=all").edits
    assert sorted(mount.source for mount in found.mounts) == expected["mounts"]
    assert {mount.options for mount in found.mounts} == {tuple(expected["options"])}
    (hook,) = found.hooks
    assert hook.args[hook.args.index("--alias") + 1] == "libcuda.so=libcuda.so.1"


@of("files-ipc-options")
def test_sockets(name, tree):
    """Sockets may be written to; /run is what images' /var/run leads to."""
    given, expected = look(name)
    with_gpu(tree, VERSION)
    tree.leading("/usr/lib64", VERSION)
    for path in given["host_files"]:
        tree.put(path)
    found = {m.destination: m for m in plan(tree).edits.mounts if m.source in given["host_files"]}
    assert sorted(found) == sorted(
        path.removeprefix("/var") for path in expected["containers_paths"]
    )
    assert [set(mount.options) for mount in found.values()] == [set(expected["options"])] * 2


@of("hook-env-nonempty")
def test_hook_has_an_environment(name):
    """The hook's environment is a constant that is not empty, at the recorded stage."""
    mount = model.MountEdit(source="/x", destination="/usr/local/nvidia/lib64/libcuda.so.1")
    (hook,) = hooks.build([mount], (), (), options.InjectOptions()).hooks
    assert hook.stage == look(name)[1]["stage"]
    assert hook.env
    assert all("=" in entry for entry in hook.env)


@of("ldconfig-hook-none")
def test_no_mounts_no_hook(name):
    """Without libraries there is nothing for a hook to do."""
    given, expected = look(name)
    assert expected["hook"] is None
    assert hooks.build(given["mounts"], (), (), options.InjectOptions()).hooks == ()


@of("ldconfig-keepconf")
def test_own_configuration_is_kept(name, case):
    """An image's ld.so.conf is as it was."""
    given, expected = look(name)
    case.make("debian").put_driver_in_root()
    (case.root / "etc/ld.so.conf").write_text(given["etc_ld_so_conf"])
    assert case.direct().report["ok"]
    assert (case.root / "etc/ld.so.conf").read_text() == expected["etc_ld_so_conf"]


@of("symlink-exists-same", "symlink-parent-root-link")
def test_links(name, case):
    """A link that is there is no fault, and an absolute link stays inside the root."""
    given, expected = look(name)
    ((link, target),) = expected["links"].items()
    case.make("debian").put_driver_in_root()
    if name == "symlink-exists-same":
        (case.root / link[1:]).symlink_to(target)
        alias = f"{link.rpartition('/')[2]}={target}"
        result = case.direct("--alias", alias)
        assert (case.root / link[1:]).readlink().as_posix() == target
    else:
        ((place, kind),) = given["container"].items()
        (case.root / place[1:]).symlink_to(kind.removeprefix("symlink:"))
        asked = given["link"].partition("::")[2].removeprefix("/lib/")
        result = case.direct("--place", f"{asked}=lib64/{bundles.LIBRARIES[0]}")
        assert (case.root / link[1:]).is_symlink()
    assert result.report["ok"]


@of("params")
def test_params(name):
    """Only a whole line is switched; what has none is as it was."""
    given, expected = look(name)
    before = given["params"].encode()
    after = before if expected["modified"] is None else expected["modified"].encode()
    assert procfs.without_new_nodes(before) == after


@of("procdevices")
def test_majors(name, tree):
    """/proc/devices gives NVIDIA's majors under the names that we use; else there are none."""
    given, expected = look(name)
    tree.put("/proc/devices", "".join(f"{line}\n" for line in given["lines"]))
    wanted = expected.get("majors", {})
    found = proc.majors(root.Root(str(tree.top), recorded=True))
    assert ("error" in expected) == (found == {})
    assert {key: value for key, value in found.items() if key in wanted} == wanted
    # Either of the driver's two names is looked for under the other too.
    assert set(found) - set(wanted) <= {"nvidia"}


@of("profile-nodes")
def test_profile_nodes(name):
    """The GPUs of a container are its nodes of that name, by their minors."""
    given, expected = look(name)
    nodes = [
        containers.Device(
            path=f"/dev/{entry['name']}",
            type="c" if entry["is_char_device"] else "d",
            minor=entry["minor"],
        )
        for entry in given["dev_entries"]
    ]
    assert list(inside.minors(nodes)) == expected["minors"]


@of("profile-text")
def test_profile_text(name):
    """The file for a mask is the recorded one, byte for byte."""
    given, expected = look(name)
    bits = [bit for bit in range(64) if given["mask"] >> bit & 1]
    assert steps.profile(f"{inside.visible(bits):x}") == expected["content"]
