# SPDX-License-Identifier: Apache-2.0
"""Changes in a user's TOML that leave comments, order and everything else as they are.

Each result is read again by another parser and compared with what it should say: a file whose
form defeats the editing is refused rather than changed wrongly.
"""

import contextlib
import copy
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tomlkit
import tomlkit.exceptions

from nri_nvidia import errors
from nri_nvidia.check import containerd
from nri_nvidia.config import reading

_KEY = r"(?:[A-Za-z0-9_-]+|'[^']*'|\"[^\"]*\")"
_ASSIGNED = re.compile(rf"^([ \t]*)({_KEY}[ \t]*=[ \t]*)(.*?)([ \t]*(?:#[^\n]*)?\r?)$")


def read(path: str, text: str) -> dict[str, Any]:
    """Read a document; raises ConfigError with the line and the reason."""
    try:
        return _loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.ConfigError(
            f"{path}: not valid TOML: {containerd.reason(text, error)}",
            hint="mend it; it was left as it is",
        ) from error


def _loads(text: str) -> dict[str, Any]:
    # Of two readings that are compared a NaN would not be what it was: numbers stay texts.
    return tomllib.loads(text.removeprefix(reading.BOM), parse_float=str)


def table(document: Any, keys: Sequence[str]) -> dict[str, Any] | None:
    """Give the table at a place of a document, None where there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return dict(document) if isinstance(document, Mapping) else None


def put(path: str, text: str, keys: Sequence[str], values: Mapping[str, Any]) -> str:
    """Set values in a table, which is added at the end of the file where it is not there.

    Raises ConfigError where the file cannot be read or changed.
    """
    wanted = read(path, text)
    there = table(wanted, keys)
    inner: Any = wanted
    for key in keys:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise _refused(path, keys)
    inner.update(copy.deepcopy(dict(values)))
    if there is None:
        return _checked(path, keys, _with_table(text, keys, values), wanted)
    by_lines = _by_lines(text, keys, values)
    if by_lines is not None and _says(by_lines, wanted):
        return by_lines

    def change(document: Any) -> None:
        for key in keys:
            document = document[key]
        for key, value in values.items():
            document[key] = value

    try:
        return _edited(path, text, (keys, values), change, wanted)
    except errors.ConfigError:
        # A table that is there by those within it alone may still get a header.
        added = _with_table(text, keys, values)
        if _says(added, wanted):
            return added
        raise


def remove(path: str, text: str, key: str, items: Sequence[str]) -> str:
    """Take texts out of a list at the top of a document."""
    wanted = read(path, text)
    wanted[key] = [item for item in wanted[key] if item not in items]

    def change(document: Any) -> None:
        for item in items:
            while item in document[key]:
                document[key].remove(item)

    return _edited(path, text, ((key,), (key, *items)), change, wanted)


def header(keys: Sequence[str]) -> str:
    """Give the line that begins a table."""
    return f"[{'.'.join(tomlkit.key([key]).as_string() for key in keys)}]"


def block(keys: Sequence[str], values: Mapping[str, Any]) -> str:
    """Give a table as text, indented as containerd writes its own."""
    lines = [f"  {key} = {tomlkit.item(value).as_string()}\n" for key, value in values.items()]
    return f"{header(keys)}\n{''.join(lines)}"


def _with_table(text: str, keys: Sequence[str], values: Mapping[str, Any]) -> str:
    added = block(keys, values)
    if "\r\n" in text:
        added = added.replace("\n", "\r\n")
    line = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else line if text.endswith("\n") else line * 2
    return f"{text}{gap}{added}"


def _by_lines(text: str, keys: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """Give the text with values set in a table that has a header of its own, a line each.

    None where there is no such header. What looks like one in a text of several lines is found to
    be none when the result is read.
    """
    lines = text.removeprefix(reading.BOM).split("\n")
    headers = [at for at, line in enumerate(lines) if line.lstrip().startswith("[")]
    begin = next((at for at in headers if _named(lines[at]) == [*keys]), None)
    if begin is None:
        return None
    end = next((at for at in headers if at > begin), len(lines))
    last, indent = begin, "  "
    for key, value in values.items():
        shown, found = tomlkit.item(value).as_string(), False
        for at in range(begin + 1, end):
            assigned = _ASSIGNED.match(lines[at])
            if assigned is None:
                continue
            last, indent = max(last, at), assigned[1]
            if [*_line("".join(assigned.groups()[:3]))] == [key]:
                lines[at], found = f"{assigned[1]}{assigned[2]}{shown}{assigned[4]}", True
        if not found:
            ending = "\r" if "\r\n" in text else ""
            # What is not the file's last line has an end.
            lines[last] = lines[last].removesuffix("\r") + ending
            lines.insert(last + 1, f"{indent}{key} = {shown}{ending}")
            if last + 2 == len(lines):
                lines.append("")
            last, end = last + 1, end + 1
    return (reading.BOM if text.startswith(reading.BOM) else "") + "\n".join(lines)


def _line(line: str) -> dict[str, Any]:
    """Give what a line says by itself."""
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(f"{line}\n", parse_float=str)
    return {}


def _named(line: str) -> list[str]:
    """Give the keys of the table that a header begins, none for another line."""
    found, document = [], _line(line)
    while len(document) == 1:
        ((key, document),) = document.items()
        found.append(key)
        if not isinstance(document, dict):
            return []
    return found


def _edited(
    path: str,
    text: str,
    what: tuple[Sequence[str], Iterable[str]],
    change: Callable[[Any], None],
    wanted: Any,
) -> str:
    """Give the text with a change made; `what` is its place, and what changed lines hold."""
    keys, words = what
    try:
        mark = reading.BOM if text.startswith(reading.BOM) else ""
        document = tomlkit.parse(text.removeprefix(reading.BOM))
        change(document)
        after = mark + tomlkit.dumps(document)
        if text.count("\n") == text.count("\r\n"):
            after = re.sub(r"(?<!\r)\n", "\r\n", after) if "\r" in text else after
        after = _checked(path, keys, after, wanted)
    except (tomlkit.exceptions.TOMLKitError, KeyError, TypeError, AttributeError) as error:
        raise _refused(path, keys) from error
    # Tables that others stand between are put together: that is not the user's order any more.
    rest = iter(after.replace("\r\n", "\n").split("\n"))
    lines = text.replace("\r\n", "\n").split("\n")
    kept = [line for line in lines if not any(word in line for word in words)]
    # What is written within braces is changed there.
    kept = [line for line in kept if "{" not in line or not any(key in line for key in keys)]
    if not all(line in rest for line in kept):
        raise _refused(path, keys)
    return after


def _checked(path: str, keys: Sequence[str], text: str, wanted: Any) -> str:
    if _says(text, wanted):
        return text
    raise _refused(path, keys)


def _says(text: str, wanted: Any) -> bool:
    try:
        return bool(_loads(text) == wanted)
    except (ValueError, RecursionError):
        return False


def _refused(path: str, keys: Sequence[str]) -> errors.ConfigError:
    return errors.ConfigError(
        f"{path}: {'.'.join(keys)} is written in a form that cannot be changed safely",
        hint=f"write it as a table, {header(keys)}, and repeat; the file was left as it is",
    )
