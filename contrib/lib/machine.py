# SPDX-License-Identifier: Apache-2.0
"""A small virtual machine whose kernel has SELinux: emulator, kernel, and a policy's compiler."""

import json
import re
import shutil
from pathlib import Path

import packages
from packages import Apt, SetupError

SCHEMA = 1
PROGRAMS = ("qemu-system-x86", "secilc")
KERNEL = "linux-image-cloud-amd64"
WANTED = re.compile(r"lib|qemu-system-(x86|common|data)$|seabios$|secilc$")


def provide(apt: Apt, directory: Path, *, update: bool, long: bool) -> str:
    """Unpack it if the long tests are to run; return a line on what is there, or nothing."""
    record = directory / "machine.json"
    known = _known(record)
    if (known and not update) or not long:
        return known
    if apt.architecture != "amd64":
        return "machine: left out, since its kernel is amd64's"
    with packages.Staged(directory) as work:
        packages.skeleton(work)
        chosen = [p for p in apt.closure(PROGRAMS, apt.release) if WANTED.match(p.name)]
        kernels = [
            p for p in apt.closure([KERNEL], apt.release) if re.match(r"linux-image-\d", p.name)
        ]
        if not kernels:
            raise SetupError(f"{apt.release} has no kernel behind {KERNEL}")
        for archive in apt.fetch([*chosen, *kernels]):
            packages.unpack(archive, work)
        shutil.rmtree(work / "usr/lib/modules")  # what is built in will do
        (kernel,) = (work / "boot").glob("vmlinuz-*")
        document = {
            "schema": SCHEMA,
            "what": f"{kernel.name.partition('-')[2]} in qemu",
            "root": str(directory),
            "kernel": str(directory / "boot" / kernel.name),
        }
        packages.write(work / "machine.json", document)
    return _known(record)


def _known(record: Path) -> str:
    """Return what an earlier run of this script has made at this very place."""
    try:
        document = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if document.get("schema") != SCHEMA or document.get("root") != str(record.parent):
        return ""
    return f"machine: {document['what']}"
