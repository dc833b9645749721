# SPDX-License-Identifier: Apache-2.0
"""Changes in a user's JSON that leave order, indentation and everything else as they are."""

import json
from collections.abc import Sequence
from typing import Any

import attrs

from nri_nvidia import errors
from nri_nvidia.config import reading

_DECODER = json.JSONDecoder(parse_int=str)
_BLANK = " \t\r\n"


@attrs.frozen(kw_only=True)
class _Member:
    """A member of an object: where its key begins, and its value, up to past its end."""

    key: str
    key_at: int
    at: int
    end: int


def read(path: str, text: str) -> dict[str, Any]:
    """Read an object; raises ConfigError with the line and the reason.

    A key that occurs twice is refused too: which of the two counts is for each reader to choose.
    """
    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice.extend(key for key in dict.fromkeys(keys) if keys.count(key) > 1)
        return dict(pairs)

    def constant(name: str) -> float:
        raise ValueError(f"{name} is no number of JSON's{_line_of(text, name)}")

    plain = text.removeprefix(reading.BOM)
    try:
        # Numbers are not looked at; one may be longer than Python converts.
        document = json.loads(
            plain, object_pairs_hook=unique, parse_constant=constant, parse_int=str
        )
    except json.JSONDecodeError as error:
        raise _invalid(path, _reason(plain, error)) from error
    except RecursionError as error:
        raise _invalid(path, "nested too deep") from error
    except ValueError as error:
        raise _invalid(path, str(error)) from error
    if twice:
        raise errors.ConfigError(
            f"{path}: {twice[0]} is there twice{_line_of(text, json.dumps(twice[0]), last=True)}",
            hint="remove one of them; it was left as it is",
        )
    if not isinstance(document, dict):
        raise errors.ConfigError(f"{path}: holds no JSON object, {{…}}; it was left as it is")
    return document


def _invalid(path: str, reason: str) -> errors.ConfigError:
    return errors.ConfigError(
        f"{path}: not valid JSON: {reason}", hint="mend it; it was left as it is"
    )


def _reason(text: str, error: json.JSONDecodeError) -> str:
    """Say what is wrong; of a comma before an end Python says it from 3.13 on, and otherwise."""
    before = text[: error.pos].rstrip()
    comma = error.pos if text[error.pos : error.pos + 1] == "," else len(before) - 1
    end = text[comma + 1 :].lstrip()[:1]
    if comma >= 0 and text[comma] == "," and end in {"}", "]"}:
        line = text.count("\n", 0, comma) + 1
        return f"a comma before {end}: line {line} column {comma - text.rfind(chr(10), 0, comma)}"
    return str(error)


def _line_of(text: str, word: str, *, last: bool = False) -> str:
    """Give the line where a word is first or last, empty where it is written otherwise."""
    at = text.rfind(word) if last else text.find(word)
    return f": line {text.count(chr(10), 0, at) + 1}" if at >= 0 else ""


def put(text: str, keys: Sequence[str], value: Any) -> str:
    """Set a value at a place of a valid object; what is missing on the way there is made."""
    if text.startswith(reading.BOM):
        return reading.BOM + put(text.removeprefix(reading.BOM), keys, value)
    ends = text.count("\r\n")
    if ends and ends == text.count("\n"):
        # A text within quotes has no line ends: they are all the file's.
        return _put(text.replace("\r\n", "\n"), keys, value).replace("\n", "\r\n")
    return _put(text, keys, value)


def _put(text: str, keys: Sequence[str], value: Any) -> str:
    at = _blank(text, 0)
    unit = _unit(text, at)
    for depth, key in enumerate(keys, 1):
        members, end = _members(text, at)
        known = next((member for member in members if member.key == key), None)
        if known is None:
            for missing in reversed(keys[depth:]):
                value = {missing: value}
            return _insert(text, at, (members, end), (key, value), unit)
        at = known.at
        if depth == len(keys) or text[at] != "{":
            for missing in reversed(keys[depth:]):
                value = {missing: value}
            return (
                text[:at] + _render(value, _indent(text, known.key_at), unit) + text[known.end :]
            )
    return text


def _members(text: str, at: int) -> tuple[list[_Member], int]:
    """Give the members of the object that begins at `at`, and where its end is."""
    found = []
    at = _blank(text, at + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        begin = _blank(text, _blank(text, after) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        found.append(_Member(key=key, key_at=at, at=begin, end=end))
        at = _blank(text, end)
        if text[at] == ",":
            at = _blank(text, at + 1)
    return found, at


def _insert(
    text: str,
    at: int,
    there: tuple[list[_Member], int],
    member: tuple[str, Any],
    unit: str | None,
) -> str:
    members, end = there
    key, value = member
    if members:
        last = members[-1]
        begin = last.key_at
        while text[begin - 1] in _BLANK:
            begin -= 1
        lead, where, rest = text[begin : last.key_at], last.end, last.end
        joint, tail = ",", ""
        if not lead and len(members) == 1:
            lead = " "
    else:
        outer = _indent(text, at)
        lead = "" if unit is None else f"\n{outer}{unit}"
        tail = "" if unit is None else f"\n{outer}"
        joint, where, rest = "", at + 1, end
    indent = lead.rpartition("\n")[2] if "\n" in lead else ""
    whole = _render(value, indent, unit if "\n" in lead else None)
    return f"{text[:where]}{joint}{lead}{json.dumps(key)}: {whole}{tail}{text[rest:]}"


def _render(value: Any, indent: str, unit: str | None) -> str:
    return json.dumps(value, indent=unit).replace("\n", f"\n{indent}")


def _indent(text: str, at: int) -> str:
    """Give the blanks that begin the line of a place."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str, at: int) -> str | None:
    """Give by what the object is indented, None where it is all in one line."""
    members, _ = _members(text, at)
    if not members:
        return "    "
    if "\n" not in text[at : members[0].key_at]:
        return None
    return _indent(text, members[0].key_at) or "    "


def _blank(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at
