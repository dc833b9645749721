# SPDX-License-Identifier: Apache-2.0
"""The files in which engines look for CDI specifications: read, written, checked."""

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from nri_nvidia import errors
from nri_nvidia.config import reading
from nri_nvidia.oci.document import repeated
from nri_nvidia.render import cdiform

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_SUFFIXES = (".json", ".yaml", ".yml")
_OWN = "nri-nvidia-"
# YAML is not read as a whole; its kind is a line of its own.
_KIND = re.compile(r'^\s*[{]?\s*"?kind"?\s*:\s*"?([A-Za-z0-9_./-]+)', re.MULTILINE)


@attrs.frozen(kw_only=True)
class File:
    """One file of specifications. `document` is None where it is not read, `fault` says why."""

    path: str
    kind: str = ""
    document: dict[str, Any] | None = None
    fault: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The qualified names of its devices, as far as they are known."""
        devices = (self.document or {}).get("devices") or ()
        return tuple(f"{self.kind}={device['name']}" for device in devices)


def kind_of(text: str) -> str:
    """Give the kind that a specification defines, JSON or YAML; empty where none is seen."""
    return match[1] if (match := _KIND.search(text)) else ""


def class_of(path: str) -> str:
    """Give the class of devices by a name that we give, see `name_of`; empty for another name."""
    name = os.path.basename(path)  # noqa: PTH119 - a text
    return name[len(_OWN) :].removesuffix(".json") if name.startswith(_OWN) else ""


def name_of(kind: str) -> str:
    """Give the name of our file for a class of devices, `gpu` or another."""
    return f"{_OWN}{kind}.json"


def found(directories: Iterable[str] = DIRECTORIES) -> tuple[File, ...]:
    """Read the files of directories, in the order in which engines read them."""
    files = []
    for directory in directories:
        with contextlib.suppress(OSError):
            names = sorted(entry.name for entry in os.scandir(directory))
            files += [read(f"{directory}/{n}") for n in names if n.endswith(_SUFFIXES)]
    return tuple(files)


def read(path: str) -> File:
    """Read one file; what is wrong with it is its `fault`."""
    try:
        text = reading.text(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return File(path=path, fault=f"cannot be read: {reason}")
    kind = kind_of(text)
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if path.endswith(".json"):
            return File(path=path, kind=kind, fault=f"not JSON: {error}")
        return File(path=path, kind=kind, fault="YAML is not read here")
    faults = cdiform.faults(document)
    if faults:
        return File(path=path, kind=kind, fault="; ".join(faults))
    return File(path=path, kind=document["kind"], document=document)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Give an object; raises ValueError for a key that is there twice, as engines refuse it."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"{repeated(pairs)!r} is there twice in an object")
    return found


def write(path: str, document: dict[str, Any]) -> bool:
    """Put a specification in place at once; tell whether that changed it. Raises HostError.

    Engines read it as any user: mode 0644, and 0755 for a directory that is made.
    """
    text = json.dumps(document, indent=2) + "\n"
    target = Path(path)
    with contextlib.suppress(OSError, ValueError):
        if reading.text(path) == text:
            return False
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        if not target.parent.exists():
            target.parent.mkdir(parents=True)
            target.parent.chmod(0o755)
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        temporary.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise errors.HostError(
            f"{path} cannot be written: {error.strerror}",
            hint="name a directory of CDI specifications that can be written: /etc/cdi, /run/cdi",
        ) from error
    return True


def remove(path: str) -> bool:
    """Remove a file; tell whether it was there. Raises HostError."""
    try:
        Path(path).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise errors.HostError(f"{path} cannot be removed: {error.strerror}") from error
    return True


def rivals(file: File, others: Iterable[File]) -> tuple[str, ...]:
    """Give the files beside one that speak of the same kind.

    Engines take neither of two files of one directory that define the same device.
    """
    folder = os.path.dirname(file.path)  # noqa: PTH120 - a text
    return tuple(
        other.path
        for other in others
        if other.kind == file.kind
        and other.path != file.path
        and os.path.dirname(other.path) == folder  # noqa: PTH120
    )


def missing(document: dict[str, Any]) -> Iterator[str]:
    """Say what a specification names and this host has not, or has otherwise."""
    edits = [("", document.get("containerEdits") or {})]
    edits += [(d["name"], d["containerEdits"]) for d in document["devices"]]
    told = set()
    for name, each in edits:
        where = f"device {name}: " if name else ""
        for fault in _missing(each):
            if fault not in told:
                told.add(fault)
                yield where + fault


def _missing(edits: dict[str, Any]) -> Iterator[str]:
    for mount in edits.get("mounts") or ():
        if not _is_there(mount["hostPath"]):
            yield f"{mount['hostPath']} is not on this host"
    for node in edits.get("deviceNodes") or ():
        yield from _node(node)
    for hook in edits.get("hooks") or ():
        for path in (hook["path"], *(hook.get("args") or [])[1:4]):
            if path.startswith("/") and not _is_there(path):
                yield f"the hook's {path} is not on this host"


def _is_there(path: str) -> bool:
    """Tell whether there is such a file; a text that can be no path names none."""
    try:
        return Path(path).exists()
    except ValueError:  # half a surrogate
        return False


def _node(node: dict[str, Any]) -> Iterator[str]:
    path = node.get("hostPath") or node["path"]
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        yield f"{path} is not on this host"
        return
    if not stat.S_ISCHR(status.st_mode) and node.get("type", "c") == "c":
        yield f"{path} is no character device"
        return
    here = (os.major(status.st_rdev), os.minor(status.st_rdev))
    written = (node.get("major", here[0]), node.get("minor", here[1]))
    if here != written:
        yield (f"{path} is {here[0]}:{here[1]} on this host, not {written[0]}:{written[1]}")
