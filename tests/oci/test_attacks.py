# SPDX-License-Identifier: Apache-2.0
"""Images made to harm the host: whatever the hook does with them, the host stays as it is.

Each attack aims at a directory of the host, the canary, of which every byte, time and inode is
compared. The canary holds what ldconfig would touch: libraries that lack their links, a cache, an
auxiliary cache, a configuration.
"""

import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from . import bundles

OUT_OF_ROOT = "/proc/1/root"
CONF = "etc/ld.so.conf.d/image.conf"
UP = "../" * 12
HOST_FILES = ["/etc/ld.so.cache", "/etc/ld.so.conf", "/sbin/ldconfig"]


@pytest.fixture
def canary(place):
    folder = place / "canary"
    bundles.make_library(folder / "libz.so.1.2.3")
    for name in ("ld.so.cache", "ld.so.conf", "aux-cache", "00-nri-nvidia.conf", "musl.path"):
        (folder / name).write_text("host\n")
    return folder


def host_state(place):
    """What must not change: the canary, the host's own linker files, the mounts that concern it.

    Nothing else of the host is looked at, since others may use it meanwhile.
    """
    files = {name: bundles.snapshot(Path(name)) for name in [*HOST_FILES, "/etc/ld.so.conf.d"]}
    made = [name for folder in ("/etc", "/usr/bin") for name in os.listdir(folder)
            if name.startswith((".nri-nvidia", "nvidia-smi", "ld.so"))]  # fmt: skip
    return bundles.snapshot(place), files, sorted(made), mounts(place.parent)


def mounts(place):
    """The lines of the host's table of mounts that name a directory or what is below it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(line.split(" ", 2)[2] for line in lines if str(place) in line)


def link(root, place, target):
    """Put a link in place of whatever the image has there."""
    path = root / place
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def to_the_host(canary):
    """The ways in which a link may try to lead to the canary."""
    return {
        "absolute": str(canary),
        "relative": f"{UP}{str(canary)[1:]}",
        "proc": f"{OUT_OF_ROOT}{canary}",
        "self": f"/proc/self/cwd/{UP}{str(canary)[1:]}",
    }


WAYS = ("absolute", "relative", "proc", "self")
LINKS = {
    "etc": "",
    "etc/ld.so.conf.d": "",
    "etc/ld.so.conf": "/ld.so.conf",
    "etc/ld.so.cache": "/ld.so.cache",
    "etc/ld.so.conf.d/00-nri-nvidia.conf": "/00-nri-nvidia.conf",
    "etc/new": "",
    "var/cache/ldconfig": "",
    "var/cache": "",
    "usr/bin": "",
    "usr/local/nvidia": "",
    "usr/local": "",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place_of_link", LINKS)
def test_links_that_lead_out(case, runtime, canary, place_of_link, way):
    """A link in the image, wherever it is and however it leads out, leads nothing to the host."""
    case.make("debian")
    link(case.root, place_of_link, to_the_host(canary)[way] + LINKS[place_of_link])
    before = host_state(canary)
    result = case.run(runtime, ["/bin/quiet"])
    assert host_state(canary) == before
    # crun and runc themselves refuse a few of these; where they do not, the container starts.
    assert result.status == 0 or result.report is None, result


@pytest.mark.parametrize("way", WAYS)
def test_folders_that_lead_out(case, runtime, canary, way):
    """ldconfig makes no link and no cache in a folder of the host that an image's file names.

    This is what a chroot alone does not prevent: with /proc in reach, `/proc/1/root` is the host.
    """
    case.make("debian")
    (case.root / CONF).write_text(f"{to_the_host(canary)[way]}\n")
    link(case.root, "var/cache/ldconfig", to_the_host(canary)[way])
    before = host_state(canary)
    result = case.run(runtime)
    assert host_state(canary) == before
    assert result.status == 0
    assert result.report["ok"]
    assert "libz.so.1.2.3" not in bundles.cached(case.root)


def test_a_volume_of_the_user_is_not_touched(case, runtime, canary):
    """Folders of the host that the user has mounted are not written to, though they are listed."""
    case.make("debian")
    for name in ("usr/lib", "var/cache/ldconfig", "etc/ld.so.conf.d", "usr/bin", "opt/own"):
        (case.root / name).mkdir(parents=True, exist_ok=True)
    (case.root / CONF).write_text("/opt/own\n/usr/lib\n")
    places = ["/usr/lib", "/var/cache/ldconfig", "/etc/ld.so.conf.d", "/usr/bin", "/opt/own"]
    volumes = [bundles.bind(canary, place, ["rbind", "rw"]) for place in places]
    before = host_state(canary)
    result = case.run(runtime, ["/bin/quiet"], mounts=[*volumes, *case.driver])
    assert host_state(canary) == before
    assert result.status == 0
    assert result.report["ok"]


@pytest.mark.parametrize("destination", [bundles.LIBRARY_DIR, "/usr/local"])
def test_a_volume_in_the_drivers_place_is_left_alone(case, runtime, place, destination):
    """A mount of the user's own that covers LIBRARY_DIR is not touched, and that is reported."""
    volume = place / "volume"
    bundles.make_library(volume / "lib64/libown.so.1")
    bundles.make_library(volume / "nvidia/lib64/libown.so.1")
    before = bundles.snapshot(volume)
    result = case.make("debian").run(
        runtime, ["/bin/quiet"], mounts=[bundles.bind(volume, destination, ["rbind", "rw"])]
    )
    assert bundles.snapshot(volume) == before
    assert result.status == 0
    assert result.step("ldcache") == {
        "name": "ldcache",
        "ok": False,
        "message": "/usr/local/nvidia/lib64 is not there, or on a mount of the container's own",
    }


def hostile_loops(root, _):
    """Files that include each other twice: 2 ** depth files to be read."""
    for own, other in (("a", "b"), ("b", "a")):
        text = f"include /etc/ld.so.conf.d/{other}.conf\n" * 2
        (root / f"etc/ld.so.conf.d/{own}.conf").write_text(text)


def hostile_fifo(root, _):
    os.mkfifo(root / "etc/ld.so.conf.d/hang.conf")


def hostile_fifo_as_main_file(root, _):
    (root / "etc/ld.so.conf").unlink()
    os.mkfifo(root / "etc/ld.so.conf")


def hostile_sockets(root, _):
    for name in ("etc/ld.so.conf", "etc/ld.so.cache", "etc/ld.so.conf.d/a.conf"):
        (root / name).unlink(missing_ok=True)
        os.mknod(root / name, stat.S_IFSOCK | 0o666)


def hostile_size(root, _):
    with (root / CONF).open("wb") as file:
        file.truncate(1 << 40)


def hostile_device(root, _):
    os.mknod(root / CONF, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero


def hostile_libraries(root, canary):
    folder = root / "opt/lib"
    folder.mkdir(parents=True)
    (root / CONF).write_text("/opt/lib\n" + "hwcap 0 x\n/opt/lib=libc5\n\0\xff\n")
    good = (canary / "libz.so.1.2.3").read_bytes()
    (folder / "libshort.so.1").write_bytes(good[:70])
    (folder / "libempty.so.1").write_bytes(b"")
    (folder / "libbig.so.1").write_bytes(good[:32] + b"\xff" * 32 + good[64:])
    (folder / "liblink.so.1").symlink_to(f"{OUT_OF_ROOT}{canary}/libz.so.1.2.3")
    (folder / "libdir.so.1").mkdir()
    os.mkfifo(folder / "libfifo.so.1")
    with (folder / "libsparse.so.1").open("wb") as file:
        file.write(good)
        file.truncate(1 << 40)


def hostile_directories(root, _):
    for name in ("etc/ld.so.cache", "etc/ld.so.conf.d/00-nri-nvidia.conf", "usr/bin/nvidia-smi"):
        (root / name).mkdir(parents=True)


def hostile_modes(root, _):
    for path in (root / "etc/ld.so.conf.d", root / "etc", root / "usr/bin"):
        os.chown(path, 1234, 1234)
        path.chmod(0)


def hostile_names(root, canary):
    """Includes and globs that point out, and that would print what they find."""
    lines = [f"include {OUT_OF_ROOT}{canary}/*.conf", f"include {canary}/ld.so.conf"]
    (root / "etc/ld.so.conf").write_text("\n".join([*lines, "include /proc/*/cwd/*"]))


HOSTILE = [value for name, value in globals().items() if name.startswith("hostile_")]


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_files_made_to_break_it(case, runtime, canary, attack):
    """Nothing in the image keeps the container from starting, nor the hook from ending in time."""
    case.make("debian")
    attack(case.root, canary)
    before = host_state(canary)
    result = case.run(runtime, ["/bin/quiet"], options=["--timeout", "1"])
    assert host_state(canary) == before
    assert result.status == 0
    assert result.report is not None
    assert "hook" not in {step["name"] for step in result.report["steps"]}
    assert list(case.root.rglob(".nri-nvidia*")) == []
    assert bundles.running_in(case.root) == []


def test_modules_of_the_image_are_not_imported(case, runtime, python_hook):
    """Python files wherever the interpreter looks, or in its directory, are never executed."""
    case.make("debian")
    command = [python_hook[0], "-I", "-S", "-c", "import sys; print(*sys.path, sep='\\n')"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for folder in (*listed.split(), "/", "/bin"):
        (case.root / folder.strip("/")).mkdir(parents=True, exist_ok=True)
        for name in sys.stdlib_module_names:
            text = "open('/owned', 'w').close()\n"
            (case.root / folder.strip("/") / f"{name}.py").write_text(text)
    result = case.run(runtime)
    assert (result.status, result.report["ok"]) == (0, True)
    assert not (case.root / "owned").exists()


def test_the_images_environment_reaches_nothing(case, runtime, place):
    """LD_PRELOAD and the like in the container's environment are not the hook's (CVE-2025-23266)."""
    case.make("debian")
    owned = place / "owned"
    text = f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fopen("{owned}", "w"); }}'
    bundles.compile_c(case.root / "evil.so", text, "-shared", "-fPIC")
    variables = [
        "LD_PRELOAD=/proc/self/cwd/evil.so",
        "LD_AUDIT=/proc/self/cwd/evil.so",
        "LD_LIBRARY_PATH=/proc/self/cwd",
        "PYTHONPATH=/proc/self/cwd",
        "PYTHONSTARTUP=/proc/self/cwd/evil.py",
    ]
    (case.root / "evil.py").write_text(f"open({str(owned)!r}, 'w')")
    result = case.run(
        runtime, ["/bin/quiet"], change=lambda document: document["process"].update(env=variables)
    )
    assert (result.status, result.report["ok"]) == (0, True)
    assert not owned.exists()


def test_a_link_that_changes_while_the_hook_runs(case, canary):
    """Another process of the same root that swaps directories for links gains nothing."""
    case.make("debian").put_driver_in_root()
    folder, other = case.root / "etc/ld.so.conf.d", case.root / "etc/other"
    other.symlink_to(to_the_host(canary)["absolute"])
    before = bundles.snapshot(canary)
    done = threading.Event()

    def swap():
        while not done.wait(0.0005):
            bundles.exchange(folder, other)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        results = [case.direct() for _ in range(10)]
    finally:
        done.set()
        thread.join()
    assert bundles.snapshot(canary) == before
    assert {result.status for result in results} == {0}


def test_mounts_are_not_propagated(case, runtime, canary):
    """With shared propagation everywhere the host's table of mounts stays as it is."""
    case.make("debian")

    def change(document):
        document["linux"]["rootfsPropagation"] = "rshared"

    script = (
        'mount --make-rshared /; cut -d" " -f3- /proc/self/mountinfo >"$0.before"; "$@"; '
        'status=$?; cut -d" " -f3- /proc/self/mountinfo >"$0.after"; exit $status'
    )
    prefix = ["unshare", "--mount", "sh", "-c", script, str(case.place / "mounts")]
    result = case.run(runtime, change=change, prefix=prefix)
    assert (result.status, result.report["ok"]) == (0, True)
    before, after = ((case.place / f"mounts.{end}").read_text() for end in ("before", "after"))
    assert after == before
