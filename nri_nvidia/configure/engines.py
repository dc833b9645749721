# SPDX-License-Identifier: Apache-2.0
"""docker, podman, CRI-O and nerdctl: what makes each serve GPUs through us."""

from typing import Any

from nri_nvidia import errors
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
    before = tree.text(path)
    # An empty file is as good as none to docker.
    text = before if before and before.strip() else "{}\n"
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


def _at(path: str, document: Any, keys: tuple[str, ...]) -> Any:
    for depth, key in enumerate(keys):
        if not isinstance(document, dict):
            raise errors.ConfigError(
                f"{path}: {'.'.join(keys[:depth])} is no object; it was left as it is"
            )
        document = document.get(key, {} if depth + 1 < len(keys) else None)
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
    notes: tuple[str, ...] = (
        "containers ask for it: podman --runtime nri-nvidia run -e NVIDIA_VISIBLE_DEVICES=0 …",
    )
    if options.default:
        notes = ()
    return model.Proposal(
        changes=(model.File(path=path, before=before, after=after),), notes=notes
    )


def crio(tree: model.Tree, options: model.Options) -> model.Proposal:
    """Switch NRI on by a drop-in: CRI-O has it from 1.26, and on by default from 1.30.

    CRI-O reads crio.conf, and then every file of its drop-in directory by name; the last one wins.
    """
    directory = options.config or CRIO
    own = f"{directory}/{model.DROP_IN}.conf"
    main = f"{directory.rstrip('/').removesuffix('.d')}"
    on = options.at_least(1, 30) is True
    by, required = "", list[str]()
    for path in [main, *(f"{directory}/{name}" for name in tree.names(directory))]:
        document = toml.read(path, tree.text(path) or "")
        nri = toml.table(document, ("crio", "nri")) or {}
        if "enable_nri" in nri:
            on, by = nri["enable_nri"] is True, path
        validator = toml.table(nri, ("default_validator",)) or {}
        required = list(validator.get("nri_validator_required_plugins", required))
    if not on and by > own and by != main:
        raise errors.ConfigError(
            f"{by}: switches NRI off, and is read after {own}",
            hint="change enable_nri there to true, or remove it",
        )
    before = tree.text(own)
    after = before or ""
    if not on:
        after = toml.put(own, after, ("crio", "nri"), {"enable_nri": True})
    if options.require and model.NAME not in required:
        _can_require(options)
        after = toml.put(
            own, after, ("crio", "nri", "default_validator"),
            {
                "nri_enable_default_validator": True,
                "nri_validator_required_plugins": [*required, model.NAME],
            },
        )  # fmt: skip
    if after == (before or ""):
        return model.Proposal(notes=("NRI is on in CRI-O: nothing to do",))
    change = model.File(path=own, before=before, after=after)
    return model.Proposal(changes=(change,), then=("systemctl restart crio",))


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
