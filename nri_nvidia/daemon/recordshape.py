# SPDX-License-Identifier: Apache-2.0
"""Whether a record is as the daemon writes it, as far as anything is read of it again.

A file on a disk may be damaged and still be JSON. What reads a record (after a restart, for
`explain`) takes its members for granted, so one of another form is none. Members that a daemon of
before did not write yet may be missing; those that nobody here knows are let be.
"""

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def is_whole(record: Any) -> bool:
    """Tell a record of the present version from what only looks like one."""
    return _RECORD(record)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Tell a number of seconds or milliseconds; NaN is below nothing, and so is none."""
    return (_is_integer(value) or isinstance(value, float)) and abs(value) < _LARGEST


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _each(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _values(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _having(needed: Mapping[str, Check], further: Mapping[str, Check] | None = None) -> Check:
    """Give the check of an object: members that must be there, and those that may."""
    may = further or {}

    def check(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(key in value and known(value[key]) for key, known in needed.items())
            and all(key not in value or known(value[key]) for key, known in may.items())
        )

    return check


_LARGEST = 1e11
"""As seconds some three thousand years, which every function of a calendar can take."""
_TEXTS = _each(_is_text)
_REASON = _having({"code": _is_text, "message": _is_text, "hint": _is_text})
_REQUEST = _having(
    {
        "devices": _TEXTS,
        "capabilities": _TEXTS,
        "source": _is_text,
        "variable": _is_text,
        "imex_channels": _each(_is_integer),
        "requirements": _TEXTS,
    },
    {"shares": _is_text},
)
_GPU = _having(
    {
        "index": _is_integer,
        "uuid": _is_text,
        "minor": _is_integer,
        "mig": _maybe(_having({"uuid": _is_text})),
        "bus_id": _is_text,
        "name": _is_text,
        "container_index": _maybe(_is_integer),
    }
)
_EDITS = _having(
    {
        "env": _values(_is_text),
        "devices": _each(
            _having(
                {
                    "path": _is_text,
                    "type": _is_text,
                    "major": _is_integer,
                    "minor": _is_integer,
                    "access": _is_text,
                }
            )
        ),
        "mounts": _each(_having({"source": _is_text, "destination": _is_text})),
        "hooks": _each(_having({"args": _TEXTS})),
    }
)
_HOOK = _having({"ok": _is_flag, "failures": _TEXTS, "duration_ms": _is_number}, {"notes": _TEXTS})
_RECORD = _having(
    {
        "id": _is_text,
        "namespace": _is_text,
        "pod": _is_text,
        "name": _is_text,
        "decision": _is_text,
        "time": _is_number,
        "ended": _maybe(_is_number),
        "missed": _is_flag,
        "reasons": _each(_REASON),
        "request": _maybe(_REQUEST),
        "gpus": _each(_GPU),
        "driver_version": _is_text,
        "edits": _maybe(_EDITS),
        "hook": _maybe(_HOOK),
        "duration_ms": _maybe(_is_number),
    },
    {
        "policy_rule": _maybe(_is_text),
        "cuda_compat": _maybe(_having({"reason": _REASON})),
    },
)
