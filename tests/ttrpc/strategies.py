# SPDX-License-Identifier: Apache-2.0
"""Byte streams that are right, nearly right or rubbish, and ways to split them."""

import itertools
import struct

from hypothesis import strategies as st

from nri_nvidia._api import ttrpc
from nri_nvidia._api.google import rpc

texts = st.text(max_size=12)
payloads = st.binary(max_size=60)

requests = st.builds(
    ttrpc.Request,
    service=st.sampled_from(["nri.pkg.api.v1alpha1.Plugin", "x", ""]),
    method=st.sampled_from(["Configure", "CreateContainer", "Synchronize", "Nothing", ""]),
    payload=payloads,
    timeout_nano=st.one_of(st.just(0), st.integers(-(1 << 63), (1 << 63) - 1)),
    metadata=st.lists(st.builds(ttrpc.KeyValue, key=texts, value=texts), max_size=3),
).map(bytes)
responses = st.builds(
    ttrpc.Response,
    status=st.builds(rpc.Status, code=st.integers(0, 20), message=texts),
    payload=payloads,
).map(bytes)


@st.composite
def ttrpc_frames(draw):
    """One ttRPC frame, mostly with a true length."""
    data = draw(st.one_of(requests, responses, st.binary(max_size=40)))
    length = draw(st.one_of(*[st.just(len(data))] * 6, st.integers(0, (1 << 32) - 1)))
    stream = draw(st.one_of(st.integers(0, 9), st.integers(0, (1 << 32) - 1)))
    kind = draw(st.one_of(st.just(1), st.just(2), st.integers(0, 255)))
    flags = draw(st.one_of(*[st.just(0)] * 4, st.integers(0, 255)))
    return struct.pack(">IIBB", length, stream, kind, flags) + data


@st.composite
def mux_frames(draw):
    """One mux frame, mostly with a true length, around ttRPC frames or anything."""
    data = draw(st.one_of(ttrpc_frames(), ttrpc_frames(), st.binary(max_size=30)))
    length = draw(st.one_of(*[st.just(len(data))] * 8, st.integers(0, (1 << 32) - 1)))
    connection = draw(st.one_of(st.just(1), st.just(2), st.integers(0, (1 << 32) - 1)))
    return struct.pack(">II", connection, length) + data


def streams(frames):
    """Give several frames in a row, sometimes cut off at the end."""
    whole = st.lists(frames, max_size=6).map(b"".join)
    cut = st.tuples(whole, st.integers(0, 400)).map(lambda pair: pair[0][: pair[1]])
    return st.one_of(whole, cut, st.binary(max_size=80))


def split(data, points):
    """Cut `data` at `points`, wherever they lie within it."""
    places = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


points = st.lists(st.integers(0, 1 << 16), max_size=30)
