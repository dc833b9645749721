# SPDX-License-Identifier: Apache-2.0
"""Field cases: what the hook does in root file systems of every kind, and what it never does."""

import concurrent.futures
import errno
import json
import os
import shutil
import subprocess
import threading

import pytest

from nri_nvidia.oci import hook as hook_module
from nri_nvidia.testing import stubs
from tests.oci import bundles

from . import harness
from .conftest import Case

LIB64 = f"{bundles.LIBRARY_DIR}/lib64"
NAMES = set(bundles.LIBRARIES)


@pytest.fixture
def runtime():
    """The one of the low-level runtimes that is there in any case; tests/oci goes through all."""
    known = bundles.runtimes()
    if "runc" not in known:
        pytest.fail("runc is not set up: run contrib/setup")
    return known["runc"]


@pytest.mark.parametrize("names", [("bpf",), ("mount",), ("bpf", "mount")])
def test_system_calls_that_a_filter_forbids(ready, names):
    """FC-008, FC-047: without bpf all is done; without mount it is left, said, and exits with 0."""
    result = filtered(ready, harness.refusing(errno.EPERM, *names))
    assert result.status == 0
    if "mount" in names:
        assert list(bundles.failing(result)) == ["view"]
        assert not (ready.root / "etc/ld.so.cache").exists()
    else:
        assert set(bundles.cached(ready.root)) > NAMES


def filtered(case, before):
    """Start the hook with a function called in its process first."""
    (case.bundle / "config.json").write_text('{"root": {"path": "rootfs"}}')
    state = json.dumps({"id": "direct", "bundle": str(case.bundle)})
    with case.listen() as receive:
        done = subprocess.run(
            case.command(), cwd=case.root, input=state, capture_output=True, text=True,
            check=False, timeout=60, env={"LC_ALL": "C"}, preexec_fn=before,
        )  # fmt: skip
        return bundles.Result(done.returncode, done.stdout, done.stderr, receive())


def test_the_cache_that_may_not_be_written(ready):
    """FC-048: a host's policy that forbids it is reported with file and error; the hook exits with 0."""
    before = harness.refusing(errno.EACCES, "rename", "renameat", "renameat2")
    result = filtered(ready, before)
    assert result.status == 0
    assert "Permission denied" in bundles.failing(result)["ldcache"]
    assert "/etc/" in bundles.failing(result)["ldcache"]
    assert list((ready.root / "etc").glob(".nri-nvidia*")) == []


# Each covers the host's own directory of programs in a namespace of its own.
LDCONFIGS = {
    "both": ({"ldconfig": "script", "ldconfig.real": "program"}, ""),
    "one": ({"ldconfig": "program"}, ""),
    "script": ({"ldconfig": "script"}, "is not an ELF program"),
    "script for real": (
        {"ldconfig": "program", "ldconfig.real": "script"},
        "is not an ELF program",
    ),
    "none": ({}, "No such file"),
}


@pytest.mark.parametrize(("there", "problem"), LDCONFIGS.values(), ids=LDCONFIGS)
def test_the_hosts_ldconfig(ready, there, problem):
    """FC-036, FC-040: Ubuntu's real one, else the plain one, and neither if it is a script."""
    programs = ready.place / "sbin"
    programs.mkdir()
    for name, kind in there.items():
        if kind == "program":
            shutil.copy("/sbin/ldconfig", programs / name)
        else:
            (programs / name).write_text("#!/bin/sh\ntouch /tmp/pwned\n")
        (programs / name).chmod(0o755)
    script = 'mount --bind "$0" /sbin && exec "$@"'
    result = ready.direct(prefix=[*bundles.PRIVATE, script, str(programs)])
    assert result.status == 0
    if problem:
        assert problem in bundles.failing(result)["ldcache"]
        assert (ready.root / "etc/ld.so.conf.d/00-nri-nvidia.conf").exists()
    else:
        assert set(bundles.cached(ready.root)) > NAMES


ELSEWHERE = {"NixOS": ("/run", "current-system/sw/bin"), "Talos": ("/usr/local", "glibc/sbin")}


@pytest.mark.parametrize(("cover", "directory"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_an_ldconfig_in_another_place(ready, cover, directory):
    """FC-027, FC-028: with none in /sbin, that of NixOS or of Talos is found where those have it."""
    (ready.place / "sbin").mkdir()
    programs = ready.place / "over" / directory
    programs.mkdir(parents=True)
    shutil.copy("/sbin/ldconfig", programs / "ldconfig")
    script = f'mount --bind "$0/sbin" /sbin && mount --bind "$0/over" {cover} && exec "$@"'
    result = ready.direct(prefix=[*bundles.PRIVATE, script, str(ready.place)])
    assert result.status == 0
    assert set(bundles.cached(ready.root)) > NAMES


ENDS = {"illegal instruction": "__builtin_trap();", "bad address": "*(volatile int *)16 = 0;"}


@pytest.mark.parametrize("source", ENDS.values(), ids=ENDS)
def test_an_ldconfig_that_dies(ready, source):
    """FC-041: its signal is told, the container starts, and what was there stays."""
    died = bundles.compile_c(
        ready.place / "died", f"void _start(void) {{ {source} for (;;); }}", "-static", "-nostdlib"
    )
    result = ready.direct("--ldconfig", str(died), "--timeout", "1")
    assert result.status == 0
    assert "ldconfig: signal" in bundles.failing(result)["ldcache"]


def test_an_ldconfig_that_sleeps(ready):
    """FC-041: one that never ends is ended in time, and that is told."""
    asleep = bundles.compile_c(
        ready.place / "asleep", "void _start(void) { for (;;); }", "-static", "-nostdlib"
    )
    result = ready.direct("--ldconfig", str(asleep), "--timeout", "0.3")
    assert result.status == 0
    assert "not done after 0.3 s" in bundles.failing(result)["ldcache"]
    assert bundles.running_in(ready.root) == []


def one_by_one(case):
    """Mount the driver's files each by itself, as the daemon asks for."""
    driver = case.toolbox.driver
    return [
        bundles.bind(path, f"{bundles.LIBRARY_DIR}/{path.relative_to(driver)}")
        for path in sorted(driver.rglob("*"))
        if path.is_file()
    ]


@pytest.mark.parametrize("kind", ["empty", "musl", "debian", "fedora"])
def test_sonames_need_no_ldconfig_in_the_image(case, runtime, kind):
    """FC-042: in any image the names that programs open are files of the driver."""
    case.make(kind)
    result = case.run(runtime, ["/bin/quiet"], mounts=one_by_one(case))
    assert (result.status, result.errors) == (0, "")
    for name in NAMES:
        assert (case.root / LIB64[1:] / name).exists()


@pytest.mark.parametrize(
    "missing", ["etc", "etc/ld.so.conf", "etc/ld.so.conf.d", "usr/bin", "tmp"]
)
def test_an_image_without_its_usual_directories(case, missing):
    """FC-043: what the loader needs is made; the cache lists the driver."""
    case.make("debian").put_driver_in_root()
    path = case.root / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = case.direct()
    assert result.report["ok"], bundles.failing(result)
    assert set(bundles.cached(case.root)) > NAMES


@pytest.mark.parametrize("folder", ["etc", "usr"])
def test_an_image_with_a_read_only_directory(case, folder):
    """FC-043, FC-054: a read-only /etc or /usr of the image's fails a step, and nothing else."""
    case.make("debian").put_driver_in_root()
    script = 'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; exec "$@"'
    before = bundles.snapshot(case.root / folder)
    result = case.direct(prefix=[*bundles.PRIVATE, script, str(case.root)])
    assert result.status == 0
    assert bundles.snapshot(case.root / folder) != before or result.report["ok"] is False


def test_a_read_only_container(case, runtime):
    """FC-054: readOnlyRootFilesystem: it starts, and the loader finds the driver."""
    result = case.make("debian").run(
        runtime, change=lambda document: document["root"].update(readonly=True)
    )
    assert (result.status, result.errors) == (0, "")
    assert result.output.endswith("/libcuda.so.1\n")


@pytest.mark.parametrize("lines", [None, "/opt/x", "/opt/x:/lib\n/opt/y\n", LIB64])
def test_musl(case, lines):
    """FC-044: musl's path file keeps what it has, first, or gets musl's defaults; ours once, last."""
    case.make("musl").put_driver_in_root()
    path = case.root / f"etc/ld-musl-{bundles.MACHINE}.path"
    if lines is not None:
        path.write_text(lines)
    for _ in range(3):
        assert case.direct().report["ok"]
    entries = path.read_text().replace(":", "\n").split()
    before = (
        ["/lib", "/usr/local/lib", "/usr/lib"]
        if lines is None
        else lines.replace(":", "\n").split()
    )
    assert entries == list(dict.fromkeys([*before, LIB64]))


@pytest.mark.parametrize("kind", ["debian", "fedora"])
def test_a_librarys_other_name_is_in_the_cache(case, runtime, kind):
    """FC-045: libcuda.so beside libcuda.so.1: links first, then one cache that knows both."""
    options = [
        "--alias",
        "libcuda.so=libcuda.so.1",
        "--alias",
        "libnvidia-ml.so=libnvidia-ml.so.1",
    ]
    result = case.make(kind).run(runtime, mounts=one_by_one(case), options=options)
    assert (result.status, result.report["ok"]) == (0, True)
    found = bundles.cached(case.root)
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so"):
        assert found[name] == [f"{LIB64}/{name}"]


@pytest.mark.parametrize("target", ["libGLX_mesa.so.0", "/nowhere", None])
def test_a_name_that_the_image_has_already(case, runtime, target):
    """FC-046: a link or file of that name is left as it is, and is no error."""
    case.make("debian")
    places = [case.root / f"lib/{bundles.MULTIARCH}/libGLX_indirect.so.0",
              case.root / "usr/bin/nvidia-smi", case.root / LIB64[1:] / "libGLX_indirect.so.0"]  # fmt: skip
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target) if target else path.write_bytes(b"image")
    options = ["--alias", "libGLX_indirect.so.0=libcuda.so.1"]
    result = case.run(runtime, mounts=one_by_one(case), options=options)
    assert (result.status, result.report["ok"]) == (0, True)
    for path in places:
        assert path.readlink().as_posix() == target if target else path.read_bytes() == b"image"


@pytest.mark.parametrize(
    "capabilities", ["compute,utility", "graphics", "video", "all", "compat32,all"]
)
def test_the_hook_takes_what_the_daemon_gives(tmp_path, capabilities):
    """FC-046, FC-051: each option of a plan's hook is one that the hook knows, with such a value."""
    found = harness.built(tmp_path, gpus=harness.gpus(1), compat32=True)
    plan = harness.decide(
        found, *harness.asked("0", harness.capable(capabilities)),
        context=harness.pipeline.Context(hook_token="0" * 32),
    )  # fmt: skip
    taken = {key: [default] for key, (_, default) in hook_module.OPTIONS.items()}
    hook_module.parse(list(plan.edits.hooks[0].args[4:]), taken)
    assert taken["--alias"][1:] or "--alias" not in plan.edits.hooks[0].args


def test_many_at_once(place, hook, toolbox):
    """FC-049: hooks on many roots and several on one all succeed and leave whole caches."""
    cases = []
    for number in range(8):
        folder = place / str(number)
        folder.mkdir()
        cases.append(Case(folder, hook, toolbox).make("debian").put_driver_in_root())
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda each: each.direct(), cases):
            assert result.report["ok"], bundles.failing(result)
    shared_root = cases[0]
    state = json.dumps({"id": "x", "bundle": str(shared_root.bundle)})
    assert bundles.start_many(4, shared_root.command(), state) == [(0, "")] * 4
    for each in cases:
        assert set(bundles.cached(each.root)) > NAMES


@pytest.mark.parametrize("kind", ["debian", "empty", "musl"])
def test_a_runtime_that_is_early(case, kind):
    """FC-052: with nothing mounted, no /proc and no driver yet, it says so and exits with 0."""
    case.make(kind)
    result = case.direct()
    assert result.status == 0
    assert not list(case.root.rglob(".nri-nvidia*"))
    assert (
        bundles.failing(result)
        .get("ldcache", "is not there")
        .endswith(("is not there", "on a mount of the container's own"))
    )


def test_ldconfig_of_the_image_later(case, runtime):
    """FC-053: a later ldconfig keeps the host's version, though the image has an older driver too."""
    case.make("debian")
    own = case.root / f"lib/{bundles.MULTIARCH}"
    for name in NAMES:
        (own / f"{name}.470.1.1").write_bytes(stubs.shared_object(name))
        (own / name).symlink_to(f"{name}.470.1.1")
    result = case.run(runtime, ["/bin/quiet"], mounts=one_by_one(case))
    assert result.status == 0
    for path in sorted(case.toolbox.driver.glob("lib64/*")):
        shutil.copy(path, case.root / LIB64[1:] / path.name)  # as they are mounted in its life
    bundles.ldconfig(case.root)
    for name in NAMES:
        assert bundles.cached(case.root)[name][0] == f"{LIB64}/{name}"


@pytest.mark.parametrize("left", [b"", b"old library of the image"])
def test_files_that_an_image_brings_in_our_places(case, runtime, left):
    """FC-055: what a commit of a GPU container leaves is covered: both names are the host's files."""
    case.make("debian")
    for name in NAMES:
        path = case.root / LIB64[1:] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(left)
    link = case.root / "usr/bin/nvidia-smi"
    link.symlink_to(f"{bundles.LIBRARY_DIR}/bin/nvidia-smi")
    result = case.run(runtime, mounts=one_by_one(case))
    assert (result.status, result.errors, result.report["ok"]) == (0, "", True)
    assert result.output.endswith("/driver/lib64/libcuda.so.1\n")


def test_an_image_with_a_driver_of_its_own(case, runtime):
    """FC-055: a driver package in the image is beaten by the host's files."""
    case.make("debian")
    own = case.root / f"lib/{bundles.MULTIARCH}"
    bundles.make_library(own / "libcuda.so.1")
    result = case.run(runtime, mounts=one_by_one(case))
    assert result.output.endswith("/driver/lib64/libcuda.so.1\n")


@pytest.mark.parametrize("folder", ["lib64", "etc", "usr/bin", "opt"])
def test_a_users_volume_stays_as_it_is(case, runtime, folder):
    """FC-029: a directory of the host's that the user has mounted is the same to the last byte."""
    case.make("debian")
    volume = case.place / "volume"
    bundles.make_library(volume / "libcuda.so.1")
    (volume / "ld.so.conf.d").mkdir()
    before = bundles.snapshot(volume)
    mounts = [*case.driver, bundles.bind(volume, f"/{folder}", ["rbind", "rw"])]
    (case.root / folder).mkdir(parents=True, exist_ok=True)
    result = case.run(runtime, ["/bin/quiet"], mounts=mounts)
    assert result.status == 0, result.errors
    assert bundles.snapshot(volume) == before


def test_files_belong_to_the_containers_root(case, runtime):
    """FC-110: with a user namespace what the hook makes is its root's, and the container starts."""
    case.make("debian")
    first = 100_000
    for path in (case.bundle, case.root, *case.root.rglob("*")):
        os.chown(path, first, first, follow_symlinks=False)

    def change(document):
        mapping = [{"containerID": 0, "hostID": first, "size": 65536}]
        document["linux"].update(uidMappings=mapping, gidMappings=mapping)
        document["linux"]["namespaces"].append({"type": "user"})

    result = case.run(runtime, change=change)
    assert (result.status, result.errors) == (0, "")
    assert result.output.endswith("/libcuda.so.1\n")
    assert (case.root / "etc/ld.so.cache").lstat().st_uid == first


@pytest.mark.parametrize("hidepid", [1, 2])
def test_proc_that_hides_processes(ready, hidepid):
    """FC-114: the hook needs no other process's entry in /proc."""
    script = f'mount -t proc -o hidepid={hidepid} proc /proc; exec "$@"'
    prefix = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "-"]
    result = ready.direct(prefix=prefix)
    assert result.report["ok"], bundles.failing(result)
    assert set(bundles.cached(ready.root)) > NAMES


OUT = {
    "the cache": ("etc/ld.so.cache", "/{canary}/x"),
    "libraries": (f"usr/lib/{bundles.MULTIARCH}", "../../../../../../../../{canary}"),
    "etc by proc": ("etc", "/proc/1/root/{canary}"),
    "programs": ("usr/bin", "/{canary}"),
    "our drop-in": ("etc/ld.so.conf.d/00-nri-nvidia.conf", "/{canary}/x"),
    "our place": ("usr/local", "/{canary}"),
}


@pytest.mark.parametrize(("inside", "target"), OUT.values(), ids=OUT)
def test_links_out_of_the_image(case, runtime, inside, target):
    """FC-118: links to the host lead nowhere, and the image's ldconfig is never run."""
    case.make("debian")
    canary = case.place / "canary"
    bundles.make_library(canary / "libz.so.1")
    (canary / "x").write_text("host")
    before = bundles.snapshot(canary)
    path = case.root / inside
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target.format(canary=str(canary)[1:]))
    sbin = case.root / "sbin"
    sbin.mkdir()
    (sbin / "ldconfig").write_text(f"#!/bin/sh\ntouch {canary}/pwned\n")
    (sbin / "ldconfig").chmod(0o755)
    result = case.run(runtime, ["/bin/quiet"])
    assert bundles.snapshot(canary) == before
    assert result.status == 0 or result.report is None, result


def test_a_link_that_changes_while_the_hook_looks(ready):
    """FC-118, FC-120: a thread that swaps a directory for a link to the host gains nothing."""
    canary = ready.place / "canary"
    canary.mkdir()
    (canary / "ld.so.conf").write_text("host\n")
    etc = ready.root / "etc"
    (ready.root / "other").symlink_to(canary)
    before = bundles.snapshot(canary)
    ends = threading.Event()

    def swap():
        while not ends.is_set():
            bundles.exchange(etc, ready.root / "other")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(4):
            assert ready.direct().status == 0
    finally:
        ends.set()
        thread.join()
    assert bundles.snapshot(canary) == before
