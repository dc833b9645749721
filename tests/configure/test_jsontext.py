# SPDX-License-Identifier: Apache-2.0
"""Changes in JSON."""

import json

import hypothesis
import pytest
from hypothesis import strategies

from nri_nvidia import errors
from nri_nvidia.configure import jsontext

PATH = ("runtimes", "nri-nvidia", "path")


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("{}", '{\n    "a": {\n        "b": 1\n    }\n}'),
        ("{}\n", '{\n    "a": {\n        "b": 1\n    }\n}\n'),
        ('{"x": 1}', '{"x": 1, "a": {"b": 1}}'),
        ('{\n  "x": [1,2]\n}\n', '{\n  "x": [1,2],\n  "a": {\n    "b": 1\n  }\n}\n'),
        ('{\n\t"a": {}\n}\n', '{\n\t"a": {\n\t\t"b": 1\n\t}\n}\n'),
        ('{\n  "a": {"c": 2}\n}\n', '{\n  "a": {"c": 2, "b": 1}\n}\n'),
        ('{"a": {"b":0,"c": 2}}', '{"a": {"b":1,"c": 2}}'),
        ('{\n  "a": {\n    "c": 2\n  },\n  "z": 0\n}', '{\n  "a": {\n    "c": 2,\n    "b": 1\n  },\n  "z": 0\n}'),
    ],
)  # fmt: skip
def test_a_member_is_set_as_the_file_is_written(text, after):
    """Indentation, order and what is in one line stay."""
    assert jsontext.put(text, ("a", "b"), 1) == after


@pytest.mark.parametrize("text", ["{\n}\n", '{\n\t"x": {\n\t\t"y": 1\n\t}\n}', '{\n "a": {}\n}\n'])
def test_line_ends_stay_as_they_are(text):
    """A file with CR LF gets no lines without."""
    plain = jsontext.put(text, ("a", "b"), {"c": 1})
    assert plain.count("\n") > text.count("\n")
    found = jsontext.put(text.replace("\n", "\r\n"), ("a", "b"), {"c": 1})
    assert found == plain.replace("\n", "\r\n")


documents = strategies.dictionaries(
    strategies.sampled_from(["a", "b", '"\\', "runtimes"]),
    strategies.recursive(
        strategies.integers() | strategies.text() | strategies.none(),
        lambda inner: (
            strategies.lists(inner, max_size=2)
            | strategies.dictionaries(strategies.sampled_from(["nri-nvidia", "x{", "y"]), inner)
        ),
        max_leaves=6,
    ),
)


@hypothesis.given(documents, strategies.sampled_from([None, 1, 2, "\t"]))
def test_the_result_says_what_it_should(document, indent):
    """In any form: the former document with the one value set, in its order."""
    text = json.dumps(document, indent=indent)
    expected, inner = document, document
    for key in PATH[:-1]:
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[PATH[-1]] = "/x"
    found = json.loads(jsontext.put(text, PATH, "/x"))
    assert json.dumps(found) == json.dumps(expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{\n  "a": 1,\n}', "f: not valid JSON: a comma before }: line 2 column 9"),
        ('{\n"a": [1, ] }', "f: not valid JSON: a comma before ]: line 2 column 8"),
        ('{"a": 1,\n "a": 2}', "f: a is there twice: line 2"),
        ('{"a": 1, "\\u0061": 2}', "f: a is there twice"),
        ('{\n"a": NaN}', "f: not valid JSON: NaN is no number of JSON's: line 2"),
        ('{"a": -Infinity}', "f: not valid JSON: -Infinity is no number"),
        ("[]", "f: holds no JSON object"),
        ("// x\n{}", "f: not valid JSON"),
        ("{}\ufeff", "f: not valid JSON: Extra data: line 1"),
        ("{", "f: not valid JSON: .*line 1"),
        ('{"a": {"b": 1, "b": 2}}', "f: b is there twice"),
        ("[" * 100_000, "f: not valid JSON: nested too deep"),
    ],
)
def test_what_cannot_be_read_is_refused(text, reason):
    """With the line where there is one."""
    with pytest.raises(errors.ConfigError, match=reason):
        jsontext.read("f", text)


def test_a_byte_order_mark_stays():
    """docker reads such a file."""
    text = '\ufeff{\r\n  "a": 1\r\n}\r\n'
    assert jsontext.read("f", text) == {"a": "1"}
    found = jsontext.put(text, PATH, "/x")
    assert found.startswith('\ufeff{\r\n  "a": 1,\r\n  "runtimes": {\r\n')
    assert found.count("\ufeff") == 1


def test_a_number_of_any_length_stays():
    """Python converts none of more than 4300 digits."""
    text = f'{{"a": {"1" * 5000}, "b": {{}}}}'
    jsontext.read("f", text)
    assert jsontext.put(text, ("b", "c"), "x") == text.replace("{}", '{"c": "x"}')
