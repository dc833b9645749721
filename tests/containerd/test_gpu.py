# SPDX-License-Identifier: Apache-2.0
"""Containers that get GPUs from a running daemon, seen from inside them.

Behind the simulated host's nodes there is no driver: opening one that was given answers ENXIO,
one that was not given EPERM, and that is the device cgroup's answer.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import grpclib
import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons
from . import engine as engines

LIBRARIES = "/usr/local/nvidia/lib64"


@pytest.fixture(scope="session")
def gpu_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with eight GPUs."""
    directory = tmp_path_factory.mktemp("host")
    spec = host_spec.HostSpec(gpus=tuple(host_spec.GpuSpec() for _ in range(8)))
    simulated.build(directory, spec)
    return directory


@pytest.fixture
def daemon(engine: engines.Engine, gpu_host: Path) -> Iterator[daemons.Daemon]:
    """A daemon registered with the shared engine."""
    with daemons.running(engine.nri_socket, gpu_host) as found:
        yield found


async def nodes(container) -> set[str]:
    """List the NVIDIA nodes in a container's /dev."""
    listed = (await container.probe("ls", "/dev")).split()
    return {name for name in listed if name.startswith("nvidia")}


async def test_two_gpus_of_eight(engine, daemon, runtime):
    """The given nodes open as far as the driver, others are not there, nor to be had by mknod."""
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "0,2"}) as container,
    ):
        assert await nodes(container) == {
            "nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools",
        }  # fmt: skip
        for name in ("nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
            assert await container.probe("open", f"/dev/{name}", "rw") == "ENXIO"
        assert await container.probe("mknod", "/dev/again", "c", "195", "2") == "OK ENXIO"
        assert await container.probe("mknod", "/dev/other", "c", "195", "1") == "OK EPERM"
        assert await container.probe("mknod", "/dev/modeset", "c", "195", "254") == "OK EPERM"
        assert await container.probe("stat", "/dev/nvidia2") == "c 195 2 0666 0 0"


async def test_driver_files_are_found_and_read_only(engine, daemon, runtime):
    """ld.so finds the driver by SONAME with no environment; nothing of it can be written."""
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "1"}) as container,
    ):
        cache = (await container.exec(["/sbin/ldconfig", "-p"])).stdout
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            assert f"{name} (libc6,x86-64) => {LIBRARIES}/{name}" in cache
            loaded = await container.exec(["/probe-dlopen", name])
            assert loaded.code == 0, loaded
        assert await container.probe("write", f"{LIBRARIES}/libcuda.so.1") == "EROFS"
        smi = await container.exec(["/bin/sh", "-c", "command -v nvidia-smi"])
        assert smi.stdout.strip() == "/usr/bin/nvidia-smi"


async def test_libraries_stay_known_when_the_image_runs_ldconfig(engine, daemon):
    """A package installed later runs ldconfig: the driver is still found after it."""
    async with (
        engine.pod() as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "1"}) as container,
    ):
        assert (await container.exec(["/sbin/ldconfig"])).code == 0
        cache = (await container.exec(["/sbin/ldconfig", "-p"])).stdout
        assert f"{LIBRARIES}/libcuda.so.1" in cache


async def test_none_gives_the_driver_without_a_gpu(engine, daemon):
    """`none`: libraries and control nodes."""
    async with (
        engine.pod() as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "none"}) as container,
    ):
        assert await nodes(container) == {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
        assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0


@pytest.mark.parametrize("image", ["alpine", "distroless", "busybox"])
@pytest.mark.parametrize("readonly", [False, True])
async def test_other_images_start_all_the_same(engine, daemon, runtime, image, readonly):
    """musl, no libc at all, a read-only root: the container starts and has its GPU."""
    async with (
        engine.pod(runtime=runtime) as pod,
        pod.container(image, env={"NVIDIA_VISIBLE_DEVICES": "3"}, readonly=readonly) as container,
    ):
        assert await container.probe("open", "/dev/nvidia3", "rw") == "ENXIO"
        assert "libcuda.so.1" in (await container.probe("ls", LIBRARIES)).split()


def comparable(config: dict, container_id: str) -> str:
    """Give a config.json without what differs between any two containers."""
    text = json.dumps(config, sort_keys=True)
    return text.replace(container_id, "ID")


@pytest.mark.parametrize("value", [None, "", "void"])
async def test_container_that_asks_for_nothing_is_untouched(engine, gpu_host, value):
    """Its config.json is the one that containerd makes without us."""
    env = {} if value is None else {"NVIDIA_VISIBLE_DEVICES": value}

    async def made(pod):
        async with pod.container("debian", env=env, name="same") as container:
            return comparable(container.config(), container.id)

    async with engine.pod() as pod:
        before = await made(pod)
        with daemons.running(engine.nri_socket, gpu_host):
            during = await made(pod)
    assert during == before


async def test_unknown_gpu_fails_the_creation_and_nothing_else(engine, daemon):
    """The sentence reaches the client, and the next container gets its GPU."""
    async with engine.pod() as pod:
        with pytest.raises(grpclib.GRPCError) as caught:
            await pod.create("debian", env={"NVIDIA_VISIBLE_DEVICES": "9"})
        assert "NVIDIA_VISIBLE_DEVICES=9: no such GPU; this node has 0-7" in caught.value.message
        async with pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "7"}) as container:
            assert await container.probe("open", "/dev/nvidia7", "rw") == "ENXIO"
    decisions = [entry["decision"] for entry in daemon.status()["decisions"]]
    assert decisions == ["error", "inject"]


async def test_status_tells_who_holds_what(engine, daemon):
    """A holder is listed by pod and container while it runs, and no longer after."""
    async with engine.pod() as pod:
        async with pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "0,2"}) as container:
            status = daemon.status()
            held = {gpu["index"]: [c["id"] for c in gpu["containers"]] for gpu in status["gpus"]}
            assert held == {i: [container.id] if i in {0, 2} else [] for i in range(8)}
            assert status["runtime"]["name"] == "containerd"
            assert status["driver"]["version"] == "550.163.01"
            (entry,) = status["containers"]
            daemon.until(lambda: daemon.status()["containers"][0]["hook"] == "ok", "its report")
            assert entry["capabilities"] == ["compute", "utility"]
        daemon.until(lambda: not daemon.status()["containers"], "the container's end")
    shown = daemon.ask("status")
    assert shown.returncode == 0
    assert "550.163.01" in shown.stdout


async def test_daemon_keeps_nothing_of_the_driver_open(engine, daemon):
    """Neither a node nor a library, before and after a hundred containers."""
    assert daemon.held() == []
    daemon.until(lambda: not daemon.nvidia_files(), "a scan's end")
    async with engine.pod() as pod:
        for _ in range(100):
            created = await pod.create("busybox", env={"NVIDIA_VISIBLE_DEVICES": "all"})
            await created.remove()
    # A scan reads what a library is, and closes it.
    assert daemon.held() == []
    daemon.until(lambda: not daemon.nvidia_files(), "a scan's end")
    assert daemon.status()["counts"]["inject"] == 100


async def test_containerd_dies_and_comes_back(fresh, gpu_host):
    """The daemon is registered again by itself, and containers get GPUs again."""
    engine = fresh()
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        await engine.restart(signal.SIGKILL)
        daemon.ready()
        async with (
            engine.pod() as pod,
            pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "4"}) as container,
        ):
            assert await container.probe("open", "/dev/nvidia4", "rw") == "ENXIO"
        assert daemon.status()["runtime"]["registrations"] == 2


async def test_daemon_dies_and_comes_back(engine, gpu_host):
    """Running containers keep their GPUs; a new daemon knows who holds them."""
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        async with (
            engine.pod() as pod,
            pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "5"}) as container,
        ):
            daemon.end(signal.SIGKILL)
            assert await container.probe("open", "/dev/nvidia5", "rw") == "ENXIO"
            missed = await pod.create("debian", env={"NVIDIA_VISIBLE_DEVICES": "6"})
            await missed.start()
            daemon.start().ready()
            daemon.until(lambda: daemon.status()["containers"], "what was there before")
            status = daemon.status()
            assert [gpu["index"] for gpu in status["gpus"] if gpu["containers"]] == [5]
            assert [entry["id"] for entry in status["missed"]] == [missed.id]


async def test_started_by_containerd(fresh, gpu_host):
    """From the plugin directory, with its configuration from conf.d and no PATH or HOME."""

    def prepare(engine):
        engine.directory.chmod(0o755)
        settings = {
            "host.root": gpu_host,
            "host.driver_root": gpu_host,
            "host.dev_root": gpu_host,
            "hook.directory": engine.directory / "hook",
            "control.socket": engine.directory / "control.sock",
            "inject.volume_dir": engine.directory / "volumes",
        }
        text = "\n".join(f'{key} = "{value}"' for key, value in settings.items())
        (engine.nri_plugins / "10-nri-nvidia").symlink_to(daemons.COMMAND)
        (engine.nri_conf / "10-nri-nvidia.conf").write_text(text)

    engine = fresh(prepare=prepare)
    async with (
        engine.pod() as pod,
        pod.container("debian", env={"NVIDIA_VISIBLE_DEVICES": "4"}) as container,
    ):
        assert await container.probe("open", "/dev/nvidia4", "rw") == "ENXIO"
        assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
    assert (engine.directory / "control.sock").exists()
