# SPDX-License-Identifier: Apache-2.0
"""What an installation consists of, as values."""

import hashlib

import attrs

HOME = "/opt/nri-nvidia"
"""Everything that is not looked for elsewhere by others."""
CURRENT = f"{HOME}/current"
RELEASES = f"{HOME}/releases"
MANIFEST = f"{HOME}/manifest.json"
COMMANDS = ("nri-nvidia", "nri-nvidia-runtime")
UNIT = "nri-nvidia.service"
TMPFILES = "tmpfiles.d/nri-nvidia.conf"
MANUAL = "nri-nvidia.8"
SETTINGS = "/etc/nri-nvidia/config.toml"


@attrs.frozen(kw_only=True)
class File:
    """A regular file of root's; `path` is absolute, or relative to what holds it."""

    path: str
    content: bytes
    mode: int = 0o644

    def digest(self) -> str:
        """Give what tells this content from another."""
        return digest(self.content)


@attrs.frozen(kw_only=True)
class Link:
    """A symbolic link."""

    path: str
    target: str


@attrs.frozen(kw_only=True)
class Entry:
    """What stands in the manifest for a path: a file's digest, or a link's target."""

    path: str
    digest: str = ""
    target: str = ""


@attrs.frozen(kw_only=True)
class Manifest:
    """What was put on this node: its entries by path, and the directories made for them."""

    version: str = ""
    release: str = ""
    entries: dict[str, Entry] = attrs.field(factory=dict)
    directories: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Release:
    """One version of the product with all it needs, in a directory that never changes."""

    version: str
    name: str
    files: tuple[File | Link, ...]

    @property
    def directory(self) -> str:
        """Where it is on the node."""
        return f"{RELEASES}/{self.name}"


def digest(content: bytes) -> str:
    """Give the SHA-256 of a content, in hex."""
    return hashlib.sha256(content).hexdigest()
