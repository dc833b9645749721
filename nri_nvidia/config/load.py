# SPDX-License-Identifier: Apache-2.0
"""From TOML texts to settings, with every fault of every text reported at once."""

import difflib
import re
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, cast

import attrs
import cattrs

from nri_nvidia.config import access, contradictions, lines, model, reading
from nri_nvidia.request import model as request_model

_AT = re.compile(r" \(at line (\d+), column \d+\)$")
_SAID = {
    "Cannot declare": "this table is there twice, or a key of it before: have one, with all keys",
    "Cannot overwrite": "this is there twice",
    "Invalid value": 'no value; there are true, false, numbers, "text" and ["a", "list"]',
}
"""What is said to people for how the parser's words begin."""
_SHOWN = 80


@attrs.frozen(kw_only=True)
class Text:
    """One source of settings: its name in messages (a path) and its TOML.

    `lined` is False for what is no file, as an option.
    """

    name: str
    toml: str
    lined: bool = True


def read(path: str) -> Text:
    """Read a file; raises Invalid when it cannot be read."""
    try:
        # As text files are read elsewhere, with line ends of every kind as one.
        found = reading.text(path).replace("\r\n", "\n").replace("\r", "\n")
        return Text(name=path, toml=found)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise model.Invalid((f"{path or repr(path)}: {reason}",)) from error


@attrs.frozen(kw_only=True)
class Traced:
    """Settings, and where each that is not a default comes from: the source by `group.key`.

    A source is `file:line`, or the name of an option or variable.
    """

    config: model.Config
    origins: Mapping[str, str]


def load(texts: Iterable[Text]) -> model.Config:
    """Give the settings of texts in rising order of precedence; raises Invalid.

    Each fault is a line `file:line: key: what is wrong`.
    """
    return trace(texts).config


def trace(texts: Iterable[Text]) -> Traced:
    """Give the settings as `load` does, with their origins."""
    merged: dict[str, Any] = {}
    faults: list[str] = []
    set_by: dict[str, Text] = {}
    wrong: set[tuple[str, ...]] = set()
    unread = False
    for text in texts:
        try:
            document = _parse(text)
        except ValueError as error:
            faults.append(str(error))
            unread = True
            continue
        document = _in_full(document)
        found = _faults(text, document)
        faults += [fault.line for fault in found]
        wrong.update(fault.path for fault in found)
        merged = _merge(merged, document)
        set_by.update(dict.fromkeys(_keys(document), text))
    config: model.Config = _CONVERTER.structure(_without(merged, wrong), model.Config)
    faults += _contradictions(config, set_by, {".".join(path[:2]) for path in wrong})
    if faults:
        raise model.Invalid(tuple(faults), None if unread else config)
    return Traced(config=config, origins={key: _place(text, key) for key, text in set_by.items()})


def _parse(text: Text) -> dict[str, Any]:
    """Read TOML; raises ValueError with a line as faults are told."""
    try:
        return tomllib.loads(text.toml)
    except RecursionError:
        raise ValueError(f"{text.name}: not valid TOML: nested too deep") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{text.name}{_where(text, str(error))}") from None


def _where(text: Text, said: str) -> str:
    """Give what the parser said with its line in front, in words of ours where there are."""
    found = _AT.search(said)
    what = said[: found.start()] if found else said
    what = next((ours for known, ours in _SAID.items() if what.startswith(known)), what)
    if not (found and text.lined):
        return f": not valid TOML: {what}"
    number = int(found[1])
    line = text.toml.split("\n")[number - 1].strip()[:_SHOWN]
    return f":{number}: not valid TOML: {what}" + (f", in {line!r}" if line else "")


def _in_full(document: dict[str, Any]) -> dict[str, Any]:
    """Write `policy = "strict"` as the table that it is short for."""
    preset = document.get("policy")
    return {**document, "policy": {"preset": preset}} if isinstance(preset, str) else document


def _keys(document: Mapping[str, Any]) -> list[str]:
    """Name the settings of a document: `group.key`, or the group where that is no table."""
    return [
        name
        for group, content in document.items()
        for name in (
            [f"{group}.{key}" for key in content] if isinstance(content, Mapping) else [group]
        )
    ]


def _place(text: Text, key: str) -> str:
    if not text.lined:
        return text.name
    return f"{text.name}:{lines.Lines(text.toml).of(key.split('.'))}"


def _without(document: Mapping[str, Any], wrong: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """Leave out what has a fault: the key, or the group where that is no table."""
    kept = dict(document)
    for group, *below in wrong:
        content = kept.get(group)
        if below and isinstance(content, Mapping):
            kept[group] = {key: value for key, value in content.items() if key != below[0]}
        else:
            kept.pop(group, None)
    return kept


def _contradictions(
    config: model.Config, set_by: Mapping[str, Text], faulty: Container[str]
) -> list[str]:
    """Give a line for each contradiction, at the first of its keys that was set.

    Nothing is said of a key that is at fault by itself: what was meant by it is not known.
    """
    found = []
    for wrong in contradictions.find(config):
        if any(name in faulty for name in wrong.keys):
            continue
        key = next((name for name in wrong.keys if name in set_by), "")
        if key:
            found.append(f"{_place(set_by[key], key)}: {key}: {wrong.message}")
    return found


@attrs.frozen(kw_only=True)
class _Fault:
    """A fault as it is told, and the path of the key that has it."""

    number: int
    line: str
    path: tuple[str, ...]


def _faults(text: Text, document: Mapping[str, Any]) -> list[_Fault]:
    """Check every key by itself, so that one fault does not hide the next."""
    found: list[_Fault] = []
    place = lines.Lines(text.toml)

    def fault(wrong: str, *path: str) -> None:
        number = place.of(path)
        where = f"{text.name}:{number}" if text.lined else text.name
        line = f"{where}: {_named(path)}: {wrong}"
        found.append(_Fault(number=number, line=line, path=path))

    groups = {field.name: field for field in attrs.fields(model.Config)}
    for group, content in document.items():
        if group not in groups:
            fault(_unknown(group, groups), group)
        elif group == "policy_rules":
            for path, wrong in _rule_faults(content):
                fault(wrong, group, *path)
        elif not isinstance(content, Mapping):
            fault(f"{content!r} is not a table, write [{group}]", group)
        else:
            keys = {field.name: field for field in attrs.fields(cast(Any, groups[group].type))}
            for key, value in content.items():
                if key in groups and key not in keys:
                    wrong = f"this is below [{group}]; write it below [{key}], without {key}."
                else:
                    wrong = _wrong(keys[key], value) if key in keys else _unknown(key, keys)
                if wrong:
                    fault(wrong, group, key)
    return sorted(found, key=lambda fault: (fault.number, fault.line))


def _named(path: Iterable[str]) -> str:
    """Write a path as people do: `policy_rules[1].action`, counted from 1 as in reasons."""
    parts = (f"[{int(part) + 1}]" if part.isdecimal() else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def _rule_faults(content: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Give the faults of `[[policy_rules]]`, each with its path below that."""
    if not isinstance(content, list):
        yield (), f"{content!r} is not a list of tables, write [[policy_rules]]"
        return
    keys = {field.name: field for field in attrs.fields(access.Rule)}
    for index, rule in enumerate(content):
        place = str(index)
        if not isinstance(rule, Mapping):
            yield (place,), f"{rule!r} is not a table, write [[policy_rules]]"
            continue
        for key, value in rule.items():
            wrong = _wrong(keys[key], value) if key in keys else _unknown(key, keys)
            if wrong:
                yield (place, key), wrong
        for key, wrong in access.out_of_place(rule):
            yield (place, key), wrong


def _wrong(field: "attrs.Attribute[Any]", value: Any) -> str:
    """Say what is wrong with one value; empty when nothing is."""
    try:
        structured = _CONVERTER.structure(value, cast(Any, field.type))
        if field.validator:
            field.validator(None, field, structured)
    except ValueError as error:
        return str(error)
    return ""


def _unknown(key: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(key, names, n=1)
    return "unknown key " + (
        f"(did you mean {close[0]}?)" if close else f"(there are {', '.join(names)})"
    )


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged


def _exactly(kind: type, name: str) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not kind:
            raise ValueError(f"{value!r} is not {name}")
        return value

    return structure


def _strings(value: Any, _: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'{value!r} is not a list of strings, e.g. ["a", "b"]')
    return tuple(value)


def _texts(value: Any, _: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError(f'{value!r} is not a table of strings, e.g. {{team = "ml"}}')
    return value


def _capabilities(value: Any, _: Any) -> frozenset[request_model.Capability]:
    names = value.split(",") if isinstance(value, str) else _strings(value, None)
    stripped = [name.strip() for name in names if name.strip()]
    if "all" in stripped:
        return request_model.ALL_CAPABILITIES
    known = {str(capability) for capability in request_model.Capability}
    unknown = [name for name in stripped if name not in known]
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)}: no such capability; there are {', '.join(sorted(known))}"
        )
    return frozenset(request_model.Capability(name) for name in stripped)


def _converter() -> cattrs.BaseConverter:
    # One that writes no functions: each would be used once. Unknown keys are found before it.
    converter = cattrs.BaseConverter(detailed_validation=False)
    converter.register_structure_hook(str, _exactly(str, "a string"))
    converter.register_structure_hook(int, _exactly(int, "a whole number"))
    converter.register_structure_hook(float, _exactly(float, "a number"))
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    # Generic types are matched by equality; register_structure_hook takes classes alone.
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _strings)
    converter.register_structure_hook_func(lambda kind: kind == Mapping[str, str], _texts)
    converter.register_structure_hook_func(
        lambda kind: kind == frozenset[request_model.Capability], _capabilities
    )
    return converter


_CONVERTER = _converter()
