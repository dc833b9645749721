# SPDX-License-Identifier: Apache-2.0
"""Puts the hook where every runtime and every user namespace can start it.

A hook in a user namespace runs with the rights of an ordinary user of the host, and a container
may outlive the virtual environment that the daemon came from. So the hook is a script outside of
both, and an interpreter that anybody can execute runs it; it is compiled ahead for that one.
"""

import contextlib
import os
import re
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from nri_nvidia import errors

NAME = "nri-nvidia-hook"
CLIENT = "nri-nvidia-client"
HOOK_PARTS = tuple(
    f"oci/{name}.py"
    for name in ("view", "procfs", "files", "cache", "folders", "steps", "compat", "hook")
)
CLIENT_PARTS = (
    "render/patch.py",
    *(f"oci/{name}.py" for name in ("complaint", "document", "client")),
)
WARM_PARTS = tuple(f"oci/{name}.py" for name in ("slots", "caller", "looks", "unread", "warm"))
WARM, FRONT, ASK = "nri-nvidia-warm", "nri-nvidia-hook.sh", "ask"
# Beside a setting's own texts: a letter, digit or sign that a request needs, written as an escape.
ESCAPES = (
    *(rf"\u00{each}".encode() for each in ("4", "5", "6", "7", *map(str, range(30, 40)))),
    *(rf"\u00{each}".encode() for each in ("2d", "2D", "2e", "2E", "2f", "2F", "3d", "3D")),
    rb"\/",
)
SHEBANG = "#!/usr/bin/python3 -IS\n"  # for a person who tries it; runtimes name the interpreter
OLDEST = (3, 9)
USUAL = "/usr/local/lib/nri-nvidia"
# An import that has no place in the one file. By text: to parse all of it takes ten times longer.
_OURS = re.compile(r"^from nri_nvidia[\w.]* import (?:\([^)]*\)|.*)\n", re.MULTILINE)
_JOINING = re.compile(
    r"^from (?:nri_nvidia[\w.]*|__future__) import (?:\([^)]*\)|.*)\n", re.MULTILINE
)
# The hook uses modules that the interpreter has for itself; this shows that it has all of them.
PROBE = """
import os, sys
print(*sys.version_info[:2], os.__file__, sep="\\n")
hook = {"__name__": "probe"}
exec(sys.stdin.buffer.read(), hook)
hook["parse_object"](b"{}", "")
hook["call"]("getpid")
"""
# Without what nobody reads of it: 3.11's positions in the source, docstrings. It ends with who
# started it (prctl(2), PR_SET_PDEATHSIG), and would else write where somebody has cleaned up.
COMPILE = """
import importlib.util, os, py_compile, sys
path, parent = sys.argv[1:]
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
if os.getppid() != int(parent):
    sys.exit(1)
place = importlib.util.cache_from_source(path)
py_compile.compile(path, place, doraise=True, optimize=2)
"""


def install(directory: str, interpreter: str = "") -> str:
    """Write the hook below an absolute directory, made if missing; give the path to start.

    With an interpreter it is compiled for that one too. What has the same content is left as it
    is. Raises HostError where others than root could replace the hook, or users could not read it.
    """
    folder = Path(directory)
    if not folder.is_absolute():
        raise errors.HostError(
            f"the hook's directory {directory!r} is not an absolute path",
            hint=f"name one that only root can write to, such as {USUAL}",
        )
    make(folder)
    check(folder.resolve())
    path, main = folder / NAME, folder / f"{NAME}.py"
    put(main, script())
    if interpreter:
        compile_for(interpreter, main)
    put(path, SHEBANG + part("start.py"))
    put(folder / f"{WARM}.py", script(WARM_PARTS))
    put(folder / FRONT, part("front.sh"))
    return str(path)


def part(name: str) -> str:
    """Give the text of a file that lies beside this one."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def install_ask(directory: str) -> None:
    """Make the directory of the process that stands ready, for root alone, and say how to ask it.

    Raises HostError as `install` does.
    """
    folder = Path(directory)
    make(folder.parent)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise errors.HostError(
            f"{folder} cannot be made a directory of root's alone: {error.strerror}",
            hint="remove what is there",
        ) from error
    put(folder / ASK, part("ask.sh"))


def install_client(directory: str, interpreter: str, markers: Iterable[bytes]) -> None:
    """Write what `runtime.sh` uses: the program that asks the daemon, and the texts to look for.

    The program's first line names its interpreter. Raises HostError as `install` does.
    """
    folder = Path(directory)
    make(folder)
    check(folder.resolve())
    main = folder / f"{CLIENT}.py"
    put(main, script(CLIENT_PARTS))
    compile_for(interpreter, main)
    put(folder / "markers", marker_file(markers))
    put(folder / CLIENT, f"#!{interpreter} -IS\n{part('start.py')}")


def marker_file(markers: Iterable[bytes]) -> bytes:
    """Give the texts of which a config.json holds one if it asks for anything, a line each."""
    return b"\n".join((*markers, *ESCAPES)) + b"\n"


def put(path: Path, text: str | bytes) -> None:
    """Write a file unless it is there as it should be."""
    content = text.encode() if isinstance(text, str) else text
    with contextlib.suppress(OSError):
        status = path.lstat()
        same = (status.st_mode, status.st_uid) == (stat.S_IFREG | 0o755, 0)
        if same and path.read_bytes() == content:
            return
    replace(path, content)


def compile_for(interpreter: str, path: Path) -> None:
    """Have an interpreter compile the hook for itself; where it cannot, that costs time only."""
    cache = path.parent / "__pycache__"
    make(cache)
    check(cache.resolve())
    options = ["-I", "-S", "-X", "no_debug_ranges"]
    command = [interpreter, *options, "-c", COMPILE, str(path), str(os.getpid())]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30,
            env={}, umask=0o022,
        )  # fmt: skip


def script(names: Sequence[str] = HOOK_PARTS) -> str:
    """Give modules, the hook's if none are named, as one file without what joins them."""
    parts = []
    for number, name in enumerate(names):
        source = (Path(__file__).parents[1] / name).read_text(encoding="utf-8")
        # `__future__` has a place at the beginning of the one file.
        joining = _OURS if number == 0 else _JOINING
        parts.append(joining.sub(lambda found: "\n" * found[0].count("\n"), source))
    return "\n\n".join(parts)


def make(folder: Path) -> None:
    """Make a directory and those above it, each 0755 whatever the umask."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            each.mkdir()
            each.chmod(0o755)
    except OSError as error:
        raise errors.HostError(
            f"the hook's directory {folder} cannot be made: {error.strerror}",
            hint="make it, or name another one that only root can write to",
        ) from error


def check(folder: Path) -> None:
    """Raise HostError if others can change what is in a directory, or cannot reach it."""
    hint = f"name one outside of homes that only root can write to, such as {USUAL}"
    homes = [Path("/root"), Path("/home"), Path.home()]
    if any(home in (folder, *folder.parents) for home in homes if home != Path("/")):
        raise errors.HostError(
            f"the hook's directory {folder} is below a home directory", hint=hint
        )
    for each in (folder, *folder.parents):
        status = each.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != 0:
            raise errors.HostError(
                f"{each} belongs to user {status.st_uid}, not to root", hint=hint
            )
        if mode & 0o022 and (each == folder or not mode & stat.S_ISVTX):
            raise errors.HostError(f"{each} can be written by others ({mode:04o})", hint=hint)
        if not mode & 0o001 or (each == folder and not mode & 0o004):
            raise errors.HostError(f"{each} is closed to other users ({mode:04o})", hint=hint)


def replace(path: Path, content: bytes) -> None:
    """Put an executable file in place at once."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            os.fchown(file.fileno(), 0, 0)
            os.fchmod(file.fileno(), 0o755)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise errors.HostError(
            f"the hook {path} cannot be written: {error.strerror}",
            hint="name a directory that root can write to; some hosts have a read-only /usr",
        ) from error


def interpreter() -> str:
    """Give the Python that runs the hook: the system's, else the one that runs this.

    Raises HostError where neither is new enough, complete, and open to every user.
    """
    candidates = dict.fromkeys(("/usr/bin/python3", os.path.realpath(sys.executable)))
    problems = []
    for candidate in candidates:
        problem = unfit(candidate)
        if not problem:
            return candidate
        problems.append(f"{candidate} {problem}")
    raise errors.HostError(
        f"no Python here can run the hook: {'; '.join(problems)}",
        hint="install the distribution's python3, 3.9 or later, as /usr/bin/python3",
    )


def unfit(candidate: str) -> str:
    """Say why an interpreter cannot run the hook for every user; empty if it can."""
    closed = closed_at(candidate)
    if closed:
        return closed
    command = [candidate, "-I", "-S", "-c", PROBE]
    try:
        # On standard input, since an argument would have to fit the locale.
        done = subprocess.run(
            command, input=script().encode(), capture_output=True, check=False, timeout=30, env={}
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not start: {error}"
    if done.returncode:
        said = done.stderr.decode("utf-8", "backslashreplace").strip()
        return f"is incomplete: {said.rpartition(chr(10))[2]}"
    major, minor, library = os.fsdecode(done.stdout).splitlines()[:3]
    if (int(major), int(minor)) < OLDEST:
        return f"is {major}.{minor}, older than {'.'.join(map(str, OLDEST))}"
    return closed_at(library)


def closed_at(path: str) -> str:
    """Say what keeps an ordinary user from a file; empty if nothing does."""
    file = Path(path)
    try:
        real = file.resolve(strict=True)
        for folder in (*file.parents, *real.parents):
            if not folder.stat().st_mode & 0o001:
                return f"is closed to other users at {folder}"
        return "" if real.stat().st_mode & 0o004 else "cannot be read by other users"
    except OSError as error:
        return f"is not there: {error.strerror}"
