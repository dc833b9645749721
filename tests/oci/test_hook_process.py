# SPDX-License-Identifier: Apache-2.0
"""The hook as a process: its input, its outcome, its time, and what it leaves behind."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nri_nvidia.oci import install

from . import bundles, weakened


def test_the_root_of_the_state_is_relative_to_the_bundle(ready):
    """crun's state has `root`, relative to the bundle, and pid 0."""
    state = {"id": "c", "pid": 0, "root": "rootfs", "bundle": str(ready.bundle)}
    document = {"root": {"path": "/nowhere"}}
    result = ready.direct(state=state, document=document)
    assert (result.status, result.errors, result.report["ok"]) == (0, "", True)
    assert set(bundles.LIBRARIES) < set(bundles.cached(ready.root))


def test_an_absolute_root_of_the_configuration(ready):
    """docker's config.json names the root by an absolute path; runc's state names none."""
    result = ready.direct(document={"root": {"path": str(ready.root)}})
    assert result.report["ok"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("", "the state on standard input is not a JSON object"),
        ("[]", "the state on standard input is not a JSON object"),
        ("\0" * (2 << 20), "the state on standard input is not a JSON object"),
        ("[" * 100_000, "the state on standard input is not a JSON object"),
        ("{}", "neither the state on standard input nor its bundle names the root"),
        ('{"root": "r"}', "neither the state on standard input nor its bundle names the root"),
        ('{"root": "/"}', "the container's root / is the host's own"),
        (
            '{"root": "/proc/self/root"}',
            "the container's root /proc/self/root is the host's own",
        ),
        ('{"bundle": "/nowhere"}', "[Errno 2] No such file or directory: '/nowhere/config.json'"),
        ('{"root": "/nowhere"}', "[Errno 2] No such file or directory: '/nowhere'"),
    ],
)
def test_a_state_that_names_no_root(ready, state, message):
    """What is wrong is said on standard error and in the report, and the container starts."""
    result = ready.direct(state=state)
    assert (result.status, result.errors) == (0, f"nri-nvidia-hook: hook: {message}\n")
    assert bundles.failing(result) == {"hook": message}


@pytest.mark.parametrize("document", [{}, {"root": None}, {"root": {"path": 7}}, {"root": []}])
def test_a_configuration_that_names_no_root(ready, document):
    """Junk in config.json is no root."""
    document["mounts"] = [None, {}, {"destination": 3, "options": ["ro"]}, {"options": "ro"}]
    result = ready.direct(document=document)
    assert result.status == 0
    assert "hook" in bundles.failing(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--library-dir", "usr"], "--library-dir does not take 'usr'"),
        (["--library-dir", "/a/../b"], "--library-dir does not take '/a/../b'"),
        (["--library-dir", "/a\n/b"], "--library-dir does not take '/a\\n/b'"),
        (["--link", "../x"], "--link does not take '../x'"),
        (["--link", ".."], "--link does not take '..'"),
        (["--timeout", "0"], "--timeout does not take '0'"),
        (["--timeout", "1e9"], "--timeout does not take '1e9'"),
        (["--skip", "all"], "--skip does not take 'all'"),
        (["--on-error", "x"], "--on-error does not take 'x'"),
        (["--ldconfig"], "--ldconfig does not take ''"),
    ],
)
def test_wrong_arguments(ready, options, message):
    """An argument that does not fit is named, and nothing is done."""
    before = bundles.snapshot(ready.root)
    result = ready.direct(*options)
    assert (result.status, bundles.failing(result)) == (0, {"hook": message})
    assert bundles.snapshot(ready.root) == before


def test_an_unknown_option(ready):
    """A hook that is older than the daemon says what it does not know, and the container starts."""
    result = ready.direct("--new", "1")
    assert result.status == 0
    assert bundles.failing(result)["hook"].startswith(
        "'--new' is no option; there are --library-dir, "
    )


def test_on_error_fail(case, runtime):
    """With --on-error fail a failed step keeps the container from starting, with its message."""
    result = case.make("debian").run(runtime, mounts=[], options=["--on-error", "fail"])
    assert result.status != 0
    assert result.output == ""
    assert not result.report["ok"]


@pytest.mark.alone
def test_it_does_not_run_without_isolation(ready, python_hook):
    """Started without -I it refuses, since it could import what lies in the image."""
    ready.hook = [python_hook[0], python_hook[-1]]
    assert bundles.failing(ready.direct())["hook"].startswith(
        "it is to be started with python3 -I -S"
    )


def test_an_ldconfig_that_is_a_script(ready):
    """A script in ldconfig's place is refused with a hint, and the drop-in is there all the same."""
    script = ready.place / "ldconfig"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    result = ready.direct("--ldconfig", str(script))
    message = f"{script} is not an ELF program; name the real one with --ldconfig"
    assert bundles.failing(result) == {"ldcache": message}
    assert (ready.root / "etc/ld.so.conf.d/00-nri-nvidia.conf").exists()


@pytest.mark.parametrize("name", ["/nowhere", "/dev/zero"])
def test_an_ldconfig_that_is_not_there(ready, name):
    """A missing ldconfig fails its step alone."""
    assert list(bundles.failing(ready.direct("--ldconfig", name))) == ["ldcache"]


def test_an_ldconfig_that_crashes(ready):
    """The signal that ends ldconfig is reported, and the old cache stays."""
    crash = bundles.compile_c(
        ready.place / "crash", "void _start(void) { __builtin_trap(); }", "-static", "-nostdlib"
    )
    bundles.ldconfig(ready.root)
    (ready.root / "etc/ld.so.conf.d/zz.conf").write_text("none\n")  # ldconfig decides on that
    before = (ready.root / "etc/ld.so.cache").read_bytes()
    result = ready.direct("--ldconfig", str(crash))
    assert result.status == 0
    assert bundles.failing(result)["ldcache"].startswith("ldconfig: signal ")
    assert (ready.root / "etc/ld.so.cache").read_bytes() == before


def test_an_ldconfig_that_hangs(ready):
    """At the end of its time ldconfig is killed; the old cache stays and no file or process is left."""
    os.mkfifo(ready.root / "etc/ld.so.conf.d/hang.conf")
    (ready.root / "etc/ld.so.cache").write_text("old")
    result = ready.direct("--timeout", "0.5")
    assert result.status == 0
    assert bundles.failing(result) == {"ldcache": "ldconfig: signal 9: not done after 0.5 s"}
    assert (ready.root / "etc/ld.so.cache").read_text() == "old"
    assert list(ready.root.rglob(".nri-nvidia*")) == []
    assert bundles.running_in(ready.root) == []


def test_a_hook_that_is_killed_leaves_no_process(ready, hook):
    """When the runtime kills the hook at its own limit, its children end with it."""
    fifo = ready.root / "etc/ld.so.conf.d/hang.conf"
    os.mkfifo(fifo)
    (ready.bundle / "config.json").write_text('{"root": {"path": "rootfs"}}')
    running = subprocess.Popen([*hook, "--timeout", "60"], stdin=subprocess.PIPE, env={})
    running.stdin.write(json.dumps({"bundle": str(ready.bundle)}).encode())
    running.stdin.close()
    with fifo.open("wb", buffering=0) as writer:  # opens as soon as ldconfig reads
        running.kill()
        running.wait()
        bundles.wait_for_reader_to_end(writer)
    assert bundles.running_in(ready.root) == []


def test_a_listener_that_does_not_read(ready):
    """The report is not waited for, neither with a full socket nor with none."""
    with ready.listen():
        pass
    (ready.bundle / "config.json").write_text('{"root": {"path": "rootfs"}}')
    state = json.dumps({"bundle": str(ready.bundle)})
    assert bundles.start(ready.command(), state, ready.root) == (0, "", "")
    with ready.listen():
        bundles.fill(ready.place / "report")
        assert bundles.start(ready.command(), state, ready.root) == (0, "", "")


def test_text_of_an_image_cannot_forge_a_line(ready):
    """Control characters in what ldconfig prints do not reach standard error."""
    folder = ready.root / "opt/lib"
    folder.mkdir(parents=True)
    shutil.rmtree(ready.root / "etc/ld.so.conf.d")
    (ready.root / "etc/ld.so.conf.d").symlink_to("/no\n\x1b[31mnri-nvidia-hook: fine")
    result = ready.direct()
    assert result.errors.count("\n") == len(bundles.failing(result)) == 1
    assert "\x1b" not in result.errors


def test_a_root_that_the_engine_made_read_only(ready, runtime):
    """A read-only mount of an image's layer is never written to; the container starts."""
    kept = [ready.root / name for name in ("etc", "usr", "lib")]  # crun itself writes to dev
    before = [bundles.snapshot(folder) for folder in kept]
    script = 'mount -n --bind "$0" "$0"; mount -n -o remount,bind,ro "$0"; "$@"'
    result = ready.run(
        runtime, ["/bin/quiet"], mounts=[], prefix=[*bundles.PRIVATE, script, str(ready.root)],
        change=lambda document: document["root"].update(readonly=True),
    )  # fmt: skip
    assert [bundles.snapshot(folder) for folder in kept] == before
    assert result.report is None or "Read-only file system" in bundles.failing(result)["ldcache"]
    assert result.status == 0 or result.report is None, result


def test_a_root_that_the_runtime_made_read_only(ready):
    """A read-only mount of the root upon itself, as old crun has it, is made writable for us."""
    script = 'mount -n --bind "$0" "$0"; mount -n -o remount,bind,ro "$0"; exec "$@"'
    result = ready.direct(prefix=[*bundles.PRIVATE, script, str(ready.root)])
    assert result.report["ok"]
    assert set(bundles.LIBRARIES) < set(bundles.cached(ready.root))


def test_a_root_that_allows_no_execution(ready):
    """ldconfig does not run from the image, so a noexec mount does not matter."""
    script = 'mount -n --bind "$0" "$0"; mount -n -o remount,bind,noexec "$0"; exec "$@"'
    assert ready.direct(prefix=[*bundles.PRIVATE, script, str(ready.root)]).report["ok"]


@pytest.mark.alone
def test_without_executable_memory(ready):
    """Where vm.memfd_noexec forbids programs in memory ldconfig runs from its file."""
    knob = Path("/proc/sys/vm/memfd_noexec")
    if not knob.exists():
        pytest.skip("this kernel is older than Linux 6.3 and has no vm.memfd_noexec")
    prefix = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c",
              f'echo 2 >{knob}; exec "$@"', "-"]  # fmt: skip
    assert ready.direct(prefix=prefix).report["ok"]


@pytest.mark.alone
def test_mounts_that_cannot_be_taken_away(ready):
    """Where an outer user namespace has locked mounts below the root nothing is done inside."""
    volume = ready.root / "opt"
    volume.mkdir()
    before = bundles.snapshot(ready.root)
    script = 'mount -t tmpfs none "$0"; exec unshare --user --map-root-user --mount "$@"'
    result = ready.direct(prefix=[*bundles.PRIVATE, script, str(volume)])
    assert result.status == 0
    assert list(bundles.failing(result)) == ["view"]
    assert bundles.snapshot(ready.root) == before


@pytest.mark.alone
def test_a_container_with_a_user_namespace(case, runtime):
    """The hook runs as the container's root there, and what it makes belongs to that root."""
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
    assert result.report["ok"]
    for name in ("etc/ld.so.cache", "usr/bin/nvidia-smi", "etc/ld.so.conf.d/00-nri-nvidia.conf"):
        assert (case.root / name).lstat().st_uid == first


@pytest.mark.alone
def test_a_step_that_hangs(ready, place):
    """The hook's own work has a limit too: what was done so far is reported, and the container starts."""
    main = Path(f"{ready.hook[-1]}.py").read_text()
    hanging = main.replace(
        'steps.append(step("links"', 'time.sleep(60); steps.append(step("links"'
    )
    shutil.copy(ready.hook[-1], place / "slow")
    (place / "slow.py").write_text(hanging)
    ready.hook = [*ready.hook[:-1], str(place / "slow")]
    result = ready.direct("--timeout", "0.1")
    assert (result.status, bundles.failing(result)) == (0, {"hook": "not done after 2.1 s"})
    assert result.step("view")["ok"]


@pytest.mark.alone
@pytest.mark.parametrize(("cached", "count"), [(True, 1), (False, 2)])
def test_how_many_processes(ready, cached, count):
    """The hook is all that is started, and ldconfig where the image has no cache of its own."""
    if cached:
        bundles.ldconfig(ready.root)
    last = "/proc/sys/kernel/ns_last_pid"
    script = f'read -r a <{last}; "$@"; read -r b <{last}; echo $((b - a))'
    prefix = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "-"]
    result = ready.direct(prefix=prefix)
    assert result.report["ok"]
    assert result.output == f"{count}\n"
    assert set(bundles.LIBRARIES) < set(bundles.cached(ready.root))


@pytest.mark.parametrize("cached", [True, False])
def test_what_it_may_when_the_cache_is_made(ready, cached):
    """With ldconfig or without, two capabilities are left by then, and none can come back."""
    if cached:
        bundles.ldconfig(ready.root)
    dumpable, rename = '    call("prctl", SET_DUMPABLE', "        posix.rename(temporary, path)"
    opened = '    global status\n    status = posix.open("/proc/self/status", 0)\n'
    told = "        posix.write(2, posix.pread(status, 4096, 0))\n"
    ready.hook = weakened.changed(
        ready,
        (dumpable, opened + dumpable),
        (rename, told + rename),
        ("keep_only(2, tool,", "keep_only(2, status, tool,"),
    )
    result = ready.direct()
    assert result.report["ok"]
    last = result.errors.split("Name:")[-1]
    words = dict(line.split(":\t", 1) for line in last.splitlines() if ":\t" in line)
    kept = f"{1 << 1 | 1 << 3:016x}"
    names = ("CapPrm", "CapEff", "CapBnd", "CapInh", "NoNewPrivs")
    assert [words[name] for name in names] == [kept, kept, kept, f"{0:016x}", "1"]


@pytest.mark.alone
def test_what_it_imports(hook):
    """Only modules in C: each of the others takes longer than a mount."""
    code = (
        "import sys; first = set(sys.modules); exec(sys.argv[1], {'__name__': 'probe'})\n"
        "print(*sorted(set(sys.modules) - first))"
    )
    done = subprocess.run(
        [*hook[:-1], "-c", code, install.script()], check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert loaded <= {"__future__", "_ctypes", "_json", "errno", "select"}


def test_notes_of_ldconfig_stay_out_of_the_image(ready):
    """What ldconfig stores beside the cache is neither read nor written in the image."""
    notes = ready.root / "var/cache/ldconfig"
    notes.mkdir(parents=True)
    (notes / "aux-cache").write_text("image")
    before = bundles.snapshot(notes)
    assert ready.direct().report["ok"]
    assert bundles.snapshot(notes) == before


@pytest.mark.parametrize("kind", ["missing", "link", "file"])
def test_an_image_without_a_proc(ready, kind):
    """Where ldconfig's place in memory cannot be the image's /etc serves, and nothing is left there."""
    (ready.root / "proc").rmdir()
    if kind == "link":
        (ready.root / "proc").symlink_to("/etc")
    elif kind == "file":
        (ready.root / "proc").write_text("")
    assert ready.direct().report["ok"]
    assert set(bundles.LIBRARIES) < set(bundles.cached(ready.root))
    assert list(ready.root.rglob(".nri-nvidia*")) == []


def test_the_script_is_python_3_9():
    """The installed script parses as Python 3.9 and imports nothing of the package."""
    tree = ast.parse(install.script(), feature_version=(3, 9))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    assert imported <= sys.stdlib_module_names | {"collections.abc"}
