# SPDX-License-Identifier: Apache-2.0
"""What containerd's config.toml says of NRI and runtimes: versions 1 to 4, with imports.

containerd(5) config.toml: a file without a version is of version 1; `imports` are paths, relative
to the file, that may hold `*`. containerd 1 replaces a plugin's whole table by that of an import
(`config.mergeConfig`), containerd 2 merges them key by key; lists are joined by both. Where the
main file is of version 1, containerd 1 knows plugins by their short names alone; containerd 2
takes `nri` there for another plugin, and knows NRI by its whole name whatever the version is.
"""

import fnmatch
import posixpath
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from nri_nvidia.config import reading

NRI = "io.containerd.nri.v1.nri"
DEFAULT_PATH = "/etc/containerd/config.toml"
PLACES = (
    DEFAULT_PATH,
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
)
"""Where distributions of Kubernetes that bring their own containerd keep it."""
_CRI = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_NAMES = {"nri": NRI}
"""What a file of version 1 calls by another name."""
_LONG = re.compile(r"[0-9][0-9_]{4000}")
_DEPTH = 16
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

Read = Callable[[str], str | None]
Names = Callable[[str], Sequence[str]]


@attrs.frozen(kw_only=True)
class Settings:
    """What concerns us of the merged configuration.

    `files` are those that were read, empty where there is none; `version` is that of the first, 0
    then. `nri` is NRI's own table. `disabled` are plugins switched off by id. `runtimes` are the
    CRI's by name, with their program. `misplaced` are tables that look like NRI's at a place where
    containerd does not look. `faults` say what could not be read.
    """

    files: tuple[str, ...] = ()
    version: int = 0
    nri: Mapping[str, Any] = attrs.field(factory=dict)
    disabled: tuple[str, ...] = ()
    default_runtime: str = ""
    runtimes: Mapping[str, str] = attrs.field(factory=dict)
    systemd_cgroup: bool = False
    misplaced: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def load(path: str, read: Read, names: Names, *, replaces: bool | None) -> Settings:
    """Read a configuration with all that it imports.

    `read` gives a file's text or None, `names` those in a directory. `replaces` tells containerd
    1, whose imports replace a plugin's table, from later ones; None where neither is known.
    """
    loader = _Loader(read=read, names=names, replaces=replaces)
    # What a file imports is read after all that was to be read before (`config.LoadConfig`).
    waiting = [path]
    for each in waiting:
        waiting += loader.add(each)
    return loader.settings()


def matching(pattern: str, names: Names) -> list[str]:
    """Give the paths that a pattern names, with `*` in any part of it (Go's filepath.Glob)."""
    found, fixed = [""], True
    for part in pattern.strip("/").split("/"):
        fixed = fixed and not any(sign in part for sign in "*?[")
        # What is behind a pattern has to be there; fnmatch takes a plain name for itself.
        found = [
            f"{place}/{name}"
            for place in found
            for name in ((part,) if fixed else names(place or "/"))
            if fixed or fnmatch.fnmatchcase(name, part)
        ]
    return found


def reason(text: str, error: ValueError | RecursionError) -> str:
    """Say why a text is no TOML, always with the line."""
    if isinstance(error, RecursionError):
        deepest = max(text.split("\n"), key=lambda line: line.count("[") + line.count("{"))
        return f"nested too deep (at line {text[: text.index(deepest)].count(chr(10)) + 1})"
    if not isinstance(error, tomllib.TOMLDecodeError):
        found = _LONG.search(text)  # the only other fault: Python converts no more digits
        at = text.count("\n", 0, found.start()) + 1 if found else 1
        return f"a number is too long (at line {at})"
    last = text.rstrip("\n").count("\n") + 1
    return str(error).replace("(at end of document)", f"(at line {last}, the end)")


def seconds(duration: Any) -> float | None:
    """Read a duration as Go writes it (`2s`, `1m30s`, `500ms`); None if it is none."""
    if not isinstance(duration, str):
        return None
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


class _Loader:
    def __init__(self, *, read: Read, names: Names, replaces: bool | None) -> None:
        self._read = read
        self._list = names
        self._replaces = replaces
        self._merged: dict[str, Any] = {}
        self._files: list[str] = []
        self._misplaced: list[str] = []
        self._faults: list[str] = []
        self._version = 0

    def add(self, path: str) -> list[str]:
        """Read a file, once; give what it imports."""
        if path in self._files or len(self._files) >= _DEPTH * _DEPTH:
            return []
        text = self._read(path)
        if text is None:
            if self._files:
                self._faults.append(f"{path}: it is imported, and cannot be read")
            return []
        self._files.append(path)
        if text.startswith(reading.BOM) and self._replaces is False:
            self._faults.append(
                f"{path}:1: begins with a byte order mark, which containerd 2 refuses"
            )
            return []
        try:
            document = tomllib.loads(text.removeprefix(reading.BOM))
        except (ValueError, RecursionError) as error:
            self._faults.append(f"{path}: not valid TOML: {reason(text, error)}")
            return []
        version = document.get("version", 1)
        version = version if isinstance(version, int) else 1
        if len(self._files) == 1:
            self._version = version
        names = self._names(version)
        self._misplaced += [f"{path}: [{place}]" for place in _misplaced(document)]
        if NRI not in names.values() and "nri" in _table(document, "plugins"):
            self._misplaced.append(f"{path}: [plugins.nri]")
        if NRI in names and NRI in _table(document, "plugins"):
            self._misplaced.append(f'{path}: [plugins."{NRI}"] in a file of version 1')
        self._merge(document, names)
        found = document.get("imports")
        patterns = (
            [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
        )
        imports: list[str] = []
        for pattern in patterns:
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), pattern))
            imports += matching(place, self._list) if "*" in place else [place]
        return imports

    def _names(self, version: int) -> Mapping[str, str]:
        """Give what names in a file of a version mean, where that is not what they say."""
        if self._replaces is None:
            return _NAMES if version == 1 else {}
        if self._replaces and self._version == 1:
            return {**_NAMES, NRI: f"{NRI} of no plugin"}
        return {}

    def settings(self) -> Settings:
        plugins = _table(self._merged, "plugins")
        cri = [_table(_table(plugins, name), "containerd") for name in _CRI]
        runtimes: dict[str, str] = {}
        systemd = False
        for part in cri:
            for name, runtime in _table(part, "runtimes").items():
                options = _table(runtime, "options")
                runtimes[name] = str(options.get("BinaryName") or options.get("Runtime") or "")
                systemd |= options.get("SystemdCgroup") is True
        default = [part["default_runtime_name"] for part in cri if "default_runtime_name" in part]
        return Settings(
            files=tuple(self._files),
            version=self._version,
            nri=_table(plugins, NRI),
            disabled=tuple(_texts(self._merged)),
            default_runtime=str(default[-1]) if default else "",
            runtimes=runtimes,
            systemd_cgroup=systemd,
            misplaced=tuple(self._misplaced),
            faults=tuple(self._faults),
        )

    def _merge(self, document: Mapping[str, Any], names: Mapping[str, str]) -> None:
        plugins = dict(_table(self._merged, "plugins"))
        for name, table in _table(document, "plugins").items():
            known = names.get(name, name)
            old = plugins.get(known)
            plugins[known] = table if self._replaces else _deep(old, table)
        more = [names.get(name, name) for name in _texts(document)]
        disabled = [*_texts(self._merged), *more]
        self._merged = {**self._merged, **document, "plugins": plugins}
        self._merged["disabled_plugins"] = disabled


def _texts(document: Mapping[str, Any]) -> list[str]:
    found = document.get("disabled_plugins")
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _deep(low: Any, high: Any) -> Any:
    if not isinstance(low, Mapping) or not isinstance(high, Mapping):
        return high
    return {**low, **{key: _deep(low.get(key), value) for key, value in high.items()}}


def _table(document: Any, key: str) -> Mapping[str, Any]:
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _misplaced(document: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Find tables by NRI's name anywhere but in `plugins`, also by its parts where no quotes are.

    `[plugins.io.containerd.nri.v1.nri]` without quotes is five tables within each other.
    """
    if not isinstance(document, Mapping) or len(path) > _DEPTH:
        return []
    found = []
    for key, value in document.items():
        place = (*path, key)
        whole = ".".join(place)
        if isinstance(value, Mapping) and whole.endswith(NRI) and place != ("plugins", NRI):
            found.append(whole)
        else:
            found += _misplaced(value, place)
    return found
