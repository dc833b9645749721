# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH102, PTH104, PTH108, PTH110, PTH112, PTH113, PTH120, PTH123, PTH211
"""What is done in a container's root, once that is all there is.

Paths are the image's, so are the files' contents, and nothing can be imported any more. This is
the second part of the script that `install` puts together: standard library only, on Python 3.9
and later.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import stat
import time
from collections.abc import Callable

from nri_nvidia.oci.view import SET_DEATH_SIGNAL, Failure, call

DROP_IN = "/etc/ld.so.conf.d/00-nri-nvidia.conf"  # sorts behind 00-compat and 00-cuda-compat
INCLUDES_DROP_IN = re.compile(rb"^\s*include\s.*\bld\.so\.conf\.d/\*(\.conf)?\s*$", re.MULTILINE)
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux.so.2", "/lib/ld-linux-aarch64.so.1")
LINKER_FILES = (*LOADERS, "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
LDCONFIG_LIMITS = (
    (resource.RLIMIT_CPU, 10),
    (resource.RLIMIT_AS, 2 << 30),
    (resource.RLIMIT_FSIZE, 8 << 20),  # a cache of some 90 000 libraries
    (resource.RLIMIT_NOFILE, 64),
    (resource.RLIMIT_CORE, 0),
)
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read(path: str, limit: int) -> bytes:
    """Read a regular file; a FIFO, a device or a larger file raises Failure."""
    with open(os.open(path, READ), "rb") as file:
        data = file.read(limit + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    if data is None or len(data) > limit:
        raise Failure(f"{path} is not a regular file of at most {limit} bytes")
    return data


def write(path: str, data: bytes) -> None:
    """Put a file in place at once, whatever is there now, a link too."""
    temporary = f"{os.path.dirname(path)}/.nri-nvidia-{os.urandom(8).hex()}"
    try:
        with open(os.open(temporary, CREATE, 0o644), "wb") as file:
            file.write(data)
        os.rename(temporary, path)
    finally:
        remove(temporary)


def remove(path: str) -> None:
    """Remove a file if it is there and can be."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def link(names: list[str], aliases: list[str], library_dir: str) -> None:
    """Make the links to driver programs and the libraries' further names, where nothing is yet."""
    try:
        link_libraries(aliases, library_dir)
    finally:  # an image may allow the one and not the other
        link_programs(names, library_dir)


def link_libraries(aliases: list[str], library_dir: str) -> None:
    """Make NAME -> SONAME for each `NAME=SONAME` in the folders that have such a library."""
    for alias in aliases:
        name, _, target = alias.partition("=")
        for folder in (f"{library_dir}/lib64", f"{library_dir}/lib32"):
            if os.path.exists(f"{folder}/{target}") and not os.path.lexists(f"{folder}/{name}"):
                os.symlink(target, f"{folder}/{name}")


def link_programs(names: list[str], library_dir: str) -> None:
    """Make /usr/bin/NAME -> LIBRARY_DIR/bin/NAME; an image without /usr/bin needs none."""
    try:
        folder = os.open("/usr/bin", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    absent = [name for name in names if not os.path.exists(f"{library_dir}/bin/{name}")]
    for name in names:
        if name not in absent:
            with contextlib.suppress(FileExistsError):
                os.symlink(f"{library_dir}/bin/{name}", name, dir_fd=folder)
    if absent:
        raise Failure(f"not linked, since {library_dir}/bin has no {', '.join(absent)}")


def list_libraries(library_dir: str, tool: tuple[int, str], seconds: float) -> str:
    """Make the image's loader find LIBRARY_DIR/lib64 and lib32; give why it needs nothing."""
    machine, glibc = os.uname().machine, any(map(os.path.lexists, LINKER_FILES))
    musl = os.path.lexists(f"/lib/ld-musl-{machine}.so.1") and not glibc
    musl = musl or os.path.isfile("/etc/alpine-release")  # may have a stand-in for glibc's loader
    if not musl and not glibc:
        return "this image has no loader of shared libraries"
    folders = [f"{library_dir}/lib64", f"{library_dir}/lib32"]
    folders = [folder for folder in folders if os.path.isdir(folder)]
    if not folders:
        raise Failure(f"{library_dir}/lib64 is not there, or on a mount of the container's own")
    if musl:
        list_for_musl(f"/etc/ld-musl-{machine}.path", folders[0].encode())
    else:
        list_for_glibc(folders, machine, tool, seconds)
    return ""


def list_for_musl(path: str, folder: bytes) -> None:
    """Append a folder to the image's own search path, which has a default without the file."""
    try:
        old = read(path, 1 << 16)
    except FileNotFoundError:
        old = b"/lib\n/usr/local/lib\n/usr/lib"
    if folder not in re.split(b"[:\n]", old):
        write(path, old.rstrip(b"\n") + b"\n" + folder + b"\n")


def list_for_glibc(
    folders: list[str], machine: str, tool: tuple[int, str], seconds: float
) -> None:
    """Write a drop-in for later runs in the container, and a cache with the host's ldconfig.

    ldconfig itself knows the default folders of the host's distribution; the image's own follow
    last, where it would search them too.
    """
    for folder in ("/etc", "/etc/ld.so.conf.d"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
    lines, conf = "".join(f"{folder}\n" for folder in folders), b""
    write(DROP_IN, lines.encode())
    if not os.path.lexists("/etc/ld.so.conf"):
        write("/etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n")
    with contextlib.suppress(OSError, Failure):  # a FIFO there would hang ldconfig
        conf = read("/etc/ld.so.conf", 1 << 20)
    lines = "" if INCLUDES_DROP_IN.search(conf) else lines
    lines += "include /etc/ld.so.conf\n" if conf else ""
    own = ["lib", "usr/lib", "lib64", "usr/lib64", "libx32", "usr/libx32"]
    if os.path.isfile("/etc/debian_version"):
        own = [f"lib/{machine}-linux-gnu", f"usr/lib/{machine}-linux-gnu", *own[:2]]
    lines += "".join(f"/{name}\n" for name in own if os.path.isdir(f"/{name}"))
    if tool[1]:
        raise Failure(tool[1])
    make_cache(tool[0], lines.encode(), seconds)


def make_cache(tool: int, conf: bytes, seconds: float) -> None:
    """Run ldconfig on names of our own, so that the old cache is there or a whole new one."""
    trunk = f"/etc/.nri-nvidia-{os.urandom(8).hex()}"
    arguments = ["ldconfig", "-X", "-f", f"{trunk}.conf", "-C", f"{trunk}.cache"]
    try:
        write(f"{trunk}.conf", conf)
        output, status = run(lambda fd: execute(tool, arguments, fd), seconds)
        if status:
            why = f"exit status {status}" if status > 0 else f"signal {-status}"
            raise Failure(f"ldconfig: {why}: {output.strip()[-200:]}")
        os.rename(f"{trunk}.cache", "/etc/ld.so.cache")
    finally:
        for end in (".conf", ".cache", ".cache~"):
            remove(trunk + end)


def execute(tool: int, arguments: list[str], output: int) -> None:
    """Become the host's ldconfig, with no environment and bounded means."""
    for fd in (1, 2):
        os.dup2(output, fd)
    for limit, value in LDCONFIG_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # it is lower already
            resource.setrlimit(limit, (value, value))
    os.execve(tool, arguments, {})  # noqa: S606  no shell is wanted


def run(action: Callable[[int], object], seconds: float) -> tuple[str, int]:
    """Act in a child, with a time limit; give what it wrote, and its exit status or -signal."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call("prctl", SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            action(theirs)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  nothing may return from here
            os.write(theirs, str(error).encode("ascii", "replace"))
        finally:
            os._exit(127)
    os.close(theirs)
    output, end = b"", time.monotonic() + seconds
    while select.select([ours], [], [], max(0, end - time.monotonic()))[0]:
        chunk = os.read(ours, 65536)
        if not chunk:
            break
        output = (output + chunk)[-65536:]
    else:
        os.kill(child, signal.SIGKILL)
        output += f"not done after {seconds:g} s".encode()
    os.close(ours)
    return output.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
