# SPDX-License-Identifier: Apache-2.0
import attrs
import hypothesis
import pytest
from hypothesis import strategies as st

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.nri import convert
from nri_nvidia.request import container as model
from nri_nvidia.ttrpc import errors

from . import messages


def joined(pod, shown):
    """Read a container as it comes with its pod."""
    return convert.created(bytes(api.CreateContainerRequest(pod=pod, container=shown)))


def test_a_container_is_joined_with_its_pod():
    """All that a decision may look at is there."""
    shown = messages.container(variables=1, mounts=1)
    assert joined(messages.pod(), shown) == model.Container(
        id="c0",
        name="main",
        pod="pod0",
        namespace="team",
        pod_uid="uid0",
        sandbox="p0",
        labels={"app": "x", "both": "container"},
        annotations={"a": "b", "io.kubernetes.cri.container-type": "container"},
        pod_annotations={"a": "b"},
        env=("SERVICE_0_PORT=tcp://10.0.0.1:80",),
        mounts=(
            model.Mount(
                destination="/data/0", source="/var/lib/0", type="bind", options=("rbind", "ro")
            ),
        ),
        devices=(model.Device(path="/dev/nvidia0", type="c", major=195, minor=0),),
        hooks=(
            model.Hook(stage="prestart", path="/usr/bin/one", args=("one", "x")),
            model.Hook(stage="createContainer", path="/usr/bin/two"),
        ),
        privileged=None,
    )


@pytest.mark.parametrize(
    ("rule", "privileged"),
    [
        ({"allow": True, "access": "rwm"}, True),
        ({"allow": True, "access": "rwm", "type": "a"}, True),
        ({"allow": True, "access": "rwm", "major": api.OptionalInt64(value=-1)}, True),
        ({"access": "rwm"}, None),
        ({"allow": True, "access": "rw"}, None),
        ({"allow": True, "access": "rwm", "type": "c"}, None),
        ({"allow": True, "access": "rwm", "major": api.OptionalInt64(value=195)}, None),
        ({"allow": True, "access": "rwm", "minor": api.OptionalInt64(value=0)}, None),
    ],
)
def test_privileged_is_an_allow_all_rule(rule, privileged):
    """Only a rule without type and numbers shows a privileged container; else nobody can tell."""
    shown = messages.container(rules=(messages.DENY_ALL, messages.rule(**rule)))
    assert joined(messages.pod(), shown).privileged is privileged


def test_a_container_without_id_is_refused():
    """An empty id means that the request was not understood."""
    with pytest.raises(errors.RemoteProtocolError, match="without an id"):
        joined(messages.pod(), api.Container())


def test_a_broken_part_is_refused():
    """A truncated mount is an error, not half a path."""
    shown = api.Container(id="c", mounts=[b"\x0a\x05/a"])
    with pytest.raises(errors.RemoteProtocolError, match="claims 5 bytes"):
        joined(messages.pod(), shown)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_any_parts_give_a_container_or_a_protocol_error(part, rule, hooks):
    """Whatever the parts hold, nothing but RemoteProtocolError is raised."""
    shown = api.Container(
        id="c",
        mounts=[part],
        hooks=hooks,
        linux=api.LinuxContainer(devices=[part], resources=api.LinuxResources(devices=[rule])),
    )
    try:
        found = joined(messages.pod(), shown)
    except errors.RemoteProtocolError:
        return
    assert len(found.mounts) == len(found.devices) == 1


def test_listed_containers_find_their_pod():
    """An element of Synchronize is decoded like the container of a creation."""
    pods = convert.listed_pods([bytes(messages.pod(0)), bytes(messages.pod(1))])
    data = bytes(messages.container("c9", pod_id="p1"))
    found = convert.listed_container(data, pods)
    created = joined(messages.pod(1), messages.container("c9", pod_id="p1"))
    assert found == created
    orphan = convert.listed_container(bytes(messages.container(pod_id="gone")), pods)
    assert attrs.evolve(orphan, pod="x").pod == "x"
    assert (orphan.pod, orphan.namespace) == ("", "")
