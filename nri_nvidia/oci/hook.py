# SPDX-License-Identifier: Apache-2.0
"""The createContainer hook: links driver programs and lists driver libraries in one container.

A low-level runtime starts it before pivot_root, with all rights, on a root file system that an
image's author made; nothing of that is trusted. A child enters a clean view of the root and does
the steps there; the host's ldconfig runs from a sealed descriptor. The parent stays outside,
bounds the child's time, and reports.

It runs as a plain script, `python3 -I -S nri-nvidia-hook …`, on Python 3.9 and later, which
`install` makes of `view` and this: standard library only, and no environment is read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable

from nri_nvidia.oci.view import Failure, call, enter

# What each takes, and what it is when not given; --link, --alias and --skip may repeat.
OPTIONS = {
    "--library-dir": (r"(/(?!\.\.?(/|$))[A-Za-z0-9._+-]+)+", "/usr/local/nvidia"),
    "--link": (r"(?!\.\.?$)[^/\0]+", ""),
    "--alias": (r"[^/\0=]+\.so=[^/\0=]+", ""),  # e.g. libcuda.so=libcuda.so.1, in lib64 and lib32
    "--skip": (r"links|ldcache", ""),
    "--ldconfig": (r"/[^\0]+", ""),
    "--timeout": (r"(?=.*[1-9])[0-9]{1,3}(\.[0-9]+)?", "5"),
    "--on-error": (r"continue|fail", "continue"),
    "--report": (r"[^\0]+", ""),
    "--token": (r".*", ""),
}
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
NEW_IPC, NEW_PIDS = 0x8000000, 0x20000000
SET_DEATH_SIGNAL, SET_DUMPABLE = 1, 4
GRACE = 2.0  # seconds beyond ldconfig's time for all else


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


# --- outside: what the runtime and the daemon say ---------------------------------------------


def parse(arguments: list[str], given: dict[str, list[str]]) -> None:
    """Add each option's values to `given`, up to the first that is wrong: that raises Failure."""
    for place in range(0, len(arguments), 2):
        key, value = arguments[place], "".join(arguments[place + 1 : place + 2])
        if key not in OPTIONS:
            raise Failure(f"{key!r} is no option; there are {', '.join(OPTIONS)}")
        if len(arguments) == place + 1 or not re.fullmatch(OPTIONS[key][0], value):
            raise Failure(f"{key} does not take {value!r}")
        given[key].append(value)


def parse_object(data: bytes, what: str) -> dict[str, object]:
    """Give the JSON object in a text; anything else raises Failure."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(data)
        if isinstance(value, dict):
            return value
    raise Failure(f"{what} is not a JSON object")


def read_config(state: dict[str, object]) -> dict[str, object]:
    """Read the configuration in the bundle that a state names, if it names one."""
    path = os.path.join(str(state.get("bundle") or ""), "config.json")
    return parse_object(read(path, 16 << 20), path) if os.path.isabs(path) else {}


def find_root(state: dict[str, object], config: dict[str, object]) -> str:
    """Give the canonical path of the container's root: `root` of the state, else of the bundle.

    crun gives `root`, relative to the bundle, and starts us in the bundle; runc gives none, and
    starts us in the root (OCI runtime specification, "State" and "Root").
    """
    section = config.get("root")
    root = state.get("root") or (section.get("path") if isinstance(section, dict) else "")
    path = os.path.join(str(state.get("bundle") or ""), str(root or ""))
    if not root or not os.path.isabs(path):
        raise Failure("neither the state on standard input nor its bundle names the root")
    if os.path.samefile(path, "/"):
        raise Failure(f"the container's root {path} is the host's own")
    return os.path.realpath(path)


def find_driver(config: dict[str, object], library_dir: str) -> list[str]:
    """Give the places of the driver's mounts, at or below LIBRARY_DIR, from the outermost in.

    They are read-only; whatever else is mounted there is the user's own, and stays out of it.
    The configuration has to tell: crun makes a mount read-only only after this hook.
    """
    places, mounts = [], config.get("mounts")
    for each in mounts if isinstance(mounts, list) else []:
        options = each.get("options") if isinstance(each, dict) else None
        if isinstance(options, list) and "ro" in options:
            place = os.path.normpath("/" + str(each.get("destination")).strip("/"))
            places += [place] if f"{place}/".startswith(library_dir + "/") else []
    return sorted(places)


def open_tool(path: str) -> int:
    """Open the host's ldconfig as a sealed copy in memory, else the file itself."""
    if not path:  # Ubuntu's /sbin/ldconfig is a script that calls ldconfig.real
        real = "/sbin/ldconfig.real"
        path = real if os.path.exists(real) else "/sbin/ldconfig"
    program = read(path, 32 << 20)
    if program[:4] != b"\x7fELF":
        raise Failure(f"{path} is not an ELF program; name the real one with --ldconfig")
    with contextlib.suppress(OSError):  # EACCES: vm.memfd_noexec is 2, so no program in memory
        copy = create_memory()
        if os.write(copy, program) == len(program):
            fcntl.fcntl(copy, fcntl.F_ADD_SEALS, 0xF)  # no change of size, content or seals
            return copy
    return os.open(path, READ)


def create_memory() -> int:
    """Open an empty file in memory that can be executed and sealed. Raises OSError."""
    try:
        return os.memfd_create("ldconfig", 0x13)  # close on exec, sealable, MFD_EXEC
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("ldconfig", 0x3)  # before Linux 6.3, all can be executed


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


def step(name: str, action: Callable[..., object], *arguments: object) -> dict[str, object]:
    """Do one step; give its outcome as the report has it, `message` fit for one line of a log."""
    try:
        message, ok = action(*arguments) or "", True
    except (Failure, OSError) as error:
        message, ok = error, False
    except Exception as error:  # noqa: BLE001  whatever it is, the container is to start
        message, ok = f"{type(error).__name__}: {error}", False
    line = "".join(c if c.isprintable() else "?" for c in str(message)[:400])
    return {"name": name, "ok": ok, "message": line.encode("ascii", "backslashreplace").decode()}


def supervise(
    arguments: list[str],
    given: dict[str, list[str]],
    state: dict[str, object],
    steps: list[dict[str, object]],
) -> None:
    """Fill `given`, `state` and `steps` as far as it gets; what stops it raises."""
    parse(arguments, given)
    if not sys.flags.isolated:
        raise Failure("it is to be started with python3 -I -S, else it could import the image's")
    call("prctl", SET_DUMPABLE, 0, 0, 0, 0)  # nobody looks at the host through our /proc entries
    state.update(parse_object(sys.stdin.buffer.read(1 << 20), "the state on standard input"))
    config, tool, problem = read_config(state), -1, ""
    path = find_root(state, config)
    places = find_driver(config, given["--library-dir"][-1])
    try:
        tool = open_tool(given["--ldconfig"][-1])
    except (Failure, OSError) as error:
        problem = str(error)
    with contextlib.suppress(OSError):  # then it sees the container's, which is but this process
        call("unshare", NEW_PIDS | NEW_IPC)
    seconds = float(given["--timeout"][-1]) + GRACE
    output, status = run(lambda fd: work(given, (path, places), (tool, problem), fd), seconds)
    *outcomes, rest = output.split("\n")
    steps += [json.loads(outcome) for outcome in outcomes]
    if status:
        raise Failure(f"{rest} (status {status})")


def main(arguments: list[str]) -> int:
    """Run as a program; give its exit status."""
    started = time.monotonic()
    os.chdir("/")
    given = {key: [default] for key, (_, default) in OPTIONS.items()}
    state: dict[str, object] = {}
    steps: list[dict[str, object]] = []
    whole = step("hook", supervise, arguments, given, state, steps)
    steps += [] if whole["ok"] else [whole]
    failed = [each for each in steps if not each["ok"]]
    for each in failed:
        os.write(2, f"nri-nvidia-hook: {each['name']}: {each['message']}\n".encode())
    report = {
        "token": given["--token"][-1],
        "id": str(state.get("id", ""))[:256],
        "ok": not failed,
        "duration_ms": round(1000 * (time.monotonic() - started)),
        "steps": steps,
    }
    with contextlib.suppress(OSError):
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        channel.sendto(json.dumps(report).encode(), given["--report"][-1])
    return int(bool(failed) and given["--on-error"][-1] == "fail")


# --- inside: paths are the image's, imports are impossible ------------------------------------


def work(
    given: dict[str, list[str]], root: tuple[str, list[str]], tool: tuple[int, str], output: int
) -> None:
    """Do the steps, in a child that keeps no descriptor of the host; write a line of JSON each."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in (0, 1, 2, output, tool[0]):
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(fd)
    os.umask(0o022)
    library_dir, seconds = given["--library-dir"][-1], float(given["--timeout"][-1])
    view = step("view", enter, *root)
    os.write(output, json.dumps(view).encode() + b"\n")
    if view["ok"] and "links" not in given["--skip"]:
        links = step("links", link, given["--link"][1:], given["--alias"][1:], library_dir)
        os.write(output, json.dumps(links).encode() + b"\n")
    if view["ok"] and "ldcache" not in given["--skip"]:
        ldcache = step("ldcache", list_libraries, library_dir, tool, seconds)
        os.write(output, json.dumps(ldcache).encode() + b"\n")


def link(names: list[str], aliases: list[str], library_dir: str) -> None:
    """Make /usr/bin/NAME -> LIBRARY_DIR/bin/NAME, and the libraries' aliases, where nothing is."""
    for alias in aliases:
        name, _, target = alias.partition("=")
        for place in (f"{library_dir}/lib64", f"{library_dir}/lib32"):
            if os.path.exists(f"{place}/{target}") and not os.path.lexists(f"{place}/{name}"):
                os.symlink(target, f"{place}/{name}")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
