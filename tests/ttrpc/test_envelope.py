# SPDX-License-Identifier: Apache-2.0
"""The message around a call: the quick way to read it gives what the careful one would."""

import hypothesis
import pytest
from hypothesis import strategies as st

from nri_nvidia._api import ttrpc
from nri_nvidia.ttrpc import envelope, errors, wire

from . import strategies

relaxed = hypothesis.settings(deadline=None)
PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
FIELDS = st.lists(
    st.one_of(
        st.builds(wire.piece, st.integers(1, 6), st.binary(max_size=200)),
        st.just(wire.piece(1, b"s")),
        st.just(wire.piece(2, b"m")),
        st.just(wire.piece(3, b"payload")),
        st.integers(0, (1 << 64) - 1).map(lambda value: b"\x20" + wire.varint(value)),
        st.sampled_from([b"\x8a\0\1s", b"\x1a\x80\0", b"\x20", b"\x0a\1\xff", b"\x1a\x7f"]),
    ),
    max_size=6,
).map(b"".join)


@relaxed
@hypothesis.given(st.one_of(strategies.requests, FIELDS, st.binary(max_size=40)))
def test_the_quick_way_agrees_or_leaves_it(data):
    """For any bytes it gives what is read field by field, or nothing."""
    quick = envelope._as_usual(1, data)
    if quick is not None:
        assert quick == envelope._request(1, data)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 6000, 1 << 20])
@pytest.mark.parametrize("limit", [0, 1, 2_000_000_000])
def test_what_a_runtime_sends_is_read_the_quick_way(size, limit):
    """A call as Go writes it, of any length, with a time limit or none."""
    data = bytes(
        ttrpc.Request(service=PLUGIN, method="CreateContainer", payload=b"x" * size,
                      timeout_nano=limit)
    )  # fmt: skip
    expected = envelope.Request(
        stream=1, service=PLUGIN, method="CreateContainer", payload=b"x" * size,
        timeout=limit / 1e9 or None,
    )  # fmt: skip
    assert envelope.request(1, data) == expected
    assert (envelope._as_usual(1, data) == expected) is (size > 0)  # an empty payload is not sent


@pytest.mark.parametrize(
    "data",
    [b"\x0a\1s\x12\1m\x1a\5abc", b"\x0a\1s\x12\1m\x1a\1a\x22\0", b"\x0a\1\xff\x12\1m\x1a\1a"],
)
def test_a_fault_is_told_by_the_careful_way(data):
    """What is cut off, of a wrong type or no text is refused as before."""
    assert envelope._as_usual(1, data) is None
    with pytest.raises(errors.RemoteProtocolError):
        envelope.request(1, data)


def test_long_names_are_not_kept():
    """A peer cannot fill the memory with what is kept of its calls."""
    data = bytes(ttrpc.Request(service="s" * 5000, method="m", payload=b"x"))
    assert envelope._as_usual(1, data) is None
    assert envelope.request(1, data).service == "s" * 5000
