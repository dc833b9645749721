# SPDX-License-Identifier: Apache-2.0
"""Root file systems and bundles, made by hand, and the real runtimes that run them."""

import contextlib
import ctypes
import dataclasses
import json
import os
import platform
import re
import select
import shutil
import socket
import subprocess
import uuid
from pathlib import Path
from typing import IO

ENGINES = Path(__file__).parents[2] / ".cache" / "engines" / "engines.json"
MACHINE = platform.machine()
MULTIARCH = f"{MACHINE}-linux-gnu"
LIBRARY_DIR = "/usr/local/nvidia"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
READ_ONLY = ["bind", "ro", "nosuid", "nodev"]
PRIVATE = ["unshare", "--mount", "sh", "-c"]
"""The beginning of a command that runs a shell's text in a mount namespace of its own."""
NAMESPACES = ("pid", "ipc", "uts", "mount")
# crun refuses a machine with both versions of cgroups, so it gets a view without the second.
ALONE = ["unshare", "--mount", "sh", "-c", 'umount /sys/fs/cgroup/unified 2>&-; exec "$@"', "-"]
# Ends with 0 at once, and needs nothing of an image.
QUIET = """
void _start(void) {
#if defined(__x86_64__)
    __asm__ volatile ("syscall" :: "a"(231), "D"(0));
#elif defined(__aarch64__)
    register long number __asm__("x8") = 94, status __asm__("x0") = 0;
    __asm__ volatile ("svc 0" :: "r"(number), "r"(status));
#endif
}
"""


def runtimes() -> dict[str, str]:
    """Give the low-level runtimes that the set-up has unpacked, by name; none without one."""
    if not ENGINES.exists():
        return {}
    return {each["name"]: each["path"] for each in json.loads(ENGINES.read_text())["runtimes"]}


def compile_c(output: Path, source: str, *options: object) -> Path:
    """Compile one C text."""
    command = ["gcc", "-x", "c", "-", "-x", "none", *map(str, options), "-o", str(output)]
    subprocess.run(command, input=source, text=True, check=True)
    return output


def make_library(path: Path) -> Path:
    """Make a shared library whose SONAME is its file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'const char *made_as(void) {{ return "{path}"; }}'
    return compile_c(path, text, "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{path.name}")


@dataclasses.dataclass
class Toolbox:
    """What is compiled once: a driver directory, a program that needs it, and one that needs nothing."""

    driver: Path
    needs_driver: Path
    quiet: Path

    @classmethod
    def make(cls, folder: Path) -> "Toolbox":
        driver = folder / "driver"
        libraries = [make_library(driver / "lib64" / name) for name in LIBRARIES]
        (driver / "bin").mkdir()
        text = "#include <stdio.h>\nconst char *made_as(void);\nint main(void) { puts(made_as()); return 0; }"
        program = compile_c(folder / "needs-driver", text, libraries[0])
        shutil.copy(program, driver / "bin" / "nvidia-smi")
        quiet = compile_c(folder / "quiet", QUIET, "-static", "-nostdlib")
        return cls(driver, program, quiet)


def loader_and_libraries(program: Path) -> tuple[Path, list[Path]]:
    """Give the loader that a program of this machine names, and the libraries it needs."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    paths = [Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+)", listed, re.MULTILINE)]
    loader = next(path for path in paths if path.name.startswith("ld-linux"))
    return loader, [path for path in paths if path != loader and path.name not in LIBRARIES]


def make_root(root: Path, toolbox: Toolbox, kind: str) -> Path:
    """Make a root file system: `debian`, `fedora`, `musl` or `empty`; /bin/quiet is in each."""
    (root / "bin").mkdir(parents=True)
    shutil.copy(toolbox.quiet, root / "bin" / "quiet")
    for name in ("proc", "dev", *(() if kind == "empty" else ("etc", "usr/bin", "sys", "tmp"))):
        (root / name).mkdir(parents=True)
    if kind == "empty":
        return root
    if kind == "musl":
        (root / "lib").mkdir()
        (root / "etc/alpine-release").write_text("3.20.0\n")
        shutil.copy(toolbox.quiet, root / f"lib/ld-musl-{MACHINE}.so.1")
        return root
    shell = Path("/bin/sh").resolve()
    loader, libraries = loader_and_libraries(shell)
    folder = root / ("lib64" if kind == "fedora" else f"lib/{MULTIARCH}")
    if kind == "fedora":
        (root / "usr/lib64").mkdir(parents=True)
        (root / "lib64").symlink_to("usr/lib64")
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        shutil.copy(library, folder / library.name)
    (root / loader.parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
    shutil.copy(loader, root / loader.relative_to("/"))
    shutil.copy(shell, root / "bin/sh")
    shutil.copy(toolbox.needs_driver, root / "bin/needs-driver")
    (root / "etc/ld.so.conf.d").mkdir()
    (root / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")
    if kind == "debian":
        (root / "etc/debian_version").write_text("12.1\n")
        (root / f"etc/ld.so.conf.d/{MULTIARCH}.conf").write_text(f"/lib/{MULTIARCH}\n")
    return root


def cached(root: Path) -> dict[str, list[str]]:
    """Give what the root's ld.so.cache lists: for each name the paths, the first found first."""
    cache = root / "etc/ld.so.cache"
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", cache], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, list[str]] = {}
    for name, path in re.findall(r"^\t(\S+) \(.*\) => (\S+)$", listed, re.MULTILINE):
        found.setdefault(name, []).append(path)
    return found


def snapshot(folder: Path) -> dict[str, tuple]:
    """Give everything about a directory tree that a write into it would change."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        kept = (status.st_mode, status.st_uid, status.st_ino, status.st_size)
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (*kept, status.st_mtime_ns, status.st_ctime_ns, content)
    return found


@dataclasses.dataclass
class Result:
    """What came of one container."""

    status: int
    output: str
    errors: str
    report: dict | None

    def step(self, name: str) -> dict:
        """Give one step of the hook's report."""
        assert self.report is not None, self.errors
        return next(step for step in self.report["steps"] if step["name"] == name)


def failing(result: Result) -> dict[str, str]:
    """Give the failed steps of a hook's report as name and message."""
    assert result.report is not None, result.errors
    return {step["name"]: step["message"] for step in result.report["steps"] if not step["ok"]}


def bind(source: Path, destination: str, options: list[str] = READ_ONLY) -> dict:
    return {"source": str(source), "destination": destination, "type": "bind", "options": options}


def config(root: str, args: list[str], mounts: list[dict], hook: list[str]) -> dict:
    """Give a runtime configuration with one createContainer hook, if any."""
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    return {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": args, "cwd": "/", "env": ["PATH=/bin"]},
        "root": {"path": root},
        "mounts": [proc, *mounts],
        "linux": {
            "namespaces": [{"type": each} for each in NAMESPACES], "maskedPaths": ["/proc/kcore"],
        },
        "hooks": {
            "createContainer": [
                {"path": hook[0], "args": hook, "env": ["LC_ALL=C"], "timeout": 20}
            ] if hook else []
        },
    }  # fmt: skip


def run(
    runtime: str, bundle: Path, document: dict, prefix: list[str] = ()
) -> tuple[int, str, str]:
    """Run a container to its end; give exit status, output and errors."""
    (bundle / "config.json").write_text(json.dumps(document))
    name = f"nri-nvidia-test-{uuid.uuid4().hex}"
    state = bundle / "state"
    base = [*(ALONE if Path(runtime).name == "crun" else []), runtime, "--root", str(state)]
    try:
        done = subprocess.run(
            [*prefix, *base, "run", "--bundle", str(bundle), name],
            check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
    finally:
        subprocess.run([*base, "delete", "--force", name], check=False, capture_output=True)
    return done.returncode, done.stdout, done.stderr


def start(command: list[str], state: str, folder: Path) -> tuple[int, str, str]:
    """Start a hook as a runtime does, in a directory of the image's."""
    done = subprocess.run(
        command, cwd=folder, input=state, capture_output=True, text=True, check=False,
        timeout=60, env={"LC_ALL": "C"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def start_many(count: int, command: list[str], state: str) -> list[tuple[int, str]]:
    """Start a hook several times at once; give exit status and errors of each."""
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True, env={}) for _ in range(count)
    ]
    for each in running:
        each.stdin.write(state)
        each.stdin.close()
        each.stdin = None
    errors = [each.communicate(timeout=60)[1] for each in running]
    return [(each.returncode, text) for each, text in zip(running, errors, strict=True)]


def ldconfig(root: Path) -> None:
    """Run ldconfig as the container's own would, on a root that is known to be harmless."""
    subprocess.run(["/sbin/ldconfig", "-X", "-r", root], check=True, capture_output=True)


def exchange(one: Path, other: Path) -> None:
    """Swap two files at once."""
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    ctypes.CDLL(None).renameat2(here, bytes(one), here, bytes(other), flag)


def running_in(root: Path) -> list[str]:
    """Give the processes that have a directory as their root."""
    found = []
    for path in Path("/proc").glob("[0-9]*/root"):
        with contextlib.suppress(OSError):  # ended since, or a kernel thread
            found += [str(path)] if path.samefile(root) else []
    return found


def wait_for_reader_to_end(writer: IO[bytes]) -> None:
    """Return when nobody has a FIFO open for reading any more."""
    poll = select.poll()
    poll.register(writer, 0)  # errors alone
    assert poll.poll(30_000), "the FIFO is still being read"


def fill(path: Path) -> None:
    """Send datagrams to a socket until it takes no more."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with sender, contextlib.suppress(BlockingIOError):
        while True:
            sender.sendto(b"x" * 1000, str(path))
