# SPDX-License-Identifier: Apache-2.0
"""Field cases: a sidecar, or an init container, on the GPU of its pod's main container."""

import asyncio

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import host_spec, runtime

from . import harness
from .harness import asked

SHARING = {"nri-nvidia/share.sidecar": "main", "nri-nvidia/share.second": "main"}
UUIDS = [host_spec.uuid_of(host_spec.GpuSpec(), index) for index in range(4)]
ALL = f"{harness.VISIBLE}=all"


def pod(name="train", sandbox="", **annotations):
    return api.PodSandbox(
        id=sandbox or f"sandbox-{name}",
        name=name,
        namespace="team",
        uid=f"uid-{name}",
        annotations=annotations or SHARING,
    )


def given(adjusted):
    """Give the GPUs whose nodes a container gets."""
    paths = [device.path for device in adjusted.linux.devices] if adjusted.linux else []
    return [path for path in paths if path.removeprefix("/dev/nvidia").isdecimal()]


async def refused(pair, number, *env, **more):
    with pytest.raises(runtime.CreationFailed) as caught:
        await pair.create(number, *env, **more)
    return str(caught.value)


def test_a_sidecar_has_the_gpus_of_the_main_container(together, live):
    """FC-081: those and no others, by its own capabilities, also where its image says `all`."""

    async def body(pair):
        await pair.create(1, *asked(f"{UUIDS[1]},{UUIDS[3]}"), name="main", pod=pod())
        adjusted = await pair.create(2, name="sidecar", pod=pod())
        assert given(adjusted) == ["/dev/nvidia1", "/dev/nvidia3"]
        adjusted = await pair.create(3, ALL, harness.capable("utility"), name="second", pod=pod())
        assert given(adjusted) == ["/dev/nvidia1", "/dev/nvidia3"]
        assert not any("libcuda" in mount.destination for mount in adjusted.mounts)
        assert given(await pair.create(4, name="other", pod=pod())) == []
        found = await pair.status()
        assert [each["shared_from"] for each in found["containers"]] == [None, "main", "main"]
        text = (await asyncio.to_thread(pair.daemon.ask, "status")).stdout
        assert text.count("shared by") == 4
        told = (await asyncio.to_thread(pair.daemon.ask, "explain", "team/train/sidecar")).stdout
        assert "shared: the GPUs of main, another container of its pod" in told
        assert "in the pod's annotations" in told

    together(body, live(gpus=harness.gpus(4)))


def test_what_comes_before_the_main_container_is_refused(together, live):
    """FC-081: a sidecar that is first gets neither all GPUs nor none.

    It is refused rather than created without: the kubelet tries again by itself, and one that ran
    without its GPU would never get it. The same once the main container has ended.
    """

    async def body(pair):
        for number in (1, 2):
            said = await refused(pair, number, ALL, name="sidecar", pod=pod())
            assert "container main of this pod holds no GPU now for sidecar to share" in said
            assert "the kubelet tries sidecar again by itself; list main before it" in said
        await pair.create(3, *asked("2"), name="main", pod=pod())
        assert given(await pair.create(4, name="sidecar", pod=pod())) == ["/dev/nvidia2"]
        await pair.runtime.stop(pair.container(3).id)
        assert "holds no GPU now" in await refused(pair, 5, name="second", pod=pod())
        await pair.create(6, *asked("none"), name="main", pod=pod())
        assert "was given none" in await refused(pair, 7, name="second", pod=pod())
        await pair.create(8, *asked("0"), name="main", pod=pod())
        assert given(await pair.create(9, name="second", pod=pod())) == ["/dev/nvidia0"]

    together(body, live(gpus=harness.gpus(3)))


def test_no_other_pod_is_reached(together, live):
    """FC-081: a container of that name in another pod, even of the same names, shares nothing."""

    async def body(pair):
        await pair.create(1, *asked("1"), name="main", pod=pod())
        for other in (pod("other"), pod(sandbox="sandbox-later")):
            said = await refused(pair, 2, ALL, name="sidecar", pod=other)
            assert "holds no GPU now" in said
        for name in ("team/train/main", "sandbox-train/main", pair.container(1).id):
            named = pod("other", **{"nri-nvidia/share.sidecar": name})
            assert "no name of a container" in await refused(
                pair, 3, ALL, name="sidecar", pod=named
            )

    together(body, live(gpus=harness.gpus(3)))


def test_exclusive_gpus_and_a_daemon_that_starts_again(together, live, tmp_path):
    """FC-081: who shares is let in and the main container let back in; a new daemon knows both."""
    config = tmp_path / "config.toml"
    config.write_text("policy.exclusive = true\n")

    async def body(pair):
        await pair.create(1, *asked("1"), name="main", pod=pod())
        first = await pair.create(2, name="sidecar", pod=pod())
        assert given(first) == ["/dev/nvidia1"]
        assert "is held by team/train/main" in await refused(
            pair, 3, *asked("1"), name="main", pod=pod("other")
        )
        pair.runtime.pods.append(pod())
        pair.runtime.containers += [pair.container(1, name="main"), pair.container(2)]
        for shown, name in zip(pair.runtime.containers, ("main", "sidecar"), strict=True):
            shown.pod_sandbox_id, shown.name = pod().id, name
            shown.linux = api.LinuxContainer(devices=[bytes(d) for d in first.linux.devices])
        await asyncio.to_thread(pair.daemon.end)
        pair.daemon.start()
        await asyncio.to_thread(pair.daemon.ready)
        await pair.until(lambda found: len(found["containers"]) == 2, "both are known again")
        assert given(await pair.create(4, name="second", pod=pod())) == ["/dev/nvidia1"]
        await pair.runtime.stop(pair.container(1).id)
        assert "is held by team/train/sidecar" in await refused(
            pair, 5, *asked("1"), name="main", pod=pod("other")
        )
        adjusted = await pair.create(6, *asked("1"), name="main", pod=pod())
        assert given(adjusted) == ["/dev/nvidia1"]

    together(body, live(gpus=harness.gpus(2)), "--config", str(config))
