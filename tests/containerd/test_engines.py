# SPDX-License-Identifier: Apache-2.0
"""The real parts work here: engines, runtimes, images and probes, without our daemon."""

import json
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import grpclib
import pytest

from . import images, messages, processes
from .conftest import CACHE
from .engine import Engine

NODE = os.makedev(120, 7)
"""A node of the numbers that Linux keeps for local use: no driver is behind it."""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "node"
    os.mknod(path, stat.S_IFCHR | 0o666, NODE)
    return path


async def test_busybox_runs_under_each_runtime(engine: Engine, runtime: str) -> None:
    """A container of each runtime runs, a command inside answers, config.json can be read."""
    async with engine.pod(runtime) as pod, pod.container(env={"A": "b c"}) as container:
        result = await container.exec(["sh", "-c", "echo $A; exit 3"])
        assert (result.code, result.stdout) == (3, "b c\n")
        assert "A=b c" in container.config()["process"]["env"]


@pytest.mark.parametrize("image", ["busybox", "debian", "debian-x11", "alpine", "distroless"])
async def test_each_image_starts(engine: Engine, image: str) -> None:
    """Every image waits for commands with no command given, and its probe answers."""
    async with engine.pod() as pod, pod.container(image) as container:
        assert await container.probe("id") == "0 0 0"
        assert await container.probe("open", "/nothing") == "ENOENT"


async def test_device_answers_tell_given_from_forbidden(
    engine: Engine, runtime: str, node: Path
) -> None:
    """A given node without a driver answers ENXIO, one made inside EPERM, under each runtime."""
    given = (str(node), "/dev/given", "rw")
    async with engine.pod(runtime) as pod, pod.container(devices=[given]) as container:
        assert await container.probe("open", "/dev/given") == "ENXIO"
        assert await container.probe("mknod", "/dev/same", "c", "120", "7") == "OK ENXIO"
        assert await container.probe("mknod", "/dev/other", "c", "120", "8") == "OK EPERM"
        assert await container.probe("open", "/dev/none") == "ENOENT"


async def test_debian_image_loads_libraries(engine: Engine) -> None:
    """The Debian image has a working ldconfig, and the probe loads a library by its name."""
    async with engine.pod() as pod, pod.container("debian") as container:
        listed = await container.exec(["ldconfig", "-p"])
        assert "libc.so.6 (libc6," in listed.stdout
        loaded = await container.exec(["/probe-dlopen", "libm.so.6"])
        assert loaded.stdout.endswith("/libm.so.6\n")
        missing = await container.exec(["/probe-dlopen", "libcuda.so.1"])
        assert (missing.code, "cannot open shared object file" in missing.stdout) == (1, True)


async def test_alpine_image_has_neither_glibc_nor_ldconfig(engine: Engine) -> None:
    """The image like Alpine's has musl's loader and no program named ldconfig."""
    async with engine.pod() as pod, pod.container("alpine") as container:
        loader = await container.exec(["sh", "-c", "ls /lib/ld-musl-*.so.1 && ! type ldconfig"])
        assert loader.code == 0


async def test_wishes_reach_the_runtime(engine: Engine, tmp_path: Path) -> None:
    """Mounts, labels, annotations, user, groups and a read-only root arrive in the container."""
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_text("here", encoding="utf-8")
    async with (
        engine.pod(labels={"app": "x"}, annotations={"note": "pod"}) as pod,
        pod.container(
            mounts=[(tmp_path, "/data", "ro")],
            annotations={"note": "container"},
            user=1000,
            group=2000,
            groups=[44],
            readonly=True,
        ) as container,
    ):
        assert await container.probe("cat", "/data/file") == "here"
        assert await container.probe("write", "/data/new") == "EROFS"
        assert await container.probe("id") == "1000 2000 44 2000"
        assert container.config()["root"]["readonly"] is True
        assert (await container.status()).annotations["note"] == "container"


async def test_privileged_container_may_use_every_device(engine: Engine, node: Path) -> None:
    """In a privileged container a node made inside is allowed."""
    async with engine.pod(privileged=True) as pod, pod.container(privileged=True) as container:
        assert await container.probe("mknod", "/dev/a", "c", "120", "7") == "OK ENXIO"


async def test_image_environment_is_in_the_spec(engine: Engine) -> None:
    """An image can be given an environment of its own, which a pod's wins over."""
    engine.add_image("with-env", base="busybox", env=["FROM=image", "BOTH=image"])
    async with engine.pod() as pod, pod.container("with-env", env={"BOTH": "pod"}) as container:
        result = await container.exec(["sh", "-c", "echo $FROM $BOTH"])
        assert result.stdout == "image pod\n"


async def test_output_and_exit_code_of_a_finished_container(engine: Engine) -> None:
    """What a container wrote and how it ended can be read after its end."""
    async with engine.pod() as pod:
        result = await pod.run(command=["sh", "-c", "echo out; echo err >&2; exit 4"])
    assert result.code == 4
    assert sorted(result.stdout.splitlines()) == ["err", "out"]


async def test_refused_creation_raises_the_runtimes_sentence(engine: Engine) -> None:
    """A container that cannot be made raises GRPCError, and the pod goes away all the same."""
    async with engine.pod() as pod:
        with pytest.raises(grpclib.GRPCError, match="/nowhere"):
            await pod.create(devices=["/nowhere"])
    async with engine.client() as client:
        assert pod.id not in {each.id for each in await client.list_pods()}


async def test_resources_can_be_updated(engine: Engine, node: Path) -> None:
    """A resize reaches the running container and leaves its devices as they are."""
    given = (str(node), "/dev/given", "rw")
    async with engine.pod() as pod, pod.container(devices=[given]) as container:
        await container.update(messages.LinuxContainerResources(cpu_shares=512))
        assert await container.probe("open", "/dev/given") == "ENXIO"


async def test_containers_live_through_a_restart(fresh: Callable[..., Engine]) -> None:
    """A restarted and a killed containerd find the running container again."""
    engine = fresh()
    async with engine.pod() as pod, pod.container() as container:
        before = await container.pid()
        await engine.restart()
        engine.kill()
        await engine.restart()
        assert (await container.exec(["true"])).code == 0
        assert await container.pid() == before


async def test_nri_socket_is_served(engine: Engine) -> None:
    """NRI listens at the engine's own socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(engine.nri_socket))


async def test_stopping_leaves_nothing(fresh: Callable[..., Engine]) -> None:
    """After `stop`, even amid running containers, no process, cgroup, mount or file is left."""
    engine = fresh()
    async with engine.client() as client, engine.pod() as pod, pod.container() as container:
        assert await client.list_containers()
        pid = await container.pid()
        engine.stop()
    assert not processes.runs(pid)
    assert not list(Path("/sys/fs/cgroup").glob(f"**{engine.cgroup}"))
    assert not engine.directory.exists()
    assert processes.mounts_below(engine.directory) == []


async def test_ctr_runs_containers_of_its_own(engine: Engine, library: images.Library) -> None:
    """containerd's own client runs a container, which NRI and CRI do not see."""
    await engine.import_archive(library["busybox"].archive)
    output = await engine.ctr("run", "--rm", library["busybox"].reference, "by-ctr", "echo", "hi")
    assert output == "hi\n"


async def test_libraries_of_the_driver_find_what_they_need(engine: Engine) -> None:
    """In the image with X11, ldd finds whatever each of Debian's driver libraries loads."""
    record = json.loads((CACHE / "driver/driver.json").read_text(encoding="utf-8"))
    # The image has no i386 libc, and no libgbm.so.1: that brings Mesa with all of LLVM.
    packages = (each for each in record["packages"] if ":" not in each and "-gbm" not in each)
    files = [path for name in packages for path in record["packages"][name]]
    libraries = [f"/driver{path}" for path in files if ".so." in path]
    script = """
        lib=/driver/usr/lib/$(uname -m)-linux-gnu
        export LD_LIBRARY_PATH=$lib/nvidia/current:$lib
        ldd "$@" | grep 'not found'
    """
    mounts = [(record["root"], "/driver", "ro")]
    async with engine.pod() as pod, pod.container("debian-x11", mounts=mounts) as container:
        result = await container.exec(["bash", "-c", script, "-", *libraries])
    assert (result.stdout, result.stderr) == ("", "")
    assert len(libraries) > 40
