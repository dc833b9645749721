# SPDX-License-Identifier: Apache-2.0
import hypothesis
import pytest
from grpclib import const

from nri_nvidia._api import ttrpc
from nri_nvidia._api.google import rpc
from nri_nvidia.ttrpc import connection, errors, frames, mux

from . import strategies

relaxed = hypothesis.settings(deadline=None)
LIMIT = 128


def side(**options):
    return connection.Connection(serves=1, calls=2, **options)


def other(**options):
    return connection.Connection(serves=2, calls=1, **options)


def request(stream, data=b"", *, kind=frames.Type.REQUEST, flags=0, mux_id=1):
    frame = frames.Frame(stream=stream, type=kind, flags=flags, data=data)
    return mux.encode(mux_id, *frames.encode(frame))


def outcome(pieces, points):
    """Feed pieces to a side that has a call open; give events, error and state."""
    state, found = side(limit=LIMIT), []
    state.call("s", "m", b"", 1.0)
    try:
        for piece in pieces:
            for event in state.receive(piece):
                found.append(event)  # noqa: PERF402 - keeps what comes before an error
            assert state.buffered <= 2 * (LIMIT + frames.HEADER_SIZE)
        state.receive_eof()
    except errors.RemoteProtocolError as error:
        return found, str(error)
    return found, None


@relaxed
@hypothesis.given(strategies.streams(strategies.mux_frames()), strategies.points)
def test_any_bytes_in_any_split_give_the_same(data, points):
    """Any bytes, also cut off anywhere, give the same events and error in every split."""
    assert outcome(strategies.split(data, points), points) == outcome([data], points)


def test_a_call_arrives_and_is_answered():
    """Both directions carry calls; stream ids are 1, 3, 5 in each."""
    ours, theirs = side(), other()
    for stream in (1, 3, 5):
        called, data = theirs.call("pkg.Service", "Method", b"in", 1.5)
        assert called == stream
        [event] = ours.receive(data)
        assert event == connection.Request(
            stream=stream, service="pkg.Service", method="Method", payload=b"in", timeout=1.5
        )
        assert event.route == "/pkg.Service/Method"
        [answer] = theirs.receive(ours.answer(stream, b"out"))
        assert answer == connection.Response(stream=stream, code=0, message="", payload=b"out")
    called, data = ours.call("back", "M", b"")
    assert (called, next(theirs.receive(data)).timeout) == (1, None)


def test_a_refusal_carries_code_and_message():
    """An error status reaches the caller, also text that is not UTF-8 and very long text."""
    ours, theirs = side(), other()
    _, data = theirs.call("s", "m", b"")
    assert len(list(ours.receive(data))) == 1
    [answer] = theirs.receive(ours.refuse(1, 9, "no /dev/\udcff" + "ä" * 40_000))
    assert answer.code == 9
    assert answer.message.startswith("no /dev/\\udcffä")
    assert len(answer.message.encode()) <= 16 << 10


def test_a_call_is_closed_once():
    """A second answer on a stream is our own mistake and is not sent."""
    ours, theirs = side(), other()
    list(ours.receive(theirs.call("s", "m", b"")[1]))
    ours.answer(1, b"")
    with pytest.raises(errors.LocalProtocolError, match="stream 1 is not open"):
        ours.answer(1, b"")
    with pytest.raises(errors.LocalProtocolError, match="stream 1 is not open"):
        ours.refuse(1, 2, "")


def test_an_answer_that_is_too_long_leaves_the_call_open():
    """After a result over 4 MiB the call can still be refused."""
    ours, theirs = side(), other()
    list(ours.receive(theirs.call("s", "m", b"")[1]))
    with pytest.raises(errors.LocalProtocolError, match="limit"):
        ours.answer(1, bytes(frames.MAX_SENT))
    [answer] = theirs.receive(ours.refuse(1, 8, "too long"))
    assert answer.code == 8


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (request(2), const.Status.INVALID_ARGUMENT, "stream id 2 is not odd"),
        (request(1), const.Status.INVALID_ARGUMENT, "not above the last, 1"),
        (request(3, b"\x0a\x05x"), const.Status.INVALID_ARGUMENT, "undecodable request"),
        (request(3, flags=2), const.Status.UNIMPLEMENTED, "streams are not served"),
    ],
)
def test_a_bad_call_is_refused_and_the_connection_lives(data, status, reason):
    """What is wrong with one call alone fails that call, with a reply on its stream."""
    ours, theirs = side(), other()
    list(ours.receive(theirs.call("s", "m", b"")[1]))
    [event] = ours.receive(data)
    assert event.status is status
    assert reason in event.message
    [(_, header), (_, body)] = mux.Reader().receive(event.reply)
    [frame] = frames.Reader().receive(header + body)
    assert frame.stream == event.stream
    assert ttrpc.Response().parse(frame.data).status.code == status.value
    assert [type(event) for event in ours.receive(request(7))] == [connection.Request]


def test_too_many_open_calls_are_refused():
    """A peer cannot have more calls open than the limit."""
    ours = side(max_open=2)
    kinds = [type(next(ours.receive(request(stream)))) for stream in (1, 3, 5)]
    assert kinds == [connection.Request, connection.Request, connection.Refused]


@pytest.mark.parametrize("kind", [0, frames.Type.RESPONSE, frames.Type.DATA, 77])
def test_a_serving_side_ignores_what_is_no_request(kind):
    """Data frames and types of the future are ignored."""
    assert list(side().receive(request(1, kind=kind))) == []


def test_connections_that_nobody_opened_are_ignored():
    """Frames for other mux ids are dropped, as a Go peer does."""
    assert list(side().receive(mux.encode(0, b"x" * 100) + mux.encode(7, b"y"))) == []


def test_late_and_unknown_answers_are_ignored():
    """An answer to a call that was given up, or never made, means nothing."""
    ours, theirs = side(), other()
    stream, data = ours.call("s", "m", b"")
    list(theirs.receive(data))
    ours.forget(stream)
    assert list(ours.receive(theirs.answer(stream, b""))) == []
    assert list(ours.receive(request(9, kind=frames.Type.RESPONSE, mux_id=2))) == []


@pytest.mark.parametrize("kind", [frames.Type.REQUEST, frames.Type.DATA])
def test_an_answer_of_the_wrong_type_is_the_peers_fault(kind):
    """An open unary call can only be answered with a response; then nothing more is read."""
    ours = side()
    ours.call("s", "m", b"")
    for _ in range(2):
        with pytest.raises(errors.RemoteProtocolError, match="answers stream 1 with a frame"):
            list(ours.receive(request(1, kind=kind, mux_id=2)))


def test_an_undecodable_answer_fails_its_call_alone():
    """A response that is no message becomes the call's error."""
    ours = side()
    ours.call("s", "m", b"")
    [event] = ours.receive(request(1, b"\xff", kind=frames.Type.RESPONSE, mux_id=2))
    assert (event.stream, event.code) == (1, const.Status.INTERNAL.value)


def test_the_end_inside_a_message_is_an_error():
    """Whether the peer stopped in a mux header, a ttRPC header or the data, it is noticed."""
    whole = request(1, bytes(ttrpc.Request(service="s", method="m")))
    for cut in range(len(whole) + 1):
        ours = side()
        list(ours.receive(whole[:cut]))
        assert ours.incomplete is (0 < cut < len(whole))
        if ours.incomplete:
            with pytest.raises(errors.RemoteProtocolError, match="in the middle"):
                ours.receive_eof()
        else:
            ours.receive_eof()


def test_an_expired_timeout_is_kept():
    """A caller whose time is already over sends a negative timeout."""
    data = bytes(ttrpc.Request(service="s", method="m", timeout_nano=-5_000_000_000))
    assert next(side().receive(request(1, data))).timeout == -5.0


def test_metadata_and_unknown_fields_do_no_harm():
    """Runtimes send metadata with most events, and may add fields."""
    known = ttrpc.Request(
        service="s",
        method="m",
        metadata=[ttrpc.KeyValue(key="containerd-namespace-ttrpc", value="k8s.io")] * 2,
    )
    assert next(side().receive(request(1, bytes(known) + b"\xfa\x07\x01x"))).method == "m"


def test_status_details_are_skipped():
    """A status may carry details; they are not looked into."""
    status = rpc.Status(code=3, message="m", details=[b"\xff\xff"])
    ours = side()
    ours.call("s", "m", b"")
    data = bytes(ttrpc.Response(status=status))
    [event] = ours.receive(request(1, data, kind=frames.Type.RESPONSE, mux_id=2))
    assert (event.code, event.message) == (3, "m")
