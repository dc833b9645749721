# SPDX-License-Identifier: Apache-2.0
"""Each defence of the hook by itself: with it nothing happens, without it the attack succeeds.

NVIDIA's own vulnerabilities are here by their numbers, as far as they are not races.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from nri_nvidia.testing import host_kernel, host_spec

from . import bundles, weakened
from .test_attacks import to_the_host
from .weakened import both_ways, changed, several

CHROOT = weakened.CHROOT
IN_PLACE = "        posix.rename(temporary, path)", '        open(path, "wb").write(data)'
"""A file is written where it is, through a link, instead of being put in place anew."""


@pytest.fixture
def canary(place):
    """A directory of the host with what the hook and ldconfig would touch."""
    bundles.make_library(place / "canary/lib64/libhost.so.1")
    (place / "canary/ld.so.conf").write_text("host\n")
    return place / "canary"


def test_cve_2025_23267_a_drop_in_by_a_link(case, runtime, canary):
    """A drop-in is not written where a link in the image leads; in a mere chroot, to the host."""
    outcome = {}
    for name, ready in both_ways(case, *CHROOT):
        shutil.rmtree(ready.root / "etc/ld.so.conf.d")
        (ready.root / "etc/ld.so.conf.d").symlink_to(f"/proc/1/root{canary}")
        ready.run(runtime, ["/bin/quiet"])
        outcome[name] = (canary / "00-nri-nvidia.conf").exists()
    assert outcome == {"with": False, "without": True}


def test_cve_2025_23267_a_cache_by_a_link(case, runtime, canary):
    """ld.so.cache that is a link to a file of the host: it gives way to a file of the image's."""
    file, outcome = canary / "ld.so.cache", {}
    for name, ready in several(case, {"a chroot": CHROOT, "without": [*CHROOT, IN_PLACE]}):
        file.write_text("host")
        (ready.root / "etc/ld.so.cache").symlink_to(f"/proc/1/root{file}")
        ready.run(runtime, ["/bin/quiet"])
        outcome[name] = file.read_bytes() != b"host"
    assert outcome == {"with": False, "a chroot": False, "without": True}


def test_cve_2025_23267_names_of_the_hosts_files(case, runtime, canary):
    """What ld.so.conf includes is the image's: through /proc the cache would tell of the host."""
    (canary / "ld.so.conf").write_text(f"/proc/1/root{canary}/lib64\n")
    outcome = {}
    for name, ready in both_ways(case, *CHROOT):
        conf = ready.root / "etc/ld.so.conf"
        conf.write_text(f"include /proc/1/root{canary}/*.conf\n")
        ready.run(runtime, ["/bin/quiet"])
        outcome[name] = "libhost.so.1" in bundles.cached(ready.root)
    assert outcome == {"with": False, "without": True}


def test_nothing_is_written_to_sys(case, runtime):
    """A link into /sys sets nothing there; written through, it sets a name of the loopback device.

    The container has a network of its own for this, and /sys as a privileged one has it.
    """
    script = (
        'mkdir -p "$0/sys"; mount -n -t sysfs none "$0/sys"; "$@"; '
        'cat "$0/sys/class/net/lo/ifalias" >"$0/alias"'
    )
    prefix = ["unshare", "--mount", "--net", "sh", "-c", script, str(case.place)]
    sysfs = {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid"]}
    outcome = {}
    for name, ready in several(case, {"a chroot": CHROOT, "without": [*CHROOT, IN_PLACE]}):
        drop_in = ready.root / "etc/ld.so.conf.d/00-nri-nvidia.conf"
        drop_in.symlink_to("/sys/class/net/lo/ifalias")
        result = ready.run(runtime, ["/bin/quiet"], mounts=[sysfs, *ready.driver], prefix=prefix)
        assert result.report is not None, result.errors
        outcome[name] = (case.place / "alias").read_text()
    lib64 = f"{bundles.LIBRARY_DIR}/lib64\n"
    assert outcome == {"with": "", "a chroot": "", "without": lib64}


@pytest.mark.parametrize("way", ["absolute", "relative"])
def test_cve_2024_0134_links_by_paths_of_the_host(case, runtime, canary, way):
    """A link in place of /usr/bin takes no link out; to a hook that joins paths it would."""
    joined = 'posix.open("/usr/bin", posix.O_RDONLY', 'posix.open("usr/bin", posix.O_RDONLY'
    there = 'kind_of(f"{library_dir}/bin/{name}")', "True"
    outcome = {}
    for name, ready in both_ways(case, weakened.NO_ROOT_AT_ALL, joined, there):
        shutil.rmtree(ready.root / "usr/bin")
        (ready.root / "usr/bin").symlink_to(to_the_host(canary)[way])
        ready.run(runtime, ["/bin/quiet"], options=["--skip", "ldcache"])
        outcome[name] = (canary / "nvidia-smi").is_symlink()
    assert outcome == {"with": False, "without": True}


def test_cve_2024_0134_links_by_proc(case, runtime, canary):
    """A link in place of /usr/bin that leads through /proc takes no link out of the root."""
    outcome = {}
    for name, ready in both_ways(case, *CHROOT):
        shutil.rmtree(ready.root / "usr/bin")
        (ready.root / "usr/bin").symlink_to(f"/proc/1/root{canary}")
        ready.run(runtime, ["/bin/quiet"])
        outcome[name] = (canary / "nvidia-smi").is_symlink()
    assert outcome == {"with": False, "without": True}


def test_cve_2024_0132_the_host_is_not_in_view(case, runtime, canary):
    """A library's place in the image that is a link to a directory of the host shows nothing."""
    body = "    stack, rest, links = [root],"
    naive = body, f'    return posix.open(f"/proc/self/fd/{{root}}/{{path}}", PLACE)\n{body}'
    outcome = {}
    for name, ready in both_ways(case, naive):
        # The runtimes resolve the link inside and make the mount there; the hook is to do so too.
        (ready.root / "usr/local").symlink_to(canary)
        shutil.copytree(canary, ready.root / str(canary)[1:] / "nvidia")
        (canary / "nvidia").mkdir(exist_ok=True)
        shutil.copytree(canary / "lib64", canary / "nvidia/lib64", dirs_exist_ok=True)
        ready.run(runtime, ["/bin/quiet"])
        cache = ready.root / "etc/ld.so.cache"
        outcome[name] = "libhost.so.1" in bundles.cached(ready.root) if cache.exists() else False
    assert outcome == {"with": False, "without": True}


def test_cve_2024_0132_compatibility_libraries_that_lead_out(case, runtime, canary):
    """CUDA's compatibility directory is the image's: a link there shows nothing of the host."""
    outcome = {}
    for name, ready in both_ways(case, *CHROOT):
        compat = ready.root / "usr/local/cuda"
        compat.mkdir(parents=True)
        (compat / "compat").symlink_to(f"/proc/1/root{canary}/lib64")
        (ready.root / "etc/ld.so.conf.d/00-compat.conf").write_text("/usr/local/cuda/compat\n")
        assert ready.run(runtime, ["/bin/quiet"]).report["ok"]
        outcome[name] = "libhost.so.1" in bundles.cached(ready.root)
    assert outcome == {"with": False, "without": True}


@pytest.mark.parametrize(
    "place_of_link", ["lib/firmware/nvidia", "lib/firmware", "usr/lib64", "usr/share"]
)
def test_cve_2024_0133_no_file_is_made_on_the_host(case, runtime, canary, place_of_link):
    """A place of a driver file that a link leads out of the root is made inside.

    It is the runtime that makes mount points, with the root as `/`; the hook that makes them by
    joining paths, as NVIDIA's did, makes them on the host.
    """
    (canary / "550.163.01").mkdir()
    inside = f"/{place_of_link}/550.163.01/gsp_ga10x.bin"
    made = f'posix.close(posix.open(root[0] + "{inside}", posix.O_CREAT)); '
    file = case.toolbox.driver / "lib64" / bundles.LIBRARIES[0]
    outcome, before = {}, bundles.snapshot(canary)
    for name, ready in both_ways(case, (weakened.STEP_VIEW, made + weakened.STEP_VIEW)):
        link = ready.root / place_of_link
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("../" * 12 + str(canary)[1:])
        mounts = [*ready.driver, *([bundles.bind(file, inside)] if name == "with" else [])]
        ready.run(runtime, ["/bin/quiet"], mounts=mounts)
        outcome[name] = bundles.snapshot(canary) != before
    assert outcome == {"with": False, "without": True}


def test_cve_2025_23266_the_environment_is_the_hooks_own(case, runtime, place):
    """The image's LD_PRELOAD is not the hook's, since that has an environment.

    runc before 1.2 gives a hook without one the container's own.
    """
    owned, outcome = place / "owned", {}
    text = f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fopen("{owned}", "w"); }}'
    evil = bundles.compile_c(place / "evil.so", text, "-shared", "-fPIC")
    image = [f"LD_PRELOAD={case.root}/evil.so", f"LD_LIBRARY_PATH={case.root}"]
    inherited = {} if "runc-1.1.5" in runtime else {"env": image}  # as that one would have it
    for name, environment in (("with", {"env": ["LC_ALL=C"]}), ("without", inherited)):
        shutil.rmtree(case.root, ignore_errors=True)
        shutil.copy(evil, case.make("debian").root)

        def change(document, environment=environment):
            document["process"]["env"] = image
            entry = document["hooks"]["createContainer"][0]
            del entry["env"]
            entry.update(environment)

        case.run(runtime, ["/bin/quiet"], change=change)
        outcome[name] = owned.exists()
    assert outcome == {"with": False, "without": True}


def test_cve_2025_23266_modules_of_the_image_are_not_imported(case, runtime, place):
    """PYTHONPATH and PYTHONHOME mean nothing to an isolated interpreter, whoever gives them."""
    owned, outcome, evil = place / "owned", {}, case.root / "evil"
    variables = [f"PYTHONPATH={evil}", "PYTHONSTARTUP=/evil.py", "PYTHONDONTWRITEBYTECODE=1"]
    hook = case.hook
    for name in ("with", "without"):
        case.hook = hook if name == "with" else [word for word in hook if word != "-I"]
        shutil.rmtree(case.root, ignore_errors=True)
        case.make("debian")
        evil.mkdir()
        for module in {"_ctypes", *sys.stdlib_module_names} - {"encodings", "codecs"}:
            (evil / f"{module}.py").write_text(f"open({str(owned)!r}, 'w').close()\n")

        def change(document):
            document["hooks"]["createContainer"][0]["env"] = variables

        case.run(runtime, ["/bin/quiet"], change=change)
        outcome[name] = owned.exists()
    assert outcome == {"with": False, "without": True}


def test_mounts_are_private(case):
    """With shared propagation a mount of the hook's stays its own; without the step it spreads."""
    script = (
        'mount --make-rshared /; cut -d" " -f3- /proc/self/mountinfo >"$0.before"; "$@"; '
        'cut -d" " -f3- /proc/self/mountinfo >"$0.after"'
    )
    outcome = {}
    for name, ready in both_ways(case, ("mount(host, host, RECURSIVE | PRIVATE)", "pass")):
        ready.put_driver_in_root()
        # Private first, so that nobody else's mounts come in while it is looked at.
        prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        ready.direct(prefix=[*prefix, str(case.place / name)])
        texts = [(case.place / f"{name}.{end}").read_text() for end in ("before", "after")]
        outcome[name] = texts[0] != texts[1]
    assert outcome == {"with": False, "without": True}


@pytest.mark.parametrize("destination", ["etc/ld.so.conf.d", "etc", "usr/bin"])
def test_users_mounts_are_not_written_to(case, runtime, place, destination):
    """A directory of the host's that the user has mounted anywhere stays as it is to the last byte."""
    with_volumes = "mount(root, root, BIND)", "mount(root, root, BIND | RECURSIVE)"
    outcome = {}
    for name, ready in both_ways(case, with_volumes):
        volume = place / f"volume-{name}"
        (volume / "ld.so.conf.d").mkdir(parents=True)
        mounts = [bundles.bind(volume, f"/{destination}", ["rbind", "rw"]), *ready.driver]
        before = bundles.snapshot(volume)
        result = ready.run(runtime, ["/bin/quiet"], mounts=mounts)
        assert result.report is not None, result.errors
        outcome[name] = bundles.snapshot(volume) != before
    assert outcome == {"with": False, "without": True}


def test_a_read_only_layer_is_kept(case, runtime):
    """A root that the engine made read-only is not written to, since others consist of it."""
    weak = ("    return not (under if bound_on_itself else own).read_only", "    return True")
    outcome = {}
    for name, ready in both_ways(case, weak):
        for folder in ("usr/local/nvidia", "sys"):
            (ready.root / folder).mkdir(parents=True, exist_ok=True)
        script = 'mount -n --bind "$0" "$0"; mount -n -o remount,bind,ro "$0"; "$@"'
        ready.run(
            runtime, ["/bin/quiet"], prefix=["unshare", "--mount", "sh", "-c", script, str(ready.root)],
            change=lambda document: document["root"].update(readonly=True),
        )  # fmt: skip
        outcome[name] = (ready.root / "etc/ld.so.conf.d/00-nri-nvidia.conf").exists()
    if not outcome["without"]:  # crun refuses such a root before any hook
        outcome.pop("without")
    assert outcome in ({"with": False}, {"with": False, "without": True})


def test_a_read_only_container_gets_its_cache(case, runtime):
    """readOnlyRootFilesystem: the program finds the driver; not if the view keeps to read-only."""
    weak = ("    return not (under if bound_on_itself else own).read_only", "    return False")
    outcome = {}
    for name, ready in both_ways(case, weak):
        result = ready.run(runtime, change=lambda document: document["root"].update(readonly=True))
        outcome[name] = result.status
    assert outcome["with"] == 0
    assert outcome["without"] not in {0, None}


DROP_IN = 'DROP_IN = "/etc/ld.so.conf.d/00-nri-nvidia.conf"'
ORDERS = {
    "too early": [(DROP_IN, 'DROP_IN = "/etc/ld.so.conf.d/00-a.conf"')],
    "too late": [(DROP_IN, 'DROP_IN = "/etc/ld.so.conf.d/zz.conf"')],
}


def test_the_order_of_libraries(case, runtime):
    """CUDA's compatibility drop-in goes before ours, ours before the image's own libraries."""
    outcome = {}
    for name, ready in several(case, ORDERS):
        bundles.make_library(ready.root / "opt/own/libnvidia-ml.so.1")
        bundles.make_library(ready.root / "usr/local/cuda/compat/libcuda.so.1")
        folder = ready.root / "etc/ld.so.conf.d"
        (folder / "00-compat.conf").write_text("/usr/local/cuda/compat\n")
        (folder / "image.conf").write_text("/opt/own\n")
        assert ready.run(runtime).report["ok"]
        found = bundles.cached(ready.root)
        first = found["libcuda.so.1"][0], found["libnvidia-ml.so.1"][0]
        outcome[name] = tuple(path.startswith(bundles.LIBRARY_DIR) for path in first)
    assert outcome == {
        "with": (False, True), "too early": (True, True), "too late": (False, False),
    }  # fmt: skip


def test_the_images_own_directories_stay_listed(case, runtime):
    """A cache by the host's ldconfig lists the folders of the image's distribution too."""
    outcome = {}
    own = '    lines += "".join(f"/{name}\\n" for name in own if is_directory(f"/{name}"))\n', ""
    commands = {"with": case.hook, "without": changed(case, own)}
    for name, case.hook in commands.items():
        shutil.rmtree(case.root, ignore_errors=True)
        case.make("fedora").run(runtime)
        outcome[name] = "libc.so.6" in bundles.cached(case.root)
    assert outcome == {"with": True, "without": False}


TELL = 'while read -r l; do echo "$l"; done <"$0/version"; for f in "$0"/*; do echo "$f"; done'


@pytest.fixture
def earlier(place):
    """Give a function that puts a hook before ours, which mounts the driver's texts in /proc.

    Machines without a driver have no /proc/driver/nvidia; NVIDIA's own stack mounts one as well.
    """
    texts = place / "texts"
    spec = host_spec.HostSpec(gpus=(host_spec.GpuSpec(), host_spec.GpuSpec()))
    host_kernel.write(texts, spec)

    def change(document, root):
        script = (
            f'mount -n -t tmpfs none "{root}/proc/driver" && '
            f'cp -r "{texts}/proc/driver/nvidia" "{root}/proc/driver"'
        )
        entry = {"path": "/bin/sh", "args": ["sh", "-c", script], "env": [f"PATH={os.defpath}"]}
        document["hooks"]["createContainer"].insert(0, entry)

    change.texts = texts / "proc/driver/nvidia"
    return change


def test_proc_of_the_driver_is_not_touched(case, runtime, earlier):
    """The driver's texts in /proc are as before, though a link of the image leads the hook there."""
    names = sorted(f"/proc/driver/nvidia/{path.name}" for path in earlier.texts.iterdir())
    outcome = {}
    for name, ready in both_ways(case, *CHROOT):
        shutil.rmtree(ready.root / "etc/ld.so.conf.d")
        (ready.root / "etc/ld.so.conf.d").symlink_to("/proc/driver/nvidia")
        result = ready.run(
            runtime, ["/bin/sh", "-c", TELL, "/proc/driver/nvidia"], options=["--skip", "proc"],
            change=lambda document, root=ready.root: earlier(document, root),
        )  # fmt: skip
        assert result.status == 0, result.errors
        lines = result.output.splitlines()
        version = (earlier.texts / "version").read_text().splitlines()
        assert [line.split() for line in lines[: len(version)]] == [v.split() for v in version]
        outcome[name] = sorted(lines[len(version) :]) == names
    assert outcome == {"with": True, "without": False}


def test_the_drivers_texts_in_proc_are_seen(case, runtime, earlier):
    """With those texts in /proc the container starts, has its libraries, and reads them."""
    result = case.make("debian").run(
        runtime, ["/bin/sh", "-c", f"{TELL}; /bin/needs-driver", "/proc/driver/nvidia"],
        change=lambda document: earlier(document, case.root),
    )  # fmt: skip
    assert (result.status, result.errors, result.report["ok"]) == (0, "", True)
    assert "550.163.01" in result.output
    assert result.output.endswith("/libcuda.so.1\n")


def test_a_proc_that_is_the_hosts_is_not_covered(case, runtime, earlier):
    """A container that has the host's /proc with shared propagation would cover it for the host."""
    texts = earlier.texts
    script = (
        'mount -n -t tmpfs none /proc/driver; cp -r "$0" /proc/driver; mount --make-rshared /; '
        '"$@"; ls /proc/driver/nvidia >"$0.after"'
    )
    prefix = ["unshare", "--mount", "sh", "-c", script, str(texts)]
    options = ["rbind", "rshared"]
    proc = {"destination": "/proc", "type": "bind", "source": "/proc", "options": options}

    def change(document):
        document["mounts"][0] = proc
        document["linux"]["rootfsPropagation"] = "rshared"
        spaces = document["linux"]["namespaces"]
        spaces[:] = [each for each in spaces if each["type"] != "pid"]

    outcome, names = {}, sorted(path.name for path in texts.iterdir())
    shared = "    if Mount(mounts[own]).shared or Mount(mounts[around]).shared:", "    if False:"
    for name, ready in both_ways(case, shared):
        result = ready.run(runtime, ["/bin/quiet"], prefix=prefix, change=change)
        assert result.status == 0, result.errors
        after = texts.with_name(f"{texts.name}.after").read_text().split()
        outcome[name] = sorted(after) == names
    by_itself = Path(runtime).name == "crun"  # which lets no mount spread to the host
    assert outcome == {"with": True, "without": by_itself}
