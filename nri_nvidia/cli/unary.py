# SPDX-License-Identifier: Apache-2.0
"""One question to a gRPC server on a unix socket, with calls that wait.

A verb of the command line asks once and ends. An event loop, the service's stub and the messages'
library would take several times longer to import than all else that it does.
"""

import socket
import time
import urllib.parse

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

_PIECE = 1 << 16
_WINDOW = 1 << 24
_PREFIX = 5
"""A byte that tells compression, and four of length, before each message (gRPC over HTTP/2)."""
_UNIMPLEMENTED = "12"


class Unanswered(Exception):  # noqa: N818 - no fault of the program
    """Raised when something at the socket gave no answer; its text says what it did instead."""


def call(path: str, route: str, message: bytes, seconds: float) -> bytes:
    """Send an encoded message to `/package.Service/Method`; give the answer's message.

    Raises OSError where nobody listens or nothing is said in time, Unanswered for all that is no
    answer. The protocol is gRPC's PROTOCOL-HTTP2, of which one call needs little.
    """
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(seconds)
        link.connect(path)
        try:
            return _exchange(link, route, message, deadline)
        except h2.exceptions.ProtocolError as error:
            raise Unanswered(f"it does not speak gRPC ({error})") from error


def _exchange(link: socket.socket, route: str, message: bytes, deadline: float) -> bytes:
    state = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
    )
    state.initiate_connection()
    # So that a long answer comes at once, and not in pieces that each wait for our word.
    state.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW})
    state.increment_flow_control_window(_WINDOW)
    stream = state.get_next_available_stream_id()
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": route,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc+proto",
    }
    state.send_headers(stream, [*headers.items()])
    state.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
    link.sendall(state.data_to_send())
    answer, trailers = bytearray(), dict[str, str]()
    while True:
        link.settimeout(max(deadline - time.monotonic(), 0.001))
        data = link.recv(_PIECE)
        if not data:
            raise Unanswered("it closed the connection")
        for event in state.receive_data(data):
            match event:
                case h2.events.DataReceived():
                    answer += event.data or b""
                    state.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    trailers |= {str(name): str(value) for name, value in event.headers or ()}
                case h2.events.StreamEnded():
                    return _message(bytes(answer), trailers)
                case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                    raise Unanswered(f"it broke off ({_named(event.error_code)})")
                case _:
                    pass
        link.sendall(state.data_to_send())


def _message(answer: bytes, trailers: dict[str, str]) -> bytes:
    """Give the one message of a stream that ended; raises Unanswered."""
    if ":status" in trailers and trailers[":status"] != "200":
        raise Unanswered(f"it answers with HTTP status {trailers[':status']}")
    status = trailers.get("grpc-status", "")
    if status != "0":
        said = urllib.parse.unquote(trailers.get("grpc-message", "")) or f"gRPC status {status}"
        if status == _UNIMPLEMENTED:
            said = f"it is another program, or another version of this one ({said})"
        raise Unanswered(said)
    length = int.from_bytes(answer[1:_PREFIX], "big")
    if len(answer) != _PREFIX + length or answer[0]:
        raise Unanswered("it sent something else than one message")
    return answer[_PREFIX:]


def _named(code: object) -> str:
    return code.name if isinstance(code, h2.errors.ErrorCodes) else f"error code {code}"
