# SPDX-License-Identifier: Apache-2.0
"""What the runtime shows of a container, as the neutral Container.

All of it is read from the wire by field number (`protos/nri.proto` has the messages), strictly,
and straight into the values: by way of message objects it takes twenty times as long, and a
runtime's other containers wait meanwhile. Parts that are the same in most containers, as the
mounts of /proc and /sys are, are read once.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs

from nri_nvidia.request import container as model
from nri_nvidia.ttrpc import errors, wire

T = TypeVar("T")
_STAGES = {
    1: "prestart",
    2: "createRuntime",
    3: "createContainer",
    4: "startContainer",
    5: "poststart",
    6: "poststop",
}
_REQUEST = frozenset({1, 2})
_POD = frozenset({1, 2, 3, 4, 5, 6, 7})
_CONTAINER = frozenset({1, 2, 3, 5, 6, 8, 9, 10, 11})
_POD_OF = frozenset({2})
"""The numbers of the fields that are read of each message."""
_ID, _SHOWN = (wire.piece(number, b"")[:1] for number in (1, 2))
"""The first byte of a message's field 1, as a container's id and a request's pod are, and of 2."""
_KEPT_PARTS, _KEPT_LENGTH = 512, 512
"""How many parts of a kind are kept as read, and of at most how many bytes each."""


@attrs.frozen(kw_only=True)
class Pod:
    """What is read of a pod; all of it is empty for a container whose pod is not known."""

    id: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    runtime_handler: str = ""


def created(data: bytes) -> model.Container:
    """Read a CreateContainerRequest; raises RemoteProtocolError, also without a container's id."""
    pod_data, shown = _halves(data)
    return container(shown, pod(pod_data))


def is_whole(data: bytes) -> bool:
    """Tell whether a CreateContainerRequest can be read, as far as its framing tells.

    Its pod's and its container's fields add up, and the container's first is its id, as runtimes
    send it. What the fields hold is not looked at.
    """
    try:
        places = _places(data)
        if places is None:
            pod_data, shown = _halves(data)
            data, places = pod_data + shown, (0, len(pod_data), len(pod_data))
    except errors.RemoteProtocolError:
        return False
    begin, end, inside = places
    has_id = data[inside : inside + 1] == _ID and data[inside + 1 : inside + 2] != b"\0"
    return (
        has_id
        and wire.is_framed(data, _CONTAINER, inside)
        and wire.is_framed(data, _POD, begin, end)
    )


def pod(data: bytes) -> Pod:
    """Read a PodSandbox; raises RemoteProtocolError."""
    found = wire.gathered(data, _POD)
    return Pod(
        id=_text(found[1]),
        name=_text(found[2]),
        uid=_text(found[3]),
        namespace=_text(found[4]),
        labels=dict(map(_pair, found[5])),
        annotations=dict(map(_pair, found[6])),
        runtime_handler=_text(found[7]),
    )


def container(data: bytes, of: Pod) -> model.Container:
    """Read a Container and join it with its pod; of a label of both, the container's counts.

    Raises RemoteProtocolError when it has no id or a part cannot be decoded.
    """
    found = wire.gathered(data, _CONTAINER)
    identifier = _text(found[1])
    if not identifier:
        raise errors.RemoteProtocolError("the runtime shows a container without an id")
    devices, rules, own_users, cgroup = _linux(b"".join(found[11]))
    return model.Container(
        id=identifier,
        name=_text(found[3]),
        pod=of.name,
        namespace=of.namespace,
        pod_uid=of.uid,
        sandbox=of.id,
        labels={**of.labels, **dict(map(_pair, found[5]))},
        annotations={**of.annotations, **dict(map(_pair, found[6]))},
        pod_annotations=of.annotations,
        env=_texts(found[8]),
        mounts=tuple(map(_mount, found[9])),
        devices=devices,
        hooks=tuple(_hooks(b"".join(found[10]))),
        runtime_handler=of.runtime_handler,
        privileged=privileged(rules),
        user_namespace=own_users,
        cgroup=cgroup,
    )


def listed_pods(elements: Sequence[bytes]) -> dict[str, Pod]:
    """Decode pods of a Synchronize, by id; raises RemoteProtocolError."""
    return {found.id: found for found in map(pod, elements)}


def listed_container(data: bytes, pods: Mapping[str, Pod]) -> model.Container:
    """Decode a container of a Synchronize; its pod may be unknown. Raises RemoteProtocolError."""
    found = wire.gathered(data, _POD_OF)
    return container(data, pods.get(wire.text(found[2][0]) if found[2] else "", Pod()))


def _halves(data: bytes) -> tuple[bytes, bytes]:
    """Give pod and container of a request; pieces of one message add up to it."""
    places = _places(data)
    if places is not None:
        begin, end, inside = places
        return data[begin:end], data[inside:]
    found = wire.gathered(data, _REQUEST)
    return b"".join(found[1]), b"".join(found[2])


def _places(data: bytes) -> tuple[int, int, int] | None:
    """Give where a request's pod begins and ends and its container begins, which ends with it.

    None for one that is not made so. Raises RemoteProtocolError.
    """
    if data[:1] != _ID:
        return None
    size, begin = wire.read_varint(data, 1)
    end = begin + size
    if data[end : end + 1] != _SHOWN:
        return None
    rest, inside = wire.read_varint(data, end + 1)
    return (begin, end, inside) if inside + rest == len(data) else None


def _text(found: list[bytes]) -> str:
    """Read a string field: of one that comes several times the last counts."""
    return _texts(found)[-1] if found else ""


def _texts(found: list[bytes]) -> tuple[str, ...]:
    try:
        return tuple([value.decode() for value in found])
    except UnicodeDecodeError as error:
        raise errors.RemoteProtocolError(f"a string field is not UTF-8: {error}") from None


def _kept(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Keep what short parts were read as: a container may hold long ones, and many."""
    keeping = functools.lru_cache(maxsize=_KEPT_PARTS)(read)

    @functools.wraps(read)
    def reading(data: bytes) -> T:
        return keeping(data) if len(data) <= _KEPT_LENGTH else read(data)

    return reading


def _linux(data: bytes) -> tuple[tuple[model.Device, ...], list[bytes], bool, str]:
    """Read a LinuxContainer: devices, device rules, whether its users are its own, its cgroup."""
    devices: list[model.Device] = []
    rules: list[bytes] = []
    own_users = False
    cgroup = ""
    for number, value in wire.fields(data):
        if number == 1:
            own_users = _namespace(_raw(value)) == "user" or own_users
        elif number == 2:
            devices.append(_device(_raw(value)))
        elif number == 3:
            rules += [_raw(rule) for inner, rule in wire.fields(_raw(value)) if inner == 7]
        elif number == 5:
            cgroup = wire.text(value)
    return tuple(devices), rules, own_users, cgroup


@_kept
def _pair(data: bytes) -> tuple[str, str]:
    """Read an entry of a map."""
    key = value = ""
    for number, part in wire.fields(data):
        if number == 1:
            key = wire.text(part)
        elif number == 2:
            value = wire.text(part)
    return key, value


def privileged(rules: Sequence[bytes]) -> bool | None:
    """Give True when a device rule allows everything, else None: NRI does not show it otherwise.

    A privileged container has an allow rule for `rwm` without type, major or minor.
    """
    return True if any(_allows_all(data) for data in rules) else None


@_kept
def _allows_all(data: bytes) -> bool:
    allow, kind, access = False, "", ""
    for number, value in wire.fields(data):
        match number:
            case 1:
                allow = bool(value)
            case 2:
                kind = wire.text(value)
            case 3 | 4:
                if optional(value) >= 0:
                    return False
            case 5:
                access = wire.text(value)
            case _:
                pass
    return allow and kind in {"", "a"} and set("rwm") <= set(access)


def optional(value: int | bytes) -> int:
    """Read an OptionalInt64: present without a value means 0."""
    return next((_number(inner) for number, inner in wire.fields(_raw(value)) if number == 1), 0)


@_kept
def _namespace(data: bytes) -> str:
    return next((wire.text(value) for number, value in wire.fields(data) if number == 1), "")


@_kept
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


@_kept
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
    # `u` is another name of `c` (OCI config-linux.md, mknod(1)).
    return model.Device(path=path, type="c" if kind == "u" else kind, major=major, minor=minor)


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
