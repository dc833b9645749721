# SPDX-License-Identifier: Apache-2.0
"""The CDI project's own JSON schema, which Debian packages with its Go sources."""

import re
import shutil
from pathlib import Path

import packages
from packages import Apt

PACKAGE = "golang-tags.cncf-container-device-interface-dev"


def provide(apt: Apt, directory: Path, *, update: bool) -> str:
    """Unpack the schema of the newest release that counts; return a line about it."""
    schema, told = directory / "schema.json", directory / "version"
    if update or not schema.exists() or not told.exists():
        package = packages.newest(
            each for each in apt.versions(PACKAGE) if re.match(r"[01]\.", each.upstream)
        )
        if package is None:
            raise packages.SetupError(f"no suite of the mirror offers {PACKAGE}")
        with packages.Staged(directory) as work:
            packages.unpack(apt.fetch([package])[0], work / "package")
            for name in ("schema.json", "defs.json"):
                found = next((work / "package").rglob(f"schema/{name}"))
                shutil.copyfile(found, work / name)
            shutil.rmtree(work / "package")
            (work / "version").write_text(package.upstream, encoding="utf-8")
    return f"CDI schema: {told.read_text(encoding='utf-8')}"
