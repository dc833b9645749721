# SPDX-License-Identifier: Apache-2.0
"""One GPU container on a private containerd, shown from inside, and everything put away again."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import grpclib  # noqa: E402

from nri_nvidia.testing import host, host_spec  # noqa: E402
from tests.containerd import daemons, engine, images, processes  # noqa: E402

CACHE = ROOT / ".cache"


class NotReadyError(Exception):
    """Raised when contrib/setup has not made all that is needed; the text says so."""


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


class Interruptions:
    """SIGINT, SIGTERM and SIGHUP end the demonstration, where that is safe.

    Nothing is raised in the middle of what runs, where a process that is just being started would
    be lost: a signal is remembered until the next `check`, and breaks off what `run` awaits.
    """

    def __init__(self) -> None:
        self._number = 0
        self._awaited: Callable[[], object] = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def _arrived(self, number: int, _: object) -> None:
        if not self._number:
            self._number = number
            self._awaited()

    def check(self) -> None:
        """End here if a signal has come; raises SystemExit."""
        if self._number:
            print("\ninterrupted: everything is being put away", file=sys.stderr, flush=True)
            sys.exit(128 + self._number)

    def run(self, shown: Coroutine[Any, Any, bool]) -> bool:
        """Run a coroutine, which is cancelled when a signal comes; raises SystemExit."""

        async def main() -> bool:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._awaited = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                return await shown
            finally:
                self._awaited = lambda: None

        with contextlib.suppress(asyncio.CancelledError):
            return asyncio.run(main())
        self.check()
        return False


@contextlib.contextmanager
def gpu_host(interruptions: Interruptions) -> Iterator[Path]:
    """Give the root of the host whose GPUs are shown: `/` with a driver, else a simulated one."""
    if Path("/proc/driver/nvidia/version").exists():
        say("this machine has an NVIDIA driver: it is used")
        yield Path("/")
        return
    say("this machine has no NVIDIA driver: a host with eight GPUs is simulated")
    directory = Path(tempfile.mkdtemp(prefix="nnh-", dir="/tmp"))
    try:
        directory.chmod(0o755)
        host.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 8))
        interruptions.check()
        print(f"driver files, device nodes and /proc texts in {directory}")
        yield directory
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def containerd() -> Iterator[engine.Engine]:
    """Have the newest private containerd; raises NotReadyError where that was not set up."""
    try:
        newest = programs("engines")[-1]
        runtimes = [each for each in programs("runtimes") if each.name == "runc"]
        library = images.load(CACHE)
    except (OSError, LookupError, ValueError) as error:
        raise NotReadyError(
            f"something is missing in {CACHE}: run contrib/setup ({error})"
        ) from None
    say(f"containerd {newest.version} starts, privately and with NRI")
    found = engine.Engine(newest, runtimes, library)
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


def demonstrate(interruptions: Interruptions) -> bool:
    """Set it up, show it, put it away; tell whether all of it worked."""
    with gpu_host(interruptions) as root, containerd() as found:
        say("nri-nvidia starts")
        real = root == Path("/")
        interruptions.check()
        # On a real host's /dev nothing is to be made that this containerd has no need of.
        settings = found.directory / "nri-nvidia.toml"
        settings.write_text("host.dev_char_symlinks = false\n", encoding="utf-8")
        arguments = ("--config", str(settings))
        with daemons.running(found.nri_socket, root, arguments, log_level="info") as daemon:
            daemon.nvml_answered()
            interruptions.check()
            return interruptions.run(show(found, daemon, real=real))


def main() -> int:
    """Demonstrate; 1 when something did not work, with a sentence that says what."""
    interruptions = Interruptions()
    try:
        well = demonstrate(interruptions)
        interruptions.check()
    except (
        NotReadyError,
        engine.EngineError,
        processes.LeftoverError,
        grpclib.GRPCError,
        subprocess.SubprocessError,
        AssertionError,
        OSError,
    ) as error:
        # What is put away after a signal may fail for that very reason.
        interruptions.check()
        told = error.message if isinstance(error, grpclib.GRPCError) else error
        print(f"\ncontrib/demo: {told}", file=sys.stderr)
        return 1
    say("all of it worked, and nothing is left running" if well else "something did not work")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
