# SPDX-License-Identifier: Apache-2.0
"""Comma lists of devices, as variables hold them: what decides in one, and what has no effect."""

from collections.abc import Iterable, Iterator

from nri_nvidia import errors
from nri_nvidia.reasons import Reason
from nri_nvidia.request import names

VOID = "void"
_KEYWORDS = ("all", "none")
_LONGEST_SHOWN = 400


def items(values: Iterable[str]) -> tuple[str, ...]:
    """Give the members of comma lists, taken together, in order and without empty ones."""
    found = (item.strip() for value in values for item in value.split(","))
    return tuple(item for item in found if item)


def devices(members: tuple[str, ...]) -> tuple[str, ...] | None:
    """Read the members of a list; None means "not a GPU container".

    `void` anywhere wins; else the first of the keywords `all` and `none` decides; else the ids
    without duplicates in the order given. Keywords are case-sensitive.
    """
    if not members or VOID in members:
        return None
    keyword = next((item for item in members if item in _KEYWORDS), None)
    if keyword:
        return ("all",) if keyword == "all" else ()
    return tuple(dict.fromkeys(members))


def without_effect(variable: str, members: tuple[str, ...]) -> Iterator[Reason]:
    """Say which members of a list a keyword leaves without effect.

    `variable` is written before the list, as `NVIDIA_VISIBLE_DEVICES=`.
    """
    decisive = VOID if VOID in members else ""
    decisive = decisive or next((item for item in members if item in _KEYWORDS), "")
    if decisive:
        yield from _overruled(variable, members, decisive)


def beside_name(variable: str, members: tuple[str, ...]) -> Iterator[Reason]:
    """Say the same of a list in which no keyword decides but a CDI name like it, or `ALL`."""
    if names.keyword(members):
        decisive = next(item for item in members if names.keyword([item]))
        yield from _overruled(variable, members, decisive)


def _overruled(variable: str, members: tuple[str, ...], decisive: str) -> Iterator[Reason]:
    word = _word(decisive)
    others = [item for item in dict.fromkeys(members) if _word(item) != word]
    if others:
        what = {VOID: "nothing at all", "all": "every GPU", "none": "no GPU"}[word]
        yield Reason(
            code="devices-without-effect",
            message=f"{variable}{errors.cut(','.join(members), _LONGEST_SHOWN)}: {decisive} "
            f"decides alone and means {what}: "
            f"{errors.cut(', '.join(others), _LONGEST_SHOWN)} has no effect",
            hint=f"write {decisive} alone, or leave it out",
        )


def _word(item: str) -> str:
    """Give the keyword that a member is, however it is written, else the member."""
    return item if item in {VOID, *_KEYWORDS} else names.keyword([item]) or item
