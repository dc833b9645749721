# SPDX-License-Identifier: Apache-2.0
"""What callers send: to the daemon's control socket, and in a config.json."""

import asyncio
import contextlib
import copy
import json
import logging
import pathlib
import tempfile

import attrs
import grpclib.client
import h2.config
import h2.connection
from hypothesis import strategies as st

from nri_nvidia import errors
from nri_nvidia._api.control import v1
from nri_nvidia.daemon import control, records
from nri_nvidia.edits import model as edits_model
from nri_nvidia.oci import bundle, client, document
from nri_nvidia.render import oci, patch

from . import targets

SCRATCH = tempfile.TemporaryDirectory(prefix="nri-nvidia-fuzz-")
KNOWN = [records.Summary(id=f"{n}abc", namespace="n", pod="p", name=f"c{n}") for n in range(3)]


def conversation(path, payload, *, compressed=0, length=None):
    """Give what a gRPC client sends for one call: HTTP/2 (RFC 9113), and a message in it."""
    config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
    state = h2.connection.H2Connection(config)
    state.initiate_connection()
    state.send_headers(
        1,
        [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
            ("te", "trailers"), ("content-type", "application/grpc"),
        ],
    )  # fmt: skip
    said = len(payload) if length is None else length
    state.send_data(1, bytes([compressed]) + said.to_bytes(4, "big") + payload, end_stream=True)
    return state.data_to_send()


STATUS = conversation("/control.v1.Control/Status", bytes(v1.StatusRequest()))
EXPLAIN = conversation("/control.v1.Control/Explain", bytes(v1.ExplainRequest(container="c1")))
messages = st.builds(
    conversation,
    st.sampled_from(
        ["/control.v1.Control/Explain", "/control.v1.Control/Status", "/control.v1.Control/None",
         "/", "//", "/control.v1.Control/Explain/"]
    ),
    st.one_of(
        targets.damaged(bytes(v1.ExplainRequest(container="n/p/c1"))),
        st.text(max_size=40).map(lambda text: bytes(v1.ExplainRequest(container=text))),
        st.binary(max_size=40),
    ),
    compressed=st.sampled_from([0, 0, 0, 1, 255]),
    length=st.sampled_from([None, None, None, 0, 1, 1 << 22, (1 << 32) - 1]),
)  # fmt: skip


class Served:
    """A control socket on a loop of its own, and what went wrong there unseen."""

    def __init__(self):
        self.path = str(pathlib.Path(SCRATCH.name) / "control.sock")
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: self.wrong.append(context))
        self.wrong = []
        kept = logging.Handler(logging.ERROR)
        kept.emit = lambda entry: self.wrong.append(f"{entry.getMessage()}: {entry.exc_info}")
        logging.getLogger("grpclib").addHandler(kept)
        answers = control.Control(self._state, self._explain)
        self.listening = self.loop.run_until_complete(control.serve(self.path, answers))

    async def _state(self):
        return {"it": "works"}

    async def _explain(self, query):
        return {"candidates": [attrs.asdict(each) for each in records.match(query, KNOWN)]}

    async def hear(self, data):
        """Send bytes; another caller is answered behind them, and nothing is left of either."""
        _, writer = await asyncio.open_unix_connection(self.path)
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        channel = grpclib.client.Channel(path=self.path)
        reply = await v1.ControlStub(channel).status(v1.StatusRequest())
        assert json.loads(reply.json) == {"it": "works"}
        channel.close()
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        while self.listening._callers:
            await asyncio.sleep(0)


SERVED = []


def heard(data):
    if not SERVED:
        SERVED.append(Served())
    served = SERVED[0]
    served.wrong.clear()
    # Without a limit in seconds: a search may be stopped for a while and go on.
    served.loop.run_until_complete(served.hear(data))
    assert not served.wrong, served.wrong


SPEC = {
    **targets.QUESTION["spec"],
    "hooks": {"prestart": [{"path": "/x/nvidia-container-runtime-hook", "args": ["y"]}]},
    "mounts": [{"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"}],
}
PATCH = oci.document(
    edits_model.ContainerEdits(
        env=(("A", "b"),),
        devices=(edits_model.DeviceEdit(path="/dev/x", host_path="/dev/x", major=195, minor=0),),
        mounts=(edits_model.MountEdit(source="/a", destination="/b"),),
        hooks=(
            edits_model.HookEdit(stage="createContainer", path="/h", args=("h",), env=("A=b",)),
        ),
    )
)


def wrapped(spec):
    """Each stage of the wrapper takes a config.json for one, or says why it is none."""
    spec = json.loads(json.dumps(spec))
    told = targets.fault_of(errors.RequestError, lambda: bundle.container(spec))
    assert told is None or "OCI config.json" in str(told)
    served = client.served(spec)
    client.without_stand_in(spec)
    assert isinstance(client.asks(spec, SCRATCH.name), str)
    with contextlib.suppress(document.Refused):
        question = client.message(spec, "c", ["run"])
        assert document.parse(document.text(question), "it")["id"] == "c"
    if told is None and not served:
        targets.decided(bundle.container(spec))
        changed = copy.deepcopy(spec)
        patch.apply(changed, PATCH)
        with contextlib.suppress(document.Refused):
            document.text(changed)


def read_as_bytes(data):
    path = pathlib.Path(SCRATCH.name) / "config.json"
    path.write_bytes(data)
    read = []
    told = targets.fault_of(errors.RequestError, lambda: read.append(bundle.read(str(path))))
    assert told is None or str(path) in str(told)
    opened = client.Bundle(str(path))
    try:
        with contextlib.suppress(document.Refused):
            read.append(opened.read())
    finally:
        opened.close()
    for spec in read:
        wrapped(spec)


TARGETS = tuple(
    targets.Target(name=name, values=values, check=check)
    for name, values, check in (
        ("control-bytes", targets.damaged(STATUS, EXPLAIN), heard),
        ("control-message", messages, heard),
        ("config-json-stages", targets.altered(SPEC), wrapped),
        ("config-json-stages-bytes", targets.damaged(json.dumps(SPEC).encode()), read_as_bytes),
    )
)
