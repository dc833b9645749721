# SPDX-License-Identifier: Apache-2.0
import hypothesis
import pytest
from hypothesis import strategies as st

from nri_nvidia._api import ttrpc
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.ttrpc import errors, wire

relaxed = hypothesis.settings(deadline=None)


@relaxed
@hypothesis.given(st.binary(max_size=80))
def test_any_bytes_are_fields_or_a_protocol_error(data):
    """Walking any bytes ends, with fields or with RemoteProtocolError."""
    try:
        for number, value in wire.fields(data):
            assert number > 0
            assert isinstance(value, int | bytes)
    except errors.RemoteProtocolError:
        pass


@relaxed
@hypothesis.given(st.binary(max_size=80))
def test_what_passes_the_check_can_be_parsed(data):
    """The library parses without an error whatever passed the check."""
    try:
        wire.check(api.CreateContainerRequest, data)
    except errors.RemoteProtocolError:
        return
    api.CreateContainerRequest().parse(data)


@relaxed
@hypothesis.given(
    st.builds(
        api.Mount,
        destination=st.text(),
        source=st.text(),
        options=st.lists(st.text(), max_size=4),
    )
)
def test_what_the_library_encodes_passes(mount):
    """Every message that the library encodes is well-formed, whole and alone."""
    data = bytes(mount)
    wire.check(api.Mount, data)
    options = [wire.text(value) for number, value in wire.fields(data) if number == 4]
    assert options == mount.options


def test_a_truncated_field_is_refused_although_the_library_takes_it():
    """The library reads a string of 5 bytes from 2; the check does not."""
    data = b"\x0a\x05/a"
    assert api.Mount().parse(data).destination == "/a"
    with pytest.raises(errors.RemoteProtocolError, match="claims 5 bytes, 2 are left"):
        wire.check(api.Mount, data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08\x01", "wire type 0, not 2"),
        (b"\x0a\x01\xff", "not UTF-8"),
        (b"\x0b", "wire type 3"),
        (b"\x02\x00", "field number 0"),
        (b"\x80", "varint"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "varint"),
        (b"\x79\x00", "claims 8 bytes"),
    ],
)
def test_malformed_fields_are_refused(data, reason):
    """Wrong types, text that is not UTF-8, groups and cut varints are told apart."""
    with pytest.raises(errors.RemoteProtocolError, match=reason):
        wire.check(api.Mount, data)


def test_nested_messages_and_maps_are_checked_too():
    """A fault inside a map entry of a nested message is found."""
    entry = b"\x0a\x01k\x12\x05v"
    pod = b"\x2a" + bytes([len(entry)]) + entry
    data = b"\x0a" + bytes([len(pod)]) + pod
    with pytest.raises(errors.RemoteProtocolError, match="claims 5 bytes"):
        wire.check(api.CreateContainerRequest, data)


def test_unknown_fields_pass():
    """A newer peer's fields are skipped."""
    wire.check(ttrpc.Request, b"\xfa\x07\x03new" + b"\xf8\x06\x01")


def test_negative_numbers_are_twos_complement():
    """An int64 of -1 arrives as 64 one bits."""
    data = bytes(api.OptionalInt64(value=-1))
    assert [wire.signed(value) for _, value in wire.fields(data)] == [-1]


def test_a_number_is_not_text():
    """A string field that holds a varint is refused."""
    with pytest.raises(errors.RemoteProtocolError, match="holds a number"):
        wire.text(3)
