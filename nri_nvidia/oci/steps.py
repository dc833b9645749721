# SPDX-License-Identifier: Apache-2.0
"""What is done in a container's root, once that is all there is.

Paths are the image's, so are the files' contents, and nothing can be imported any more. This is
a part of the script that `install` puts together; what `view` says of imports holds here too.
"""

from __future__ import annotations

import errno
import posix
import select
import sys
import time

from nri_nvidia.oci.files import is_directory, is_file, is_there, kind_of, read, remove, write
from nri_nvidia.oci.folders import CACHE, CACHE_LIMIT, extended
from nri_nvidia.oci.view import (
    KEPT_CAPABILITIES,
    SCRATCH,
    SYS_ADMIN,
    Failure,
    Suppressed,
    call,
    set_capabilities,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DROP_IN = "/etc/ld.so.conf.d/00-nri-nvidia.conf"  # sorts behind 00-compat and 00-cuda-compat
DROP_INS = (b"ld.so.conf.d/*.conf", b"ld.so.conf.d/*")
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux.so.2", "/lib/ld-linux-aarch64.so.1")
LINKER_FILES = (*LOADERS, "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
PROCESSOR_TIME, FILE_SIZE, CORE_SIZE, FILES, MEMORY = 0, 1, 4, 7, 9  # setrlimit(2)
LDCONFIG_LIMITS = (
    (PROCESSOR_TIME, 10),
    (MEMORY, 2 << 30),
    (FILE_SIZE, CACHE_LIMIT),
    (FILES, 64),
    (CORE_SIZE, 0),
)
NEW_IPC, NEW_PIDS, NEW_NETWORK = 0x8000000, 0x20000000, 0x40000000
ADD_SEALS, ALL_SEALS = 1033, 0xF  # no change of size, content or seals
SET_DEATH_SIGNAL, SIGKILL = 1, 9
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
PROFILE = (
    '{"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x%s]}],'
    '"rules":[{"pattern":[],"profile":"_container_"}]}'
)


def link(names: list[str], aliases: list[str], places: list[str], library_dir: str) -> None:
    """Make the links to programs, further names and modules, where nothing is yet."""
    try:
        link_libraries(aliases, library_dir)
    finally:  # an image may allow the one and not the other
        try:
            link_modules(places, library_dir)
        finally:
            link_programs(names, library_dir)


def own_folders(machine: str) -> list[str]:
    """Give the names of the directories that an image's own loader searches, without links."""
    if is_file("/etc/debian_version"):
        return [f"lib/{machine}-linux-gnu", f"usr/lib/{machine}-linux-gnu", "lib", "usr/lib"]
    return ["lib", "usr/lib", "lib64", "usr/lib64", "libx32", "usr/libx32"]


def link_modules(places: list[str], library_dir: str) -> None:
    """Make each `DIRECTORY/NAME=PATH` in the image's library directories that have a use for it.

    Such a one holds that directory, or the library that is named like it and loads what is there:
    libgbm loads from gbm/, libvdpau from vdpau/, and the X server comes with xorg/.
    """
    ends = ("", "64", f"/{posix.uname().machine}-linux-gnu")
    folders = [f"{top}{end}" for top in ("/usr/lib", "/lib") for end in ends]
    for place in places:
        name, _, path = place.partition("=")
        user = name.partition("/")[0]
        for folder in folders:
            used = is_directory(f"{folder}/{user}") or kind_of(f"{folder}/lib{user}.so.1")
            if used and kind_of(f"{library_dir}/{path}"):
                before = posix.stat(folder)
                make_directories(f"{folder}/{name}")
                with Suppressed(FileExistsError):
                    posix.symlink(f"{library_dir}/{path}", f"{folder}/{name}")
                # No library is new in the folder itself: ld.so.cache is as good as it was.
                with Suppressed(OSError):
                    posix.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def make_directories(path: str) -> None:
    """Make the directories above a path that are missing."""
    names = path.split("/")
    for count in range(2, len(names)):
        with Suppressed(FileExistsError):
            posix.mkdir("/".join(names[:count]), 0o755)


def write_profile(mask: str) -> None:
    """Tell the driver's EGL which GPUs it is to show, as a mask by minor in hexadecimal.

    That makes it no JSON, but the driver reads it so.
    """
    make_directories(f"{PROFILES}/")
    write(f"{PROFILES}/10-container.conf", profile(mask).encode(), 0o444)


def profile(mask: str) -> str:
    """Give the text of the driver's application profile for a container."""
    return PROFILE % mask


def link_libraries(aliases: list[str], library_dir: str) -> None:
    """Make NAME -> SONAME for each `NAME=SONAME` in the folders that have such a library."""
    for alias in aliases:
        name, _, target = alias.partition("=")
        for folder in (f"{library_dir}/lib64", f"{library_dir}/lib32"):
            if kind_of(f"{folder}/{target}") and not is_there(f"{folder}/{name}"):
                posix.symlink(target, f"{folder}/{name}")


def link_programs(names: list[str], library_dir: str) -> None:
    """Make /usr/bin/NAME -> LIBRARY_DIR/bin/NAME; an image without /usr/bin needs none."""
    try:
        folder = posix.open("/usr/bin", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    except FileNotFoundError:
        return
    absent = [name for name in names if not kind_of(f"{library_dir}/bin/{name}")]
    for name in names:
        if name not in absent:
            with Suppressed(FileExistsError):
                posix.symlink(f"{library_dir}/bin/{name}", name, dir_fd=folder)
    if absent:
        raise Failure(f"not linked, since {library_dir}/bin has no {', '.join(absent)}")


def list_libraries(
    library_dir: str, tool: tuple[int, str], seconds: float, first: list[str]
) -> str:
    """Make the image's loader find LIBRARY_DIR/lib64 and lib32; give what is to be said of it.

    What glibc's loader is to find before all else is in the folders `first`.
    """
    machine, glibc = posix.uname().machine, any(map(is_there, LINKER_FILES))
    musl = is_there(f"/lib/ld-musl-{machine}.so.1") and not glibc
    musl = musl or is_file("/etc/alpine-release")  # may have a stand-in for glibc's loader
    if not musl and not glibc:
        return "this image has no loader of shared libraries"
    folders = [f"{library_dir}/lib64", f"{library_dir}/lib32"]
    folders = [folder for folder in folders if is_directory(folder)]
    if not folders:
        raise Failure(f"{library_dir}/lib64 is not there, or on a mount of the container's own")
    if musl:
        list_for_musl(f"/etc/ld-musl-{machine}.path", folders[0].encode())
        return "this image has musl: the driver, made for glibc, needs gcompat or glibc in it"
    return list_for_glibc(first + folders, machine, tool, seconds)


def list_for_musl(path: str, folder: bytes) -> None:
    """Append a folder to the image's own search path, which has a default without the file."""
    try:
        old = read(path, 1 << 16)
    except FileNotFoundError:
        old = b"/lib\n/usr/local/lib\n/usr/lib"
    if folder not in old.replace(b":", b"\n").split(b"\n"):
        write(path, old.rstrip(b"\n") + b"\n" + folder + b"\n")


def list_for_glibc(folders: list[str], machine: str, tool: tuple[int, str], seconds: float) -> str:
    """Write a drop-in for later runs in the container, and a cache; say why ldconfig made that.

    That is the image's own with some lines more where it is certain that ldconfig would make the
    same, else the host's ldconfig makes it: that takes two processes and several times as long.
    ldconfig itself knows the default folders of the host's distribution; the image's own follow
    last, where it would search them too.
    """
    for folder in ("/etc", "/etc/ld.so.conf.d"):
        with Suppressed(FileExistsError):
            posix.mkdir(folder, 0o755)
    lines, conf = "".join(f"{folder}\n" for folder in folders), b""
    write(DROP_IN, lines.encode())
    if not is_there("/etc/ld.so.conf"):
        write("/etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n")
    with Suppressed(OSError, Failure):  # a FIFO there would hang ldconfig
        conf = read("/etc/ld.so.conf", 1 << 20)
    lines = "" if any(map(includes_drop_in, conf.split(b"\n"))) else lines
    lines += "include /etc/ld.so.conf\n" if conf else ""
    own = own_folders(machine)
    lines += "".join(f"/{name}\n" for name in own if is_directory(f"/{name}"))
    data, why = extended(lines, folders, machine)
    if data is not None:
        set_capabilities(KEPT_CAPABILITIES)
        write(CACHE, data)
        return ""
    isolate()
    if tool[1]:
        raise Failure(tool[1])
    make_cache(sealed(tool[0]), lines.encode(), seconds)
    return f"ldconfig was run: {why}"


def includes_drop_in(line: bytes) -> bool:
    """Whether a line of ld.so.conf brings in what lies in /etc/ld.so.conf.d."""
    words = line.partition(b"#")[0].split()
    names = [word.removeprefix(b"/etc/") for word in words[1:]]
    return words[:1] == [b"include"] and any(name in DROP_INS for name in names)


def isolate() -> None:
    """Have the next process see no other, nor any network, and give up the right to do that."""
    with Suppressed(OSError):
        set_capabilities(KEPT_CAPABILITIES | SYS_ADMIN)
    for kind in (NEW_PIDS, NEW_IPC, NEW_NETWORK):
        with Suppressed(OSError):  # then ldconfig sees what this sees
            call("unshare", kind)
    set_capabilities(KEPT_CAPABILITIES)


def sealed(program: int) -> int:
    """Give a sealed copy in memory of an open program, else that itself."""
    with Suppressed(OSError):  # EACCES: vm.memfd_noexec is 2, so no program in memory
        copy, size = create_memory(), posix.fstat(program).st_size
        if posix.sendfile(copy, program, 0, size) == size:
            call("fcntl", copy, ADD_SEALS, ALL_SEALS)
            return copy
    return program


def create_memory() -> int:
    """Open an empty file in memory that can be executed and sealed. Raises OSError."""
    try:
        return posix.memfd_create("ldconfig", 0x13)  # close on exec, sealable, MFD_EXEC
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return posix.memfd_create("ldconfig", 0x3)  # before Linux 6.3, all can be executed


def make_cache(tool: int, conf: bytes, seconds: float) -> None:
    """Run ldconfig on names of our own, so that the old cache is there or a whole new one."""
    trunk = f"{scratch()}/.nri-nvidia-{posix.urandom(8).hex()}"
    arguments = ["ldconfig", "-X", "-i", "-f", f"{trunk}.conf", "-C", f"{trunk}.cache"]
    try:
        write(f"{trunk}.conf", conf)
        output, status = run(lambda fd: execute(tool, arguments, fd), seconds)
        if status:
            why = f"exit status {status}" if status > 0 else f"signal {-status}"
            raise Failure(f"ldconfig: {why}: {output.strip()[-200:]}")
        write(CACHE, read(f"{trunk}.cache", CACHE_LIMIT))
    finally:
        for end in (".conf", ".cache", ".cache~"):
            remove(trunk + end)


def scratch() -> str:
    """Give the place in memory that the view may have, else the image's own directory."""
    with Suppressed(OSError):
        if posix.stat(f"/{SCRATCH}").st_dev != posix.stat("/").st_dev:
            return f"/{SCRATCH}"
    return "/etc"


def execute(tool: int, arguments: list[str], output: int) -> None:
    """Become the host's ldconfig, with no environment and bounded means."""
    for fd in (1, 2):
        posix.dup2(output, fd)
    for limit, value in LDCONFIG_LIMITS:
        with Suppressed(OSError):  # it is lower already
            call("setrlimit", limit, value.to_bytes(8, sys.byteorder) * 2)
    posix.execve(tool, arguments, {})


def run(action: Callable[[int], object], seconds: float) -> tuple[str, int]:
    """Act in a child, with a time limit; give what it wrote, and its exit status or -signal."""
    ours, theirs = posix.pipe()
    child = posix.fork()
    if child == 0:
        try:
            call("prctl", SET_DEATH_SIGNAL, SIGKILL, 0, 0, 0)
            posix.setsid()  # a signal to one's group crosses namespaces, up to the runtime
            action(theirs)
            posix._exit(0)  # noqa: SLF001
        except BaseException as error:  # noqa: BLE001  nothing may return from here
            posix.write(theirs, str(error).encode("ascii", "replace"))
        finally:
            posix._exit(127)  # noqa: SLF001
    posix.close(theirs)
    output, end = b"", time.monotonic() + seconds
    while select.select([ours], [], [], max(0, end - time.monotonic()))[0]:
        chunk = posix.read(ours, 65536)
        if not chunk:
            break
        output = (output + chunk)[-65536:]
    else:
        posix.kill(child, SIGKILL)
        output += f"not done after {seconds:g} s".encode()
    posix.close(ours)
    status = posix.waitstatus_to_exitcode(posix.waitpid(child, 0)[1])
    return output.decode(errors="replace"), status
