# SPDX-License-Identifier: Apache-2.0
"""What the house rules say and a linter does not see."""

import ast
import fnmatch
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LONGEST = 400


MADE = {".venv", ".cache", ".git", "__pycache__", "dist", "build"}
"""Directories of .gitignore, and those whose names end in `_cache`."""


def _walk(top):
    for path in sorted(top.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if path.name not in MADE and not path.name.endswith("_cache"):
                yield from _walk(path)
        elif path.is_file():
            yield path


def _files(*patterns):
    """Give the project's own files whose paths match; `*` matches `/` too."""
    found = [
        path
        for path in _walk(ROOT)
        if any(
            fnmatch.fnmatch(str(path.relative_to(ROOT)), each)
            for pattern in patterns
            for each in (pattern, f"{pattern}/*")
        )
    ]
    assert found, patterns
    return found


def _own():
    return [path for path in _files("nri_nvidia/*.py") if "_api" not in path.parts]


def test_modules_stay_small():
    """No module of the product is longer than 400 lines: it is split by noun before."""
    lengths = {p.relative_to(ROOT): p.read_text("utf-8").count("\n") for p in _own()}
    assert {path: n for path, n in lengths.items() if n > LONGEST} == {}


def test_every_source_file_says_its_licence():
    """The first or second line of each source file is its SPDX line."""
    sources = _files("*.py", "*.c", "*.proto", "contrib/*", "*.toml")
    silent = [
        path.relative_to(ROOT)
        for path in sources
        if path.suffix not in {".json", ".md", ".png"}
        and "SPDX-License-Identifier: Apache-2.0"
        not in "".join(path.read_text("utf-8").splitlines(keepends=True)[:3])
    ]
    assert silent == []


def test_public_names_are_documented():
    """Each module, and each public class and function of one, has a docstring.

    Overrides that a base class documents, one-line properties of tests and generated code are not
    meant.
    """
    silent = []
    for path in _own():
        tree = ast.parse(path.read_text("utf-8"))
        if not ast.get_docstring(tree):
            silent.append(str(path.relative_to(ROOT)))
        silent += [
            f"{path.relative_to(ROOT)}: {item.name}"
            for item in tree.body
            if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not item.name.startswith("_")
            and not ast.get_docstring(item)
        ]
    assert silent == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<!\d)/root/",
        r"NotImplementedError",
        r"\bTODO\b",
        r"\bFIXME\b",
        r"https?://\S*debian",
    ],
)
def test_words_that_do_not_belong(pattern):
    """No path of one machine, no host of one mirror, nothing that says it is unfinished."""
    here = pathlib.Path(__file__).name
    hits = [
        str(path.relative_to(ROOT))
        for path in _files("nri_nvidia", "protos", "contrib", "tests/*.py", "README.md")
        if path.name != here and path.suffix not in {".png", ".so"} and "hosts" not in path.parts
        and re.search(pattern, path.read_text("utf-8", errors="replace"))
    ]  # fmt: skip
    assert hits == []
