# SPDX-License-Identifier: Apache-2.0
"""A private buildkitd, with a worker of its own or a containerd's.

By itself it is in a mount namespace with a /run of its own, else in that of the containerd.
"""

import contextlib
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from . import doors, images, pods, processes
from . import engine as engines

PATIENCE = 30.0
PRIVATE = """
mount -n -t tmpfs -o mode=755 tmpfs /run
if mountpoint -q /sys/fs/cgroup/unified; then umount -n /sys/fs/cgroup/unified; fi
exec "$@"
"""
SETTINGS = """
root = "{top}/root"
insecure-entitlements = ["device"]
[grpc]
address = ["unix://{top}/bk.sock"]
[cdi]
specDirs = ["{top}/cdi"]
"""
OWN = """
[worker.containerd]
enabled = false
[worker.oci]
enabled = true
snapshotter = "native"
binary = "{runtime}"
defaultCgroupParent = "{cgroup}"
"""
CONTAINERDS = """
[worker.oci]
enabled = false
[worker.containerd]
enabled = true
address = "{address}"
snapshotter = "native"
defaultCgroupParent = "{cgroup}"
[worker.containerd.runtime]
name = "io.containerd.runc.v2"
options = {{ BinaryName = "{runtime}" }}
"""


class BuildKit:
    """A buildkitd whose RUN goes to one OCI runtime."""

    def __init__(self, image: images.Image, engine: engines.Engine | None = None) -> None:
        """Prepare it; `image` is what builds are based on. With an engine that is its worker."""
        self._engine = engine
        self.directory = Path(tempfile.mkdtemp(prefix="nnb-", dir="/tmp"))
        self.cdi_specs = self.directory / "cdi"
        self.cdi_specs.mkdir()
        self.base = self.directory / "base"
        """The image's files."""
        self.base.mkdir()
        image.unpack(self.base)
        self._cgroup = f"/{self.directory.name}"
        self._numbers = itertools.count(1)
        self._log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._namespace = 0

    def start(self, runtime: Path) -> None:
        """Start it with a runtime and wait until it answers."""
        settings = self.directory / "buildkitd.toml"
        worker, space = OWN, ["unshare", "-m", "--propagation", "slave", "sh", "-e", "-c", PRIVATE]
        if self._engine:
            worker = CONTAINERDS
            space = [
                "nsenter",
                f"--mount=/proc/{self._engine.pid}/ns/mnt",
                "sh",
                "-c",
                'exec "$@"',
            ]
        text = (SETTINGS + worker).format(
            top=self.directory, runtime=runtime, cgroup=self._cgroup,
            address=self._engine and self._engine.address,
        )  # fmt: skip
        settings.write_text(text, encoding="utf-8")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*space, "sh", "buildkitd", "--config", settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while subprocess.run(
            self._command("debug", "workers"), check=False, capture_output=True
        ).returncode:
            ended = self._process.poll() is not None or time.monotonic() > end
            assert not ended, f"buildkitd does not answer:\n{self.logged()}"
            time.sleep(0.05)
        self._namespace = Path(f"/proc/{self._process.pid}/ns/mnt").stat().st_ino
        assert self._namespace != Path("/proc/self/ns/mnt").stat().st_ino

    def stop(self) -> None:
        """End it with all that lives in its own namespace; an engine has its own end."""
        try:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                if self._engine is None:
                    processes.end(self._mine, PATIENCE)
        finally:
            processes.remove_cgroups(self._cgroup)
            shutil.rmtree(self.directory, ignore_errors=True)

    def logged(self) -> str:
        return self._log.read_text("utf-8", "replace")[-6000:]

    def _mine(self, process: Path) -> bool:
        return (process / "ns/mnt").stat().st_ino == self._namespace

    @property
    def address(self) -> str:
        """Where it is reached."""
        return f"unix://{self.directory}/bk.sock"

    def _command(self, *words: str) -> list[str]:
        return ["buildctl", "--addr", self.address, *words]

    def context(self, lines: Sequence[str]) -> Path:
        """Give a directory with a Dockerfile of these lines behind the image's files."""
        context = self.directory / f"build-{next(self._numbers)}"
        context.mkdir()
        text = "\n".join(["FROM scratch", "COPY --from=base . /", *lines])
        (context / "Dockerfile").write_text(f"{text}\n", encoding="utf-8")
        return context

    async def build(self, lines: Sequence[str], *options: str) -> pods.Result:
        """Build from lines of a Dockerfile, on the image's files; keep nothing."""
        context = self.context(lines)
        return await doors.run(*self._command(
            "build", "--frontend", "dockerfile.v0", "--progress", "plain", "--no-cache",
            "--local", f"context={context}", "--local", f"dockerfile={context}",
            "--local", f"base={self.base}", "--opt", "context:base=local:base", *options,
        ))  # fmt: skip


@contextlib.contextmanager
def prepared(image: images.Image, engine: engines.Engine | None = None) -> Iterator[BuildKit]:
    """Have the buildkitd that is on PATH, to be started; without it the test is skipped."""
    for name in ("buildkitd", "buildctl"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not on PATH, and Debian has no package of BuildKit")
    found = BuildKit(image, engine)
    try:
        yield found
    finally:
        found.stop()
