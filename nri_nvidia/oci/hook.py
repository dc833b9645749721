# SPDX-License-Identifier: Apache-2.0
"""The createContainer hook: links driver programs and lists driver libraries in one container.

A low-level runtime starts it before pivot_root, with all rights, on a root file system that an
image's author made; nothing of that is trusted. It takes what it needs of the host, enters a clean
view of the root and does the steps there; the host's ldconfig runs from a sealed descriptor.

It runs as a plain script, `python3 -I -S nri-nvidia-hook …`, which `install` makes of this module
and those in HOOK_PARTS before it; what `view` says of imports holds here too. No environment is
read.
"""

from __future__ import annotations

import _json
import _signal  # type: ignore[import-not-found]
import posix
import sys
import time

from nri_nvidia.oci.compat import use_compat
from nri_nvidia.oci.files import READ, REGULAR, kind_of, read
from nri_nvidia.oci.procfs import EVERYTHING, cover
from nri_nvidia.oci.steps import link, list_libraries, write_profile
from nri_nvidia.oci.view import (
    KEPT_CAPABILITIES,
    PLACE,
    Failure,
    Suppressed,
    call,
    enter,
    identity,
    normal,
    set_capabilities,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SET_DUMPABLE = 4
# Ubuntu's /sbin/ldconfig is a script that calls ldconfig.real; NixOS and Talos have none there.
TOOLS = (
    "/sbin/ldconfig.real",
    "/sbin/ldconfig",
    "/run/current-system/sw/bin/ldconfig",
    "/usr/local/glibc/sbin/ldconfig",
)
UNIX, DATAGRAM, NOT_BLOCKING_CLOSE_ON_EXEC, NO_SIGNAL = 1, 2, 0o2004000, 0x4000
GRACE = 2.0  # seconds beyond ldconfig's time for all else
DATA, MOST_DATA = 2, 256 << 20  # setrlimit(2): of memory that can be written


class OutOfTime(BaseException):
    """Raised wherever the hook is when its time is over."""


def is_name(text: str) -> bool:
    """Whether it is the name of a file in a directory."""
    return text not in ("", ".", "..") and "/" not in text


def is_library_dir(text: str) -> bool:
    """Whether it is a path that fits in ld.so.conf as it stands, and leads nowhere else."""
    names = text[1:].split("/")
    plain = all(c.isascii() and (c.isalnum() or c in "._+-") for c in "".join(names))
    return text.startswith("/") and plain and all(map(is_name, names))


def is_alias(text: str) -> bool:
    """Whether it is like libcuda.so=libcuda.so.1 or libGLX_indirect.so.0=libGLX_nvidia.so.0."""
    names = text.split("=")
    return len(names) == 2 and all(map(is_name, names)) and ".so" in names[0][1:]


def is_path(text: str) -> bool:
    """Whether it is a path below a directory that it does not lead out of."""
    return all(map(is_name, text.split("/")))


def is_place(text: str) -> bool:
    """Whether it is like gbm/nvidia-drm_gbm.so=lib64/libnvidia-allocator.so.1."""
    link, _, target = text.partition("=")
    return "/" in link and is_path(link) and is_path(target)


def is_shown(text: str) -> bool:
    """Whether it is an entry below /proc/driver/nvidia, or a point for all of them."""
    return text == EVERYTHING or is_path(text)


def is_mask(text: str) -> bool:
    """Whether it is a number of 64 bits in hexadecimal, as Python writes it."""
    return 0 < len(text) <= 16 and all(c in "0123456789abcdef" for c in text)


def is_seconds(text: str) -> bool:
    """Whether it is a number of seconds, more than 0 and less than 1000."""
    whole, dot, rest = text.partition(".")
    digits = whole + rest if dot and rest else text
    return digits.isascii() and digits.isdecimal() and len(whole) in (1, 2, 3) and float(text) > 0


STEPS = ("proc", "links", "ldcache", "profile")

# What each takes, and what it is when not given; --link, --alias, --place, --show and --skip may
# repeat.
OPTIONS: dict[str, tuple[Callable[[str], bool], str]] = {
    "--library-dir": (is_library_dir, "/usr/local/nvidia"),
    "--link": (is_name, ""),
    "--alias": (is_alias, ""),  # made in lib64 and lib32
    # The version of the host's driver, or cuda= and that of its CUDA.
    "--compat": (lambda text: text.removeprefix("cuda=").replace(".", "").isdecimal(), ""),
    "--compat-dir": (is_library_dir, "/usr/local/cuda/compat"),
    "--place": (is_place, ""),  # made in the image's own library directories
    "--show": (is_shown, ""),
    "--profile": (is_mask, ""),
    "--skip": (STEPS.__contains__, ""),
    "--ldconfig": (lambda text: text[:1] == "/" and len(text) > 1, ""),
    "--timeout": (is_seconds, "5"),
    "--on-error": (("continue", "fail").__contains__, "continue"),
    "--report": (bool, ""),
    "--token": (lambda _: True, ""),
}


def parse(arguments: list[str], given: dict[str, list[str]]) -> None:
    """Add each option's values to `given`, up to the first that is wrong: that raises Failure."""
    for place in range(0, len(arguments), 2):
        key, value = arguments[place], "".join(arguments[place + 1 : place + 2])
        if key not in OPTIONS:
            raise Failure(f"{key!r} is no option; there are {', '.join(OPTIONS)}")
        if len(arguments) == place + 1 or not OPTIONS[key][0](value):
            raise Failure(f"{key} does not take {value!r}")
        given[key].append(value)


class Grammar:
    """How the interpreter's JSON scanner is to read: as json.loads has it."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float


def parse_object(data: bytes, what: str) -> dict[str, object]:
    """Give the JSON object in a text; anything else raises Failure."""
    with Suppressed(ValueError, RecursionError, StopIteration):
        text = data.decode().strip()
        value, end = _json.make_scanner(Grammar)(text, 0)  # type: ignore[arg-type]
        if isinstance(value, dict) and end == len(text):
            return value
    raise Failure(f"{what} is not a JSON object")


def to_json(value: object) -> str:
    """Give JSON of what a report consists of."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_json(k)}:{to_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if isinstance(value, str):
        return str(_json.encode_basestring_ascii(value))
    return str(value).lower()  # a whole number, True or False


def read_config(state: dict[str, object]) -> dict[str, object]:
    """Read the configuration in the bundle that a state names, if it names one."""
    path = f"{state.get('bundle') or ''}/config.json"
    return parse_object(read(path, 16 << 20), path) if is_absolute(state.get("bundle")) else {}


def is_absolute(path: object) -> bool:
    """Whether it is a path from `/`."""
    return isinstance(path, str) and path.startswith("/")


def find_root(state: dict[str, object], config: dict[str, object]) -> tuple[str, tuple[int, int]]:
    """Give canonical path and identity of the container's root: that of the state or the bundle.

    crun gives `root`, relative to the bundle, and starts us in the bundle; runc gives none, and
    starts us in the root (OCI runtime specification, "State" and "Root").
    """
    section = config.get("root")
    root = state.get("root") or (section.get("path") if isinstance(section, dict) else "")
    path = str(root or "") if is_absolute(root) else f"{state.get('bundle') or ''}/{root}"
    if not root or not path.startswith("/") or not (is_absolute(root) or state.get("bundle")):
        raise Failure("neither the state on standard input nor its bundle names the root")
    opened = posix.open(path, PLACE)
    known = identity(opened)
    if known == identity(posix.open("/", PLACE)):
        raise Failure(f"the container's root {path} is the host's own")
    return posix.readlink(f"/proc/self/fd/{opened}"), known


def find_driver(config: dict[str, object], library_dir: str) -> list[str]:
    """Give the places of the driver's mounts, at or below LIBRARY_DIR, from the outermost in.

    They are read-only; whatever else is mounted there is the user's own, and stays out of it.
    The configuration has to tell: crun makes a mount read-only only after this hook.
    """
    places, mounts = [], config.get("mounts")
    for each in mounts if isinstance(mounts, list) else []:
        options = each.get("options") if isinstance(each, dict) else None
        if isinstance(options, list) and "ro" in options:
            place = normal(str(each.get("destination")))
            places += [place] if f"{place}/".startswith(library_dir + "/") else []
    return sorted(places)


def find_procfs(config: dict[str, object]) -> tuple[str, list[str]]:
    """Give the label of the container's mounts, and what the engine hides of /proc and /sys."""
    linux = config.get("linux")
    section = linux if isinstance(linux, dict) else {}
    label, masked = section.get("mountLabel"), section.get("maskedPaths")
    return label if isinstance(label, str) else "", masked if isinstance(masked, list) else []


def open_tool(path: str) -> int:
    """Open the host's ldconfig."""
    path = path or next(filter(kind_of, TOOLS), TOOLS[1])
    program = posix.open(path, READ)
    if kind_of(program) != REGULAR or posix.pread(program, 4, 0) != b"\x7fELF":
        raise Failure(f"{path} is not an ELF program; name the real one with --ldconfig")
    return program


def open_report(path: str) -> int:
    """Open the socket that takes the report; -1 where nobody listens."""
    address = UNIX.to_bytes(2, sys.byteorder) + path.encode("utf-8", "surrogateescape") + b"\0"
    with Suppressed(OSError):
        channel = call("socket", UNIX, DATAGRAM | NOT_BLOCKING_CLOSE_ON_EXEC, 0)
        call("connect", channel, address, len(address))
        return channel
    return -1


def step(name: str, action: Callable[..., object], *arguments: object) -> dict[str, object]:
    """Do one step; give its outcome as the report has it, `message` fit for one line of a log."""
    message: object = ""
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
    try:
        parse(arguments, given)
    finally:
        given["channel"] = [str(open_report(given["--report"][-1]))]
    if not sys.flags.isolated:
        raise Failure("it is to be started with python3 -I -S, else it could import the image's")
    call("prctl", SET_DUMPABLE, 0, 0, 0, 0)  # nobody looks at the host through our /proc entries
    state.update(parse_object(sys.stdin.buffer.read(1 << 20), "the state on standard input"))
    config, tool, problem = read_config(state), -1, ""
    root = find_root(state, config)
    places = find_driver(config, given["--library-dir"][-1])
    try:
        tool = open_tool(given["--ldconfig"][-1])
    except (Failure, OSError) as error:
        problem = str(error)
    keep_only(2, tool, int(given["channel"][0]))
    seconds = float(given["--timeout"][-1])
    with Suppressed(OSError):  # there is less already
        call("setrlimit", DATA, MOST_DATA.to_bytes(8, sys.byteorder) * 2)
    _signal.signal(_signal.SIGALRM, out_of_time)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())  # crun's hooks have all signals blocked
    _signal.setitimer(_signal.ITIMER_REAL, seconds + GRACE)
    try:
        work(given, (*root, places), (tool, problem), steps, config)
    except OutOfTime:
        raise Failure(f"not done after {seconds + GRACE:g} s") from None
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)


def out_of_time(*_: object) -> None:
    """Hear that the time is over."""
    raise OutOfTime


def keep_only(*kept: int) -> None:
    """Close what else is open, also what the runtime may have left open."""
    null = posix.open("/dev/null", posix.O_RDWR)
    for fd in (0, 1):
        posix.dup2(null, fd)
    for fd in map(int, posix.listdir("/proc/self/fd")):
        if fd not in (0, 1, *kept):
            with Suppressed(OSError):  # the one that listed them
                posix.close(fd)


def work(
    given: dict[str, list[str]],
    root: tuple[str, tuple[int, int], list[str]],
    tool: tuple[int, str],
    steps: list[dict[str, object]],
    config: dict[str, object],
) -> None:
    """Do the steps in the view of a root, and add the outcome of each."""
    posix.umask(0o022)
    library_dir, seconds = given["--library-dir"][-1], float(given["--timeout"][-1])
    if "proc" not in given["--skip"]:
        steps.append(step("proc", cover, *root[:2], given["--show"][1:], *find_procfs(config)))
    steps.append(step("view", enter, *root))
    if not steps[-1]["ok"]:
        return
    if "links" not in given["--skip"]:
        lists = (given[name][1:] for name in ("--link", "--alias", "--place"))
        steps.append(step("links", link, *lists, library_dir))
    chosen: list[str] = []
    if given["--compat"][-1]:
        where = given["--compat-dir"][-1], given["--compat"][-1], library_dir
        steps.append(step("compat", use_compat, *where, parse_object, chosen))
    if "ldcache" not in given["--skip"]:
        steps.append(step("ldcache", list_libraries, library_dir, tool, seconds, chosen))
    set_capabilities(KEPT_CAPABILITIES)
    if "profile" not in given["--skip"] and given["--profile"][-1]:
        steps.append(step("profile", write_profile, given["--profile"][-1]))


def main(arguments: list[str]) -> int:
    """Run as a program; give its exit status."""
    started = time.monotonic()
    posix.chdir("/")
    given = {key: [default] for key, (_, default) in OPTIONS.items()}
    state: dict[str, object] = {}
    steps: list[dict[str, object]] = []
    whole = step("hook", supervise, arguments, given, state, steps)
    steps += [] if whole["ok"] else [whole]
    failed = [each for each in steps if not each["ok"]]
    for each in failed:
        posix.write(2, f"nri-nvidia-hook: {each['name']}: {each['message']}\n".encode())
    report = {
        "token": given["--token"][-1],
        "id": str(state.get("id", ""))[:256],
        "ok": not failed,
        "duration_ms": round(1000 * (time.monotonic() - started)),
        "steps": steps,
    }
    with Suppressed(OSError):
        text = to_json(report).encode()
        call("send", int(given["channel"][0]), text, len(text), NO_SIGNAL)
    return int(bool(failed) and given["--on-error"][-1] == "fail")


if __name__ == "__main__":
    posix._exit(main(sys.argv[1:]))  # noqa: SLF001  the interpreter's own end takes a millisecond
