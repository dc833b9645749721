# SPDX-License-Identifier: Apache-2.0
"""The annotation by which a container shares the GPUs of another one of its pod, as it is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia.request import asked, model, parse, policy
from nri_nvidia.request import container as containers

RULES = policy.RequestPolicy()


def shown(value, *env, name="dbg", **annotations):
    own = {f"{containers.SHARE_PREFIX}dbg": value}
    others = {f"{containers.SHARE_PREFIX}{key}": named for key, named in annotations.items()}
    return containers.Container(name=name, env=env, annotations={**own, **others})


def read(*arguments, **more):
    """Read by the way of containers that are alike, too: both give the same."""
    container = shown(*arguments, **more)
    parsed = parse.parse(container, RULES)
    alike = asked.parse(container, RULES)
    assert (alike.request, alike.reasons) == (parsed.request, parsed.reasons)
    assert str(alike.error) == str(parsed.error)
    return parsed


@pytest.mark.parametrize("value", ["main", " main\n", "m", "0", "all", "none", "void", "a" * 63])
def test_a_name_is_a_name_whatever_else_it_may_mean(value):
    """A container may be called `all` or `0`: that is no word for GPUs here."""
    parsed = read(value)
    assert parsed.error is None
    assert parsed.request.source is model.Source.SHARE
    assert parsed.request.shares == value.strip()
    assert parsed.request.devices == (f"container {value.strip()}",)
    assert not parsed.request.wants_all
    assert parsed.request.capabilities == model.DEFAULT_CAPABILITIES


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("", "share-misnamed"),
        ("  ", "share-misnamed"),
        ("two names", "share-misnamed"),
        ("main,other", "share-misnamed"),
        ("Main", "share-misnamed"),
        ("-main", "share-misnamed"),
        ("team/pod/main", "share-misnamed"),
        ("nvidia.com/gpu=all", "share-misnamed"),
        ("a" * 64, "share-misnamed"),
        ("ma\u0131n", "share-misnamed"),
        ("dbg", "share-of-itself"),
    ],
)
def test_what_cannot_be_the_other_container(value, code):
    """No name, several, one of another pod, and the container itself: refused, with the text."""
    error = read(value).error
    assert error.code == code
    assert error.message.startswith("annotation nri-nvidia/share.dbg: ")
    assert "name of the container of this pod" in error.hint


def test_a_chain_is_refused():
    """Who shares has nothing of its own, even where it names nobody well."""
    for further in ("db", ""):
        error = read("main", main=further).error
        assert error.code == "share-of-sharer"
        assert f"main itself shares the GPUs of {further or 'nobody'}" in error.message


def test_it_comes_before_what_the_image_says():
    """`all` of an image does not count, and a reason says so; own capabilities do."""
    parsed = read("main", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert parsed.request.shares == "main"
    assert parsed.request.capabilities == {model.Capability.UTILITY}
    assert [reason.code for reason in parsed.reasons] == ["environment-passed-over"]


@pytest.mark.parametrize("name", ["main", "dbg2", "DBG", ""])
def test_it_is_for_the_container_that_it_names(name):
    """To the pod's other containers it means nothing."""
    parsed = read("main", name=name)
    assert (parsed.request, parsed.error) == (None, None)


def test_it_is_among_the_markers():
    """A container with nothing but that annotation is looked at."""
    assert containers.SHARE_PREFIX.encode() in parse.markers(RULES)


@given(value=st.text(max_size=80))
def test_any_text_is_a_name_or_an_error(value):
    """Never another channel's request, and never an exception."""
    parsed = read(value, "NVIDIA_VISIBLE_DEVICES=all")
    assert parsed.request.source is model.Source.SHARE
    assert parsed.error is not None or parsed.request.shares == value.strip()
