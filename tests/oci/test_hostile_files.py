# SPDX-License-Identifier: Apache-2.0
"""Files of an image that would hold up, exhaust or break the hook, were it not for one defence."""

import os
import shutil
import stat
import subprocess

import pytest

from nri_nvidia.testing import stubs

from . import bundles, weakened
from .weakened import both_ways, changed, several

CONF = "etc/ld.so.conf.d/image.conf"


def test_a_fifo_is_not_waited_for(case, runtime):
    """A FIFO in place of ld.so.conf does not use up the hook's time; opened as a file it does."""
    outcome = {}
    for name, ready in both_ways(
        case, (" | posix.O_NONBLOCK", ""), ("if kind_of(path) in (REGULAR, 0):", "if True:")
    ):
        (ready.root / "etc/ld.so.conf").unlink()
        os.mkfifo(ready.root / "etc/ld.so.conf")
        result = ready.run(runtime, ["/bin/quiet"], options=["--timeout", "0.5"])
        assert result.status == 0
        outcome[name] = "hook" in {step["name"] for step in result.report["steps"]}
    assert outcome == {"with": False, "without": True}


def hang(root):
    """A FIFO that ldconfig opens."""
    os.mkfifo(root / CONF)


def include_each_other(root):
    """Files that include each other twice: 2 ** depth files to be read."""
    for own, other in (("a", "b"), ("b", "a")):
        text = f"include /etc/ld.so.conf.d/{other}.conf\n" * 2
        (root / f"etc/ld.so.conf.d/{own}.conf").write_text(text)


def limit(document):
    """Have the runtime end the hook after three seconds."""
    document["hooks"]["createContainer"][0]["timeout"] = 3


def test_a_configuration_without_end(case, runtime):
    """ldconfig has a time, and the hook another; without both it is the runtime that ends it."""
    ldconfig, hook = weakened.TIME_OF_LDCONFIG, weakened.TIME_OF_THE_HOOK
    outcome = {}
    weaknesses = {"the hook's alone": [ldconfig], "without": [ldconfig, hook]}
    for name, ready in several(case, weaknesses):
        hang(ready.root)
        result = ready.run(runtime, ["/bin/quiet"], options=["--timeout", "0.3"], change=limit)
        steps = [step["name"] for step in result.report["steps"]] if result.report else []
        outcome[name] = result.status == 0, steps[-1:]
    assert outcome == {
        "with": (True, ["ldcache"]), "the hook's alone": (True, ["hook"]), "without": (False, []),
    }  # fmt: skip
    assert bundles.running_in(case.root) == []


def test_files_that_include_each_other(case, runtime):
    """Such a pair ends at ldconfig's time, and without that when it has used its seconds of CPU."""
    outcome = {}
    weak = [weakened.TIME_OF_LDCONFIG, weakened.TIME_OF_THE_HOOK, NO_LIMITS]
    for name, ready in both_ways(case, *weak):
        include_each_other(ready.root)
        result = ready.run(runtime, ["/bin/quiet"], options=["--timeout", "0.3"], change=limit)
        outcome[name] = result.status == 0, result.report is not None
    assert outcome == {"with": (True, True), "without": (False, False)}
    assert bundles.running_in(case.root) == []


def test_a_device_is_not_opened(case, runtime):
    """A node in the image's tree gives nothing, since the view allows none; else it is read."""
    outcome = {}
    for name, ready in both_ways(case, weakened.PLAIN_FILES_ONLY):
        os.mknod(ready.root / CONF, stat.S_IFCHR | 0o666, os.makedev(1, 9))  # never ends
        result = ready.run(runtime, ["/bin/quiet"], options=["--timeout", "1"])
        assert result.status == 0
        outcome[name] = result.step("ldcache")["ok"]
    assert outcome == {"with": True, "without": False}


def test_a_file_of_any_size_is_not_read(case, runtime):
    """An ld.so.conf of a tebibyte counts as none; read whole it leaves no memory for the rest."""
    outcome = {}
    whole = "data = file.read(limit + 1)", "data = file.read()"
    for name, ready in both_ways(case, whole):
        with (ready.root / "etc/ld.so.conf").open("wb") as file:
            file.truncate(1 << 40)
        result = ready.run(runtime, ["/bin/quiet"])
        assert result.status == 0
        outcome[name] = result.step("ldcache")["ok"]
    assert outcome == {"with": True, "without": False}


NO_LIMITS = 'call("setrlimit", limit, value.to_bytes(8, sys.byteorder) * 2)', "pass"


def test_a_cache_of_any_size_is_not_kept(case, runtime):
    """What ldconfig writes is bounded, so that an image cannot fill a disk by way of it."""
    small = '"/etc/ld.so.cache", 8 << 20', '"/etc/ld.so.cache", 8 << 10'
    any_size = 'read(f"{trunk}.cache", CACHE_LIMIT)', 'read(f"{trunk}.cache", 1 << 25)'
    ways = {"with": [small], "without": [small, NO_LIMITS, any_size]}
    outcome, commands = {}, {name: changed(case, *changes) for name, changes in ways.items()}
    for name, case.hook in commands.items():
        shutil.rmtree(case.root, ignore_errors=True)
        folder = case.make("debian").root / "opt"
        folder.mkdir()
        for number in range(200):
            library = f"libown{number}.so.1"
            (folder / library).write_bytes(stubs.shared_object(library))
        (case.root / CONF).write_text("/opt\n")
        result = case.run(runtime, ["/bin/quiet"])
        assert result.status == 0
        outcome[name] = result.step("ldcache")["ok"]
    assert outcome == {"with": False, "without": True}


def test_a_cache_that_lists_what_is_not_there(case, runtime):
    """An image's cache is gone by only where it holds; believed in any case it would lie on."""
    believed = "    check_folders(listed, ours, old.entries, machine)\n", ""
    outcome = {}
    for name, ready in both_ways(case, believed):
        library = bundles.make_library(ready.root / "opt/libgone.so.1")
        (ready.root / CONF).write_text("/opt\n")
        bundles.ldconfig(ready.root)
        library.unlink()
        os.utime(ready.root / "etc/ld.so.cache", (1, 1))  # from before that
        assert ready.run(runtime).report["ok"]
        outcome[name] = "libgone.so.1" in bundles.cached(ready.root)
    assert outcome == {"with": False, "without": True}


@pytest.mark.parametrize("directory", ["etc/ld.so.cache", "etc/ld.so.conf.d/00-nri-nvidia.conf"])
def test_a_directory_in_the_way(case, runtime, directory):
    """A directory in a file's place fails a step; if that were to fail the hook, the container."""
    caught = "    except (Failure, OSError) as error:\n        message, ok = error, False\n", ""
    other = (
        "    except Exception as error:  # noqa: BLE001  whatever it is, the container is to",
        ("    except ZeroDivisionError as error:  #"),
    )
    outcome = {}
    for name, ready in both_ways(case, caught, other):
        (ready.root / directory).mkdir(parents=True)
        result = ready.run(runtime, ["/bin/quiet"])
        outcome[name] = result.status == 0
    assert outcome == {"with": True, "without": False}


def test_directories_of_another_owner(case, runtime):
    """An image's directory that nobody may enter is no hindrance; without two rights it is."""
    outcome = {}
    for name, ready in both_ways(
        case, ("KEPT_CAPABILITIES = 1 << 1 | 1 << 3", "KEPT_CAPABILITIES = 0")
    ):
        for path in (ready.root / "etc/ld.so.conf.d", ready.root / "etc", ready.root / "usr/bin"):
            os.chown(path, 1234, 1234)
            path.chmod(0)
        result = ready.run(runtime, ["/bin/quiet"])
        assert result.status == 0
        outcome[name] = result.report["ok"]
    assert outcome == {"with": True, "without": False}


def test_text_of_an_image_cannot_forge_a_line(case, runtime):
    """Control characters in what ldconfig says of an image do not reach the log; else they do."""
    as_it_is = 'c if c.isprintable() else "?" for c in str(message)', "c for c in str(message)"
    outcome = {}
    for name, ready in both_ways(case, as_it_is):
        loop = ready.root / "etc/ld.so.conf.d/\x1b[31mnri-nvidia-hook:.conf"
        loop.symlink_to(loop.name)  # cannot be opened, which ldconfig says
        os.mkfifo(ready.root / "etc/ld.so.conf.d/z.conf")  # so that there is something to be said
        result = ready.run(runtime, ["/bin/quiet"], options=["--timeout", "0.3"])
        message = result.step("ldcache")["message"]
        assert "[31mnri-nvidia-hook:" in message
        outcome[name] = "\x1b" in message
    assert outcome == {"with": False, "without": True}


def test_many_files(case, runtime):
    """Thousands of libraries end ldconfig at its time; the old cache stays as it was."""
    outcome = {}
    for name, ready in both_ways(case, weakened.TIME_OF_LDCONFIG):
        library = bundles.make_library(ready.root / "opt/libown.so.1")
        for number in range(30_000):
            os.link(library, library.with_name(f"lib{number}.so"))
        (ready.root / CONF).write_text("/opt\n")
        (ready.root / "etc/ld.so.cache").write_text("old")
        result = ready.run(runtime, ["/bin/quiet"], options=["--timeout", "0.02"])
        assert result.status == 0
        assert result.step("links")["ok"]
        outcome[name] = (ready.root / "etc/ld.so.cache").read_bytes() == b"old"
        assert [each for each in os.listdir(ready.root / "etc") if "nri" in each] == []
    assert outcome == {"with": True, "without": False}


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


@pytest.mark.long
def test_a_million_files(case, runtime, million):
    """An image with a million libraries keeps its old cache, and its container starts in time."""
    case.root.mkdir(parents=True)
    case.root.rmdir()
    root = million / "rootfs"
    bundles.make_root(root, case.toolbox, "debian")
    os.rename(million / "lib", root / "opt")
    try:
        (root / CONF).write_text("/opt\n")
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
