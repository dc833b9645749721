# SPDX-License-Identifier: Apache-2.0
"""The table of field cases: complete, and true of the tests."""

import ast
import re
from pathlib import Path

from .cases import CASES

HERE = Path(__file__).parent
FORMS = re.compile(r"now(; .+)?|later: .+|not ours: .+")


def named():
    """Give the cases that the tests' docstrings name, each with those tests."""
    found = {}
    for path in (*HERE.glob("test_*.py"), HERE.parent / "containerd/test_field.py"):
        for item in ast.parse(path.read_text("utf-8")).body:
            text = ast.get_docstring(item) if isinstance(item, FUNCTIONS) else None
            if item.__class__ in FUNCTIONS and item.name.startswith("test_"):
                for case in re.findall(r"FC-\d{3}", (text or "").partition(":")[0]):
                    found.setdefault(case, []).append(item.name)
    return found


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_every_case_is_said_once_and_in_order():
    """The 135 cases each have a class of a known form."""
    assert list(CASES) == [f"FC-{number:03}" for number in range(1, 136)]
    assert [case for case, text in CASES.items() if not FORMS.fullmatch(text)] == []


def test_every_case_that_applies_has_a_test():
    """What applies now is named by a test, and a test names nothing that waits or is not ours."""
    now = {case for case, text in CASES.items() if text.startswith("now")}
    assert now == set(named())
