# SPDX-License-Identifier: Apache-2.0
"""What a program in ldconfig's place may do: nothing that leads out of the container's root.

ldconfig reads what an image's author wrote. Each test takes away one thing that holds it, and
shows what an ldconfig that was taken over could do then.
"""

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import signal
import socket
import threading
from pathlib import Path

import pytest

from . import bundles, intruder, weakened
from .weakened import both_ways, several

IPC_CREATE, IPC_REMOVE = 0o1000, 0
KEEP_CAPABILITIES = weakened.CAPABILITIES, "pass"
KEEP_BOUNDING = 'call("prctl", DROP_BOUNDING, number, 0, 0, 0)', "pass"
ALL_CAPABILITIES = KEEP_CAPABILITIES, KEEP_BOUNDING
NEW_PRIVILEGES = 'call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)', "pass"
NAMESPACES = "for kind in (NEW_PIDS, NEW_IPC, NEW_NETWORK):"


@pytest.fixture
def canary(place):
    """A directory of the host's, in which nothing may be made."""
    folder = place / "canary"
    folder.mkdir()
    return folder


def attempts(case, runtime, options=(), **more):
    """Have a container's ldconfig be the intruder; give what came of its attempts."""
    return intruder.said(case.run(runtime, ["/bin/quiet"], options=options, **more))


def test_it_has_two_capabilities(case, runtime, canary):
    """It can neither mount nor make nodes; with all capabilities it can, as the host's root."""
    options, found = intruder.make(case, folder=canary), {}
    for name, ready in both_ways(case, *ALL_CAPABILITIES):
        done = attempts(ready, runtime, options)
        found[name] = done["mount"], done["mknod"]
    assert found == {"with": (errno.EPERM,) * 2, "without": (0, 0)}


def test_it_opens_nothing_by_handle(case, runtime, canary):
    """A directory of the host's opens by its inode's number for whoever may read everything."""
    if not intruder.has_handles(canary):
        pytest.skip(f"the file system of {canary.parent} has no handles of files")
    options, found = intruder.make(case, folder=canary), {}
    for name, ready in both_ways(case, *ALL_CAPABILITIES):
        attempts(ready, runtime, options)
        found[name] = intruder.owned(canary)
    assert found == {"with": [], "without": ["owned"]}


def test_a_program_that_it_starts_has_no_more(case, runtime, canary):
    """Root gains all rights with a new program, but for no_new_privs and for the bounding set.

    Each of the two holds by itself, so the attack is shown with both away.
    """
    options, found = intruder.make(case, folder=canary), {}
    weaknesses = {
        "no bounds": [KEEP_BOUNDING],
        "new privileges": [NEW_PRIVILEGES],
        "without": [KEEP_BOUNDING, NEW_PRIVILEGES],
    }
    for name, ready in several(case, weaknesses):
        done = attempts(ready, runtime, options)
        found[name] = done["nnp"], done["again"]
    assert found == {
        "with": (1, errno.EPERM), "no bounds": (1, errno.EPERM),
        "new privileges": (0, errno.EPERM), "without": (0, 0),
    }  # fmt: skip


def test_it_sees_no_other_process(case, runtime):
    """In pids of its own it has no parent; else it could end the hook, or any process of root's."""
    options, found = intruder.make(case, kill_parent=True), {}
    for name, ready in both_ways(case, (NAMESPACES, "for kind in (NEW_IPC, NEW_NETWORK):")):
        result = ready.run(runtime, ["/bin/quiet"], options=options)
        found[name] = result.report is None
    assert found == {"with": False, "without": True}


def test_it_reaches_no_group_of_processes(case):
    """A signal to its own group reaches nobody: in the hook's it would, whatever the namespace."""
    options, found = intruder.make(case, kill_group=True), {}
    for name, ready in both_ways(case, ("            posix.setsid()", "            pass")):
        ready.put_driver_in_root()
        result = ready.direct(*options, prefix=["setsid"])
        found[name] = result.status
    assert found == {"with": 0, "without": -signal.SIGUSR1}


@contextlib.contextmanager
def shared_memory():
    """Have a segment of shared memory on the host; gives its key."""
    key, libc = secrets.randbelow(1 << 30) + 1, ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(key, 4096, IPC_CREATE | 0o600)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    try:
        yield key
    finally:
        libc.shmctl(segment, IPC_REMOVE, None)


def test_it_finds_no_shared_memory(case, runtime):
    """Segments of the host's are not in its namespace, even where the container shares the host's."""

    def change(document):
        spaces = document["linux"]["namespaces"]
        spaces[:] = [each for each in spaces if each["type"] != "ipc"]

    found = {}
    with shared_memory() as key:
        options = intruder.make(case, key=key)
        for name, ready in both_ways(case, (NAMESPACES, "for kind in (NEW_PIDS, NEW_NETWORK):")):
            found[name] = attempts(ready, runtime, options, change=change)["shm"]
    assert found == {"with": errno.ENOENT, "without": 0}


def test_it_reaches_no_socket_of_the_host(case, runtime):
    """Abstract sockets of the host's are not in its network, though the container shares that."""
    name, found = f"nri-nvidia-{secrets.token_hex(8)}", {}
    options = intruder.make(case, socket=name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        for way, ready in both_ways(case, (NAMESPACES, "for kind in (NEW_PIDS, NEW_IPC):")):
            found[way] = attempts(ready, runtime, options)["socket"]
    assert found == {"with": errno.ECONNREFUSED, "without": 0}


@pytest.mark.alone
def test_no_descriptor_is_left_to_it(case, canary):
    """What a runtime left open, such as a directory of the host's, is closed before anything."""
    options, found = intruder.make(case), {}
    for name, ready in both_ways(case, ("    keep_only(2, tool, int(given", "    tuple((given")):
        ready.put_driver_in_root()
        ready.direct(*options, prefix=["sh", "-c", 'exec "$@" 9<"$0"', str(canary)])
        found[name] = intruder.owned(canary)
    assert found == {"with": [], "without": ["owned-by-9"]}


def test_its_memory_is_bounded(case, runtime):
    """It maps no 8 GiB; without limits it may."""
    options, found = intruder.make(case), {}
    for name, ready in both_ways(
        case, ('call("setrlimit", limit, value.to_bytes(8, sys.byteorder) * 2)', "pass")
    ):
        found[name] = attempts(ready, runtime, options)["memory"]
    assert found == {"with": errno.ENOMEM, "without": 0}


def test_it_has_no_environment(case, runtime):
    """LD_*, GLIBC_TUNABLES and the like reach ldconfig by no way, were they in the hook's own."""

    def change(document):
        document["hooks"]["createContainer"][0]["env"] = ["LD_PRELOAD=/x", "GLIBC_TUNABLES=x=y"]

    options, found = intruder.make(case), {}
    for name, ready in both_ways(case, ("execve(tool, arguments, {})",
                                        "execve(tool, arguments, posix.environ)")):  # fmt: skip
        found[name] = attempts(ready, runtime, options, change=change)["env"]
    assert found["with"] == 0
    assert found["without"] >= 2


def look_while_it_hangs(ready, runtime, look, options=()):
    """Run a container, and call `look` with the process of an ldconfig that waits for a FIFO."""
    fifo = ready.root / "etc/ld.so.conf.d/hang.conf"
    os.mkfifo(fifo)

    def wait():
        with fifo.open("wb"):  # opens as soon as ldconfig reads
            for path in map(Path, bundles.running_in(ready.root)):
                look(path.parent)

    thread = threading.Thread(target=wait)
    thread.start()
    result = ready.run(runtime, ["/bin/quiet"], options=options)
    thread.join()
    return result


def test_how_ldconfig_runs(case, runtime):
    """It is sealed memory, in namespaces of its own, with two capabilities and no new ones."""
    found = []

    def look(process):
        program = str((process / "exe").readlink())
        if "ldconfig" in program:
            spaces = {each.name: each.readlink() for each in (process / "ns").iterdir()}
            words = (process / "status").read_text().split("\n")
            status = dict(word.split(":\t", 1) for word in words if ":\t" in word)
            found.append((program, spaces, status))

    assert look_while_it_hangs(case.make("debian"), runtime, look).report["ok"]
    ((program, spaces, status),) = found
    assert program == "/memfd:ldconfig (deleted)"
    own = {name: Path(f"/proc/self/ns/{name}").readlink() for name in spaces}
    assert {name for name in ("mnt", "pid", "ipc", "net") if spaces[name] == own[name]} == set()
    assert (status["CapEff"], status["CapBnd"]) == ("000000000000000a", "000000000000000a")
    assert status["NoNewPrivs"] == "1"


def test_cve_2024_0136_the_hosts_ldconfig_is_not_overwritten(case, runtime):
    """Whoever gets hold of /proc/PID/exe writes to a sealed copy; else to the host's program.

    CVE-2024-0135 to -0137 are of this kind: the program that ran was the host's file.
    """
    found = {}
    for name, ready in both_ways(case, ("            return copy", "            pass")):
        program = Path(shutil.copy("/sbin/ldconfig", case.place / f"ldconfig-{name}"))
        held = []

        def look(process, held=held):
            if "ldconfig" in str((process / "exe").readlink()):
                held.append(os.open(process / "exe", os.O_RDONLY))

        before = program.read_bytes()
        options = ["--ldconfig", str(program)]
        assert look_while_it_hangs(ready, runtime, look, options).report["ok"]
        with contextlib.suppress(OSError), open(f"/proc/self/fd/{held[0]}", "r+b") as again:
            again.write(b"owned")
        os.close(held[0])
        found[name] = program.read_bytes() == before
    assert found == {"with": True, "without": False}


SCRIPT = "#!/bin/sh\n: >/tmp/owned\n"
OWN_LDCONFIG = "posix.execve(tool, arguments, {})", 'posix.execve("/sbin/ldconfig", arguments, {})'


def test_an_ldconfig_of_the_image_is_not_run(case, runtime):
    """An ldconfig in the image, a script, is a file like any other, and no program in the view.

    Run by its path, as CVE-2024-0136's configuration had it, it would still not be executable.
    """
    found = {}
    weaknesses = {
        "by its path": [OWN_LDCONFIG],
        "without": [OWN_LDCONFIG, weakened.PLAIN_FILES_ONLY],
    }
    for name, ready in several(case, weaknesses):
        for folder in ("sbin", "usr/sbin"):
            (ready.root / folder).mkdir(parents=True, exist_ok=True)
            (ready.root / folder / "ldconfig").write_text(SCRIPT)
            (ready.root / folder / "ldconfig").chmod(0o755)
        ready.run(runtime, ["/bin/quiet"])
        found[name] = (ready.root / "tmp/owned").exists()
    assert found == {"with": False, "by its path": False, "without": True}


def test_a_script_in_place_of_the_hosts_ldconfig(case, runtime):
    """A script is refused: its interpreter would be the image's, and it is said what to do."""
    script = case.place / "script"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    any_program = ' or posix.pread(program, 4, 0) != b"\\x7fELF"', ""
    as_file = "            return copy", "            pass"
    # A script needs its descriptor to stay open, and a name for it that is in the view.
    kept_open = (
        "posix.execve(tool, arguments, {})",
        ('posix.execve("/bin/sh", ["sh", "-c", posix.pread(tool, 999, 0).decode()], {})'),
    )
    weak = [any_program, as_file, kept_open, weakened.PLAIN_FILES_ONLY]
    found = {}
    for name, ready in both_ways(case, *weak):
        result = ready.run(runtime, ["/bin/quiet"], options=["--ldconfig", str(script)])
        refused = "is not an ELF program" in result.step("ldcache")["message"]
        found[name] = refused, (ready.root / "tmp/owned").exists()
    assert found == {"with": (True, False), "without": (False, True)}
