# SPDX-License-Identifier: Apache-2.0
"""A private environment made of what runs now: the same modules in the same versions.

Nothing is fetched: the package and the distributions that it requires are copied from where this
process has them, into a directory laid out as a virtual environment (PEP 405) for a given Python.
"""

import hashlib
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import nri_nvidia
from nri_nvidia import errors
from nri_nvidia.install import model
from nri_nvidia.oci import install as hook_install

NAME = "nri-nvidia"
_REQUIRED = re.compile(r"[A-Za-z0-9._-]+")
_SKIPPED = {"direct_url.json", "INSTALLER", "REQUESTED"}
_HOMES = ("/root", "/home", "/run", "/tmp", "/var/tmp")  # noqa: S108 - what is refused
_ASK = "import os, sys; print(*sys.version_info[:3]); print(os.path.realpath(sys.executable))"
_COMMAND = """\
#!{python} -I
import sys
from nri_nvidia.cli import main
sys.exit(main())
"""


def interpreter(named: str) -> tuple[str, str]:
    """Give the Python to be used, without the environment it is in, and its version.

    Raises ConfigError where it cannot run what is copied, or other users and a protected service
    could not reach it.
    """
    path = str(pathlib.Path(named).absolute()) if named else os.path.realpath(sys.executable)
    own = sys.version_info[:2]
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ASK], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise errors.ConfigError(
            f"--python {path}: does not run: {error}", hint="name an interpreter, 3.11 or later"
        ) from error
    version, real = done.stdout.splitlines()
    numbers = version.split()
    if tuple(map(int, numbers[:2])) != own:
        raise errors.ConfigError(
            f"{path} is Python {'.'.join(numbers)}, and this runs on {own[0]}.{own[1]}, whose "
            "compiled modules are copied",
            hint="install nri-nvidia into an environment made with that Python, and run its "
            "`nri-nvidia install`",
        )
    closed = hook_install.closed_at(real)
    inside = next((each for each in _HOMES if real.startswith(f"{each}/")), "")
    if closed or inside:
        raise errors.ConfigError(
            f"the Python {real} {closed or f'is below {inside}'}; the daemon's must be outside of "
            "homes and open to all",
            hint="have one elsewhere, e.g. `uv python install --install-dir /opt/python 3.12`, "
            "make the environment with it and run that environment's `nri-nvidia install`",
        )
    return real, ".".join(numbers)


def release(named: str) -> model.Release:
    """Give the files of a release for a Python (a path, or empty for the one that runs this)."""
    python, version = interpreter(named)
    numbers = version.split(".")
    library = f"lib/python{numbers[0]}.{numbers[1]}/site-packages"
    modules = [
        *_package(library),
        *(file for each in sorted(_closure()) for file in _distribution(each, library)),
    ]
    made = hashlib.sha256(f"{python} {version}".encode())
    for file in sorted(modules, key=lambda each: each.path):
        made.update(f"{file.path}\0{file.digest()}\n".encode())
    name = f"{nri_nvidia.__version__}-{made.hexdigest()[:12]}"
    runs = f"{model.RELEASES}/{name}/bin/python3"
    settings = (
        f"home = {pathlib.Path(python).parent}\n"
        "include-system-site-packages = false\n"
        f"version = {version}\n"
    )
    shell = pathlib.Path(nri_nvidia.__file__).with_name("oci") / "runtime.sh"
    return model.Release(
        version=nri_nvidia.__version__,
        name=name,
        files=(
            model.File(path="pyvenv.cfg", content=settings.encode()),
            model.Link(path="bin/python3", target=python),
            model.File(
                path="bin/nri-nvidia", content=_COMMAND.format(python=runs).encode(), mode=0o755
            ),
            model.File(path="bin/nri-nvidia-runtime", content=shell.read_bytes(), mode=0o755),
            *modules,
        ),
    )


def _package(library: str) -> Iterator[model.File]:
    """Give the product itself, from where it runs, with what says so to importlib.metadata."""
    top = pathlib.Path(nri_nvidia.__file__).parent
    for path in sorted(top.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            place = f"{library}/nri_nvidia/{path.relative_to(top)}"
            yield model.File(path=place, content=path.read_bytes())
    told = importlib.metadata.distribution(NAME)
    metadata = told.read_text("METADATA") or ""
    place = f"{library}/nri_nvidia-{nri_nvidia.__version__}.dist-info/METADATA"
    yield model.File(path=place, content=metadata.encode())


def _closure() -> set[str]:
    """Name the distributions that ours requires, and those that they require.

    One whose marker does not hold here is not there, and is left out.
    """
    known: set[str] = set()
    waiting = [NAME]
    while waiting:
        name = waiting.pop()
        for required in importlib.metadata.requires(name) or ():
            found = _REQUIRED.match(required)
            if not found or "extra ==" in required:
                continue
            wanted = re.sub(r"[-_.]+", "-", found[0]).lower()
            if wanted not in known and _present(wanted):
                known.add(wanted)
                waiting.append(wanted)
    return known


def _present(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _distribution(name: str, library: str) -> Iterator[model.File]:
    found = importlib.metadata.distribution(name)
    if found.files is None:
        raise errors.ConfigError(
            f"{name}: its files are not recorded where it is installed",
            hint="install nri-nvidia with pip or uv into a virtual environment, and run its "
            "`nri-nvidia install`",
        )
    for each in found.files:
        if {"..", "__pycache__"} & {*each.parts} or each.name in _SKIPPED:
            continue
        content = pathlib.Path(str(each.locate())).read_bytes()
        yield model.File(path=f"{library}/{each}", content=content)
