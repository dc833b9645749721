# SPDX-License-Identifier: Apache-2.0
"""containerd: NRI switched on, and our runtime found as runc where that is wished.

NRI is off by default in containerd 1.7 and on in 2.x. What is changed is the file that decides:
the last one that has NRI's table, else a drop-in where the configuration imports such, else the
main file. containerd 1 takes a plugin's table as a whole from the last file that has it.
"""

import fnmatch
import posixpath
from collections.abc import Mapping
from typing import Any

from nri_nvidia import errors
from nri_nvidia.check import containerd as known
from nri_nvidia.configure import model, template, toml, transparent

_OWN_PLACES = {
    "/var/lib/rancher/k3s/": ("k3s", "systemctl restart k3s   # on an agent: k3s-agent"),
    "/var/lib/rancher/rke2/": (
        "RKE2",
        "systemctl restart rke2-server   # on an agent: rke2-agent",
    ),
    "/etc/k0s/": ("k0s", "systemctl restart k0scontroller   # on a worker: k0sworker"),
}
_TEMPLATES = {2: "config.toml.tmpl", 3: "config-v3.toml.tmpl"}


def propose(tree: model.Tree, options: model.Options) -> model.Proposal:
    """Say what enables us; raises ConfigError where a file cannot be read or changed."""
    path = options.config or usual(tree)
    owner, restart = owned(path)
    file, place = transparent.option(tree, options.unit, "config", "c")
    if file and not owner and not options.config and posixpath.normpath(file) != path:
        raise errors.ConfigError(
            f"{place}: containerd is started with --config {file}, and does not read {path}",
            hint=f"name that file: --config {file}",
        )
    restart = restart or f"systemctl restart {options.unit.removesuffix('.service')}"
    if options.transparent and owner:
        raise errors.ConfigError(
            f"--transparent: {owner} starts its containerd itself, with its own runc first",
            hint="name the runtime at each run instead: ctr run --runc-binary, nerdctl --runtime",
        )
    if path.endswith(".tmpl"):
        nri = _by_template(tree, options, path)
    else:
        nri = _by_files(tree, options, path, owner=owner)
    further = transparent.propose(tree, options) if options.transparent else model.Proposal()
    restarts = (restart,) if nri.needed else ()
    return model.Proposal(
        changes=(*nri.changes, *further.changes),
        notes=(*nri.notes, *further.notes),
        then=further.then if further.needed else restarts,
    )


def usual(tree: model.Tree) -> str:
    """Give the main file that is there, else where it would be."""
    found = (path for path in known.PLACES if tree.text(path) is not None)
    return next(found, known.DEFAULT_PATH)


def owned(path: str) -> tuple[str, str]:
    """Say who starts the containerd of a file, and how; empty where systemd's unit does."""
    found = (owner for place, owner in _OWN_PLACES.items() if path.startswith(place))
    return next(found, ("", ""))


def _by_files(
    tree: model.Tree, options: model.Options, path: str, *, owner: str
) -> model.Proposal:
    newer = options.at_least(2, 0)
    replaces = None if newer is None else not newer
    settings = known.load(path, tree.text, tree.names, replaces=replaces)
    if settings.faults:
        raise errors.ConfigError(settings.faults[0], hint="mend it; nothing was changed")
    version = settings.version or (3 if newer else 2)
    # containerd 2 knows NRI by its whole name, whatever the version of the file.
    name = "nri" if version == 1 and not newer else known.NRI
    values = _wanted(settings, options, on=newer is True or version >= 3)
    disabled = known.NRI in settings.disabled
    notes = [f"{place}: containerd does not read NRI's settings there"
             for place in settings.misplaced]  # fmt: skip
    if not values and not disabled:
        return model.Proposal(notes=(*notes, "NRI is on in containerd: nothing to do"))
    if owner in {"k3s", "RKE2"} and (
        disabled or not _drop_ins(tree, path) or _holds(tree, path, name)
    ):
        # They write the file anew at each start, from the template.
        own = _TEMPLATES[3 if version >= 3 else 2]
        return _by_template(tree, options, posixpath.join(posixpath.dirname(path), own))
    changes = _enabled(tree, settings, path, values, (version, name)) if values else {}
    for each in settings.files:
        document = toml.read(each, tree.text(each) or "")
        names = [text for text in _texts(document) if text in {known.NRI, "nri"}]
        if names and disabled:
            text = changes.get(each, tree.text(each) or "")
            changes[each] = toml.remove(each, text, "disabled_plugins", names)
    return model.Proposal(
        changes=tuple(
            model.File(path=each, before=tree.text(each), after=after)
            for each, after in changes.items()
        ),
        notes=tuple(notes),
    )


def _wanted(settings: known.Settings, options: model.Options, *, on: bool) -> dict[str, Any]:
    """Give what NRI's table has to say; nested for its validator."""
    values: dict[str, Any] = {}
    if settings.nri.get("disable", not on) is not False:
        values["disable"] = False
    if settings.nri.get("disable_connections", False) is not False:
        values["disable_connections"] = False
    if options.require:
        _can_require(options)
        validator = settings.nri.get("default_validator")
        there = validator if isinstance(validator, Mapping) else {}
        named = there.get("required_plugins")
        required = list(named) if isinstance(named, list) else []
        if not {model.NAME, f"10-{model.NAME}"} & set(required):
            required.append(model.NAME)
        if there.get("enable") is not True or required != there.get("required_plugins"):
            values["default_validator"] = {"enable": True, "required_plugins": required}
    return values


def _can_require(options: model.Options) -> None:
    """Refuse what has no such list: NRI 0.10 has it, in its default validator; containerd 2.2."""
    if options.at_least(2, 2):
        return
    raise errors.ConfigError(
        f"--require: containerd {options.release or 'of unknown version'} has no list of required"
        " NRI plugins; 2.2 and later have",
        hint="leave --require away, or say by --engine-version which it is",
    )


def _enabled(
    tree: model.Tree,
    settings: known.Settings,
    path: str,
    values: Mapping[str, Any],
    form: tuple[int, str],
) -> dict[str, str]:
    """Give the texts of the files that decide, by path; `form` is a version and NRI's name."""
    version, name = form
    holders = [each for each in settings.files if _holds(tree, each, name)]
    target = holders[-1] if holders else _drop_ins(tree, path) or path
    text = tree.text(target)
    if text is None:
        text = f"version = {version}\n"
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    if plain:
        text = toml.put(target, text, ("plugins", name), plain)
    for key, value in values.items():
        if isinstance(value, Mapping):
            text = toml.put(target, text, ("plugins", name, key), value)
    return {target: text}


def _holds(tree: model.Tree, path: str, name: str) -> bool:
    document = toml.read(path, tree.text(path) or "")
    return toml.table(document, ("plugins", name)) is not None


def _drop_ins(tree: model.Tree, path: str) -> str:
    """Give our file's path in a directory that the main file imports, empty if it imports none."""
    document = toml.read(path, tree.text(path) or "")
    imports = document.get("imports")
    for pattern in imports if isinstance(imports, list) else ():
        directory, name = posixpath.split(model.below(posixpath.dirname(path), str(pattern)))
        own = f"{model.DROP_IN}.toml"
        if "*" in name and "*" not in directory and fnmatch.fnmatchcase(own, name):
            return f"{directory}/{own}"
    return ""


def _by_template(tree: model.Tree, options: model.Options, path: str) -> model.Proposal:
    if options.require:
        raise errors.ConfigError(
            f"--require: {path} is a template, which is not changed that far",
            hint=f"add it by hand: {toml.header(('plugins', known.NRI, 'default_validator'))}",
        )
    before = tree.text(path)
    after = template.enable(path, template.BASE if before is None else before)
    return model.Proposal(changes=(model.File(path=path, before=before, after=after),))


def _texts(document: Mapping[str, Any]) -> list[str]:
    found = document.get("disabled_plugins")
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
