# SPDX-License-Identifier: Apache-2.0
"""Edits as the JSON that nri-nvidia-runtime is sent."""

import json

import hypothesis
from hypothesis import strategies as st

from nri_nvidia.edits import model
from nri_nvidia.render import oci, shared

texts = st.text(max_size=8)
EDITS = st.builds(
    model.ContainerEdits,
    env=st.lists(st.tuples(texts, texts), max_size=2, unique_by=lambda pair: pair[0]).map(tuple),
    devices=st.lists(
        st.builds(
            model.DeviceEdit,
            path=texts, host_path=texts, major=st.integers(0, 9), minor=st.integers(0, 9),
        ),
        max_size=3,
    ).map(tuple),
    mounts=st.lists(
        st.builds(model.MountEdit, source=texts, destination=texts), max_size=3
    ).map(tuple),
    hooks=st.lists(
        st.builds(
            model.HookEdit,
            stage=st.sampled_from(["createContainer", "prestart"]),
            path=texts,
            args=st.lists(texts, max_size=3).map(tuple),
            env=st.lists(texts, max_size=2).map(tuple),
            timeout=st.integers(0, 20),
        ),
        max_size=3,
    ).map(tuple),
)  # fmt: skip


@hypothesis.given(EDITS)
def test_what_is_written_in_parts_is_what_is_written_at_once(edits):
    """The same bytes, whatever of it is known from another container."""
    for _ in range(2):
        assert oci.encoded(edits) == json.dumps(oci.document(edits)).encode()


def test_a_text_that_is_no_unicode_is_written():
    """What cannot be UTF-8 is escaped, as in any JSON of ours."""
    edits = model.ContainerEdits(mounts=(model.MountEdit(source="/\udcff", destination="/a"),))
    assert json.loads(oci.encoded(edits))["mounts"][0]["source"] == "/\udcff"


def test_any_number_of_values_is_known_right():
    """What is found by the object is what that holds, also when others were there before."""
    asked = []

    @shared.known
    def shown(value):
        asked.append(value)
        return repr(value).encode()

    first = (1, 2)
    for number in range(3 * shared.KEPT):
        assert shown((number,)) == f"({number},)".encode()
        assert shown(first) == b"(1, 2)"
    assert asked.count(first) == 1
    assert shown(tuple([1, 2])) == b"(1, 2)"  # noqa: C409 - another object, equal to it
    assert asked.count(first) == 1
