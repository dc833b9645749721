# SPDX-License-Identifier: Apache-2.0
"""CRI-O's containers: by NRI, by nri-nvidia-runtime, by CDI; and what only a newer NRI has."""

import asyncio
import contextlib
import signal

import grpclib
import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import conftest, crios, daemons, doors, others, test_doors

pytestmark = pytest.mark.long
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
ASKED = {VISIBLE: "0,2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
BY_NAME = ("nvidia.com/gpu=0", "nvidia.com/gpu=2")


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A simulated host with three GPUs."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 3))
    return directory


@pytest.fixture(scope="module")
def places(programs, library, tmp_path_factory):
    """A CRI-O with a handler `wrapped`, and the place of that one's program."""
    late = tmp_path_factory.mktemp("crio") / "wrapped"
    late.write_text("#!/bin/sh\nexit 1\n")  # one has to be there when CRI-O starts
    late.chmod(0o755)
    handlers = {"wrapped": late, "crun": programs["crun"].path}
    with crios.running(programs, library, wrappers=handlers) as crio:
        yield crio, late


@pytest.fixture
def settled(places, host, programs, tmp_path):
    """Give a function that starts a daemon with settings, which keeps CDI files there."""
    crio, late = places

    @contextlib.contextmanager
    def start(text=""):
        config = tmp_path / "config.toml"
        config.write_text(f'cdi.keep = true\ncdi.directory = "{crio.cdi_specs}"\n{text}')
        with daemons.running(crio.nri_socket, host, ["--config", str(config)]) as daemon:
            late.unlink(missing_ok=True)
            late.symlink_to(doors.wrapper(daemon, programs["runc"].path))
            daemon.until((crio.cdi_specs / "nri-nvidia-gpu.json").exists, "the specification")
            yield daemon

    return start


@contextlib.asynccontextmanager
async def container(crio, env=None, *, cdi=(), runtime="runc", image="debian"):
    """Run a container; raises RefusedError with what CRI-O says."""
    async with crio.pod(runtime) as pod:
        try:
            found = await pod.create(image, env=env or {}, cdi=cdi)
            await found.start()
        except grpclib.GRPCError as error:
            raise doors.RefusedError(str(error.message)) from error
        yield found


async def gpus(crio, env=None, **more):
    """Give the numbers of the GPUs that a container gets."""
    async with container(crio, env, **more) as found:
        listed = (await found.probe("ls", "/dev")).split()
        return {name[6:] for name in listed if name[6:].isdigit() and name[:6] == "nvidia"}


async def test_every_door_gives_the_same(places, settled):
    """By NRI, with the runtime beside it, and by CDI; the holder is known while it runs."""
    crio, _ = places
    with settled() as daemon:
        async with container(crio, ASKED) as found:
            expected = await doors.facts(found)
            (entry,) = daemon.status()["containers"]
            assert (entry["id"], entry["door"]) == (found.id, "nri")
            assert daemon.status()["runtime"]["name"] == "cri-o"
        assert {"nvidia0", "nvidia2", "nvidiactl"} < expected["nodes"].keys()
        assert expected["opened"] == {"ENXIO"}
        daemon.until(lambda: not daemon.status()["containers"], "the container's end")
        async with container(crio, ASKED) as found:
            everything = await test_doors.everything(found)
        async with container(crio, ASKED, runtime="wrapped") as found:
            assert await doors.facts(found) == expected
        async with container(crio, cdi=BY_NAME) as found:
            assert await doors.facts(found) == expected
            assert await test_doors.everything(found) == everything


async def test_on_crun(places, settled):
    """CRI-O's own default runtime gives the same."""
    if reason := conftest.crun_cannot():
        pytest.skip(reason)
    crio, _ = places
    with settled():
        async with container(crio, ASKED) as found:
            expected = await doors.facts(found)
        for more in ({"env": ASKED}, {"cdi": BY_NAME}):
            async with container(crio, runtime="crun", **more) as found:
                assert await doors.facts(found) == expected


async def test_every_door_refuses_what_is_not_there(places, settled):
    """With the daemon's sentence, by CDI with CRI-O's own."""
    crio, _ = places
    with settled() as daemon:
        for runtime in ("runc", "wrapped"):
            with pytest.raises(doors.RefusedError, match="DEVICES=9: no such GPU; this node has"):
                await gpus(crio, {VISIBLE: "9"}, runtime=runtime)
        with pytest.raises(doors.RefusedError, match=r"unresolvable CDI .*nvidia\.com/gpu=9"):
            await gpus(crio, cdi=["nvidia.com/gpu=9"])
        assert daemon.status()["containers"] == []
        async with container(crio) as found:
            assert "nvidia" not in await found.probe("ls", "/dev")


async def test_each_may_be_away(places, settled):
    """Of what was there before a restart of either the holder is known, and who was missed."""
    crio, _ = places
    env = {VISIBLE: "1"}
    with settled() as daemon:
        async with container(crio, env) as held:
            await asyncio.to_thread(crio.kill)
            await asyncio.to_thread(crio.start)
            daemon.until(lambda: daemon.status()["runtime"]["registrations"] == 2, "CRI-O again")
            (entry,) = daemon.status()["containers"]
            assert entry["id"] == held.id
            daemon.end(signal.SIGKILL)
            async with container(crio, env) as missed:
                assert "nvidia" not in await missed.probe("ls", "/dev")
                daemon.start()
                # It said READY more than once before.
                daemon.until(lambda: daemon.ask("status").returncode < 2, "its answer")
                daemon.until(lambda: daemon.status()["missed"], "who was missed")
                status = daemon.status()
                assert [each["id"] for each in status["missed"]] == [missed.id]
                assert [each["id"] for each in status["containers"]] == [held.id]
            assert await gpus(crio, env) == {"1"}


async def test_whether_the_image_or_the_pod_said_so(places, settled):
    """What the image has is known from CRI-O's CRI service; the pod's own word counts."""
    crio, _ = places
    crio.add_image("wants-all", base="debian", env=[f"{VISIBLE}=all"])
    rules = '[[policy_rules]]\nsources = ["image"]\naction = "ignore"\n'
    with settled(f'policy.cri_socket = "{crio.address}"\n{rules}') as daemon:
        assert await gpus(crio, image="wants-all") == set()
        (decided,) = daemon.status()["decisions"]
        assert [each["code"] for each in decided["reasons"]] == ["ignored-by-rule"]
        assert await gpus(crio, {VISIBLE: "1"}, image="wants-all") == {"1"}
        assert await gpus(crio, {VISIBLE: "all"}) == set("012")


async def test_what_another_plugin_makes_of_a_decision(places, settled):
    """With `nri.validate` the creation is refused, and the sentence names the plugin."""
    crio, _ = places
    with settled('nri.validate = "ours"\n') as daemon:
        assert await gpus(crio, {VISIBLE: "0"}) == {"0"}
        async with others.beside(crio.nri_socket):
            with pytest.raises(doors.RefusedError, match="plugin 20-other gives /dev/nvidia1"):
                await gpus(crio, {VISIBLE: "0"})
            last = daemon.status()["decisions"][-1]
            assert last["reasons"][-1]["code"] == "adjustment-altered"
            assert daemon.status()["containers"] == []
    with settled():
        async with others.beside(crio.nri_socket):
            assert await gpus(crio, {VISIBLE: "0"}) == {"0", "1"}


async def test_required(programs, library, host):
    """With what `configure crio --require` writes no container is created without the daemon."""
    release = ["--require", "--engine-version", "1.37.0"]
    with (
        crios.running(programs, library, configure=release) as crio,
        daemons.running(crio.nri_socket, host) as daemon,
    ):
        assert await gpus(crio, {VISIBLE: "1"}) == {"1"}
        daemon.end()
        with pytest.raises(doors.RefusedError, match=r"required plugin.*nri-nvidia"):
            await gpus(crio)
        daemon.start().ready()
        assert await gpus(crio, {VISIBLE: "1"}) == {"1"}
