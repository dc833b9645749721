# SPDX-License-Identifier: Apache-2.0
"""Roots with libraries, and what ldconfig and the hook make of them."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from nri_nvidia.oci import folders, steps, view
from nri_nvidia.testing import stubs

from . import bundles

IMAGES = bundles.ENGINES.parents[1] / "images/images.json"
LIB64, LIB32 = (f"{bundles.LIBRARY_DIR}/{name}" for name in ("lib64", "lib32"))
OWN = f"/lib/{bundles.MULTIARCH}"
CONF = "include /etc/ld.so.conf.d/*.conf\n"
HOSTS = Path("/sbin/ldconfig")


def newer_ldconfig(folder: Path) -> Path | None:
    """Unpack the ldconfig of the image whose distribution is newer than this machine's."""
    if not IMAGES.exists():
        return None
    archive = json.loads(IMAGES.read_text())["images"]["debian-x11"]["archive"]
    with tarfile.open(archive) as outer:
        layer = max(outer.getmembers(), key=lambda member: member.size)
        with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
            found = next(m for m in inner if m.name.endswith("sbin/ldconfig"))
            path = folder / "ldconfig"
            path.write_bytes(inner.extractfile(found).read())
    path.chmod(0o755)
    return path


@attrs.frozen(kw_only=True)
class Library:
    """A library to make: its SONAME, where, the name of its file, a link to it by SONAME or not."""

    soname: str
    folder: str
    file: str = ""
    bits: int = 64
    linked: bool = False
    needed: tuple[str, ...] = ("libc.so.6",)

    def write(self, root: Path) -> None:
        folder = root / self.folder[1:]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (self.file or self.soname)
        if not path.is_symlink():
            object_ = stubs.shared_object(self.soname, bits=self.bits, needed=self.needed)
            path.write_bytes(object_)
        if self.linked and not (folder / self.soname).exists():
            (folder / self.soname).symlink_to(path.name)


def make(root: Path, libraries: Iterable[Library], confs: dict[str, str]) -> None:
    """Make a root of Debian's kind that has these libraries, and drop-ins of ld.so.conf.d."""
    shutil.rmtree(root, ignore_errors=True)
    for name in (OWN[1:], "usr/lib", "etc/ld.so.conf.d", "proc", LIB64[1:]):
        (root / name).mkdir(parents=True)
    (root / "etc/debian_version").write_text("12.1\n")
    (root / "etc/ld.so.conf").write_text(CONF)
    for name, text in {"own": f"{OWN}\n", **confs}.items():
        (root / f"etc/ld.so.conf.d/{name}.conf").write_text(text)
    for each in libraries:
        each.write(root)


def ldconfig(root: Path, program: Path = HOSTS, form: str = "new") -> None:
    """Make the cache of an image as its author does."""
    command = [str(program), "-X", "-c", form, "-r", str(root)]
    subprocess.run(command, check=True, capture_output=True)


def listed(cache: Path) -> list[str]:
    """Give what a cache lists, in its order, as ldconfig prints it."""
    command = [str(HOSTS), "-p", "-C", str(cache)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\t(.*)$", text, re.MULTILINE)
    assert f"{len(found)} libs found" in text
    return found


def in_root(root: Path, action: Callable[[], object]) -> str:
    """Do something in a process that has nothing but a root; give what came of it as text."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        text = "died"
        try:
            os.chroot(root)
            os.chdir("/")
            text = repr(action())
        except BaseException:  # noqa: BLE001  it is to end here, whatever it is
            text = traceback.format_exc()
        finally:
            os.write(theirs, text[-4000:].encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


def by_ldconfig(root: Path, program: Path) -> None:
    """List the driver as the hook does where the image's cache is of no use."""
    tool = os.open(program, os.O_RDONLY)

    def act() -> str:
        steps.extended, steps.isolate = (lambda *_: (None, "told")), (lambda: None)
        return steps.list_for_glibc(ours(), bundles.MACHINE, (tool, ""), 20)

    outcome = in_root(root, act)
    os.close(tool)
    assert outcome == repr("ldconfig was run: told")


def by_hand(root: Path) -> None:
    """List the driver as the hook does where the image's cache is of use."""

    def act() -> str:
        steps.isolate = steps.set_capabilities = lambda *_: None
        tool = -1, "the cache is of no use"
        return steps.list_for_glibc(ours(), bundles.MACHINE, tool, 20)

    outcome = in_root(root, act)
    assert outcome == repr(""), outcome + why_not(root)


def ours() -> list[str]:
    return [folder for folder in (LIB64, LIB32) if Path(folder).is_dir()]


def why_not(root: Path, conf: str = f"{LIB64}\ninclude /etc/ld.so.conf\n") -> str:
    """Give why the image's cache is of no use, empty if it is."""

    def act() -> str:
        try:
            folders.extend(conf, ours(), bundles.MACHINE)
        except (folders.Unclear, OSError, view.Failure) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return in_root(root, act).strip("'\"")
