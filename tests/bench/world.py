# SPDX-License-Identifier: Apache-2.0
"""What the bench runs on: hosts, images, engines, and daemons beside them."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from nri_nvidia.config import model as config_model
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_kernel, host_spec, stubs
from tests.containerd import conftest, daemons, engine, images
from tests.oci import bundles

ROOT = Path(__file__).parents[2]
DEBIAN = "debian-many"
LIBRARIES = 300
"""How many libraries the Debian root holds besides its own: an image with CUDA and Python has such numbers."""
SETUP = "run contrib/setup"
_LIBRARY_PLACE = f"usr/lib/{bundles.MULTIARCH}"


class UnpreparedError(Exception):
    """Raised when something that the bench needs is not there; the text says what to do."""


# Hosts


def make_host(directory: Path, *, gpus: int = 8) -> str:
    """Make a host with GPUs and NVIDIA's real driver files, simulated ones where there are none.

    Gives what the files are, for the report.
    """
    record = conftest.CACHE / "driver/driver.json"
    kinds = (host_spec.GpuSpec(),) * gpus
    if not record.exists():
        simulated.build(directory, host_spec.HostSpec(gpus=kinds))
        return "simulated driver files"
    packages = json.loads(record.read_text(encoding="utf-8"))
    _link_tree(Path(packages["root"]), directory)
    spec = host_spec.HostSpec(gpus=kinds, driver=packages["version"], nvml=False, sockets=False)
    host_kernel.write(directory, spec)
    return f"NVIDIA's files {packages['version']} as Debian packages them"


def _link_tree(source: Path, target: Path) -> None:
    command = ["cp", "-al", f"{source}/.", str(target)]
    target.mkdir(parents=True, exist_ok=True)
    if subprocess.run(command, check=False, capture_output=True).returncode:
        # On another file system there are no hard links to have.
        subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)


def make_mig_host(directory: Path, *, gpus: int = 16, mig: bool = True) -> host_spec.HostSpec:
    """Make a simulated host of many GPUs, each with seven MIG devices or none."""
    slices = tuple(host_spec.MigSpec(gi=gi) for gi in range(7, 14)) if mig else ()
    gpu = host_spec.GpuSpec(mig_enabled=mig, mig=slices)
    spec = host_spec.HostSpec(gpus=(gpu,) * gpus, compat32=True)
    simulated.build(directory, spec)
    return spec


# Images


def programs() -> dict[str, engine.Program]:
    """Give the engines and low-level runtimes that contrib/setup unpacked, by name."""
    if os.geteuid() != 0:
        raise UnpreparedError("containers need root: run the bench as root")
    try:
        text = (conftest.CACHE / "engines/engines.json").read_text(encoding="utf-8")
    except OSError as error:
        raise UnpreparedError(f"there is no containerd: {SETUP} ({error})") from error
    document = json.loads(text)
    return {
        each["name"]: engine.Program(
            name=each["name"],
            version=each["version"],
            bin=Path(each["bin"]),
            path=Path(each["path"]),
        )
        for each in [*document["engines"], *document["runtimes"]]
    }


def make_library(directory: Path) -> images.Library:
    """Give the tests' images and the Debian root of many libraries (`debian-many`).

    That root is left unpacked in `directory/root`.
    """
    try:
        library = images.load(conftest.CACHE)
    except (OSError, KeyError, ValueError) as error:
        raise UnpreparedError(f"there are no images to run: {SETUP} ({error})") from error
    base = library["debian-x11" if "debian-x11" in library.images else "debian"]
    root = directory / "root"
    root.mkdir()
    base.unpack(root)
    _fill(root)
    layer = _pack(root)
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {**base.config, "rootfs": {"type": "layers", "diff_ids": [digest]}}
    reference = f"{base.reference.rpartition('/')[0]}/{DEBIAN}:1"
    archive = directory / f"{DEBIAN}.tar"
    images.write(archive, reference, config, layer)
    image = images.Image(
        reference=reference,
        archive=archive,
        layer={"digest": digest, "size": len(layer)},
        config=config,
    )
    return attrs.evolve(library, images={**library.images, DEBIAN: image})


def _fill(root: Path) -> None:
    """Add libraries, each a file and the link that packages ship, and list them by the image's own ldconfig."""
    folder = root / _LIBRARY_PLACE
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(LIBRARIES):
        soname = f"libbench{number:03}.so.1"
        data = stubs.shared_object(soname, needed=("libc.so.6",))
        # Real ones are some hundred kilobytes of which ldconfig reads the head and the strings.
        (folder / f"{soname}.0.0").write_bytes(data + bytes(64 << 10))
        (folder / soname).symlink_to(f"{soname}.0.0")
    subprocess.run(["chroot", str(root), "/sbin/ldconfig"], check=True)


def _pack(root: Path) -> bytes:
    command = ["tar", "-c", "--numeric-owner", "--sort=name", "-C", str(root), "."]
    return subprocess.run(command, check=True, capture_output=True).stdout


def count_libraries(root: Path) -> int:
    """Give how many libraries a root's ld.so.cache lists."""
    return len(bundles.cached(root))


# Engines and daemons


def layouts() -> dict[str, str]:
    """Give the layouts of driver files that this version of the product has, each with its settings (TOML)."""
    if "layout" in attrs.fields_dict(config_model.Inject):
        return {name: f'inject.layout = "{name}"\n' for name in ("files", "volume")}
    return {"files": ""}


def private_places(directory: Path) -> str:
    """Give settings (TOML) that keep the daemon's directories below one of ours.

    An engine's /run is its own, so what a container is to mount must not lie in the host's.
    """
    lines = []
    for group in attrs.fields(config_model.Config):
        if not attrs.has(group.type):
            continue
        for field in attrs.fields(group.type):
            taken = f"{group.name}.{field.name}" == "hook.directory"  # Daemon gives that one
            path = isinstance(field.default, str) and field.default.startswith("/")
            if field.name.endswith("directory") and path and not taken:
                place = directory / f"{group.name}-{field.name}"
                lines.append(f"{group.name}.{field.name} = {json.dumps(str(place))}\n")
    return "".join(lines)


class InstrumentedDaemon(daemons.Daemon):
    """A daemon with `tests.bench.instrumented` around it."""

    def start(self, environment: Mapping[str, str] | None = None) -> "InstrumentedDaemon":
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})}
        env["NOTIFY_SOCKET"] = str(self.directory / "notify")
        command = [sys.executable, "-m", "tests.bench.instrumented", *self._arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                start_new_session=True, cwd=ROOT,
            )  # fmt: skip
        return self


def make_daemon(
    nri_socket: Path,
    host: Path,
    directory: Path,
    settings: str = "",
    *,
    instrumented: bool = False,
) -> daemons.Daemon:
    """Make a daemon, not started, with settings (TOML) of its own and the product's log level."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "config.toml"
    config.write_text(settings + private_places(directory), encoding="utf-8")
    kind = InstrumentedDaemon if instrumented else daemons.Daemon
    return kind(nri_socket, host, "--config", str(config), log_level="info")


@attrs.frozen(kw_only=True)
class World:
    """All that runs. `engines` and `daemons` are by the names that arms use."""

    host: Path
    files: str
    directory: Path
    root: Path
    engines: Mapping[str, engine.Engine]
    daemons: Mapping[str, daemons.Daemon]


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """Have a directory that everybody may enter, on the disk that holds the engines."""
    with tempfile.TemporaryDirectory(prefix="nnb-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def running(
    wanted: Mapping[str, str | None], directory: Path, *, name: str, runtime: str
) -> Iterator[World]:
    """Have an engine for each wanted name, all of the same program.

    A name comes with the settings (TOML) of the daemon beside that engine, or None for no daemon;
    that of `parts` is instrumented.
    """
    known = programs()
    for each in (name, runtime):
        if each not in known:
            raise UnpreparedError(f"{each} is not there, there are {', '.join(known)}: {SETUP}")
    host = directory / "host"
    files = make_host(host)
    library = make_library(directory)
    quiet = bundles.compile_c(directory / "quiet", bundles.QUIET, "-static", "-nostdlib")
    engines_: dict[str, engine.Engine] = {}
    daemons_: dict[str, daemons.Daemon] = {}
    with contextlib.ExitStack() as stack:
        for each, settings in wanted.items():
            made = engine.Engine(known[name], [known[runtime]], library)
            stack.callback(made.stop)
            made.start()
            engines_[each] = made
            if settings is not None:
                daemon = make_daemon(
                    made.nri_socket, host, directory / each, settings,
                    instrumented=each == "parts",
                )  # fmt: skip
                stack.callback(daemon.close)
                daemon.start({"BENCH_QUIET": str(quiet)}).ready()
                daemons_[each] = daemon
        yield World(
            host=host,
            files=files,
            directory=directory,
            root=directory / "root",
            engines=engines_,
            daemons=daemons_,
        )


def environment() -> dict[str, Any]:
    """Say what machine and what versions figures are of."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    commit = ""
    with contextlib.suppress(FileNotFoundError):  # a machine may have the files and no git
        commit = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
            check=False, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
    hook_python = subprocess.run(
        ["/usr/bin/python3", "--version"], check=False, capture_output=True, text=True
    ).stdout.strip()
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": sys.version.split()[0],
        "hook_python": hook_python,
        "commit": commit,
    }
