# SPDX-License-Identifier: Apache-2.0
"""What an installation or its removal changes, decided before anything is changed."""

import attrs

from nri_nvidia import errors
from nri_nvidia.configure import files as engine_files
from nri_nvidia.install import model, service, tree

_BIN = "/usr/local/bin"
_NAMED_IN = (
    "/etc/containerd/*.toml",
    "/etc/containerd/conf.d/*.toml",
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*.conf",
    "/etc/crio/crio.conf.d/*",
    "/etc/docker/daemon.json",
    "/opt/nri/plugins/*",
)
"""Where engines are told of programs: files that name ours, or links to it."""
_LONGEST = 1 << 20
"""Bytes: what is longer is a program, and no text that names one."""


@attrs.frozen(kw_only=True)
class Installation:
    """What is to be written beside the release, what stays as it is, what goes."""

    release: model.Release
    before: model.Manifest
    writes: tuple[model.File | model.Link, ...]
    keeps: tuple[str, ...]
    leaves: tuple[model.Entry, ...]

    @property
    def new_release(self) -> bool:
        """Whether the release is another than the one that is there."""
        return self.before.release != self.release.name


@attrs.frozen(kw_only=True)
class Removal:
    """What is removed, and what stays for a reason (path: reason)."""

    before: model.Manifest
    entries: tuple[model.Entry, ...]
    stays: tuple[str, ...]


def wanted(
    settings: model.File,
    release: model.Release,
    extras: tuple[model.File, ...],
    unit_directory: str,
) -> tuple[model.File | model.Link, ...]:
    """Give what is put outside the release, each at the place where others look for it.

    `current` is the last: with it the new release is the one that is used. What makes the
    daemon's directory at boot goes where the unit goes: to the node's own files or a package's.
    """
    temporary = "/etc" if unit_directory.startswith("/etc/") else "/usr/lib"
    stable = [
        model.Link(path=f"{model.HOME}/bin/{name}", target=f"../current/bin/{name}")
        for name in model.COMMANDS
    ]
    found = [
        model.Link(path=f"{_BIN}/{name}", target=f"{model.HOME}/bin/{name}")
        for name in model.COMMANDS
    ]
    return (
        settings,
        *stable,
        *found,
        *extras,
        model.File(path=f"{unit_directory}/{model.UNIT}", content=service.unit()),
        model.File(path=f"{temporary}/{model.TMPFILES}", content=service.TMPFILES),
        model.Link(path=model.CURRENT, target=f"releases/{release.name}"),
    )


def install(
    there: tree.Tree, release: model.Release, things: tuple[model.File | model.Link, ...]
) -> Installation:
    """Say what is to be done; raises ConfigError where something is in the way."""
    before = there.manifest()
    refused, writes, keeps = [], [], []
    for thing in things:
        now, was = there.now(thing.path), before.entries.get(thing.path)
        if now is None or now == was:
            if now != tree.entry(thing):
                writes.append(thing)
        elif thing.path == model.SETTINGS:
            keeps.append(thing.path)
        elif was is None:
            refused.append(f"{thing.path}: is there, and was not made by nri-nvidia install")
        elif now == tree.entry(thing):
            writes.append(thing)  # an interrupted installation did it, and did not record it
        else:
            refused.append(f"{thing.path}: was changed since nri-nvidia install wrote it")
    if there.place(f"{model.HOME}/pyvenv.cfg").exists():
        refused.append(f"{model.HOME}: is an environment made by hand")
    if not before.entries and there.place(release.directory).exists():
        refused.append(f"{release.directory}: is there, and the manifest knows nothing of it")
    if refused:
        raise errors.ConfigError(
            "nothing was changed:\n" + "\n".join(refused),
            hint="move these away; changes of the unit belong in `systemctl edit nri-nvidia`",
        )
    stay = {thing.path for thing in things} | {model.SETTINGS}
    inside = f"{release.directory}/"
    leaves = tuple(
        each for path, each in before.entries.items()
        if path not in stay and not path.startswith(inside) and there.now(path) == each
    )  # fmt: skip
    return Installation(
        release=release, before=before, writes=tuple(writes), keeps=tuple(keeps), leaves=leaves
    )


def uninstall(there: tree.Tree) -> Removal:
    """Say what is to be removed; raises ConfigError where that would be wrong."""
    before = there.manifest()
    if not before.entries:
        raise errors.ConfigError(
            f"nothing is installed by nri-nvidia install: there is no {model.MANIFEST}",
            hint="what was put in place by hand goes by hand",
        )
    engines = sorted(
        path.stem for path in there.place(f"{engine_files.RECORDS}/x").parent.glob("*.json")
    )
    if engines:
        raise errors.ConfigError(
            f"the configuration of {', '.join(engines)} still names nri-nvidia",
            hint=" && ".join(f"nri-nvidia configure {each} --undo" for each in engines),
        )
    naming = _naming(there)
    if naming:
        raise errors.ConfigError(
            "\n".join(f"{path}: still names what is in {model.HOME}" for path in naming),
            hint="take that out of them by hand, as it was put in, and restart what reads them",
        )
    gone, stays, changed = [], [], []
    for path, entry in before.entries.items():
        now = there.now(path)
        if path == model.SETTINGS:
            stays.append(path)
        elif now is not None and now != entry:
            changed.append(f"{path}: was changed since nri-nvidia install wrote it")
        else:
            gone.append(entry)
    if changed:
        raise errors.ConfigError(
            "nothing was removed:\n" + "\n".join(changed), hint="move these away"
        )
    return Removal(before=before, entries=tuple(gone), stays=tuple(stays))


def _naming(there: tree.Tree) -> list[str]:
    """Give the engines' files that name a program of ours, and links to one."""
    found = []
    for pattern in _NAMED_IN:
        folder, _, names = pattern.rpartition("/")
        for place in sorted(there.place(f"{folder}/x").parent.glob(names)):
            try:
                told = str(place.readlink()) if place.is_symlink() else ""
                if not told and place.stat().st_size < _LONGEST:
                    told = place.read_text("utf-8", "replace")
            except OSError:
                continue
            if f"{model.HOME}/" in told:
                found.append(f"{folder}/{place.name}")
    return found
