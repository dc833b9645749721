# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia config`: the settings in force, and where each comes from."""

import argparse
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from nri_nvidia import errors
from nri_nvidia.cli import output, run, shared
from nri_nvidia.config import load, toolkit
from nri_nvidia.config import model as config_model

SCHEMA = 1
_WIDTH = 56
"""Columns for a setting; a longer one pushes its origin to the right."""
_PLUGINS = "/opt/nri/plugins"
_PLUGIN_SETTINGS = "/etc/nri/conf.d"
_PLUGIN = re.compile(r"\d\d-nri-nvidia")
_ENVIRONMENT = (("NRI_PLUGIN_NAME", "nri.name"), ("NRI_PLUGIN_IDX", "nri.index"))
"""What a runtime that starts us tells us by variables (it counts before everything else)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb: those of `run`, whose settings are shown."""
    shared.add_config(parser)
    run.add_overrides(parser)
    parser.add_argument("--check", metavar="FILE", help="only say what is wrong with a file")
    parser.add_argument(
        "--import", dest="imported", metavar="FILE",
        help=f"print what NVIDIA's settings mean here (usually {toolkit.DEFAULT_PATH})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    """Print the settings; with `--check` 1 when the file has a fault."""
    if options.check is not None:
        return _check(options.check, as_json=options.json)
    if options.imported:
        return _import(options.imported, as_json=options.json)
    file = shared.file(options.config)
    sources = [
        *([load.read(file)] if file else []),
        *_from_runtime(),
        *run.overrides(options),
        *_from_environment(os.environ),
    ]
    found = load.trace(sources)
    if options.json:
        output.print_json(document(found, [source.name for source in sources]))
    else:
        output.print_lines(text(found))
        for warning in absent(found.config):
            sys.stderr.write(errors.printable(f"nri-nvidia: {warning}") + "\n")
    return 0


def _check(path: str, *, as_json: bool) -> int:
    """Say what is wrong with one file, with nothing else in force."""
    faults: list[str] = []
    try:
        faults += absent(load.load([load.read(path)]))
    except config_model.Invalid as error:
        faults += error.faults
    if as_json:
        output.print_json({"schema": SCHEMA, "file": path, "faults": faults})
    elif faults:
        output.print_lines(faults)
    else:
        output.print_lines([f"{path}: nothing is wrong"])
    return 1 if faults else 0


def _import(path: str, *, as_json: bool) -> int:
    """Print another file's settings as ours; what was not taken in comments."""
    found = toolkit.read(load.read(path))
    if as_json:
        left = [
            {"key": each.key, "value": each.value, "reason": each.reason} for each in found.left
        ]
        output.print_json(
            {"schema": SCHEMA, "file": path, "settings": dict(found.settings), "left": left}
        )
        return 0
    output.print_lines(
        [
            f"# from {path}",
            *toolkit.toml(found.settings).splitlines(),
            *(f"# not taken: {each}" for each in found.left),
        ]
    )
    return 0


def absent(config: config_model.Config) -> list[str]:
    """Name the programs that settings name and that cannot be run on this host."""
    if config.host.root != "/":
        return []  # the host that they are on is another
    return [
        f"{key}: {path} is not a program that can be run on this host"
        for key, path in (
            ("hook.ldconfig", config.hook.ldconfig),
            ("hook.interpreter", config.hook.interpreter),
        )
        if path and not (os.access(path, os.X_OK) and pathlib.Path(path).is_file())
    ]


def _from_runtime() -> list[load.Text]:
    """Read what a runtime that starts us has for us: a file by our name beside its plugins."""
    try:
        names = sorted(os.listdir(_PLUGINS))  # noqa: PTH208 - names only
    except OSError:
        return []
    own = next((name for name in names if _PLUGIN.fullmatch(name)), "")
    places = (f"{_PLUGIN_SETTINGS}/{own}.conf", f"{_PLUGIN_SETTINGS}/nri-nvidia.conf")
    found = next((path for path in places if own and pathlib.Path(path).is_file()), "")
    return [load.read(found)] if found else []


def _from_environment(environ: Mapping[str, str]) -> Iterator[load.Text]:
    for variable, key in _ENVIRONMENT:
        if environ.get(variable):
            toml = f"{key} = {json.dumps(environ[variable])}"
            yield load.Text(name=variable, toml=toml, lined=False)


def rows(found: load.Traced) -> Iterator[tuple[str, Any, str]]:
    """Give each setting as key, plain value and origin, in the order of the documentation."""
    defaults = config_model.Config()
    for group in attrs.fields(config_model.Config):
        content = getattr(found.config, group.name)
        if not attrs.has(type(content)):
            yield group.name, _plain(content), found.origins.get(group.name, "default")
            continue
        known = getattr(defaults, group.name)
        for field in attrs.fields(type(content)):
            key = f"{group.name}.{field.name}"
            value = getattr(content, field.name)
            origin = found.origins.get(key, "default")
            assert origin != "default" or value == getattr(known, field.name)
            yield key, _plain(value), origin


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        return {key: _plain(inner) for key, inner in attrs.asdict(value, recurse=False).items()}
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def text(found: load.Traced) -> list[str]:
    """Give the settings as lines `key = value  origin`, the value as TOML has it."""
    return [
        f"{f'{key} = {_toml(value)}'.ljust(_WIDTH)}  # {origin}"
        for key, value, origin in rows(found)
    ]


def _toml(value: Any) -> str:
    """Write a value as TOML; of a table only what says something (TOML has no null)."""
    if isinstance(value, dict):
        said = {key: inner for key, inner in value.items() if inner not in (None, [], {}, "")}
        pairs = [f"{_toml_key(key)} = {_toml(inner)}" for key, inner in said.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _toml_key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key)
    return key if bare else json.dumps(key, ensure_ascii=False)


def document(found: load.Traced, sources: Iterable[str]) -> dict[str, Any]:
    """Give the settings as JSON; further keys may be added to it, none taken away."""
    return {
        "schema": SCHEMA,
        "sources": [*sources],
        "settings": [
            {"key": key, "value": value, "origin": origin} for key, value, origin in rows(found)
        ],
    }
