# SPDX-License-Identifier: Apache-2.0
"""From a container to what it asks for.

Three outcomes are kept apart: no GPU container at all (`request` is None), the driver without a
GPU (`none`: `devices` is empty), and GPUs.
"""

import posixpath
from collections.abc import Iterator, Mapping

import attrs

from nri_nvidia import errors
from nri_nvidia.reasons import Reason
from nri_nvidia.request import (
    claims,
    extras,
    lists,
    model,
    mountlist,
    names,
    policy,
    requirements,
    sharing,
)
from nri_nvidia.request import container as containers
from nri_nvidia.request import rules as access_rules

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"


@attrs.frozen(kw_only=True)
class Parsed:
    """What was read: the request if there is one, why something was left out, what is wrong.

    With an `error` the request holds as much as could be read before it.
    """

    request: model.GpuRequest | None = None
    reasons: tuple[Reason, ...] = ()
    error: errors.RequestError | errors.PolicyError | None = None


def parse(
    container: containers.Container,
    rules: policy.RequestPolicy,
    image: access_rules.Image | None = None,
) -> Parsed:
    """Read a container's request: sharing > annotations > the pod's > mounts > environment.

    The channels are alternatives and are never merged (toolkit `image/devices.go`). IMEX channels
    asked for by mounts do not count as a request for a GPU. What reaches beyond the container's
    GPUs is in the request only where policy lets it be (`claims`).
    """
    env = container.environment()
    legacy = is_legacy_image(env)
    noted = list(mountlist.misread(container.mounts)) if rules.accept_volume_mounts else []
    channel = (
        _from_sharing(container)
        or _from_annotations(container, rules)
        or _from_pod(container, rules)
        or _from_mounts(container, rules)
        or _from_environment(env, rules, legacy=legacy)
    )
    if channel is None:
        return Parsed(reasons=(*noted, *_nothing_asked(container, env, rules)))
    source, variable, devices = channel
    if source is model.Source.ENV and not _may_use_environment(container, rules):
        noted.append(
            Reason(
                code="environment-not-accepted",
                message=f"{_said(variable, env)} is ignored: the container is not privileged and "
                "this node takes GPU requests from the environment of privileged containers only",
                hint="request.accept_env_when_unprivileged allows it for all",
            )
        )
        return Parsed(reasons=(*noted, *_not_mounted(container, rules)))
    noted += _passed_over(source, variable, devices, env, rules)
    named = extras.named(devices)
    if source is model.Source.ENV:
        noted += lists.without_effect(f"{variable}=", _listed(env, rules)[1])
    joint = "=" if source is model.Source.ENV else ": "
    noted += lists.beside_name(f"{variable}{joint}", named.devices)
    request = model.GpuRequest(
        source=source,
        devices=named.devices,
        variable=variable,
        legacy_image=legacy,
        imex_channels=_with_named(named.imex_channels, source, container, rules),
        groups=tuple(dict.fromkeys((*named.groups, *extras.groups(env)))),
        capabilities=frozenset(),
        shares=sharing.named(container) if source is model.Source.SHARE else "",
    )
    try:
        sharing.require_possible(request, container)
        held = _held(request, named, container=container, env=env, rules=rules, image=image)
        noted += held.reasons
        if held.error:
            return Parsed(request=request, reasons=tuple(noted), error=held.error)
        if named.devices and not held.devices:
            return Parsed(reasons=tuple(noted))  # all that it named is ignored
        kept = (held.devices, held.imex_channels, held.groups)
        if kept != (request.devices, request.imex_channels, request.groups):
            request = attrs.evolve(
                request,
                devices=held.devices,
                imex_channels=held.imex_channels,
                groups=held.groups,
            )
        chosen = capabilities(env, rules, legacy=legacy)
        wanted = requirements.collect(env, legacy=legacy, disabled=rules.disable_require)
    except errors.RequestError as error:
        return Parsed(request=request, reasons=tuple(noted), error=error)
    request = attrs.evolve(
        request,
        capabilities=chosen,
        all_capabilities=_wants_all_capabilities(env, legacy=legacy),
        requirements=wanted,
        all_lists=env.get("NVIDIA_REQUIRE_JETPACK") == "csv-mounts=all",
        disable_require=env.get(requirements.DISABLE, "") if wanted else "",
        mig_management=held.overseeing or held.managed,
    )
    try:
        extras.require_all(held.managed, env)
    except errors.RequestError as error:
        return Parsed(request=request, reasons=tuple(noted), error=error)
    return Parsed(request=request, reasons=tuple(noted))


def markers(rules: policy.RequestPolicy) -> tuple[bytes, ...]:
    """Give texts of which a container holds one, in UTF-8, if `parse` reads anything from it.

    One without any of them in its variables, mounts and annotations is no GPU container, and
    nothing is to be said of it, whatever else it has; the contrary is not true. Each is what the
    channels above look for: a variable that is set, the directory in a mount's destination (of
    the whole path only the names are sure, since it need not be clean), an annotation's prefix.
    """
    variables = (VISIBLE_DEVICES, "CUDA_VERSION", *rules.swarm_resources)
    texts = [f"{name}=" for name in variables]
    texts.append(posixpath.basename(mountlist.ROOT))  # not accepted, they are told of
    texts += (containers.SHARE_PREFIX, *rules.annotation_prefixes)
    texts += [containers.PLUGIN_PREFIX] if rules.accept_pod_annotations else []
    # What is no text cannot be in one, either: that no request holds.
    return tuple(text.encode("utf-8", "surrogatepass") for text in dict.fromkeys(texts))


def _passed_over(
    source: model.Source,
    variable: str,
    devices: tuple[str, ...],
    env: Mapping[str, str],
    rules: policy.RequestPolicy,
) -> list[Reason]:
    """Say that the environment asks for something else than the channel that counts."""
    if source is model.Source.ENV:
        return []
    asked = _from_environment(env, rules, legacy=False)
    # The device plugin sets the variable to the mounts' root as a mark, and CDI's edits to void.
    if asked is None or asked[2] in {(mountlist.ROOT,), devices}:
        return []
    return [
        Reason(
            code="environment-passed-over",
            message=f"{_said(asked[1], env)} does not count, since "
            f"{', '.join(devices) or 'no GPU'} is what {variable} "
            f"{'ask' if source is model.Source.MOUNT else 'asks'} for",
        )
    ]


def _said(variables: str, env: Mapping[str, str]) -> str:
    """Write what the variables of a channel say."""
    said = [f"{name}={env[name]}" for name in variables.split(",") if name in env]
    return " ".join(said) or "the default of an old CUDA image"


def is_legacy_image(env: Mapping[str, str]) -> bool:
    """Tell an old CUDA image: it has CUDA_VERSION and no NVIDIA_REQUIRE_CUDA (empty is none)."""
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")


def capabilities(
    env: Mapping[str, str], rules: policy.RequestPolicy, *, legacy: bool
) -> frozenset[model.Capability]:
    """Read NVIDIA_DRIVER_CAPABILITIES.

    Unset means the default, or all that are supported for an old image; empty means the default;
    only separators mean none. Raises RequestError for a name that is unknown or not supported.
    """
    value = env.get(DRIVER_CAPABILITIES)
    if value is None and legacy:
        return rules.supported_capabilities
    if not value:
        return rules.default_capabilities & rules.supported_capabilities
    names = _names(value)
    if "all" in names:
        return rules.supported_capabilities
    supported = {str(capability) for capability in rules.supported_capabilities}
    unsupported = [name for name in dict.fromkeys(names) if name not in supported]
    if not unsupported:
        return frozenset(model.Capability(name) for name in names)
    known = {str(capability) for capability in model.ALL_CAPABILITIES}
    unknown = [name for name in unsupported if name not in known]
    listed = ", ".join(sorted(supported)) or "none"
    what = "no such capability" if unknown else "not supported on this node"
    raise errors.RequestError(
        f"{DRIVER_CAPABILITIES}={value}: {', '.join(unknown or unsupported)}: {what}; "
        f"this node supports {listed}",
        hint="use a comma list of these, or all",
        code="unsupported-capability",
    )


def _wants_all_capabilities(env: Mapping[str, str], *, legacy: bool) -> bool:
    value = env.get(DRIVER_CAPABILITIES)
    return legacy if value is None else "all" in _names(value)


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


_Channel = tuple[model.Source, str, tuple[str, ...]]


def _from_sharing(container: containers.Container) -> _Channel | None:
    """Read the pod's annotation by which a container has what another one of the pod holds.

    It comes first: whoever writes it wants this of the container, whatever its image says.
    """
    key, other = sharing.key(container), sharing.named(container) or "''"
    return (model.Source.SHARE, f"annotation {key}", (f"container {other}",)) if key else None


def _from_annotations(
    container: containers.Container, rules: policy.RequestPolicy
) -> _Channel | None:
    """Read the container's CDI annotations, by which the kubelet hands on what was allocated.

    A pod's own are its author's, and do not count. Names of other vendors are the runtime's. The
    keyword `none` means the CDI name, as every id without a kind does there (toolkit, mode cdi).
    """
    prefixes = rules.annotation_prefixes
    keys = sorted(key for key in container.annotations if key.startswith(prefixes))
    found: dict[str, str] = {}
    for key in keys:
        value = container.annotations[key]
        if container.pod_annotations.get(key) != value:
            for name in map(str.strip, value.split(",")):
                if not names.is_foreign(name):
                    found.setdefault(_by_cdi(name), key)
    if not found:
        return None
    variable = f"annotation {next(iter(found.values()))}"
    return (model.Source.ANNOTATION, variable, tuple(name for name in found if name))


def _by_cdi(name: str) -> str:
    return names.NO_GPU if name == "none" else name


def _from_pod(container: containers.Container, rules: policy.RequestPolicy) -> _Channel | None:
    """Read the annotation that NVIDIA's NRI plugin would serve, where we do in its place."""
    key = container.plugin_annotation if rules.accept_pod_annotations else ""
    if not key:
        return None
    found = map(str.strip, container.annotations[key].split(","))
    devices = tuple(dict.fromkeys(_by_cdi(name) for name in found if name))
    return (model.Source.ANNOTATION, f"annotation {key}", devices) if devices else None


def _from_mounts(container: containers.Container, rules: policy.RequestPolicy) -> _Channel | None:
    devices = mountlist.devices(container.mounts) if rules.accept_volume_mounts else ()
    return (model.Source.MOUNT, f"mounts below {mountlist.ROOT}", devices) if devices else None


def _from_environment(
    env: Mapping[str, str], rules: policy.RequestPolicy, *, legacy: bool
) -> _Channel | None:
    variables, members = _listed(env, rules)
    if not variables:
        return (model.Source.ENV, VISIBLE_DEVICES, ("all",)) if legacy else None
    devices = lists.devices(members)
    return None if devices is None else (model.Source.ENV, variables, devices)


def _listed(env: Mapping[str, str], rules: policy.RequestPolicy) -> tuple[str, tuple[str, ...]]:
    """Give the variables that count, joined by commas, and the members of their lists."""
    found = [name for name in rules.swarm_resources if name in env] or [VISIBLE_DEVICES]
    found = [name for name in found if name in env]
    return ",".join(found), lists.items(env[name] for name in found)


def _not_mounted(container: containers.Container, rules: policy.RequestPolicy) -> Iterator[Reason]:
    if not rules.accept_volume_mounts:
        yield from mountlist.not_accepted(container.mounts)


def _nothing_asked(
    container: containers.Container, env: Mapping[str, str], rules: policy.RequestPolicy
) -> Iterator[Reason]:
    """Say what of a container that asks for nothing reads as if it did."""
    yield from _not_mounted(container, rules)
    variables, members = _listed(env, rules)
    yield from lists.without_effect(f"{variables}=", members)


def _may_use_environment(container: containers.Container, rules: policy.RequestPolicy) -> bool:
    return rules.accept_env_when_unprivileged or container.privileged is True


def imex_channels(container: containers.Container, rules: policy.RequestPolicy) -> tuple[str, ...]:
    """Read the IMEX channels; `all` is possible through mounts only, `none` is none."""
    if rules.ignore_imex_channels:
        return ()
    value = container.variable(IMEX_CHANNELS)
    if rules.accept_volume_mounts:
        asked = mountlist.channels(container.mounts)
        if asked:
            return asked
    if value is None or not _may_use_environment(container, rules):
        return ()
    channels = lists.devices(lists.items([value]))
    return () if channels is None or channels == ("all",) else channels


def _with_named(
    named: tuple[str, ...],
    source: model.Source,
    container: containers.Container,
    rules: policy.RequestPolicy,
) -> tuple[str, ...]:
    """Give the channels named beside the GPUs, which win over those of a channel further down.

    `none` is none, and what the variable of the channels cannot ask for no other variable can.
    """
    nothing = {"none", "all"} if source is model.Source.ENV else {"none"}
    asked = tuple(name for name in dict.fromkeys(named) if name not in nothing)
    if asked and not rules.ignore_imex_channels:
        return asked
    return imex_channels(container, rules)


def _held(
    request: model.GpuRequest,
    named: extras.Named,
    *,
    container: containers.Container,
    env: Mapping[str, str],
    rules: policy.RequestPolicy,
    image: access_rules.Image | None,
) -> claims.Held:
    """Give what policy lets a request have; raises RequestError by NVIDIA's own rules."""
    source = access_rules.source(request)
    mounted = rules.accept_volume_mounts and bool(mountlist.channels(container.mounts))
    if named.imex_channels:
        imex = (source, request.variable)
    elif mounted:
        imex = (access_rules.Source.MOUNT, f"mounts below {mountlist.ROOT}/imex")
    else:
        imex = (access_rules.Source.ENV, IMEX_CHANNELS)
    return claims.hold(
        claims.Asker(
            container=container,
            source=source,
            variable=request.variable,
            policy=rules,
            image=image,
        ),
        claims.Held(
            devices=request.devices, imex_channels=request.imex_channels, groups=request.groups
        ),
        env,
        imex=imex,
    )
