# SPDX-License-Identifier: Apache-2.0
"""The README names every code of a finding, and no other."""

import inspect
import pathlib
import re

from tests.containerd import test_check

from . import test_daemon, test_doors, test_findings

ROOT = pathlib.Path(__file__).parents[2]


def told_in_the_readme():
    text = (ROOT / "README.md").read_text("utf-8")
    section = text.partition("### nri-nvidia check")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)}


def test_every_code_is_in_the_readme():
    """Whoever meets a code finds it there, with what to do."""
    told = told_in_the_readme()
    sources = [*(ROOT / "nri_nvidia/check").glob("*.py"), *(ROOT / "nri_nvidia/host").glob("*.py")]
    known = {
        code
        for path in sources
        for code in re.findall(r'code="([a-z0-9-]+)"', path.read_text("utf-8"))
    }
    ours = {
        code
        for path in (ROOT / "nri_nvidia/check").glob("*.py")
        for code in re.findall(r'code="([a-z0-9-]+)"', path.read_text("utf-8"))
    }
    assert ours <= told
    assert told <= known


OF_THEIR_OWN = {
    "mig-capability-missing": test_findings.test_mig_nodes_that_are_missing,
    "no-gpu": test_findings.test_node_without_a_gpu,
    "cdi-hook-missing": test_doors.test_a_specification_whose_hook_is_gone,
    "cdi-spec-twice": test_doors.test_two_specifications_of_one_kind,
    "daemon-not-running": test_daemon.test_daemon_that_missed_a_container_and_then_ended,
    "containers-missed": test_daemon.test_daemon_that_missed_a_container_and_then_ended,
    "not-registered": test_daemon.test_daemon_that_the_runtime_does_not_take,
    "not-root": test_daemon.test_who_is_not_root_is_told_so,
    "adjustment-not-applied": test_check.test_node_that_is_taken_from_a_container,
    "device-permission-lost": test_check.test_container_that_lost_its_permission,
}
"""The tests that make the faults which no line of `test_findings.FAULTS` can."""


def test_every_code_has_a_fault_that_shows_it():
    """For each code of the README there is a test that makes that fault and sees it first."""
    lines = {name.partition(",")[0] for name in test_findings.FAULTS}
    assert lines & set(OF_THEIR_OWN) == set()
    assert lines | set(OF_THEIR_OWN) == told_in_the_readme()
    for code, test in OF_THEIR_OWN.items():
        assert f'"{code}"' in inspect.getsource(test)
