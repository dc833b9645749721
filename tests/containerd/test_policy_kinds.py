# SPDX-License-Identifier: Apache-2.0
"""Policy over real pods by the kind of what is asked: CDI names, MIG, management, how many."""

import contextlib

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons
from .test_policy import VISIBLE, codes, given, nodes

MIGS = (host_spec.MigSpec(gi=1, ci=0), host_spec.MigSpec(gi=2, ci=0))
SPEC = host_spec.HostSpec(
    gpus=(host_spec.GpuSpec(mig_enabled=True, mig=MIGS), host_spec.GpuSpec(), host_spec.GpuSpec())
)
CONFIG, MONITOR = "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"
UUIDS = [host_spec.uuid_of(gpu, place) for place, gpu in enumerate(SPEC.gpus)]
MIG_UUIDS = [host_spec.mig_uuid_of(SPEC.gpus[0], 0, mig) for mig in MIGS]
ALLOWED, STRICT = "allowed-by-rule", "strict-policy"


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    """A host whose first GPU is divided in two."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, SPEC)
    return directory


@pytest.fixture
def settled(engine, gpu_host, tmp_path):
    """Run a daemon of given settings beside the engine."""

    @contextlib.contextmanager
    def run(settings):
        config = tmp_path / "config.toml"
        config.write_text(settings)
        options = ("--config", str(config))
        with daemons.running(engine.nri_socket, gpu_host, options) as daemon:
            nvml = "MIG devices are known from NVML, which answers a moment later"
            daemon.until(lambda: daemon.status()["driver"].get("nvml") == "ok", nvml)
            yield daemon

    return run


KINDS = """policy = "strict"
[[policy_rules]]
namespaces = ["by-name"]
devices = ["cdi"]
action = "allow"
[[policy_rules]]
namespaces = ["files"]
devices = ["none"]
action = "ignore"
[[policy_rules]]
namespaces = ["few"]
max_devices = 1
over_max = "ignore"
action = "allow"
[[policy_rules]]
namespaces = ["migs"]
devices = ["index"]
max_devices = 1
action = "allow"
"""


async def test_kinds_of_names_and_how_many(engine, settled):
    """A CDI name, `none`, the places of MIG devices, and what happens above a maximum."""
    with settled(KINDS) as daemon:
        async with engine.pod(namespace="by-name") as pod:
            assert await given(pod, env={VISIBLE: "nvidia.com/gpu=1"}) == [1]
            assert codes(daemon) == [ALLOWED]
            assert await given(pod, env={VISIBLE: "1"}) == []
            assert codes(daemon) == [STRICT]
        async with engine.pod(namespace="files") as pod:
            async with pod.container("debian", env={VISIBLE: "none"}) as container:
                assert (await container.exec(["/bin/ls", "/usr/local/nvidia"])).code != 0
            assert codes(daemon) == ["ignored-by-rule"]
            assert await given(pod, env={VISIBLE: UUIDS[2]}) == [2]
        async with engine.pod(namespace="few") as pod:
            assert await given(pod, env={VISIBLE: "1,2"}) == []
            assert codes(daemon) == [ALLOWED, "over-max-devices"]
            assert await given(pod, env={VISIBLE: "2"}) == [2]
        async with engine.pod(namespace="migs") as pod:
            assert await given(pod, env={VISIBLE: "0:1"}) == [0]
            assert "allows 1" in await given(pod, env={VISIBLE: "0:0,0:1"})
            assert await given(pod, env={VISIBLE: MIG_UUIDS[1]}) == [0]


MANAGING = """policy = "strict"
[[policy_rules]]
name = "dividers"
namespaces = ["dividers"]
devices = ["mig-config"]
action = "allow"
[[policy_rules]]
name = "watchers"
namespaces = ["watchers"]
devices = ["mig-monitor"]
action = "allow"
[[policy_rules]]
name = "managers"
namespaces = ["managers"]
devices = ["management", "all"]
action = "allow"
[[policy_rules]]
namespaces = ["never"]
devices = ["management", "mig-config", "mig-monitor"]
action = "deny"
"""
DIVIDE = {VISIBLE: UUIDS[1], "NVIDIA_MIG_CONFIG_DEVICES": "all"}
WATCH = {VISIBLE: UUIDS[1], "NVIDIA_MIG_MONITOR_DEVICES": "all"}
MANAGE = {VISIBLE: "management.nvidia.com/gpu=all"}


async def test_management_is_by_a_rule(engine, settled):
    """To divide GPUs, to watch them, and CDI's management names: each by its own word."""
    with settled(MANAGING) as daemon:
        for namespace, env, node in (
            ("dividers", DIVIDE, CONFIG),
            ("watchers", WATCH, MONITOR),
        ):
            async with engine.pod(namespace=namespace) as pod:
                async with pod.container("debian", env=env) as container:
                    assert node in nodes(container)
                    assert not {CONFIG, MONITOR} - {node} & nodes(container)
                other = WATCH if env is DIVIDE else DIVIDE
                async with pod.container("debian", env=other) as container:
                    assert not {CONFIG, MONITOR} & nodes(container)
                assert codes(daemon) == ["strict-policy-beyond"]
        async with engine.pod(namespace="managers") as pod:
            async with pod.container("debian", env=MANAGE) as container:
                assert {CONFIG, MONITOR, "/dev/nvidia1"} <= nodes(container)
            assert ALLOWED in codes(daemon)
        async with engine.pod(namespace="never") as pod:
            for env in (DIVIDE, WATCH, MANAGE):
                assert "denied by policy_rules[4]" in await given(pod, env=env)
        async with engine.pod() as pod:
            async with pod.container("debian", env=DIVIDE) as container:
                assert CONFIG not in nodes(container)
            said = await given(pod, env=MANAGE)
            assert said == [] or "management" in said


SOURCES = """policy = "strict"
request.accept_pod_annotations = true
request.annotation_prefixes = ["cdi.example.com/"]
[[policy_rules]]
namespaces = ["own-word"]
sources = ["pod-annotation"]
action = "allow"
[[policy_rules]]
namespaces = ["no-annotations"]
sources = ["annotation"]
action = "deny"
[[policy_rules]]
namespaces = ["no-annotations"]
sources = ["env"]
privileged = false
action = "ignore"
"""


async def test_annotations_of_pods_and_of_containers(engine, settled):
    """A pod's own is its author's word, which needs a rule; the container's is the kubelet's."""
    own = {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=1"}
    # By the usual prefix containerd looks for a specification itself.
    handed = {"cdi.example.com/nvidia": "nvidia.com/gpu=2"}
    with settled(SOURCES) as daemon:
        async with engine.pod(annotations=own) as pod:
            assert await given(pod) == []
            assert codes(daemon) == [STRICT]
        async with engine.pod(namespace="own-word", annotations=own) as pod:
            assert await given(pod) == [1]
            assert codes(daemon) == [ALLOWED]
        async with engine.pod() as pod:
            assert await given(pod, annotations=handed) == [2]
        async with engine.pod(namespace="no-annotations") as pod:
            assert "denied by policy_rules[2]" in await given(pod, annotations=handed)
            assert await given(pod, env={VISIBLE: UUIDS[2]}) == []
            assert codes(daemon) == ["ignored-by-rule"]


SHARING = """policy.exclusive = true
[[policy_rules]]
namespaces = ["watching"]
shares = true
action = "allow"
"""


async def test_exclusive_mig_devices_and_who_shares(engine, settled):
    """Each MIG device is held by itself, the GPU with all of them; who only looks holds nothing."""
    with settled(SHARING):
        async with (
            engine.pod() as one,
            engine.pod(namespace="watching") as watching,
            one.container("debian", name="first", env={VISIBLE: MIG_UUIDS[0]}),
        ):
            assert "is held by default/" in await given(one, env={VISIBLE: MIG_UUIDS[0]})
            assert await given(one, env={VISIBLE: MIG_UUIDS[1]}) == [0]
            async with watching.container("debian", env={VISIBLE: "all"}):
                assert await given(one, env={VISIBLE: UUIDS[2]}) == [2]
