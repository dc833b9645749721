# SPDX-License-Identifier: Apache-2.0
"""What a verb imports: an operator waits for nothing else of a question to the daemon."""

import subprocess
import sys

import pytest

from . import test_faults

HEAVY = {
    "asyncio",
    "attr",
    "betterproto",
    "cattrs",
    "grpclib",
    "nri_nvidia._api",
    "nri_nvidia.config.model",
    "nri_nvidia.daemon",
    "nri_nvidia.host",
    "nri_nvidia.pipeline",
    "nri_nvidia.request",
    "prometheus_client",
    "subprocess",
    "tomlkit",
}
PROGRAM = """
import sys
from nri_nvidia import cli
try:
    cli.main(sys.argv[1:])
except SystemExit:
    pass
print("\\nmodules", *sys.modules)
"""


def imported(*words):
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stdout.rpartition("\nmodules ")[2].split())


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["status"], ["status", "--help"]])
def test_a_question_to_the_daemon_is_quick(words):
    """It imports no event loop, no message library and nothing of what decides."""
    found = imported(*words)
    assert "nri_nvidia.cli" in found
    assert sorted(HEAVY & found) == []


def test_settings_are_read_for_the_socket_alone(tmp_path):
    """A file of settings is parsed, and not judged, where it names the socket."""
    settings, path = tmp_path / "config.toml", tmp_path / "control.sock"
    settings.write_text(f'control.socket = "{path}"\n')
    with test_faults.answering(path, b"nothing of use"):
        found = imported("status", "--config", str(settings))
    assert "tomllib" in found
    assert sorted(HEAVY & found) == []


def test_plan_needs_no_messages_nor_judge_of_settings():
    """What it decides with is imported; what reads a file of settings only if there is one."""
    found = imported("plan", "--host", "/nonexistent")
    assert "nri_nvidia.pipeline" in found
    assert sorted({"asyncio", "betterproto", "grpclib", "nri_nvidia.daemon"} & found) == []
