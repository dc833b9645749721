# SPDX-License-Identifier: Apache-2.0
"""The createContainer hook: links driver programs and lists driver libraries in one container.

A low-level runtime starts it before pivot_root, with all rights, on a root file system that an
image's author made; nothing of that is trusted. A child enters a clean view of the root and does
the steps there; the host's ldconfig runs from a sealed descriptor. The parent stays outside,
bounds the child's time, and reports.

It runs as a plain script, `python3 -I -S nri-nvidia-hook …`, on Python 3.9 and later, which
`install` makes of `view`, `steps` and this: standard library only, and no environment is read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable

from nri_nvidia.oci.steps import READ, link, list_libraries, read, run
from nri_nvidia.oci.view import Failure, call, enter

# What each takes, and what it is when not given; --link, --alias and --skip may repeat.
OPTIONS = {
    "--library-dir": (r"(/(?!\.\.?(/|$))[A-Za-z0-9._+-]+)+", "/usr/local/nvidia"),
    "--link": (r"(?!\.\.?$)[^/\0]+", ""),
    "--alias": (r"[^/\0=]+\.so[^/\0=]*=[^/\0=]+", ""),  # libcuda.so=libcuda.so.1, in both libs
    "--skip": (r"links|ldcache", ""),
    "--ldconfig": (r"/[^\0]+", ""),
    "--timeout": (r"(?=.*[1-9])[0-9]{1,3}(\.[0-9]+)?", "5"),
    "--on-error": (r"continue|fail", "continue"),
    "--report": (r"[^\0]+", ""),
    "--token": (r".*", ""),
}
NEW_IPC, NEW_PIDS = 0x8000000, 0x20000000
SET_DUMPABLE = 4
GRACE = 2.0  # seconds beyond ldconfig's time for all else


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
