# SPDX-License-Identifier: Apache-2.0
import struct
import tracemalloc

import hypothesis
import pytest
from hypothesis import strategies as st

from nri_nvidia.ttrpc import errors, frames

from . import strategies

relaxed = hypothesis.settings(deadline=None)
LIMIT = 64


def events(pieces, limit=LIMIT):
    reader, found = frames.Reader(limit=limit), []
    try:
        for piece in pieces:
            for frame in reader.receive(piece):
                found.append(frame)  # noqa: PERF402 - keeps what comes before an error
            assert reader.buffered < limit + frames.HEADER_SIZE
    except errors.RemoteProtocolError as error:
        return found, str(error)
    return found, reader.buffered


@relaxed
@hypothesis.given(strategies.streams(strategies.ttrpc_frames()), strategies.points)
def test_any_bytes_in_any_split_give_the_same(data, points):
    """The pieces in which bytes arrive change neither the frames nor the error."""
    assert events(strategies.split(data, points)) == events([data])


@relaxed
@hypothesis.given(
    st.integers(0, (1 << 32) - 1), st.integers(0, 255), st.integers(0, 255), st.binary()
)
def test_what_is_encoded_is_read(stream, kind, flags, data):
    """A frame comes out as it went in."""
    frame = frames.Frame(stream=stream, type=kind, flags=flags, data=data)
    reader = frames.Reader()
    assert list(reader.receive(b"".join(frames.encode(frame)))) == [frame]
    assert reader.buffered == 0


def test_a_request_has_the_documented_bytes():
    """Length, stream, type and flags are big-endian, in this order."""
    frame = frames.Frame(stream=3, type=frames.Type.REQUEST, data=b"ab")
    assert frames.encode(frame) == (bytes([0, 0, 0, 2, 0, 0, 0, 3, 1, 0]), b"ab")


def test_data_over_four_mebibytes_is_not_sent():
    """We refuse to send what a Go peer would not take; the limit itself passes."""
    frames.encode(frames.Frame(stream=1, type=2, data=bytes(frames.MAX_SENT)))
    with pytest.raises(errors.LocalProtocolError, match="4194305 bytes"):
        frames.encode(frames.Frame(stream=1, type=2, data=bytes(frames.MAX_SENT + 1)))


def test_nine_megabytes_are_received():
    """A Synchronize of an old runtime is longer than the protocol's limit."""
    data = bytes(9 << 20)
    reader = frames.Reader()
    header = struct.pack(">IIBB", len(data), 1, 1, 0)
    assert [len(frame.data) for frame in reader.receive(header + data)] == [len(data)]


def test_a_bogus_length_is_an_error_and_reserves_nothing():
    """A header which announces 4 GiB ends the stream before any memory is taken for it."""
    tracemalloc.start()
    try:
        with pytest.raises(errors.RemoteProtocolError, match="4294967295 bytes"):
            list(frames.Reader().receive(b"\xff" * 10))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_announced_length_reserves_nothing():
    """Only what has arrived is held, however much has been announced."""
    reader = frames.Reader()
    header = struct.pack(">IIBB", frames.MAX_RECEIVED, 1, 1, 0)
    tracemalloc.start()
    try:
        assert list(reader.receive(header + b"abc")) == []
        assert reader.buffered == 13
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
