# SPDX-License-Identifier: Apache-2.0
"""A container sees and may do the same whichever way the driver's files come to it."""

import contextlib
import os

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons

DIRECTORY = "/usr/local/nvidia"
ENV = {"NVIDIA_VISIBLE_DEVICES": "1", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
    return directory


@contextlib.contextmanager
def served(engine, gpu_host, layout):
    """Have a daemon with a layout, and with it what it prepares ahead."""
    with daemons.running(engine.nri_socket, gpu_host, ("--layout", layout)) as daemon:
        if layout == "volume":
            daemon.until(lambda: "are prepared in" in daemon.logged(), "the prepared directory")
        yield daemon


async def seen(container) -> dict[str, object]:
    """Describe what a container has of the driver, and what it may do with it."""
    # A prepared directory has a link `lib` besides, which leads nowhere here.
    listing = "cd /usr/local/nvidia && stat -c '%N %A %u %g %s' */* && cksum lib64/libcuda.so.1"
    found: dict[str, object] = {}
    for name, command in {
        "names": listing,
        "cache": "/sbin/ldconfig -p | grep -o '.*nvidia.*' | sort",
        "program": "command -v nvidia-smi; readlink /usr/bin/nvidia-smi",
        "nodes": "ls /dev | grep nvidia",
        "other links": "ls -lR --time-style=+ /usr/bin /usr/lib /etc | grep -e '-> .*nvidia'",
        "loader": "cat /etc/ld.so.conf.d/*nvidia*; cat /etc/ld.so.conf",
        "variables": "env | grep -E '^(NVIDIA|CUDA|LD)' | sort",
    }.items():
        result = await container.exec(["/bin/sh", "-c", command])
        assert (result.code, result.stderr) == (0, ""), (name, result)
        found[name] = result.stdout
    for path in ("lib64/libcuda.so.1", "lib64/new.so", "bin/nvidia-smi"):
        found[path] = await container.probe("write", f"{DIRECTORY}/{path}")
    for name in ("nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        found[name] = [
            await container.probe("stat", f"/dev/{name}"),
            await container.probe("open", f"/dev/{name}", "rw"),
        ]
    found["other GPU"] = await container.probe("mknod", "/dev/other", "c", "195", "0")
    for library in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
        loaded = await container.exec(["/probe-dlopen", library])
        found[library] = (loaded.code, loaded.stdout)
    return found


async def test_both_layouts_are_the_same_inside(engine, gpu_host, runtime):
    """Names, links, contents, cache, programs, nodes and rights do not differ."""
    both = []
    for layout in ("files", "volume"):
        with served(engine, gpu_host, layout):
            async with (
                engine.pod(runtime=runtime) as pod,
                pod.container("debian", env=ENV) as container,
            ):
                mounts = [
                    each["destination"]
                    for each in container.config()["mounts"]
                    if (each["destination"] + "/").startswith(DIRECTORY + "/")
                ]
                assert (mounts == [DIRECTORY]) is (layout == "volume")
                found = await seen(container)
        # In the layout `files` a new name can be made in the container's own directory.
        assert found.pop("lib64/new.so") == ("EROFS" if layout == "volume" else "OK")
        both.append(found)
    assert both[0] == both[1]
    assert both[0]["lib64/libcuda.so.1"] == "EROFS"
    assert both[0]["libcuda.so"] == (0, f"{DIRECTORY}/lib64/libcuda.so\n")


@pytest.mark.parametrize("image", ["alpine", "distroless", "busybox"])
@pytest.mark.parametrize("readonly", [False, True])
async def test_other_images_start_with_a_volume(engine, gpu_host, image, readonly):
    """musl, no libc, a read-only root: the container starts and has the files."""
    with served(engine, gpu_host, "volume"):
        async with (
            engine.pod() as pod,
            pod.container(image, env=ENV, readonly=readonly) as container,
        ):
            assert "libcuda.so.1" in await container.probe("ls", f"{DIRECTORY}/lib64")


async def test_users_mount_inside_makes_it_files(engine, gpu_host, tmp_path):
    """A mount of the container's own below the directory is kept, and the container starts."""
    (tmp_path / "mine").write_text("mine")
    with served(engine, gpu_host, "volume"):
        async with (
            engine.pod() as pod,
            pod.container(
                "debian", env=ENV, mounts=[(tmp_path, f"{DIRECTORY}/extra")]
            ) as container,
        ):
            assert await container.probe("cat", f"{DIRECTORY}/extra/mine") == "mine"
            assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


async def test_directory_that_cannot_be_prepared(engine, gpu_host):
    """Files are mounted one by one then, and the status says why."""
    with daemons.running(
        engine.nri_socket, gpu_host, ("--volume-directory", "/proc/none")
    ) as daemon:
        async with engine.pod() as pod, pod.container("debian", env=ENV) as container:
            assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
        codes = [finding["code"] for finding in daemon.status()["findings"]]
        assert "volume-not-built" in codes


async def test_directory_is_removed_when_no_container_has_it(engine, gpu_host):
    """A running container keeps its own through the daemon's restart; then it goes."""
    with served(engine, gpu_host, "volume") as daemon:
        (old,) = (daemon.directory / "volumes").iterdir()
        stranger = old.with_name("1.2.3-0123456789abcdef")
        stranger.mkdir()
        os.utime(stranger, (0, 0))  # what was used within an hour stays
        async with engine.pod() as pod, pod.container("debian", env=ENV):
            daemon.end()
            daemon.start().ready()
            # Another set of files is prepared, which is when the unused are looked for.
            env = {**ENV, "NVIDIA_DRIVER_CAPABILITIES": "utility"}
            await (await pod.create("busybox", env=env)).remove()
            daemon.until(lambda: not stranger.exists(), "the removal of what nobody uses")
            assert old.exists()


async def test_a_damaged_directory_is_noticed(engine, gpu_host):
    """A container after the damage gets the driver's own files, and a later one a new directory.

    The one that has the damaged directory keeps it as it is.
    """
    with served(engine, gpu_host, "volume") as daemon:
        (place,) = (daemon.directory / "volumes").iterdir()
        async with engine.pod() as pod, pod.container("debian", env=ENV, name="old") as old:
            (place / "lib64/libcuda.so.1").unlink()
            async with pod.container("debian", env=ENV, name="next") as container:
                assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
            daemon.until(lambda: "had changed it" in daemon.logged(), "the new directory")
            async with pod.container("debian", env=ENV, name="later") as container:
                (mount,) = [
                    each
                    for each in container.config()["mounts"]
                    if each["destination"] == DIRECTORY
                ]
                assert mount["source"] == str(place)
                assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
            assert (await old.exec(["/probe-dlopen", "libcuda.so.1"])).code != 0
            assert "libnvidia-ml.so.1" in await old.probe("ls", f"{DIRECTORY}/lib64")
