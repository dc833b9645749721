# SPDX-License-Identifier: Apache-2.0
import hypothesis
import pytest
from hypothesis import strategies as st

from nri_nvidia.testing import framing
from nri_nvidia.ttrpc import errors, frames, mux

from . import strategies

relaxed = hypothesis.settings(deadline=None)


def received(pieces, limit=64):
    """Give the bytes of each connection in order, and the error or the state."""
    reader, found = mux.Reader(limit=limit), []
    try:
        for piece in pieces:
            for connection, data in reader.receive(piece):
                if found and found[-1][0] == connection:
                    found[-1] = (connection, found[-1][1] + data)
                else:
                    found.append((connection, data))
    except errors.RemoteProtocolError as error:
        return found, str(error)
    return found, reader.between_frames


@relaxed
@hypothesis.given(strategies.streams(strategies.mux_frames()), strategies.points)
def test_any_bytes_in_any_split_give_the_same(data, points):
    """The pieces in which bytes arrive change neither the streams nor the error."""
    assert received(strategies.split(data, points)) == received([data])


@relaxed
@hypothesis.given(st.lists(st.tuples(st.integers(0, 9), st.binary(min_size=1, max_size=50))))
def test_streams_come_out_as_they_went_in(sent):
    """Each connection's bytes are whole and in order."""
    whole = b"".join(mux.encode(connection, data) for connection, data in sent)
    reader = mux.Reader()
    assert list(reader.receive(whole)) == sent
    assert reader.between_frames


def test_header_and_data_go_in_two_frames():
    """A message is two frames in one piece of bytes, and an empty part makes none."""
    assert mux.encode(1, b"ab", b"c") == b"\0\0\0\1\0\0\0\2ab" + b"\0\0\0\1\0\0\0\1c"
    assert mux.encode(1, b"ab", b"") == b"\0\0\0\1\0\0\0\2ab"


def test_frames_without_payload_are_tolerated():
    """A Go peer may send them, 200 in a row have been seen to be harmless."""
    assert received([b"\0\0\0\1\0\0\0\0" * 200 + mux.encode(2, b"x")]) == ([(2, b"x")], True)


def test_a_bogus_length_is_an_error():
    """A length that no message has means that bytes were lost."""
    with pytest.raises(errors.RemoteProtocolError, match="announces 4278190080 bytes"):
        list(mux.Reader().receive(b"\0\0\0\1\xff\0\0\0"))


@pytest.mark.parametrize("size", [0, 1, 4085, 4086, 4087, 4096, 4097, 10_743, frames.MAX_SENT])
def test_a_go_peer_takes_what_is_sent(size):
    """Whatever the size of a message, its frames fit into what a Go reader offers."""
    frame = frames.Frame(stream=1, type=frames.Type.RESPONSE, data=bytes(size))
    reader = framing.GoReader()
    whole = mux.encode(1, *frames.encode(frame)) * 3
    assert sum(len(piece) for _, piece in reader.receive(whole)) == 3 * (10 + size)


@pytest.mark.parametrize(("size", "taken"), [(4086, True), (4087, False), (10_743, False)])
def test_a_go_peer_does_not_take_one_large_frame(size, taken):
    """Header and data in one frame pass up to 4096 bytes and kill the connection above."""
    frame = frames.Frame(stream=1, type=frames.Type.RESPONSE, data=bytes(size))
    whole = mux.encode(1, b"".join(frames.encode(frame)))
    reader = framing.GoReader()
    if taken:
        assert len(list(reader.receive(whole))) == 1
    else:
        with pytest.raises(errors.RemoteProtocolError, match="ENOMEM"):
            list(reader.receive(whole))


@relaxed
@hypothesis.given(st.integers(0, 20_000))
def test_what_go_writes_is_understood(size):
    """A message which Go's writer split at 4096 bytes is put together again."""
    frame = frames.Frame(stream=1, type=frames.Type.REQUEST, data=bytes(size))
    whole = framing.go_framing(1, *frames.encode(frame))
    reader = frames.Reader()
    found = [got for _, piece in mux.Reader().receive(whole) for got in reader.receive(piece)]
    assert found == [frame]
