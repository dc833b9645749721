# SPDX-License-Identifier: Apache-2.0
"""The ways past the message library: what they read, skip and write is what it would."""

import contextlib

import attrs
import grpclib
import hypothesis
import pytest
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.nri import convert, plugin
from nri_nvidia.request import mountlist, parse, policy
from nri_nvidia.ttrpc import errors, testing, wire
from tests import inventories

from . import decider, messages

quick = hypothesis.settings(deadline=None)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
maps = st.dictionaries(texts, texts, max_size=3)
NAMES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "NVIDIA_GDS", "SWARM",
         "NVIDIA_VISIBLE", "XNVIDIA_VISIBLE_DEVICES", "NVIDIA_IMEX_CHANNELS")  # fmt: skip
variables = st.one_of(
    texts,
    st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(["", "all", "0", "void"])),
    st.sampled_from(NAMES),
)
ROOTS = (mountlist.ROOT, "/var/run//nvidia-container-devices", "/var/./run/nvidia-container-devices",
         "/var/run/x/../nvidia-container-devices", "/run/nvidia-container-devices", "/data")  # fmt: skip
mounts = st.builds(
    lambda root, name, source, options: messages.mount(f"{root}/{name}", source, *options),
    st.sampled_from(ROOTS),
    st.sampled_from(["0", "GPU-1", "imex/0", "cdi/a/b/c", ""]),
    st.sampled_from(["/dev/null", "/dev//null", "/x"]),
    st.lists(texts, max_size=3),
)
keys = st.one_of(
    texts,
    st.builds(
        "{}{}".format, st.sampled_from(["cdi.k8s.io/", "my.prefix", "nvidia.cdi.k8s.io"]), texts
    ),
)
containers = st.builds(
    api.Container,
    id=st.one_of(st.just("c"), texts),
    pod_sandbox_id=texts,
    name=texts,
    labels=maps,
    annotations=st.dictionaries(keys, texts, max_size=3),
    env=st.lists(variables, max_size=5),
    mounts=st.lists(mounts, max_size=3),
    linux=st.builds(
        api.LinuxContainer,
        namespaces=st.lists(
            st.sampled_from(["user", "pid", ""]).map(lambda t: bytes(api.LinuxNamespace(type=t)))
        ),
        devices=st.lists(st.just(messages.device("/dev/nvidia0", 195, 0)), max_size=2),
        resources=st.builds(
            api.LinuxResources,
            devices=st.lists(st.sampled_from([messages.ALLOW_ALL, messages.DENY_ALL])),
        ),
    ),
)
pods = st.builds(
    api.PodSandbox, id=texts, name=texts, uid=texts, namespace=texts, labels=maps,
    annotations=st.dictionaries(keys, texts, max_size=3),
)  # fmt: skip
policies = st.builds(
    policy.RequestPolicy,
    accept_env_when_unprivileged=st.booleans(),
    accept_volume_mounts=st.booleans(),
    swarm_resources=st.sampled_from([(), ("SWARM",)]),
    accept_pod_annotations=st.booleans(),
    annotation_prefixes=st.sampled_from([(), ("cdi.k8s.io/",), ("my.", "cdi.k8s.io/"), ("",)]),
)


def skipped(data, rules):
    """Tell whether a request with these bytes is answered without being read."""
    noting = decider.Noting()
    noting.markers = parse.markers(rules)
    served = plugin.Plugin.__new__(plugin.Plugin)
    served._decider = noting
    return served._asks_nothing(data)


@quick
@hypothesis.given(pods, containers, policies)
def test_a_container_that_is_skipped_would_have_got_nothing(pod, shown, rules):
    """Whatever is answered by its bytes alone would be given nothing, refused nothing and noted nowhere."""
    data = bytes(api.CreateContainerRequest(pod=pod, container=shown))
    if skipped(data, rules):
        read = convert.created(data)
        assert parse.parse(read, rules) == parse.Parsed()
        plan = pipeline.plan(read, inventories.EIGHT, pipeline.Policy(request=rules))
        assert plan == pipeline.Plan(decision=pipeline.Decision.IGNORE)


@pytest.mark.parametrize(
    ("env", "rules", "skips"),
    [
        ([], {}, True),
        (["PATH=/bin", "NVIDIA_GDS=enabled"], {}, True),
        (["NVIDIA_VISIBLE_DEVICES"], {}, True),
        (["NVIDIA_VISIBLE_DEVICES="], {}, False),
        (["CUDA_VERSION=12.4"], {}, False),
        (["SWARM=1"], {}, True),
        (["SWARM=1"], {"swarm_resources": ("SWARM",)}, False),
    ],
)
def test_what_is_skipped(env, rules, skips):
    """Ordinary containers are, one with a variable that may count is not."""
    request = api.CreateContainerRequest(container=api.Container(id="c", env=env))
    assert skipped(bytes(request), policy.RequestPolicy(**rules)) is skips


@quick
@hypothesis.given(pods, containers, st.data())
def test_what_is_cut_or_nameless_is_not_skipped(pod, shown, data):
    """A request that ends too early, and one without the container's id, are left to be refused."""
    whole = bytes(api.CreateContainerRequest(pod=pod, container=shown))
    if not shown.id:
        assert not convert.is_whole(whole)
        return
    assert convert.is_whole(whole)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    if convert.is_whole(cut):
        convert.created(cut)  # it ended between two fields of the request


@quick
@hypothesis.given(st.binary(max_size=60), st.frozensets(st.integers(1, 12)))
def test_framing_is_that_of_the_walk(data, numbers):
    """The quick look finds what the careful one would, for any bytes."""

    def walked():
        try:
            return all(
                wire_type == wire.LENGTH or number not in numbers
                for number, wire_type, _ in wire.walk(data)
            )
        except errors.RemoteProtocolError:
            return False

    assert wire.is_framed(data, numbers) is walked()


@quick
@hypothesis.given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(
            st.one_of(
                st.builds(wire.piece, st.integers(1, 17), st.binary(max_size=300)),
                st.sampled_from([b"\x8a\0\1s", b"\x0a\x81\0t", b"\x20\x05", b"\x45abcd", b"\x0a"]),
            ),
            max_size=6,
        ).map(b"".join),
    ),
    st.frozensets(st.integers(1, 15)),
)
def test_what_is_gathered_is_what_the_walk_gives(data, numbers):
    """For any bytes each field's values in order, or an error for the same bytes."""
    if not wire.is_framed(data, numbers):
        with pytest.raises(errors.RemoteProtocolError):
            wire.gathered(data, numbers)
        return
    fields = list(wire.walk(data))
    assert wire.gathered(data, numbers) == {
        each: [value for number, _, value in fields if number == each] for each in numbers
    }


@quick
@hypothesis.given(pods, containers)
def test_reading_is_what_the_library_reads(pod, shown):
    """Field by field the same as by way of message objects."""
    hypothesis.assume(shown.id)
    data = bytes(api.CreateContainerRequest(pod=pod, container=shown))
    wire.check(api.CreateContainerRequest, data)
    told = api.CreateContainerRequest().parse(data)
    read = convert.created(data)
    assert (read.id, read.name, read.env) == (
        told.container.id,
        told.container.name,
        tuple(told.container.env),
    )
    assert (read.pod, read.namespace, read.pod_uid) == (
        told.pod.name,
        told.pod.namespace,
        told.pod.uid,
    )
    assert read.labels == {**told.pod.labels, **told.container.labels}
    assert read.annotations == {**told.pod.annotations, **told.container.annotations}
    parsed = [api.Mount().parse(mount) for mount in told.container.mounts]
    assert [(m.destination, m.source, m.type, m.options) for m in read.mounts] == [
        (m.destination, m.source, m.type, tuple(m.options)) for m in map(_options, parsed)
    ]
    assert len(read.devices) == len(told.container.linux.devices)
    assert read.privileged is (
        True if messages.ALLOW_ALL in told.container.linux.resources.devices else None
    )
    user = bytes(api.LinuxNamespace(type="user"))
    assert read.user_namespace is (user in told.container.linux.namespaces)


def _options(mount):
    mount.options = tuple(mount.options)
    return mount


def test_numbers_of_a_runtimes_other_fields_pass():
    """A pod's pid (field 9) and a container's state and pid (4, 12) are numbers, and not read."""
    pod = bytes(messages.pod()) + b"\x48\x8f\x4e"
    shown = bytes(messages.container()) + b"\x20\x01\x60\x05"
    data = wire.piece(1, pod) + wire.piece(2, shown)
    whole = bytes(api.CreateContainerRequest(pod=messages.pod(), container=messages.container()))
    assert convert.created(data) == convert.created(whole)
    assert convert.is_whole(data)


@quick
@hypothesis.given(st.binary(max_size=60))
def test_any_bytes_are_a_container_or_a_protocol_error(data):
    """Whatever a request holds, nothing but RemoteProtocolError is raised."""
    with contextlib.suppress(errors.RemoteProtocolError):
        convert.created(data)
    convert.is_whole(data)


def test_long_parts_are_not_kept():
    """What a container may make as long as it likes is read anew each time."""
    long = messages.mount("/" + "x" * 5000)
    assert convert._mount(long) is not convert._mount(long)
    short = messages.mount("/short")
    assert convert._mount(short) is convert._mount(short)


@quick
@hypothesis.given(
    st.one_of(st.integers(0, 300), st.integers(-(1 << 63), (1 << 63) - 1)), st.binary(max_size=300)
)
def test_written_numbers_and_pieces_are_read_back(number, data):
    """A number and a field as they are written are what the reader reads."""
    assert list(wire.fields(b"\x08" + wire.varint(number))) == [(1, number & ((1 << 64) - 1))]
    assert list(wire.fields(wire.piece(2000, data))) == [(2000, data)]


async def test_a_container_without_a_marker_reaches_nobody():
    """The Decider is not asked, the answer is empty, and one with a marker is asked about."""
    noting = decider.Noting()
    noting.markers = parse.markers(policy.RequestPolicy())
    served = plugin.Plugin(noting)
    seen = []

    def observe(outcome):
        seen.append(outcome.route.rpartition("/")[2])
        served.observe(outcome)

    async with testing.joined([served], observe=observe) as (caller, _):
        stub = api.PluginStub(caller.channel)
        request = api.CreateContainerRequest(pod=messages.pod(), container=messages.container())
        assert bytes(await stub.create_container(request)) == b""
        assert noting.heard == []
        assert seen == ["CreateContainer"]
        request.container.env = ["NVIDIA_VISIBLE_DEVICES=0"]
        await stub.create_container(request)
        assert [what for what, _ in noting.heard] == ["create"]
        with pytest.raises(grpclib.GRPCError, match="without an id"):
            await stub.create_container(api.CreateContainerRequest())


def test_container_is_a_value():
    """Two readings of the same bytes are equal, and share the parts that are kept."""
    data = bytes(api.CreateContainerRequest(container=messages.container()))
    first, second = convert.created(data), convert.created(data)
    assert first == second
    assert first.mounts[0] is second.mounts[0]
    assert attrs.evolve(first, name="other") != second
