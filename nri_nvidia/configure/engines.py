# SPDX-License-Identifier: Apache-2.0
"""docker, podman, CRI-O and nerdctl: what makes each serve GPUs through us."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from nri_nvidia import errors
from nri_nvidia.config import reading
from nri_nvidia.configure import jsontext, model, toml, transparent

DOCKER = "/etc/docker/daemon.json"
PODMAN = "/etc/containers/containers.conf.d"
CRIO = "/etc/crio/crio.conf.d"


def docker(tree: model.Tree, options: model.Options) -> model.Proposal:
    """Register our runtime; `default` makes it that of all containers, `cdi` switches CDI on.

    docker reads runtimes again on SIGHUP, features only at its start. BuildKit in docker knows no
    runtimes: it runs the first runc on dockerd's PATH (moby `builder-next`), with `builds` ours.
    """
    if options.builds and options.user:
        raise errors.ConfigError(
            "--builds: a user's own docker has no unit of the system",
            hint="put a link named runc to nri-nvidia-runtime first on its PATH",
        )
    usual = f"{options.user}/docker/daemon.json" if options.user else DOCKER
    path = options.config or usual
    if not options.user:
        _refuse_options(tree, path, options)
    before = tree.text(path)
    # An empty file is as good as none to docker.
    text = before if before and before.removeprefix(reading.BOM).strip() else "{}\n"
    document = jsontext.read(path, text)
    wanted: list[tuple[tuple[str, ...], Any]] = [
        (("runtimes", model.NAME, "path"), options.runtime)
    ]
    if options.default:
        wanted.append((("default-runtime",), model.NAME))
    if options.cdi:
        wanted.append((("features", "cdi"), True))
    after, restart = text, False
    for keys, value in wanted:
        if _at(path, document, keys) != value:
            after = jsontext.put(after, keys, value)
            restart |= keys[0] == "features"
    how = "--user " if options.user else ""
    changed = (model.File(path=path, before=before, after=after),) if after != text else ()
    notes: tuple[str, ...] = (
        "containers ask for it: docker run --runtime nri-nvidia -e NVIDIA_VISIBLE_DEVICES=0 …",
    )
    if options.default:
        notes = ()
    if options.user:
        # rootlesskit copies /run's names when it starts (--copy-up).
        late = (
            "a user's docker that was started before nri-nvidia was on this node does not see it"
        )
        notes = (*notes, f"{late}: systemctl --user restart docker")
    found = transparent.propose(tree, options) if options.builds else model.Proposal()
    then = (f"systemctl {how}{'restart' if restart else 'reload'} docker",)
    return model.Proposal(
        changes=(*changed, *found.changes),
        notes=(*notes, *found.notes),
        then=found.then if found.needed else then,
    )


def _refuse_options(tree: model.Tree, path: str, options: model.Options) -> None:
    """Refuse what dockerd's own options make to no effect, or to one that it does not start with.

    It refuses what is set by both (moby `findConfigurationConflicts`), but for runtimes.
    """
    unit = options.unit if options.unit.startswith("docker") else "docker.service"
    file, place = transparent.option(tree, unit, "config-file")
    if file and not options.config and posixpath.normpath(file) != path:
        raise errors.ConfigError(
            f"{place}: dockerd is started with --config-file {file}, and does not read {path}",
            hint=f"name that file: --config {file}",
        )
    runtime, place = transparent.option(tree, unit, "default-runtime")
    if runtime and options.default:
        raise errors.ConfigError(
            f"{place}: dockerd is started with --default-runtime {runtime}; it would not start "
            f"with one in {path} besides",
            hint="take that option out there, or leave --default away",
        )


def _at(path: str, document: Any, keys: tuple[str, ...]) -> Any:
    for depth, key in enumerate(keys):
        if not isinstance(document, dict):
            raise errors.ConfigError(
                f"{path}: {'.'.join(keys[:depth])} is no object; it was left as it is"
            )
        document = document.get(key)
        if document is None and depth + 1 < len(keys):
            document = {}  # null is as good as nothing to docker
    return document


def podman(tree: model.Tree, options: model.Options) -> model.Proposal:
    """Register our runtime by a drop-in; `default` makes it that of all containers."""
    usual = f"{options.user}/containers/containers.conf.d" if options.user else PODMAN
    path = options.config or f"{usual}/{model.DROP_IN}.conf"
    before = tree.text(path)
    text = before or ""
    after = text
    if options.default:
        after = toml.put(path, after, ("engine",), {"runtime": model.NAME})
    after = toml.put(path, after, ("engine", "runtimes"), {model.NAME: [options.runtime]})
    _not_overridden(tree, path, options)
    notes: tuple[str, ...] = (
        "containers ask for it: podman --runtime nri-nvidia run -e NVIDIA_VISIBLE_DEVICES=0 …",
    )
    if options.default:
        notes = ()
    return model.Proposal(
        changes=(model.File(path=path, before=before, after=after),), notes=notes
    )


def _not_overridden(tree: model.Tree, own: str, options: model.Options) -> None:
    """Refuse where a later drop-in says otherwise: podman reads them by name; the last wins."""
    directory, name = posixpath.split(own)
    if not directory.endswith(".d"):
        return
    for each in tree.names(directory):
        path = f"{directory}/{each}"
        if each <= name or not each.endswith(".conf") or tree.is_directory(path):
            continue
        engine = toml.table(toml.read(path, tree.text(path) or ""), ("engine",)) or {}
        runtimes = toml.table(engine, ("runtimes",)) or {}
        if options.default and engine.get("runtime", model.NAME) != model.NAME:
            raise errors.ConfigError(
                f"{path}: has runtime = {engine['runtime']!r}, and is read after {own}",
                hint="remove that line there, or leave --default away",
            )
        if runtimes.get(model.NAME, [options.runtime]) != [options.runtime]:
            raise errors.ConfigError(
                f"{path}: has another program for {model.NAME}, and is read after {own}",
                hint="remove that line there",
            )


_REQUIRED = "nri_validator_required_plugins"
_VALIDATES = "nri_enable_default_validator"


def crio(tree: model.Tree, options: model.Options) -> model.Proposal:
    """Switch NRI on by a drop-in: CRI-O has it from 1.26, and on by default from 1.30.

    CRI-O reads crio.conf, and then every file of its drop-in directory and of those in it by
    name (`UpdateFromPath`); the last one wins.
    """
    directory = (options.config or CRIO).rstrip("/")
    if not tree.is_directory(directory) and tree.text(directory) is not None:
        raise errors.ConfigError(
            f"--config {directory}: is a file; what is wanted is CRI-O's directory of drop-ins",
            hint=f"--config {directory}.d",
        )
    own = f"{directory}/{model.DROP_IN}.conf"
    main = directory.removesuffix(".d")
    values: dict[str, tuple[Any, str]] = {"enable_nri": (options.at_least(1, 30) is True, "")}
    for path in [main, *_below(tree, directory)]:
        document = toml.read(path, tree.text(path) or "")
        nri = toml.table(document, ("crio", "nri")) or {}
        found = {**nri, **(toml.table(nri, ("default_validator",)) or {})}
        values |= {key: (found[key], path) for key in ("enable_nri", _REQUIRED, _VALIDATES)
                   if key in found}  # fmt: skip
    before = tree.text(own)
    after = before or ""
    if values["enable_nri"][0] is not True:
        _decides(own, main, "enable_nri", values, "switches NRI off")
        after = toml.put(own, after, ("crio", "nri"), {"enable_nri": True})
    named = values.get(_REQUIRED, ([], ""))[0]
    required = named if isinstance(named, list) else []
    validated = values.get(_VALIDATES, (False, ""))[0] is True
    if options.require and not (model.NAME in required and validated):
        _can_require(options)
        for key in (_REQUIRED, _VALIDATES):
            _decides(own, main, key, values, f"has {key}")
        required = required if model.NAME in required else [*required, model.NAME]
        table = ("crio", "nri", "default_validator")
        after = toml.put(own, after, table, {_VALIDATES: True, _REQUIRED: required})
    if after == (before or ""):
        return model.Proposal(notes=("NRI is on in CRI-O: nothing to do",))
    change = model.File(path=own, before=before, after=after)
    return model.Proposal(changes=(change,), then=("systemctl restart crio",))


def _below(tree: model.Tree, directory: str) -> Iterator[str]:
    """Give the files below a directory as filepath.Walk of Go's gives them."""
    for name in tree.names(directory):
        path = f"{directory}/{name}"
        if tree.is_directory(path):
            yield from _below(tree, path)
        else:
            yield path


def _decides(
    own: str, main: str, key: str, values: Mapping[str, tuple[Any, str]], says: str
) -> None:
    """Refuse where a file that is read after ours decides."""
    path = values.get(key, (None, ""))[1]
    if path not in {"", main} and path.split("/") > own.split("/"):
        raise errors.ConfigError(
            f"{path}: {says}, and is read after {own}",
            hint=f"change {key} there by hand, or remove it",
        )


def _can_require(options: model.Options) -> None:
    if options.at_least(1, 34):
        return
    raise errors.ConfigError(
        f"--require: CRI-O {options.release or 'of unknown version'} has no list of required"
        " NRI plugins; 1.34 and later have",
        hint="leave --require away, or say by --engine-version which it is",
    )


def nerdctl(tree: model.Tree, options: model.Options) -> model.Proposal:
    """Serve nerdctl through its containerd: its own configuration cannot name a runtime."""
    found = transparent.propose(tree, options)
    note = (
        "nerdctl.toml has no key for a runtime: this puts ours in the place of runc for every"
        " client of that containerd; without it: nerdctl run --runtime " + options.runtime
    )
    return model.Proposal(changes=found.changes, notes=(*found.notes, note), then=found.then)
