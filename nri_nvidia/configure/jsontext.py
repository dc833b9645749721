# SPDX-License-Identifier: Apache-2.0
"""Changes in a user's JSON that leave order, indentation and everything else as they are."""

import json
from collections.abc import Sequence
from typing import Any

import attrs

from nri_nvidia import errors

_DECODER = json.JSONDecoder()
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

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise errors.ConfigError(f"{path}: {twice} is there twice", hint="remove one of them")
        return found

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except (json.JSONDecodeError, RecursionError) as error:
        raise errors.ConfigError(
            f"{path}: not valid JSON: {error}", hint="mend it; it was left as it is"
        ) from error
    if not isinstance(document, dict):
        raise errors.ConfigError(f"{path}: holds no JSON object, {{…}}; it was left as it is")
    return document


def put(text: str, keys: Sequence[str], value: Any) -> str:
    """Set a value at a place of a valid object; what is missing on the way there is made."""
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
