# SPDX-License-Identifier: Apache-2.0
"""Policy over real pods: presets, rules, who set a variable, exclusive GPUs."""

import asyncio
import contextlib

import grpclib
import pytest

from nri_nvidia import errors
from nri_nvidia.edits import model as edits_model
from nri_nvidia.nri import session
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, doors

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MOUNTS = "/var/run/nvidia-container-devices"
ALL = {VISIBLE: "all"}
UUIDS = [host_spec.uuid_of(host_spec.GpuSpec(), index) for index in range(3)]


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    directory = tmp_path_factory.mktemp("host")
    spec = host_spec.HostSpec(
        gpus=(host_spec.GpuSpec(),) * 3, groups=("nvswitch",), imex_channels=(0, 1)
    )
    simulated.build(directory, spec)
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
            yield daemon

    return run


def gpus(container):
    """Give the GPUs whose nodes a container was given, by minor."""
    listed = container.config()["linux"].get("devices", [])
    nodes = [device["path"].removeprefix("/dev/nvidia") for device in listed]
    return sorted(int(name) for name in nodes if name.isdecimal())


def codes(daemon):
    """Give the codes of the last decision's reasons."""
    return [reason["code"] for reason in daemon.status()["decisions"][-1]["reasons"]]


async def until(condition):
    async with asyncio.timeout(daemons.PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def given(pod, image="debian", **wishes):
    """Run a container; give its GPUs, or the sentence of its refusal."""
    try:
        async with pod.container(image, **wishes) as container:
            return gpus(container)
    except grpclib.GRPCError as error:
        return error.message


async def test_strict_node(engine, settled):
    """A pod gets what it was allocated, and runs without the rest, which explain explains."""
    engine.add_image("says-all", base="debian", env=[f"{VISIBLE}=all"])
    with settled('policy = "strict"\n') as daemon:
        async with engine.pod() as pod:
            assert await given(pod, "says-all") == []
            assert await given(pod, "says-all", env={VISIBLE: UUIDS[2]}) == [2]
            async with pod.container("debian", env=ALL) as container:
                assert gpus(container) == []
                assert (await container.exec(["/bin/sh", "-c", "ls /dev/nvidia*"])).code != 0
            assert codes(daemon) == ["strict-policy"]
            assert await given(pod, env={VISIBLE: "1"}) == []
            assert await given(pod, env={VISIBLE: UUIDS[1]}) == [1]
            assert await given(pod, env={VISIBLE: "none"}) == []
            assert codes(daemon) == []
            assert await given(pod, env={VISIBLE: UUIDS[1], "NVIDIA_NVSWITCH": "enabled"}) == [1]
            assert codes(daemon) == ["strict-policy-beyond"]
        told = daemon.ask("explain", "container-3").stdout
        assert "policy = strict" in told


RULES = """policy = "strict"
[[policy_rules]]
name = "team"
namespaces = ["ml-*"]
devices = ["all", "index", "uuid"]
max_devices = 2
action = "allow"
[[policy_rules]]
name = "labelled"
labels = {gpu = "every"}
action = "allow"
[[policy_rules]]
annotations = {"example.com/gpu" = "never"}
action = "deny"
[[policy_rules]]
privileged = true
action = "allow"
[[policy_rules]]
name = "no names"
namespaces = ["plain"]
devices = ["uuid"]
action = "ignore"
[[policy_rules]]
name = "sandboxes"
runtime_handlers = ["*-1.1.5"]
action = "deny"
"""


async def test_rules_over_pods(engine, settled):
    """Namespace, label, annotation, privilege and kind of device, each on a pod that has it."""
    with settled(RULES) as daemon:
        async with engine.pod(namespace="ml-1") as pod:
            assert await given(pod, env={VISIBLE: "0,2"}) == [0, 2]
            assert codes(daemon) == ["allowed-by-rule"]
            said = await given(pod, env=ALL)
            assert "all means 3 devices, and policy_rules[1] (team) allows 2" in said
        async with engine.pod(labels={"gpu": "every"}) as pod:
            assert await given(pod, env=ALL) == [0, 1, 2]
        async with engine.pod(annotations={"example.com/gpu": "never"}) as pod:
            said = await given(pod, env={VISIBLE: UUIDS[0]})
            assert "denied by policy_rules[3]" in said
        async with engine.pod(privileged=True) as pod:
            assert await given(pod, env={VISIBLE: "0"}, privileged=True) == [0]
            assert codes(daemon) == ["allowed-by-rule"]
        async with engine.pod(namespace="plain") as pod:
            assert await given(pod, env={VISIBLE: UUIDS[0]}) == []
            assert codes(daemon) == ["ignored-by-rule"]
        async with engine.pod("runc-1.1.5") as pod:
            said = await given(pod, env={VISIBLE: UUIDS[0]})
            assert "denied by policy_rules[6] (sandboxes)" in said
        assert [each["policy_rule"] for each in daemon.status()["decisions"]] == [
            "policy_rules[1] (team)",
            "policy_rules[1] (team)",
            "policy_rules[2] (labelled)",
            "policy_rules[3]",
            "policy_rules[4]",
            "policy_rules[5] (no names)",
            "policy_rules[6] (sandboxes)",
        ]


async def test_a_held_gpu_is_refused_to_the_next(engine, settled):
    """Also to another pod; it is free when its holder ends, by itself or by being removed."""
    with settled("policy.exclusive = true\n") as daemon:
        async with engine.pod() as one, engine.pod() as two:
            async with one.container("debian", name="first", env={VISIBLE: "1"}) as holder:
                said = await given(two, env={VISIBLE: "0,1"})
                assert f"GPU 1 ({UUIDS[1]}) is held by default/" in said
                assert f"/first ({holder.id[:12]})" in said
                assert await given(two, env={VISIBLE: "0,2"}) == [0, 2]
            assert await given(two, env={VISIBLE: "1"}) == [1]
            ended = await one.run("debian", command=["/bin/true"], env={VISIBLE: "1"})
            assert ended.code == 0
            assert await given(two, env={VISIBLE: "1"}) == [1]
        assert daemon.status()["containers"] == []


async def test_a_container_that_takes_its_time_to_end_holds_until_then(engine, settled):
    """A stop that has only been asked for frees nothing."""
    slow = ["/bin/sh", "-c", "trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done"]
    with settled("policy.exclusive = true\n") as daemon:
        async with (
            engine.pod() as one,
            engine.pod() as two,
            one.container("debian", command=slow, env={VISIBLE: "1"}) as holder,
        ):
            await until(lambda: "up" in holder.output())
            end = asyncio.ensure_future(one.client.stop_container(holder.id, grace=4))
            await until(lambda: "asked" in holder.output())
            assert "is held by" in await given(two, env={VISIBLE: "1"})
            await end
            daemon.until(lambda: not daemon.status()["containers"], "its end")
            assert await given(two, env={VISIBLE: "1"}) == [1]


class Refusing:
    """Another plugin, which refuses the containers of one name."""

    markers = (b"",)  # every container is shown
    validates = False

    def __init__(self):
        self.in_service = asyncio.Event()

    async def create_container(self, container, deadline):
        if container.name == "unwanted":
            raise errors.PolicyError("not this one")
        return edits_model.ContainerEdits()

    async def synchronized(self, containers):
        self.in_service.set()

    async def _nothing(self, *_):
        pass

    configure = registered = unreachable = disconnected = _nothing
    stop_container = remove_container = _nothing


async def test_a_creation_that_fails_later_holds_nothing(engine, settled):
    """Another plugin refuses the container after us: its GPU is free for the next."""
    other = Refusing()
    wanted = session.Settings(socket=str(engine.nri_socket), name="other", index="90")
    with settled("policy.exclusive = true\n") as daemon:
        serving = asyncio.ensure_future(session.run_forever(wanted, other))
        try:
            await asyncio.wait_for(other.in_service.wait(), daemons.PATIENCE)
            async with engine.pod() as pod:
                assert "not this one" in await given(pod, name="unwanted", env={VISIBLE: "1"})
                await until(lambda: not daemon.status()["containers"])
                assert daemon.status()["counts"] == {"inject": 1}
                assert await given(pod, env={VISIBLE: "1"}) == [1]
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def test_a_start_that_fails_blocks_nobody(engine, settled):
    """Neither a later attempt under its name, as by a kubelet, nor another pod."""
    socket = f'policy.cri_socket = "{engine.address}"\n'
    with settled("policy.exclusive = true\n"):
        async with engine.pod() as pod, engine.pod() as other:
            wishes = {"name": "main", "env": {VISIBLE: "1"}}
            failed = await pod.create("debian", command=["/no/such/program"], **wishes)
            with pytest.raises(grpclib.GRPCError):
                await failed.start()
            assert await given(pod, attempt=1, **wishes) == [1]
            # Without the runtime's CRI service it is not known to have ended.
            assert "is held by" in await given(other, env={VISIBLE: "1"})
            await failed.remove()
    with settled(f"policy.exclusive = true\n{socket}"):
        async with engine.pod() as pod, engine.pod() as other:
            failed = await pod.create("debian", command=["/no/such/program"], **wishes)
            with pytest.raises(grpclib.GRPCError):
                await failed.start()
            async with other.container("debian", env={VISIBLE: "1"}) as container:
                assert gpus(container) == [1]
                assert "is held by" in await given(pod, attempt=1, **wishes)
            await failed.remove()


async def test_whether_the_image_or_the_pod_said_so(engine, settled):
    """What the image has is known from the runtime's CRI service; the pod's own word counts."""
    engine.add_image("wants-all", base="debian", env=[f"{VISIBLE}=all"])
    rules = '[[policy_rules]]\nsources = ["image"]\naction = "ignore"\n'
    with settled(f'policy.cri_socket = "{engine.address}"\n{rules}') as daemon:
        async with engine.pod() as pod:
            assert await given(pod, "wants-all") == []
            assert codes(daemon) == ["ignored-by-rule"]
            assert await given(pod, "wants-all", env={VISIBLE: "1"}) == [1]
            assert codes(daemon) == []
            assert await given(pod, env=ALL) == [0, 1, 2]
    with settled(f'policy.cri_socket = "{engine.directory}/none"\n{rules}') as daemon:
        async with engine.pod() as pod:
            assert await given(pod, "wants-all") == [0, 1, 2]
            assert codes(daemon) == ["image-not-known"]


BEYOND = """policy = "strict"
request.accept_volume_mounts = true
[[policy_rules]]
namespaces = ["gpu-system"]
devices = ["nvswitch", "imex", "mig-config"]
action = "allow"
[[policy_rules]]
namespaces = ["nothing-mounted"]
sources = ["mount", "annotation"]
action = "deny"
"""


def nodes(container):
    return {device["path"] for device in container.config()["linux"].get("devices", [])}


async def test_what_reaches_beyond_a_pods_gpus(engine, settled):
    """By a rule alone, unless it was mounted; the GPU is there all the same."""
    channel, switch = "/dev/nvidia-caps-imex-channels/channel1", "/dev/nvidia-nvswitchctl"
    asks = {VISIBLE: UUIDS[0], "NVIDIA_IMEX_CHANNELS": "1", "NVIDIA_NVSWITCH": "enabled"}
    mounts = [("/dev/null", f"{MOUNTS}/{UUIDS[2]}"), ("/dev/null", f"{MOUNTS}/imex/1")]
    with settled(BEYOND) as daemon:
        async with engine.pod() as pod:
            async with pod.container("debian", env=asks) as container:
                assert not {channel, switch} & nodes(container)
                assert gpus(container) == [0]
            assert codes(daemon) == ["strict-policy-beyond"] * 2
            async with pod.container("debian", mounts=mounts) as container:
                assert channel in nodes(container)
                assert gpus(container) == [2]
        async with engine.pod(namespace="gpu-system") as pod:
            async with pod.container("debian", env=asks) as container:
                assert {channel, switch} <= nodes(container)
            # It may manage MIG, of which these GPUs have none.
            managing = {**asks, "NVIDIA_MIG_CONFIG_DEVICES": "all"}
            assert "the kernel lists no MIG capability" in await given(pod, env=managing)
        async with engine.pod(namespace="nothing-mounted") as pod:
            assert "denied by policy_rules[2]" in await given(pod, mounts=mounts)
            assert await given(pod, env={VISIBLE: UUIDS[1]}) == [1]


async def test_containers_outside_of_pods(engine, settled, programs):
    """Strict is about pods; exclusive is about all that come through the daemon, by any door."""
    with settled('policy = {preset = "strict", exclusive = true}\n') as daemon:
        wrapped = doors.wrapper(daemon, programs["runc"].path)
        async with (
            doors.ctr(engine, wrapped, {VISIBLE: "1"}) as container,
            engine.pod() as pod,
        ):
            said = await given(pod, env={VISIBLE: UUIDS[1]})
            assert f"is held by {container.id}" in said
            async with pod.container("debian", env={VISIBLE: UUIDS[0]}):
                with pytest.raises(doors.RefusedError, match="is held by default/pod-"):
                    async with doors.ctr(engine, wrapped, {VISIBLE: "0"}):
                        pass
        daemon.until(lambda: not daemon.status()["containers"], "the containers' end")
        async with doors.ctr(engine, wrapped, {VISIBLE: "0,1"}):
            pass
