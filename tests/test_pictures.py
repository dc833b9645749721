# SPDX-License-Identifier: Apache-2.0
"""The README's pictures show what the commands print today."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("pictures", ROOT / "contrib/lib/pictures.py")
assert _spec is not None
assert _spec.loader is not None
pictures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pictures)
NAMES = ("status", "explain", "check")


@pytest.fixture(scope="module")
def printed():
    """What the commands print now, of the same scene."""
    return pictures.texts()


def shape(text):
    """Give a text's command, column heads, keys and codes, in order; not times nor wording."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ ") or re.fullmatch(r"[A-Z]+(  +[A-Z ]+)+", line):
            found.append(line)
            continue
        if key := re.match(r"(held by|[a-z][a-z' ]*:|\d \w+,)", line.strip()):
            found.append(key[0])
        found += re.findall(r"\[[a-z][a-z-]+\]", line)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_picture_has_the_shape_of_what_is_printed(printed, name):
    """Commands, column heads, keys and codes are the same; else contrib/pictures makes it anew."""
    drawn = pictures.carried(ROOT / f"docs/{name}.png")
    assert len(shape(drawn)) > 4
    assert shape(drawn) == shape(printed[name]), "run contrib/pictures"


@pytest.mark.parametrize("name", NAMES)
def test_readme_shows_it_and_it_is_small(name):
    """Each picture is in the README, with a text for those who cannot see it, and below 100 kB."""
    path = ROOT / f"docs/{name}.png"
    assert re.search(rf"!\[[^\]]+\]\(docs/{name}\.png\)", (ROOT / "README.md").read_text("utf-8"))
    assert path.stat().st_size < 100_000
