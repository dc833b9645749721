# SPDX-License-Identifier: Apache-2.0
"""CVE-2025-23359 and its like: what is swapped between check and use leads nothing out.

The hook waits at a barrier in its text until the image has been changed, so each race is lost or
won every time.
"""

import os
import shutil
import signal
import subprocess

import pytest

from . import bundles, weakened
from .weakened import Barrier, changed, swap


@pytest.fixture
def canary(place):
    """A directory of the host with what the hook and ldconfig would touch."""
    for folder in ("lib64", "nvidia/lib64", "local/nvidia/lib64"):
        bundles.make_library(place / "canary" / folder / "libhost.so.1")
    (place / "canary/ld.so.conf").write_text("host\n")
    return place / "canary"


def shows_the_host(case):
    """Whether the cache lists the canary's library."""
    cache = case.root / "etc/ld.so.cache"
    return cache.exists() and "libhost.so.1" in bundles.cached(case.root)


BY_PATH = (
    "mount(fd, open_in(view, place), BIND)",
    ("mount(posix.open(path + place, PLACE), open_in(view, place), BIND)"),
)
RACES = {
    "after the look at the driver": weakened.ALONE,
    "after the root was bound": weakened.REMOUNTED,
}


@pytest.mark.parametrize("race", RACES)
def test_cve_2025_23359_the_drivers_place_is_swapped(case, runtime, canary, race):
    """The driver's mount is taken as it was looked at; by its path again it is the host's.

    CVE-2025-23359 got past the mend of CVE-2024-0132 this way.
    """
    barrier, shown = Barrier(case.place), {}
    waits = barrier.before(RACES[race])
    before = bundles.snapshot(canary)
    for name, command in (("with", [waits]), ("without", [waits, BY_PATH])):
        hook, case.hook = case.hook, changed(case, *command)
        shutil.rmtree(case.root, ignore_errors=True)
        # Where the link leads to inside: there a runtime's mount would be, and ours is.
        (case.make("debian").root / str(canary)[1:] / "nvidia/lib64").mkdir(parents=True)
        with barrier.doing(lambda: swap(case.root, "usr/local", canary)):
            result = case.run(runtime, ["/bin/quiet"])
        case.hook = hook
        assert barrier.done
        assert result.report is not None
        assert bundles.snapshot(canary) == before
        shown[name] = shows_the_host(case)
    assert shown == {"with": False, "without": True}


def test_cve_2025_23359_ldconfigs_place_in_memory_is_swapped(case, runtime, canary):
    """A link in the place of the memory file system is not followed; else ldconfig writes there."""
    barrier, written = Barrier(case.place), {}
    waits = barrier.before(weakened.SCRATCH_MADE)
    follows = (
        "directory = PLACE | posix.O_DIRECTORY | posix.O_NOFOLLOW",
        ("directory = PLACE | posix.O_DIRECTORY"),
    )
    notes = canary / "aux-cache"
    for name, changes in (("with", [waits]), ("without", [waits, follows])):
        hook, case.hook = case.hook, changed(case, *changes)
        shutil.rmtree(case.root, ignore_errors=True)
        (case.make("debian").root / "var/cache/ldconfig").mkdir(parents=True)
        with barrier.doing(lambda: swap(case.root, "proc", canary)):
            result = case.run(runtime, ["/bin/quiet"])
        case.hook = hook
        assert barrier.done
        assert result.report is not None
        written[name] = notes.exists()
    assert written == {"with": False, "without": True}


def test_cve_2025_23359_a_directory_is_swapped_before_the_view(case, runtime, canary):
    """/etc that becomes a link to the host, through /proc, before the view is made."""
    barrier, written = Barrier(case.place), {}
    drop_in = canary / "ld.so.conf.d/00-nri-nvidia.conf"
    stop = '    steps.append(step("view", enter, *root))\n'
    waits = barrier.before(stop)
    (canary / "ld.so.conf.d").mkdir()
    ways = {
        "with": [waits],
        "without": [(stop, waits[1].replace(weakened.STEP_VIEW, weakened.ONLY_A_CHROOT))],
    }
    for name, changes in ways.items():
        hook, case.hook = case.hook, changed(case, *changes)
        shutil.rmtree(case.root, ignore_errors=True)
        case.make("debian")
        with barrier.doing(lambda: swap(case.root, "etc", f"/proc/1/root{canary}")):
            result = case.run(runtime, ["/bin/quiet"])
        case.hook = hook
        assert barrier.done
        assert result.report is not None
        written[name] = drop_in.exists()
    assert written == {"with": False, "without": True}


@pytest.mark.alone
def test_cve_2025_23359_a_directory_is_swapped_inside_the_view(case, canary):
    """A directory that becomes a link before it is written to leads nowhere in the view."""
    stop = 'steps.append(step("ldcache"'
    halt = stop, f"posix.kill(posix.getpid(), 19); {stop}"
    written, ways = {}, {"with": [halt], "without": [halt, *weakened.CHROOT]}
    for name, changes in ways.items():
        command = changed(case, *changes)
        shutil.rmtree(case.root, ignore_errors=True)
        case.make("debian").put_driver_in_root()
        (case.root / "etc/ld.so.conf.d").rename(case.root / "etc/before")
        (case.root / "etc/ld.so.conf.d").mkdir()
        errors = stopped_and_swapped(case, command, canary)
        written[name] = (canary / "00-nri-nvidia.conf").exists()
        assert name == "without" or b"No such file or directory" in errors
    assert written == {"with": False, "without": True}


def stopped_and_swapped(case, command, canary):
    """Run a hook that stops itself, and swap a directory for a link meanwhile; give its errors."""
    (case.bundle / "config.json").write_text('{"root": {"path": "rootfs"}}')
    script = 'mount -n -t proc proc "$0/proc" && exec "$@"'
    private = ["unshare", "--mount", "sh", "-c", script, str(case.root)]
    running = subprocess.Popen(
        [*private, *command], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={"PATH": "/bin"}
    )
    running.stdin.write(f'{{"bundle": "{case.bundle}"}}'.encode())
    running.stdin.close()
    running.stdin = None
    os.waitid(os.P_PID, running.pid, os.WSTOPPED)
    swap(case.root, "etc/ld.so.conf.d", f"/proc/{os.getpid()}/root{canary}")
    running.send_signal(signal.SIGCONT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 0
    return errors


ROOT_RACES = {
    "before it is opened": f"    {weakened.STEP_VIEW}\n",
    "after it was bound": "    view = open_root(path, known)\n",
}


@pytest.mark.parametrize("race", ROOT_RACES)
def test_cve_2025_23359_the_root_itself_is_swapped(case, runtime, canary, race):
    """A link to a directory of the host in place of the root is no root, whoever may rename that."""
    barrier, written = Barrier(case.place), {}
    stop = ROOT_RACES[race]
    bundles.make_root(canary / "root", case.toolbox, "debian")
    shutil.copytree(case.toolbox.driver, canary / "root" / bundles.LIBRARY_DIR[1:])
    taken = [
        ("    if identity(root) != known:", "    if False:"),
        ("    if alone and mount_id(view) == mount_id(root):", "    if False:"),
    ]
    for name, changes in (("with", []), ("without", taken)):
        hook, case.hook = case.hook, changed(case, barrier.before(stop), *changes)
        case.make("debian")
        with barrier.doing(lambda: swap(case.bundle, "rootfs", canary / "root")):
            result = case.run(runtime, ["/bin/quiet"])
        case.hook = hook
        assert barrier.done
        assert result.report is not None
        written[name] = (canary / "root/etc/ld.so.conf.d/00-nri-nvidia.conf").exists()
        case.root.unlink()
        shutil.rmtree(case.bundle / "rootfs-link")
    assert written == {"with": False, "without": True}


def test_a_loop_of_links_is_given_up(case, runtime):
    """Links that lead to each other, put where the driver was, hinder nothing.

    Followed without end they use up all descriptors, and then there is no view.
    """
    barrier, found = Barrier(case.place), {}
    look = "    driver, writable = driver_mounts(root, places, mounts)"
    endless = "            if links > 40:", "            if links > 1 << 40:"
    for name, changes in {"with": [], "without": [endless]}.items():
        hook, case.hook = case.hook, changed(case, barrier.before(look), *changes)
        shutil.rmtree(case.root, ignore_errors=True)
        (case.make("debian").root / "usr/local").mkdir()
        (case.root / "loop").symlink_to("usr/local")
        with barrier.doing(lambda: swap(case.root, "usr/local", "/loop")):
            result = case.run(runtime, ["/bin/quiet"], options=["--timeout", "0.2"])
        case.hook = hook
        assert barrier.done
        assert result.status == 0
        found[name] = "ldcache" in {step["name"] for step in result.report["steps"]}
    assert found == {"with": True, "without": False}
