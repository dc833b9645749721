# SPDX-License-Identifier: Apache-2.0
"""What the runtime shows of a container, as the neutral Container.

Mounts, hooks, devices and device rules arrive as bytes and are read here by field number
(`protos/nri.proto` has their messages), which costs a tenth of building message objects.
"""

from collections.abc import Iterator, Mapping, Sequence

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.request import container as model
from nri_nvidia.ttrpc import errors, wire

_STAGES = {
    1: "prestart",
    2: "createRuntime",
    3: "createContainer",
    4: "startContainer",
    5: "poststart",
    6: "poststop",
}


def container(pod: api.PodSandbox, shown: api.Container) -> model.Container:
    """Join a container with its pod; of a label or annotation of both, the container's counts.

    Raises RemoteProtocolError when it has no id or a part cannot be decoded.
    """
    if not shown.id:
        raise errors.RemoteProtocolError("the runtime shows a container without an id")
    linux = shown.linux
    return model.Container(
        id=shown.id,
        name=shown.name,
        pod=pod.name,
        namespace=pod.namespace,
        pod_uid=pod.uid,
        labels={**pod.labels, **shown.labels},
        annotations={**pod.annotations, **shown.annotations},
        env=tuple(shown.env),
        mounts=tuple(_mount(data) for data in shown.mounts),
        devices=tuple(_device(data) for data in linux.devices),
        hooks=tuple(_hooks(shown.hooks)),
        privileged=privileged(linux.resources.devices),
        user_namespace=any(_namespace(data) == "user" for data in linux.namespaces),
    )


def listed_pods(elements: Sequence[bytes]) -> dict[str, api.PodSandbox]:
    """Decode pods of a Synchronize, by id; raises RemoteProtocolError."""
    pods = {}
    for data in elements:
        wire.check(api.PodSandbox, data)
        pod = api.PodSandbox().parse(data)
        pods[pod.id] = pod
    return pods


def listed_container(data: bytes, pods: Mapping[str, api.PodSandbox]) -> model.Container:
    """Decode a container of a Synchronize; its pod may be unknown. Raises RemoteProtocolError."""
    wire.check(api.Container, data)
    shown = api.Container().parse(data)
    return container(pods.get(shown.pod_sandbox_id) or api.PodSandbox(), shown)


def privileged(rules: Sequence[bytes]) -> bool | None:
    """Give True when a device rule allows everything, else None: NRI does not show it otherwise.

    A privileged container has an allow rule for `rwm` without type, major or minor.
    """
    return True if any(_allows_all(data) for data in rules) else None


def _allows_all(data: bytes) -> bool:
    allow, kind, access = False, "", ""
    for number, value in wire.fields(data):
        match number:
            case 1:
                allow = bool(value)
            case 2:
                kind = wire.text(value)
            case 3 | 4:
                if _optional(value) >= 0:
                    return False
            case 5:
                access = wire.text(value)
            case _:
                pass
    return allow and kind in {"", "a"} and set("rwm") <= set(access)


def _optional(value: int | bytes) -> int:
    """Read an OptionalInt64: present without a value means 0."""
    return next((_number(inner) for number, inner in wire.fields(_raw(value)) if number == 1), 0)


def _namespace(data: bytes) -> str:
    return next((wire.text(value) for number, value in wire.fields(data) if number == 1), "")


def _mount(data: bytes) -> model.Mount:
    destination = kind = source = ""
    options = []
    for number, value in wire.fields(data):
        match number:
            case 1:
                destination = wire.text(value)
            case 2:
                kind = wire.text(value)
            case 3:
                source = wire.text(value)
            case 4:
                options.append(wire.text(value))
            case _:
                pass
    return model.Mount(destination=destination, type=kind, source=source, options=tuple(options))


def _device(data: bytes) -> model.Device:
    path = kind = ""
    major = minor = 0
    for number, value in wire.fields(data):
        match number:
            case 1:
                path = wire.text(value)
            case 2:
                kind = wire.text(value)
            case 3:
                major = _number(value)
            case 4:
                minor = _number(value)
            case _:
                pass
    return model.Device(path=path, type=kind, major=major, minor=minor)


def _hooks(data: bytes) -> Iterator[model.Hook]:
    for number, value in wire.fields(data):
        stage = _STAGES.get(number)
        if stage is not None:
            yield _hook(stage, _raw(value))


def _hook(stage: str, data: bytes) -> model.Hook:
    path, args = "", []
    for number, value in wire.fields(data):
        if number == 1:
            path = wire.text(value)
        elif number == 2:
            args.append(wire.text(value))
    return model.Hook(stage=stage, path=path, args=tuple(args))


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise errors.RemoteProtocolError("a number field holds bytes")
    return wire.signed(value)


def _raw(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise errors.RemoteProtocolError("a message field holds a number")
    return value
