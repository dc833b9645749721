# SPDX-License-Identifier: Apache-2.0
"""The language of NVIDIA_REQUIRE_*: whether a requirement is met.

`cuda>=12.4 brand=tesla,driver>=535,driver<536`: a space is an OR, a comma an AND that binds
tighter, and a term is a property, an operator and a value. It is read from left to right, and no
further than it takes to decide (libnvidia-container `dsl.c`): what stands behind a group that
holds is never looked at, be it malformed.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from nri_nvidia import errors
from nri_nvidia.request import model

PROPERTIES = ("cuda", "driver", "arch", "brand")
_TERM = re.compile(r"([^<>=!]+)([<>=!]+)([^<>=!].*)", re.DOTALL)
# A lone `!` means `!=` upstream; `==` and `=>` mean nothing there.
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "!": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_VERSION = re.compile(r"[0-9]+(?:\.+[0-9]+)*\.*", re.ASCII)
_LONGEST_NUMBER = 20
_LONGEST_SHOWN = 200


@attrs.frozen(kw_only=True)
class Facts:
    """What terms ask about: one GPU on its node, or the node alone where `has_gpu` is False.

    `cuda` is the CUDA version that the driver supports, `driver` its own version, `arch` a compute
    capability and `brand` one of NVML's brands. What is not known is empty, and a term about it
    counts as met, as it does upstream.
    """

    cuda: str = ""
    driver: str = ""
    has_gpu: bool = False
    arch: str = ""
    brand: str = ""


@attrs.frozen(kw_only=True)
class Verdict:
    """Whether a requirement is met; `assumed` are terms that count as met for want of a fact."""

    met: bool
    assumed: tuple[str, ...] = ()


def evaluate(requirement: model.Requirement, facts: Facts) -> Verdict:
    """Decide over a requirement; raises RequestError where a term that counts is malformed.

    One that states nothing is met. A group of commas alone does not rescue one that failed.
    """
    met = True
    for group in _parts(requirement.text, " "):
        assumed: list[str] = []
        for term in _parts(group, ","):
            outcome = _holds(requirement, term, facts)
            met = outcome is not False
            if outcome is None:
                assumed.append(term)
            if not met:
                break
        if met:
            return Verdict(met=True, assumed=tuple(assumed))
    return Verdict(met=met)


def shown(requirement: model.Requirement) -> str:
    """Write a requirement for a message: a long one by its first group, as images have it."""
    if len(requirement.text) <= _LONGEST_SHOWN:
        return f"{requirement.variable}: {requirement.text.strip()}"
    groups = list(_parts(requirement.text, " "))
    others = f" (or one of {len(groups) - 1} alternatives)" if len(groups) > 1 else ""
    return f"{requirement.variable}: {errors.printable(groups[0], _LONGEST_SHOWN)}{others}"


def properties(requirement: model.Requirement) -> tuple[str, ...]:
    """Give the properties that a requirement speaks of."""
    terms = (t for group in _parts(requirement.text, " ") for t in _parts(group, ","))
    found = {match[1].lower() for term in terms if (match := _TERM.fullmatch(term))}
    return tuple(name for name in PROPERTIES if name in found)


def _parts(text: str, separator: str) -> Iterator[str]:
    return (part for part in text.split(separator) if part)


def _holds(requirement: model.Requirement, term: str, facts: Facts) -> bool | None:
    """Decide over a term; None is what counts as met since the fact is not known."""
    match = _TERM.fullmatch(term)
    if match is None or match[2] not in _OPERATORS:
        raise _malformed(
            requirement,
            term,
            f"a term is PROPERTY OPERATOR VALUE; operators {_listed(_OPERATORS)}",
        )
    name, compare, value = match[1].lower(), _OPERATORS[match[2]], match[3]
    if name not in PROPERTIES:
        raise _malformed(requirement, term, f"the properties are {', '.join(PROPERTIES)}")
    if name in {"arch", "brand"} and not facts.has_gpu:
        return True
    if name == "brand":
        if compare not in {operator.eq, operator.ne}:
            raise _malformed(requirement, term, "a brand can be compared by = and != only")
        same = value.lower() in _brands(facts.brand)
        return None if not facts.brand else compare(same, True)
    wanted, found = _version(value), _version(getattr(facts, name))
    if wanted is None:
        said = errors.printable(value, _LONGEST_SHOWN)
        raise _malformed(requirement, term, f"'{said}' is not a version such as 12.4")
    return None if found is None else compare(found, wanted)


def _version(text: str) -> tuple[int, ...] | None:
    """Read numbers between dots; what is missing at the end is zero. None for anything else."""
    if not _VERSION.fullmatch(text):
        return None
    numbers = [part.lstrip("0") or "0" for part in text.split(".") if part]
    # Python refuses to convert thousands of digits, and no version has them.
    if any(len(number) > _LONGEST_NUMBER for number in numbers):
        return None
    while numbers and numbers[-1] == "0":
        numbers.pop()
    return tuple(map(int, numbers))


def _brands(brand: str) -> set[str]:
    """Give the ways in which images write a brand: NVML's `quadro_rtx` is `quadrortx` there."""
    joined = brand.lower().replace("_", "")
    virtual = joined.removeprefix("nvidia")
    return {joined, brand.lower(), *([virtual] if virtual.startswith("v") else [])}


def _listed(operators: Mapping[str, object]) -> str:
    return " ".join(name for name in operators if name != "!")


def _malformed(requirement: model.Requirement, term: str, rule: str) -> errors.RequestError:
    return errors.RequestError(
        f"{shown(requirement)}: the term '{errors.printable(term, _LONGEST_SHOWN)}' cannot be "
        f"read: {rule}",
        hint="correct it, or set NVIDIA_DISABLE_REQUIRE=true in the container",
        code="invalid-requirement",
    )
