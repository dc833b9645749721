# SPDX-License-Identifier: Apache-2.0
"""The table of attacks names what is there, and leaves out no vulnerability and no runtime."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from . import attacks, conftest

ASKED = {"CVE-2024-0132", "CVE-2024-0133", "CVE-2024-0134", "CVE-2025-23266", "CVE-2025-23267",
         "CVE-2025-23359"}  # fmt: skip
HERE = Path(__file__).parent


def find(name):
    """Give the test function of a name in the table."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)


@pytest.mark.parametrize("attack", attacks.ATTACKS)
def test_each_attack_has_its_tests(attack):
    """Both tests of an entry exist, and the one that shows the attack weakens the hook."""
    proof = attacks.ATTACKS[attack]
    for name in proof.tests:
        assert find(name).__doc__
    source = inspect.getsource(find(proof.shown or proof.held))
    assert any(way in source for way in ('"without"', "several("))


@pytest.mark.parametrize("attack", attacks.ATTACKS)
def test_each_attack_is_tried_with_each_runtime(attack):
    """A test runs with each runtime, or the table says why not; the reason is for one that exists."""
    for name in attacks.ATTACKS[attack].tests:
        alone = "runtime" not in inspect.signature(find(name)).parameters
        assert alone == (name in attacks.ONE_RUNTIME_DOES), name


def test_the_runtimes_are_these():
    """runc of two kinds and crun are what `runtime` stands for."""
    assert set(conftest.RUNTIMES) == {"runc", "runc-1.1.5", "crun"}


def test_vulnerabilities_are_in_the_names_of_tests():
    """Each of NVIDIA's vulnerabilities in the table has a test that is called after it."""
    text = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    named = {
        f"CVE-{year}-{number}" for year, number in re.findall(r"def test_cve_(\d+)_(\d+)", text)
    }
    listed = {attack[:14].rstrip(":") for attack in attacks.ATTACKS if attack.startswith("CVE")}
    assert listed >= ASKED
    assert named == listed
