# SPDX-License-Identifier: Apache-2.0
"""What the daemon imports: what it serves with, and nothing that another verb is for."""

import subprocess
import sys

FOREIGN = {
    "importlib.metadata",  # with email, zipfile and csv: to look up a version that nobody asks for
    "importlib.resources",
    "email",
    "zipfile",
    "tomlkit",
    "prometheus_client",
    "pynvml",
    "ctypes",
    "multiprocessing",
    "urllib.request",
    "http.client",
    "xml",
    "sqlite3",
    "nri_nvidia.configure",
    "nri_nvidia.install",
    "nri_nvidia.check",
    "nri_nvidia.testing",
    "nri_nvidia.cli.status",
    "nri_nvidia.cli.plan",
    "nri_nvidia.host.record",
    "nri_nvidia.host.nvml",
}
PROGRAM = """
import sys
from nri_nvidia import cli
from nri_nvidia.cli import run
from nri_nvidia.daemon import service
print(*sys.modules)
"""


def test_the_daemon_imports_only_what_it_serves_with():
    """Each of these is milliseconds of its start and a part of its memory for good."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "nri_nvidia.daemon.service" in loaded
    assert sorted(FOREIGN & loaded) == []
