# SPDX-License-Identifier: Apache-2.0
"""Changes in a user's TOML that leave comments, order and everything else as they are.

Each result is read again by another parser and compared with what it should say: a file whose
form defeats the editing is refused rather than changed wrongly.
"""

import copy
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tomlkit
import tomlkit.exceptions

from nri_nvidia import errors

BOM = "\ufeff"
"""A byte order mark: podman, CRI-O and containerd 1 take one at the beginning of a file."""


def read(path: str, text: str) -> dict[str, Any]:
    """Read a document; raises ConfigError with the line and the reason."""
    try:
        return _loads(text)
    except RecursionError as error:
        raise _invalid(path, "nested too deep") from error
    except ValueError as error:
        raise _invalid(path, str(error)) from error


def _loads(text: str) -> dict[str, Any]:
    # Of two readings that are compared a NaN would not be what it was: numbers stay texts.
    return tomllib.loads(text.removeprefix(BOM), parse_float=str)


def _invalid(path: str, reason: str) -> errors.ConfigError:
    return errors.ConfigError(
        f"{path}: not valid TOML: {reason}", hint="mend it; it was left as it is"
    )


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

    def change(document: Any) -> None:
        for key in keys:
            document = document[key]
        for key, value in values.items():
            document[key] = value

    return _edited(path, text, keys, change, wanted)


def remove(path: str, text: str, key: str, items: Sequence[str]) -> str:
    """Take texts out of a list at the top of a document."""
    wanted = read(path, text)
    wanted[key] = [item for item in wanted[key] if item not in items]

    def change(document: Any) -> None:
        for item in items:
            while item in document[key]:
                document[key].remove(item)

    return _edited(path, text, (key,), change, wanted)


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


def _edited(
    path: str, text: str, keys: Sequence[str], change: Callable[[Any], None], wanted: Any
) -> str:
    try:
        mark = BOM if text.startswith(BOM) else ""
        document = tomlkit.parse(text.removeprefix(BOM))
        change(document)
        return _checked(path, keys, mark + tomlkit.dumps(document), wanted)
    except (tomlkit.exceptions.TOMLKitError, KeyError, TypeError, AttributeError) as error:
        raise _refused(path, keys) from error


def _checked(path: str, keys: Sequence[str], text: str, wanted: Any) -> str:
    try:
        if _loads(text) == wanted:
            return text
    except tomllib.TOMLDecodeError:
        pass
    raise _refused(path, keys)


def _refused(path: str, keys: Sequence[str]) -> errors.ConfigError:
    return errors.ConfigError(
        f"{path}: {'.'.join(keys)} is written in a form that cannot be changed safely",
        hint=f"write it as a table, {header(keys)}, and repeat; the file was left as it is",
    )
