# SPDX-License-Identifier: Apache-2.0
"""A private nri-nvidia beside a private containerd, on a simulated host."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).parent / "nri-nvidia"
PATIENCE = 20
"""Seconds after which something that should happen is taken not to happen."""


class Daemon:
    """One `nri-nvidia run`, which says to us what it would say to systemd."""

    def __init__(
        self,
        nri_socket: Path,
        host: Path,
        *arguments: str,
        log_level: str = "debug",
        prefix: Sequence[str] = (),
    ) -> None:
        self._prefix = prefix
        self.directory = Path(tempfile.mkdtemp(prefix="nnd-", dir="/tmp"))
        # The hook's directory must be one that any uid may enter.
        self.directory.chmod(0o755)
        self.control = self.directory / "control.sock"
        self.log = self.directory / "log"
        self.host = host
        self._arguments = (
            "run",
            "--nri-socket", str(nri_socket),
            "--host-root", str(host), "--driver-root", str(host), "--dev-root", str(host),
            "--control-socket", str(self.control),
            "--hook-directory", str(self.directory / "hook"),
            "--volume-directory", str(self.directory / "volumes"),
            "--log-level", log_level,
            *arguments,
        )  # fmt: skip
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(self.directory / "notify"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, environment: Mapping[str, str] | None = None) -> "Daemon":
        """Start it; see `ready`."""
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})}
        env["NOTIFY_SOCKET"] = str(self.directory / "notify")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, COMMAND, *self._arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=env, start_new_session=True,
            )  # fmt: skip
        return self

    def ready(self) -> "Daemon":
        """Wait until it has told the service manager that it is registered."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if select.select([self._notified], [], [], 0.2)[0]:
                told = self._notified.recv(4096).decode()
                if "READY=1" in told.split("\n"):
                    return self
        raise AssertionError(f"nri-nvidia did not get ready:\n{self.logged()}")

    def told(self) -> str:
        """Wait for what it tells the service manager next."""
        if not select.select([self._notified], [], [], PATIENCE)[0]:
            raise AssertionError(f"nri-nvidia told nothing:\n{self.logged()}")
        return self._notified.recv(4096).decode()

    def logged(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def says(self, text: str) -> bool:
        """Wait until a text is in its log, which a thread of its own writes; raises else."""
        return bool(self.until(lambda: text in self.logged(), text))

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds; give its value."""
        deadline = time.monotonic() + PATIENCE
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {PATIENCE} s:\n{self.logged()}")
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it and give its exit status."""
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            status = self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self._process = None
        return status

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a verb of the command line against this daemon."""
        return subprocess.run(
            [COMMAND, *arguments, "--socket", str(self.control)],
            check=False, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        done = self.ask("status", "--json")
        assert done.returncode in {0, 1}, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def nvml_answered(self) -> "Daemon":
        """Wait until NVML's answer is known, for what depends on it."""
        self.until(lambda: self.status()["driver"].get("nvml") == "ok", "NVML's answer")
        return self

    def held(self) -> list[str]:
        """List the driver's nodes that are open, and what of it is mapped: never anything."""
        base = Path(f"/proc/{self.pid}")
        nodes = ("/dev/nvidia", f"{self.host}/dev/")
        mapped = (base / "maps").read_text()
        return [path for path in self.nvidia_files() if path.startswith(nodes) or path in mapped]

    def nvidia_files(self) -> list[str]:
        """List what of the driver the process has open or mapped; a scan opens libraries."""
        base = Path(f"/proc/{self.pid}")
        links = [os.readlink(entry) for entry in (base / "fd").iterdir() if entry.is_symlink()]
        maps = [line.split(maxsplit=5)[-1] for line in (base / "maps").read_text().splitlines()]
        driver = str(self.host)
        return [
            path
            for path in [*links, *maps]
            if path.startswith(("/dev/nvidia", driver)) or "libnvidia" in path or "libcuda" in path
        ]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.end()
        self._notified.close()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def alone(
    host: Path, text: str = "", arguments: Sequence[str] = (), *, prefix: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Have a daemon with NRI switched off, and further settings; `prefix` starts it elsewhere."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as config:
        config.write(f"nri.enabled = false\n{text}")
        config.flush()
        words = ["--config", config.name, *arguments]
        with running(Path("/nowhere"), host, words, prefix=prefix) as daemon:
            yield daemon


@contextlib.contextmanager
def running(
    nri_socket: Path,
    host: Path,
    arguments: Sequence[str] = (),
    *,
    log_level: str = "debug",
    prefix: Sequence[str] = (),
) -> Iterator[Daemon]:
    """Have a daemon that is registered."""
    daemon = Daemon(nri_socket, host, *arguments, log_level=log_level, prefix=prefix)
    try:
        yield daemon.start().ready()
    finally:
        daemon.close()
