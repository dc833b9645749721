# SPDX-License-Identifier: Apache-2.0
"""A config.json as a text: read strictly, and what is not edited is written as it was.

This is a part of the script that `install` puts together; what `client` says of imports holds here
too: without json's own modules the scanner in C does not say where a fault is.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST_NUMBER = 1000  # digits; Python reads no more than 4300


class Refused(Exception):  # noqa: N818  an outcome, not a defect
    """Raised when the container is not to be created; its text is for people."""


class Number(str):
    """A number as a file has it, to be written again as it was: Go reads more than a float is."""

    __slots__ = ()


def whole(shown: str) -> int | Number:
    """Give a whole number; as it is where Python would write it otherwise, or not read it."""
    return Number(shown) if shown == "-0" or len(shown) > LONGEST_NUMBER else int(shown)


def repeated(pairs: list[tuple[str, Any]]) -> str:
    """Give the first key of an object that is there twice: there is one."""
    keys = [key for key, _ in pairs]
    return next(key for key in keys if keys.count(key) > 1)


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Give an object; raises Refused for a key that is there twice: Go makes one of both."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refused(f"an object in it has {repeated(pairs)[:80]!r} twice; remove one")
    return found


class Grammar:
    """How the interpreter's JSON scanner is to read: as json.loads has it, but no NaN."""

    strict, object_hook, parse_constant = True, None, None
    object_pairs_hook, parse_float, parse_int = staticmethod(members), Number, staticmethod(whole)


def parse(data: bytes, what: str) -> dict[str, Any]:
    """Give the JSON object in a text; raises Refused for anything else."""
    shown, why = "", ""
    try:
        shown = data.decode().strip(" \t\r\n")
        value, end = _json.make_scanner(Grammar)(shown, 0)  # type: ignore[arg-type]
        if isinstance(value, dict) and end == len(shown):
            return value
        why = f"behind {end} characters there is more" if isinstance(value, dict) else ""
    except Refused as refused:
        raise Refused(f"{what}: {refused}") from None
    except UnicodeDecodeError as error:
        why = f"byte {error.start} is not UTF-8"
    except RecursionError:
        why = "it is nested too deep"
    except StopIteration as stopped:
        why = f"no value behind {stopped.value} characters"
    except TypeError:
        why = "NaN and Infinity are no numbers there"
    except (ValueError, SystemError):
        pass  # without the modules of json's own the scanner does not say where
    if shown[:1] == "\ufeff":
        why = "it begins with a byte order mark"
    elif not why or shown[-1:] not in ("", "}"):
        why = "" if shown[-1:] == "}" else "it ends too early"
    raise Refused(f"{what} is not a whole JSON object{why and ': '}{why}")


def quote(shown: str) -> str:
    """Give a text as JSON."""
    return str(shown) if type(shown) is Number else _json.encode_basestring_ascii(shown)


def text(value: dict[str, Any]) -> bytes:
    """Give an object as JSON; raises Refused where it is too deep."""
    encode = _json.make_encoder(None, None, quote, None, ":", ",", False, False, False)  # type: ignore[arg-type]
    try:
        return "".join(encode(value, 0)).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(f"config.json cannot be written again: {error}") from None
