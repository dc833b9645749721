# SPDX-License-Identifier: Apache-2.0
"""A strict reader of the protobuf wire format, and a writer of single fields.

The message library accepts truncated fields and wrong wire types silently, so whatever a peer
sends passes `check()` before it is parsed. `fields()` also serves the small parts which a schema
declares as bytes, at a fraction of the library's cost.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    # For the names of types alone: it takes long, and the command line has only fields to read.
    import betterproto

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 32
_SINGLE = [bytes([value]) for value in range(0x80)]
_LENGTH_TYPES = frozenset({"string", "bytes", "message", "map"})
_PLAIN = [key & 0x87 == LENGTH and key >= 8 for key in range(256)]
"""Whether a byte is the whole key of a field that holds bytes."""
_FIXED_TYPES = {
    "fixed32": FIXED32,
    "sfixed32": FIXED32,
    "float": FIXED32,
    "fixed64": FIXED64,
    "sfixed64": FIXED64,
    "double": FIXED64,
}


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give (field number, value) in order: an int for a varint, else the raw bytes.

    Raises RemoteProtocolError where the data does not follow the format: truncated, a varint of
    more than 64 bits, field number 0, a wire type that proto3 has not.
    """
    for number, _, value in walk(data):
        yield number, value


def is_framed(
    data: bytes, numbers: frozenset[int], begin: int = 0, end: int | None = None
) -> bool:
    """Tell whether `walk()` gets through a message whose fields `numbers` all hold bytes.

    The message is what `data` holds from `begin` to `end`, else all of it. For a quarter of the
    time: what the fields hold is not touched.
    """
    position, plain = begin, _PLAIN
    end = len(data) if end is None else end
    try:
        while position < end:
            size = data[position + 1]
            if size < 0x80 and plain[data[position]]:
                position += size + 2
            else:
                position = _skip(data, position, numbers)
    except (IndexError, errors.RemoteProtocolError):
        return False
    return position == end


def gathered(data: bytes, numbers: frozenset[int]) -> dict[int, list[bytes]]:
    """Give what the fields `numbers`, of 1 to 15, hold, in the order of each; all of them bytes.

    In half the time of `walk`, and for the same data: raises RemoteProtocolError as that does, and
    where one of them does not hold bytes. Other fields are passed over.
    """
    found: dict[int, list[bytes]] = {number: [] for number in numbers}
    wanted = {number << 3 | LENGTH: values for number, values in found.items()}
    position, end, plain = 0, len(data), _PLAIN
    try:
        while position < end:
            key, size = data[position], data[position + 1]
            if plain[key]:
                begin = position + 2
                if size >= 0x80:
                    size, begin = read_varint(data, position + 1)
                position = begin + size
            else:
                key, begin = read_varint(data, position)
                position = _skip(data, position, numbers)
                if key in wanted:
                    size, begin = read_varint(data, begin)
            if position > end:
                break
            if key in wanted:
                wanted[key].append(data[begin:position])
    except IndexError:
        position = end + 1
    if position != end:
        raise errors.RemoteProtocolError(f"a message of {end} bytes is cut off in a field")
    return found


def _skip(data: bytes, position: int, numbers: frozenset[int]) -> int:
    """Give where the next field begins; raises RemoteProtocolError."""
    key, position = read_varint(data, position)
    number, wire_type = key >> 3, key & 7
    if not 0 < number < 1 << 29 or (number in numbers and wire_type != LENGTH):
        raise errors.RemoteProtocolError(f"field {number} has wire type {wire_type}")
    if wire_type == VARINT:
        return read_varint(data, position)[1]
    if wire_type == LENGTH:
        size, position = read_varint(data, position)
        return position + size
    if wire_type not in {FIXED64, FIXED32}:
        raise errors.RemoteProtocolError(f"field {number} has wire type {wire_type}")
    return position + (8 if wire_type == FIXED64 else 4)


def signed(value: int) -> int:
    """Give what an int32 or int64 field means by a varint (two's complement in 64 bits)."""
    return value - (1 << 64) if value >> 63 else value


def piece(number: int, value: bytes) -> bytes:
    """Give a string, bytes or message field as it is sent; unlike a number it is sent if empty."""
    return b"%b%b%b" % (varint(number << 3 | LENGTH), varint(len(value)), value)


def varint(value: int) -> bytes:
    """Give a number, of a field or alone, as it is sent; a negative one in 64 bits."""
    if 0 <= value < 0x80:
        return _SINGLE[value]
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def text(value: int | bytes) -> str:
    """Decode a string field."""
    if isinstance(value, int):
        raise errors.RemoteProtocolError("a string field holds a number")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise errors.RemoteProtocolError(f"a string field is not UTF-8: {error}") from None


def check(message: "type[betterproto.Message]", data: bytes) -> None:
    """Raise RemoteProtocolError unless `data` is a well-formed `message`; unknown fields pass."""
    _check(message, data, 0)


def _check(message: "type[betterproto.Message]", data: bytes, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise errors.RemoteProtocolError(f"a message is nested more than {_MAX_DEPTH} deep")
    known = _schema(message)
    for number, wire_type, value in walk(data):
        field = known.get(number)
        if field is None:
            continue
        name, expected, kind, inner = field
        packed = wire_type == LENGTH and expected != LENGTH
        if packed or wire_type != expected:
            # Packed scalars would be legal in a repeated field; no message here has one.
            raise errors.RemoteProtocolError(
                f"field {name} of {message.__name__} has wire type {wire_type}, not {expected}"
            )
        if kind == "string":
            text(value)
        elif inner is not None and isinstance(value, bytes):
            _check(inner, value, depth + 1)


_Field = tuple[str, int, str, "type[betterproto.Message] | None"]


@functools.cache
def _schema(message: "type[betterproto.Message]") -> Mapping[int, _Field]:
    meta: Any = getattr(message, "_betterproto")  # noqa: B009 - a class property mypy cannot type
    return {
        field.number: (
            name,
            LENGTH
            if field.proto_type in _LENGTH_TYPES
            else _FIXED_TYPES.get(field.proto_type, VARINT),
            field.proto_type,
            meta.cls_by_field[name] if field.proto_type in {"message", "map"} else None,
        )
        for name, field in meta.meta_by_field_name.items()
    }


def walk(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Give (field number, wire type, value) in order, as `fields()` does."""
    position, end = 0, len(data)
    while position < end:
        key, position = data[position], position + 1
        if key >= 0x80:
            key, position = read_varint(data, position - 1)
        number, wire_type = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise errors.RemoteProtocolError(f"field number {number} does not exist")
        if wire_type == LENGTH:
            # Nearly all lengths have one byte.
            if position < end and data[position] < 0x80:
                size, position = data[position], position + 1
            else:
                size, position = read_varint(data, position)
        elif wire_type == VARINT:
            value, position = read_varint(data, position)
            yield number, wire_type, value
            continue
        elif wire_type == FIXED64:
            size = 8
        elif wire_type == FIXED32:
            size = 4
        else:
            raise errors.RemoteProtocolError(f"field {number} has wire type {wire_type}")
        if size > end - position:
            raise errors.RemoteProtocolError(
                f"field {number} claims {size} bytes, {end - position} are left"
            )
        yield number, wire_type, data[position : position + size]
        position += size


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint at a place; gives it and where it ends. Raises RemoteProtocolError."""
    result = shift = 0
    for offset in range(position, min(position + 10, len(data))):
        byte = data[offset]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result >> 64:
                break
            return result, offset + 1
        shift += 7
    raise errors.RemoteProtocolError("a varint is cut off or longer than 64 bits")
