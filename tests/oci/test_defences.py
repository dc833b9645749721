# SPDX-License-Identifier: Apache-2.0
"""Each defence of the hook by itself: with it nothing happens, without it the attack succeeds.

A copy of the hook lacks one defence, by a change of its text. Where a race is meant the text has a
barrier in it: the hook waits there until the image has been changed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from . import bundles

STEP_VIEW = 'steps.append(step("view", enter, *root))'
ONLY_A_CHROOT = 'posix.chroot(root[0]); posix.chdir("/"); steps.append(step("view", int))'
HIDDEN = '    call("unshare", NEW_MOUNTS)\n'
DETACHED = "mount(host, host, RECURSIVE | PRIVATE)"
ALONE = "    try:\n        mount(root, root, BIND)\n"
REMOUNTED = "    for fd, place in driver:\n        with"


def changed(case, *changes):
    """Give the hook's command line for a copy with texts replaced, each of which is there once."""
    start = Path(case.hook[-1])
    text = Path(f"{start}.py").read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    folder = case.place / f"hook-{len(os.listdir(case.place))}"
    folder.mkdir()
    shutil.copy(start, folder)
    (folder / f"{start.name}.py").write_text(text)
    return [*case.hook[:-1], str(folder / start.name)]


def both_ways(case, *changes):
    """Give the hook as it is and without a defence, each with a fresh root."""
    for name, command in (("with", case.hook), ("without", changed(case, *changes))):
        case.hook = command
        shutil.rmtree(case.root, ignore_errors=True)
        yield name, case.make("debian")


class Barrier:
    """A place in the hook's text where it waits while something is done."""

    def __init__(self, folder):
        self.reached, self.passed = folder / "reached", folder / "passed"
        for fifo in (self.reached, self.passed):
            os.mkfifo(fifo, 0o666)
        self.done = False

    def before(self, text):
        """Give the change that puts it before a statement of the hook's."""
        indent = " " * (len(text) - len(text.lstrip()))
        code = f'open("{self.reached}", "wb").close(); open("{self.passed}", "rb").close()'
        return text, f"{indent}{code}\n{text}"

    @contextlib.contextmanager
    def doing(self, action):
        """Do something when the hook is at the barrier, then let it go on."""

        def wait():
            with self.reached.open("rb"):
                action()
                self.done = True
            self.passed.write_bytes(b"")

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            if thread.is_alive() and not self.done:
                self.reached.write_bytes(b"")  # the hook never came; end the thread
                self.passed.open("rb").close()
            thread.join()


@pytest.fixture
def canary(place):
    """A directory of the host with what the hook and ldconfig would touch."""
    bundles.make_library(place / "canary/lib64/libhost.so.1")
    (place / "canary/ld.so.conf").write_text("host\n")
    return place / "canary"


def swap(root, name, target):
    """Put a link where a directory is, at once."""
    link = root / f"{name}-link"
    link.symlink_to(target)
    bundles.exchange(root / name, link)


def test_a_chroot_alone_does_not_hold(case, runtime, canary):
    """A link through the container's own /proc leads nowhere; in a mere chroot, to the host.

    This is CVE-2025-23267: a drop-in or a cache is written where a link in the image leads.
    """
    outcome = {}
    for name, ready in both_ways(case, (STEP_VIEW, ONLY_A_CHROOT)):
        shutil.rmtree(ready.root / "etc/ld.so.conf.d")
        (ready.root / "etc/ld.so.conf.d").symlink_to(f"/proc/1/root{canary}")
        ready.run(runtime, ["/bin/quiet"])
        outcome[name] = (canary / "00-nri-nvidia.conf").exists()
    assert outcome == {"with": False, "without": True}


def test_links_of_programs_stay_inside(case, runtime, canary):
    """A link in place of /usr/bin does not take the programs' links out (CVE-2024-0134)."""
    outcome = {}
    for name, ready in both_ways(case, (STEP_VIEW, ONLY_A_CHROOT)):
        shutil.rmtree(ready.root / "usr/bin")
        (ready.root / "usr/bin").symlink_to(f"/proc/1/root{canary}")
        ready.run(runtime, ["/bin/quiet"])
        outcome[name] = (canary / "nvidia-smi").is_symlink()
    assert outcome == {"with": False, "without": True}


def test_the_host_is_not_in_view(case, runtime, canary):
    """What a link in the driver's place leads to on the host is not shown to ldconfig.

    This is CVE-2024-0132: a library's place in the image is a link to a directory of the host.
    """
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


RACES = {
    "after the look at the driver": (ALONE, "usr/local"),
    "after the root was bound": (REMOUNTED, "usr/local"),
    "before ldconfig's place in memory": ("    add_scratch(view)\n", "proc"),
    "before the view": (HIDDEN, "etc"),
}


@pytest.mark.parametrize("race", RACES)
def test_what_is_swapped_while_the_hook_looks(case, runtime, canary, race):
    """A directory that becomes a link between check and use leads nothing out (CVE-2025-23359)."""
    statement, name = RACES[race]
    barrier = Barrier(case.place)
    case.hook = changed(case.make("debian"), barrier.before(statement))
    shutil.copytree(canary, case.root / "usr/local/nvidia", dirs_exist_ok=True)
    before = bundles.snapshot(canary)
    with barrier.doing(lambda: swap(case.root, name, canary)):
        result = case.run(runtime, ["/bin/quiet"])
    assert barrier.done
    assert bundles.snapshot(canary) == before
    assert result.report is not None
    cache = case.root / "etc/ld.so.cache"
    assert not cache.exists() or "libhost.so.1" not in bundles.cached(case.root)
    assert list(case.root.rglob(".nri-nvidia*")) == []


def test_the_drivers_place_is_swapped(case, runtime, canary):
    """The driver's mount is taken as it was looked at, not by its path again (CVE-2025-23359)."""
    barrier, shown = Barrier(case.place), {}
    swapped = barrier.before(REMOUNTED)
    again = "mount(fd, open_in", "mount(posix.open(path + place, PLACE), open_in"
    bundles.make_library(canary / "nvidia/lib64/libhost.so.1")
    hooks = {"with": changed(case, swapped), "without": changed(case, swapped, again)}
    for name, case.hook in hooks.items():
        shutil.rmtree(case.root, ignore_errors=True)
        place = case.make("debian").root / str(canary)[1:]
        (place / "nvidia/lib64").mkdir(parents=True)  # where the link leads inside
        with barrier.doing(lambda: swap(case.root, "usr/local", canary)):
            case.run(runtime, ["/bin/quiet"])
        cache = case.root / "etc/ld.so.cache"
        shown[name] = cache.exists() and "libhost.so.1" in bundles.cached(case.root)
    assert shown == {"with": False, "without": True}


def test_what_is_swapped_while_the_steps_are_done(case, canary):
    """Inside the view too: a directory that becomes a link before it is written to."""
    stop = 'steps.append(step("ldcache"'
    weak = changed(
        case.make("debian").put_driver_in_root(), (stop, f"posix.kill(posix.getpid(), 19); {stop}")
    )
    (case.bundle / "config.json").write_text('{"root": {"path": "rootfs"}}')
    before = bundles.snapshot(canary)
    running = subprocess.Popen(weak, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={})
    running.stdin.write(f'{{"bundle": "{case.bundle}"}}'.encode())
    running.stdin.close()
    running.stdin = None
    os.waitid(os.P_PID, running.pid, os.WSTOPPED)
    swap(case.root, "etc/ld.so.conf.d", canary)
    running.send_signal(signal.SIGCONT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 0
    assert b"No such file or directory" in errors
    assert bundles.snapshot(canary) == before


def test_mounts_are_private(case):
    """With shared propagation a mount of the hook's stays its own; without the step it spreads."""
    script = (
        'mount --make-rshared /; cut -d" " -f3- /proc/self/mountinfo >"$0.before"; "$@"; '
        'cut -d" " -f3- /proc/self/mountinfo >"$0.after"'
    )
    outcome = {}
    for name, ready in both_ways(case, (DETACHED, "pass")):
        ready.put_driver_in_root()
        ready.direct(prefix=["unshare", "--mount", "sh", "-c", script, str(case.place / name)])
        texts = [(case.place / f"{name}.{end}").read_text() for end in ("before", "after")]
        outcome[name] = texts[0] != texts[1]
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


def test_a_fifo_is_not_waited_for(case, runtime):
    """A FIFO in place of ld.so.conf does not use up the hook's time; opened as a file it does."""
    outcome = {}
    for name, ready in both_ways(case, (" | posix.O_NONBLOCK", "")):
        (ready.root / "etc/ld.so.conf").unlink()
        os.mkfifo(ready.root / "etc/ld.so.conf")
        result = ready.run(runtime, ["/bin/quiet"], options=["--timeout", "0.5"])
        assert result.status == 0
        outcome[name] = "hook" in {step["name"] for step in result.report["steps"]}
    assert outcome == {"with": False, "without": True}


def test_the_environment_is_the_hooks_own(case, runtime, place):
    """The image's LD_PRELOAD is not the hook's, since that has an environment (CVE-2025-23266)."""
    owned = place / "owned"
    text = f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fopen("{owned}", "w"); }}'
    bundles.compile_c(case.make("debian").root / "evil.so", text, "-shared", "-fPIC")
    outcome = {}
    for name, environment in (("with", {"env": ["LC_ALL=C"]}), ("without", {})):

        def change(document, environment=environment):
            document["process"]["env"] = [f"LD_PRELOAD={case.root}/evil.so"]
            entry = document["hooks"]["createContainer"][0]
            del entry["env"]
            entry.update(environment)

        case.run(runtime, ["/bin/quiet"], change=change)
        outcome[name] = owned.exists()
    assert not outcome["with"]
    assert outcome["without"] == ("runc-1.1.5" in runtime)  # the others see to it by themselves


def watched(case, runtime):
    """Run a container while whose ldconfig hangs it is looked at; give what each process shows."""
    fifo = case.make("debian").root / "etc/ld.so.conf.d/hang.conf"
    os.mkfifo(fifo)
    found = []

    def look():
        with fifo.open("wb"):  # opens as soon as ldconfig reads
            for path in map(Path, bundles.running_in(case.root)):
                spaces = {each.name: each.readlink() for each in path.with_name("ns").iterdir()}
                words = path.with_name("status").read_text().split("\n")
                status = dict(word.split(":\t", 1) for word in words if ":\t" in word)
                found.append((str(path.with_name("exe").readlink()), spaces, status))

    thread = threading.Thread(target=look)
    thread.start()
    result = case.run(runtime, ["/bin/quiet"])
    thread.join()
    assert result.report["ok"]
    return found


def test_how_ldconfig_runs(case, runtime):
    """It is sealed memory, in namespaces of its own, with two capabilities and no new ones.

    CVE-2024-0136's way is /proc/PID/exe: a program of the host's that an image could write to.
    """
    found = [each for each in watched(case, runtime) if "ldconfig" in each[0]]
    ((program, spaces, status),) = found
    assert program == "/memfd:ldconfig (deleted)"
    own = {name: Path(f"/proc/self/ns/{name}").readlink() for name in spaces}
    assert {name for name in ("mnt", "pid", "ipc", "net") if spaces[name] == own[name]} == set()
    assert (status["CapEff"], status["CapBnd"]) == ("000000000000000a", "000000000000000a")
    assert status["NoNewPrivs"] == "1"


@pytest.mark.parametrize(
    "place_of_link", ["lib/firmware/nvidia", "lib/firmware", "usr/lib64", "usr/share"]
)
def test_no_file_is_made_on_the_host(case, runtime, canary, place_of_link):
    """A place of a driver file that a link leads out of the root is made inside (CVE-2024-0133)."""
    link = case.make("debian").root / place_of_link
    link.parent.mkdir(parents=True, exist_ok=True)
    up = "../" * 12
    link.symlink_to(f"{up}{str(canary)[1:]}")
    file = case.toolbox.driver / "lib64" / bundles.LIBRARIES[0]
    mounts = [*case.driver, bundles.bind(file, f"/{place_of_link}/550.163.01/gsp_ga10x.bin")]
    before = bundles.snapshot(canary)
    case.run(runtime, ["/bin/quiet"], mounts=mounts)
    assert bundles.snapshot(canary) == before


def test_compatibility_libraries_that_lead_out(case, runtime, canary):
    """CUDA's compatibility directory is the image's: a link there shows nothing of the host."""
    compat = case.make("debian").root / "usr/local/cuda"
    compat.mkdir(parents=True)
    (compat / "compat").symlink_to(f"/proc/1/root{canary}/lib64")
    (case.root / "etc/ld.so.conf.d/00-compat.conf").write_text("/usr/local/cuda/compat\n")
    before = bundles.snapshot(canary)
    result = case.run(runtime, ["/bin/quiet"])
    assert bundles.snapshot(canary) == before
    assert result.report["ok"]
    assert "libhost.so.1" not in bundles.cached(case.root)


@pytest.fixture(scope="module")
def million(shared):
    """A directory in memory with a million names of libraries."""
    folder = shared / "million"
    folder.mkdir()
    subprocess.run(["mount", "-n", "-t", "tmpfs", "-o", "nr_inodes=0", "none", folder], check=True)
    try:
        library = bundles.make_library(folder / "lib/libown.so.1")
        there = os.open(library.parent, os.O_RDONLY | os.O_DIRECTORY)
        for number in range(1_000_000):
            os.link(library.name, f"lib{number}.so", src_dir_fd=there, dst_dir_fd=there)
        os.close(there)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_million_files(case, runtime, million):
    """An image with a million libraries keeps its old cache, and its container starts in time."""
    case.root.mkdir(parents=True)
    case.root.rmdir()
    root = million / "rootfs"
    bundles.make_root(root, case.toolbox, "debian")
    os.rename(million / "lib", root / "opt")
    try:
        (root / "etc/ld.so.conf.d/image.conf").write_text("/opt\n")
        (root / "etc/ld.so.cache").write_text("old")
        result = case.run(
            runtime, ["/bin/quiet"], options=["--timeout", "1"],
            change=lambda document: document["root"].update(path=str(root)),
        )  # fmt: skip
        assert result.status == 0
        assert result.step("links")["ok"]
        assert result.step("ldcache")["message"].startswith("ldconfig: ")
        assert (root / "etc/ld.so.cache").read_text() == "old"
        assert [name for name in os.listdir(root / "etc") if "nri" in name] == []
    finally:
        os.rename(root / "opt", million / "lib")
        shutil.rmtree(root)
