# SPDX-License-Identifier: Apache-2.0
"""One GPU container on a private containerd, shown from inside, and everything put away again."""

import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nri_nvidia.testing import host, host_spec  # noqa: E402
from tests.containerd import daemons, engine, images  # noqa: E402

CACHE = ROOT / ".cache"
LIBRARIES = "/usr/local/nvidia/lib64"


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def programs(kind: str) -> list[engine.Program]:
    """Read what contrib/setup unpacked."""
    records = json.loads((CACHE / "engines/engines.json").read_text("utf-8"))[kind]
    return [
        engine.Program(
            name=r["name"], version=r["version"], bin=Path(r["bin"]), path=Path(r["path"])
        )
        for r in records
    ]


@contextlib.contextmanager
def gpu_host() -> Iterator[Path]:
    """Give the root of the host whose GPUs are shown: `/` with a driver, else a simulated one."""
    if Path("/proc/driver/nvidia/version").exists():
        say("this machine has an NVIDIA driver: it is used")
        yield Path("/")
        return
    say("this machine has no NVIDIA driver: a host with eight GPUs is simulated")
    directory = Path(tempfile.mkdtemp(prefix="nnh-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        host.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 8))
        print(f"driver files, device nodes and /proc texts in {directory}")
        yield directory
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def containerd() -> Iterator[engine.Engine]:
    """Have the newest private containerd."""
    newest = programs("engines")[-1]
    say(f"containerd {newest.version} starts, privately and with NRI")
    runtimes = [each for each in programs("runtimes") if each.name == "runc"]
    found = engine.Engine(newest, runtimes, images.load(CACHE))
    try:
        found.start()
        yield found
    finally:
        found.stop()


async def show(found: engine.Engine, daemon: daemons.Daemon, *, real: bool) -> bool:
    """Run a container and show what it sees; tell whether all of it went well."""
    visible = "0" if real else "0,2"
    say(f"a container with NVIDIA_VISIBLE_DEVICES={visible}, through CRI")
    well = True
    async with (
        found.pod() as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": visible}, name="demo") as container,
    ):
        for command in (
            "ls -l /dev/ | grep nvidia",
            "/sbin/ldconfig -p | grep libcuda",
            "/probe-dlopen libcuda.so.1",
            "nvidia-smi -L" if real else "command -v nvidia-smi",
        ):
            print(f"$ {command}", flush=True)
            result = await container.exec(["/bin/sh", "-c", command])
            print((result.stdout + result.stderr).rstrip(), flush=True)
            well = well and result.code == 0
        say("nri-nvidia status")
        shown = daemon.ask("status")
        print((shown.stdout + shown.stderr).rstrip())
        well = well and shown.returncode == 0
    say("what the daemon logged")
    print(daemon.logged().rstrip())
    return well


def main() -> int:
    """Set it up, show it, put it away; 1 when something did not work."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with gpu_host() as root, containerd() as found:
        say("nri-nvidia starts")
        real = root == Path("/")
        with daemons.running(found.nri_socket, root, log_level="info") as daemon:
            daemon.nvml_answered()
            well = asyncio.run(show(found, daemon, real=real))
    say("all of it worked, and nothing is left running" if well else "something did not work")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
