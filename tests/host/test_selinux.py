# SPDX-License-Identifier: Apache-2.0
"""A kernel that enforces SELinux: what a container may do with a prepared directory's files.

The directory is made here, with the labels that its sources have; a small virtual machine has the
same files with the same labels, and a policy in which a container may read the system's libraries
and programs, and nothing that is labelled like /var/lib, where the directory is.
"""

import gzip
import json
import os
import pathlib
import subprocess

import pytest

from nri_nvidia.host import volumes

from .test_volumes import LINKS, driver, files, labelled, labels, mounted, no_margin

__all__ = ["driver", "labelled", "mounted", "no_margin"]  # fixtures

HERE = pathlib.Path(__file__).parent / "selinux"
MACHINE = pathlib.Path(__file__).parents[2] / ".cache/machine"
LIBRARY = f"{os.uname().machine}-linux-gnu"
PLACE, STATE = "/t/v", "system_u:object_r:var_lib_t:s0"
PATIENCE = 300
"""Seconds for the machine, whose processor is emulated."""


@pytest.fixture(scope="module")
def machine():
    try:
        return json.loads((MACHINE / "machine.json").read_text("utf-8"))
    except OSError:
        if os.uname().machine != "x86_64":
            pytest.skip("the machine's kernel and emulator are those of x86_64")
        pytest.fail("there is no virtual machine: run contrib/setup --long")


def entry(name, mode, data=b"", device=(0, 0)):
    """Give a member of an archive in the format newc, which the kernel unpacks (cpio(5))."""
    path = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def programs(machine):
    """Give the environment in which the machine's programs find their libraries."""
    root = pathlib.Path(machine["root"])
    folder = root / "usr/lib" / LIBRARY
    return root, {"LD_LIBRARY_PATH": str(folder), "QEMU_MODULE_DIR": str(folder / "qemu")}


def boot(machine, folder, listed):
    """Run the machine on a list of files; give for each path what a container is told."""
    root, environment = programs(machine)
    subprocess.run(["gcc", "-static", "-o", folder / "init", HERE / "init.c"], check=True)
    compiler = [root / "usr/bin/secilc", "-c", "33", "-o", folder / "policy", "-f", "/dev/null"]
    subprocess.run([*compiler, HERE / "policy.cil"], check=True, env=environment)
    archive = [
        entry("dev", 0o40755),
        entry("dev/console", 0o20600, device=(5, 1)),
        entry("init", 0o100755, (folder / "init").read_bytes()),
        entry("policy", 0o100644, (folder / "policy").read_bytes()),
        entry("list", 0o100644, "".join(f"{line}\n" for line in listed).encode()),
        entry("TRAILER!!!", 0),
    ]
    (folder / "initrd").write_bytes(gzip.compress(b"".join(archive), 1))
    command = [
        root / "usr/bin/qemu-system-x86_64", "-L", root / "usr/share/qemu",
        "-L", root / "usr/share/seabios", "-accel", "tcg", "-cpu", "max", "-m", "512",
        "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none",
        "-kernel", machine["kernel"], "-initrd", folder / "initrd",
        "-append", "console=ttyS0 quiet security=selinux selinux=1 panic=-1",
    ]  # fmt: skip
    done = subprocess.run(
        command, check=True, env=environment, timeout=PATIENCE,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    lines = done.stdout.replace("\r", "").splitlines()
    assert "END" in lines, done.stdout
    assert not [line for line in lines if "FAILED" in line], done.stdout
    return dict(line.rsplit(": ", 1) for line in lines if line.startswith("/t/"))


def listing(place, found):
    """Describe a directory with some labels: what has none gets that of where it is, as on a disk."""
    yield f"d {PLACE} {found.get('.', STATE)}"
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        kind = "l" if path.is_symlink() else "d" if path.is_dir() else "f"
        target = path.readlink() if kind == "l" else ""
        yield f"{kind} {PLACE}/{name} {found.get(name, STATE)} {target}"


@pytest.mark.long
@pytest.mark.timeout(2 * PATIENCE + 60)
@pytest.mark.usefixtures("no_margin")
def test_a_container_may_read_copies_by_their_labels(machine, driver, labelled, mounted, tmp_path):
    """With the labels of their sources every file can be mapped; with those of /var/lib, none."""
    place = mounted("size=8m") / "v"
    volumes.Volumes(str(place), labelled).build("550-a", files(driver), LINKS)
    made = {name: label.rstrip(b"\0").decode() for name, label in labels(place / "550-a").items()}
    outcome = {}
    for name, found in (("with", made), ("without", {})):
        folder = tmp_path / name
        folder.mkdir()
        told = boot(machine, folder, listing(place / "550-a", found))
        assert len(told) == len(files(driver)) + len(LINKS)
        outcome[name] = set(told.values())
    assert outcome == {"with": {"ok"}, "without": {"Permission denied"}}
