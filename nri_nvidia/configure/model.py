# SPDX-License-Identifier: Apache-2.0
"""What is to change on a node, as values."""

import posixpath
from typing import Protocol

import attrs

NAME = "nri-nvidia"
"""Our name as a plugin, as a runtime of engines, and in the names of drop-ins."""
DROP_IN = f"50-{NAME}"


class Tree(Protocol):
    """What a planner may ask: the files of a node, by paths that begin with `/`."""

    def text(self, path: str) -> str | None:
        """Give a file's text, None where there is none; raises ConfigError for what is no text."""

    def link(self, path: str) -> str | None:
        """Give where a link leads, None where there is nothing; raises ConfigError for others."""

    def names(self, directory: str) -> tuple[str, ...]:
        """Give the sorted names in a directory, none where there is no directory."""

    def is_directory(self, path: str) -> bool:
        """Tell whether a path leads to a directory."""


@attrs.frozen(kw_only=True)
class File:
    """A file as it is (`before`, None where there is none) and as it should be."""

    path: str
    before: str | None
    after: str


@attrs.frozen(kw_only=True)
class Link:
    """A link that should be there; `before` is where it leads now, None where there is none."""

    path: str
    before: str | None
    target: str


@attrs.frozen(kw_only=True)
class Options:
    """What a user may choose.

    `config` is the engine's file, empty for the usual one. `release` is the engine's version as
    it tells it (`1.7.24`), empty where it is not known. `runtime` is the path of
    nri-nvidia-runtime. `user` is the configuration directory of a user other than root, else
    empty. `require` lists us among the plugins without which no container is created, `default`
    makes our runtime that of all containers, `cdi` switches docker's CDI on, `builds` has BuildKit
    in docker find our runtime as runc, and `transparent` all clients of a containerd; `unit` is
    the systemd unit of the one or the other.
    """

    config: str = ""
    release: str = ""
    runtime: str = ""
    user: str = ""
    unit: str = "containerd.service"
    require: bool = False
    default: bool = False
    cdi: bool = False
    builds: bool = False
    transparent: bool = False

    def at_least(self, major: int, minor: int) -> bool | None:
        """Tell whether the engine is of this version or newer; None where it is not known."""
        words = self.release.split(".")
        if len(words) < 2 or not (words[0].isdecimal() and words[1].isdecimal()):
            return None
        return (int(words[0]), int(words[1])) >= (major, minor)


@attrs.frozen(kw_only=True)
class Proposal:
    """The changes, what is to be said of them, and what makes them count (commands)."""

    changes: tuple[File | Link, ...] = ()
    notes: tuple[str, ...] = ()
    then: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[File | Link, ...]:
        """The changes that change anything."""
        return tuple(
            change
            for change in self.changes
            if change.before != (change.after if isinstance(change, File) else change.target)
        )


def below(directory: str, path: str) -> str:
    """Give a path of a configuration, which may be relative to the file that names it."""
    return posixpath.normpath(posixpath.join(directory, path))
