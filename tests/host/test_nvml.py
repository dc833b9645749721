# SPDX-License-Identifier: Apache-2.0
"""The process that asks NVML, with the real pynvml and our own libnvidia-ml."""

import json
import os
import pathlib
import subprocess
import sys

import attrs
import pytest

from nri_nvidia.host import cache, query, scan
from nri_nvidia.testing import host

SPEC = host.HostSpec(
    gpus=(
        host.GpuSpec(mig_enabled=True, mig=(host.MigSpec(gi=1), host.MigSpec(gi=2, ci=1))),
        host.GpuSpec(model="T4", minor=5),
    )
)


@pytest.fixture(scope="module")
def top(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("nvml") / "host"
    host.build(directory, SPEC)
    return directory


@pytest.fixture(scope="module")
def library(top) -> str:
    return cache.library_of(scan.scan(host.options_for(top)))


def ask(top, library, fault="", timeout=30.0):
    environment = (("NRI_NVIDIA_SIM_NVML_FAULT", fault),) if fault else ()
    given = attrs.evolve(host.options_for(top), nvml_environment=environment, nvml_timeout=timeout)
    return query.query(given, library)


def test_the_answer_is_the_document_of_the_host(top, library):
    """What pynvml reads from the library is nvml.json again, key by key."""
    output = subprocess.run(
        [sys.executable, "-m", "nri_nvidia.host.nvml", "--library", library],
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout
    assert json.loads(output) == json.loads((top / "nvml.json").read_text())


def test_query_gives_a_report_with_mig_devices(top, library):
    """Index, instance ids and profile of MIG devices come through."""
    answer = ask(top, library)
    assert answer.reason == ""
    first, second = answer.report.gpus
    assert [(m.index, m.gi, m.ci, m.profile) for m in first.mig_devices] == [
        (0, 1, 0, "1g.10gb"),
        (1, 2, 1, "1g.10gb"),
    ]
    assert (second.minor, second.brand, second.architecture) == (5, "tesla", "turing")


def test_hang_is_given_up_in_time_and_killed(top, library):
    """NVML that never returns is a reason, and no process of it stays."""
    before = children()
    answer = ask(top, library, "hang", timeout=0.5)
    assert (answer.report, answer.reason) == (None, "NVML did not answer within 0.5 s")
    assert children() == before


def test_crash_is_a_reason(top, library):
    """A library that dies takes only its own process with it."""
    assert ask(top, library, "crash").reason == "the NVML process died of SIGSEGV"


def test_error_of_nvml_is_told(top, library):
    """What nvmlInit answers is in the reason, in NVML's words."""
    assert "mismatch" in ask(top, library, "init=18").reason


def test_lost_gpu_does_not_hide_the_others(top, library):
    """One GPU off the bus is a sentence, the others are described."""
    answer = ask(top, library, "lost=0")
    assert [gpu.index for gpu in answer.report.gpus] == [1]
    assert answer.report.errors == ("GPU 0: GPU is lost",)


@pytest.mark.parametrize(("fault", "words"), [("noisy", "no JSON"), ("flood", "too much")])
def test_nonsense_is_no_report(top, library, fault, words):
    """Garbage on stdout, or too much of it, is a reason."""
    answer = ask(top, library, fault)
    assert answer.report is None
    assert words in answer.reason


def test_a_parent_that_has_ended_is_not_outlived(top, library):
    """A process that comes too late to be told of its parent's end asks nothing, and ends."""
    ended = subprocess.run(
        [sys.executable, "-m", "nri_nvidia.host.nvml", "--library", library, "--parent", "1"],
        check=False,
        capture_output=True,
        timeout=60,
        env={**os.environ, "NRI_NVIDIA_SIM_NVML_FAULT": "hang"},
    )
    assert (ended.returncode, ended.stdout) == (1, b"")


def test_fault_may_be_a_file_beside_the_document(tmp_path):
    """`nvml.fault` switches a running host to a fault and back."""
    host.build(tmp_path / "host", host.HostSpec(gpus=(host.GpuSpec(),)))
    library = cache.library_of(scan.scan(host.options_for(tmp_path / "host")))
    (tmp_path / "host/nvml.fault").write_text("init=15\n")
    assert "lost" in ask(tmp_path / "host", library).reason.lower()
    (tmp_path / "host/nvml.fault").unlink()
    assert ask(tmp_path / "host", library).report is not None


def test_library_that_cannot_be_loaded_is_a_reason(top, tmp_path):
    """A missing or foreign file is told as the loader tells it."""
    assert "No such file" in ask(top, f"{tmp_path}/none.so").reason


def test_library_without_a_host_has_no_driver(top, library, tmp_path):
    """Taken out of its tree the library answers like a real one without a driver."""
    copy = tmp_path / "libnvidia-ml.so.1"
    copy.write_bytes(pathlib.Path(library).read_bytes())
    assert "Driver Not Loaded" in ask(top, str(copy)).reason


def test_daemon_process_maps_no_nvml(top, library):
    """Scanning and asking leave nothing of NVML in this process, and no node open."""
    ask(top, library)
    assert "libnvidia" not in pathlib.Path("/proc/self/maps").read_text()
    targets = [os.readlink(link.path) for link in os.scandir("/proc/self/fd") if link.is_symlink()
               and os.path.lexists(link.path)]  # fmt: skip
    assert [target for target in targets if "nvidia" in target.rpartition("/")[2]] == []


def children() -> list[str]:
    task = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
    return task.read_text().split()
