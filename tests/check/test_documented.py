# SPDX-License-Identifier: Apache-2.0
"""The README names every code of a finding, and no other."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def test_every_code_is_in_the_readme():
    """Whoever meets a code finds it there, with what to do."""
    text = (ROOT / "README.md").read_text("utf-8")
    section = text.partition("### nri-nvidia check")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    told = {code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)}
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


def test_every_code_has_a_test():
    """Each finding of ours is made to occur by some test."""
    ours = {
        code
        for path in (ROOT / "nri_nvidia/check").glob("*.py")
        for code in re.findall(r'code="([a-z0-9-]+)"', path.read_text("utf-8"))
    }
    tests = [*(ROOT / "tests/check").glob("*.py"), ROOT / "tests/field/test_doctor.py"]
    text = "".join(path.read_text("utf-8") for path in tests)
    assert {code for code in ours if f'"{code}' not in text} == set()
