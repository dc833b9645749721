# SPDX-License-Identifier: Apache-2.0
"""BuildKit by itself: RUN by nri-nvidia-runtime, and by CDI where its Dockerfiles can ask so."""

import contextlib

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import buildkits, daemons, doors, nerdctls

pytestmark = pytest.mark.long
LOOK = "RUN /probe ls /dev; /probe-dlopen libcuda.so.1; /probe open /dev/nvidia1 rw"


@pytest.fixture(scope="module")
def world(programs, library, tmp_path_factory):
    """A buildkitd whose worker runs nri-nvidia-runtime, and a daemon that keeps CDI files.

    buildkitd has the umask 0 (its main_unix.go): everybody may write to its config.json.
    """
    host = tmp_path_factory.mktemp("host")
    with contextlib.ExitStack() as stack:
        kit = stack.enter_context(buildkits.prepared(library["debian"]))
        simulated.build(host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
        text = f'cdi.keep = true\ncdi.directory = "{kit.cdi_specs}"\n'
        daemon = stack.enter_context(daemons.alone(host, text))
        daemon.until((kit.cdi_specs / "nri-nvidia-gpu.json").exists, "the CDI specification")
        kit.start(doors.wrapper(daemon, programs["runc"].path))
        yield kit, daemon


def seen(done):
    """Give what a RUN wrote, word by word."""
    assert done.code == 0, done
    return {line.split()[-1] for line in done.stderr.splitlines() if line.strip()}


async def test_by_the_runtime(world):
    """What the variable asks for; nothing is held once it is built."""
    kit, daemon = world
    words = seen(await kit.build(["ENV NVIDIA_VISIBLE_DEVICES=1", LOOK]))
    assert {"nvidia1", "nvidiactl", "ENXIO", "/usr/local/nvidia/lib64/libcuda.so.1"} < words
    assert "nvidia0" not in words
    daemon.until(lambda: not daemon.status()["containers"], "the build's end")
    assert "nvidiactl" not in seen(await kit.build(["RUN /probe ls /dev"]))


async def test_a_refusal_is_what_the_build_says(world):
    """The daemon's sentence."""
    done = await world[0].build(["ENV NVIDIA_VISIBLE_DEVICES=9", LOOK])
    assert done.code != 0
    assert "NVIDIA_VISIBLE_DEVICES=9: no such GPU; this node has 0-1" in done.stderr


@pytest.fixture
def worker(start, programs, library, tmp_path):
    """A buildkitd whose worker is a containerd, which is told our runtime; that one, the daemon."""
    simulated.build(tmp_path / "host", host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
    with contextlib.ExitStack() as stack:
        engine = start("containerd-2")
        stack.callback(engine.stop)
        kit = stack.enter_context(buildkits.prepared(library["debian"], engine))
        daemon = stack.enter_context(daemons.alone(tmp_path / "host"))
        kit.start(doors.wrapper(daemon, programs["runc"].path))
        yield kit, engine, daemon


async def test_by_containerd(worker):
    """With a containerd as its worker the runtime is named to the shim."""
    kit, _, daemon = worker
    words = seen(await kit.build(["ENV NVIDIA_VISIBLE_DEVICES=1", LOOK]))
    assert {"nvidia1", "nvidiactl", "ENXIO", "/usr/local/nvidia/lib64/libcuda.so.1"} < words
    assert "nvidia0" not in words
    daemon.until(lambda: not daemon.status()["containers"], "the build's end")
    done = await kit.build(["ENV NVIDIA_VISIBLE_DEVICES=9", LOOK])
    assert "NVIDIA_VISIBLE_DEVICES=9: no such GPU; this node has 0-1" in done.stderr


async def test_nerdctl_build(worker):
    """It is a build by that buildkitd."""
    kit, engine, _ = worker
    nerdctl = nerdctls.Nerdctl.beside(nerdctls.found(), engine)
    context = kit.context(["ENV NVIDIA_VISIBLE_DEVICES=1", LOOK])
    options = ["--buildkit-host", kit.address, "--build-context", f"base={kit.base}"]
    words = seen(await nerdctl.build(context, *options, "-t", "built:1"))
    assert {"nvidia1", "nvidiactl", "ENXIO", "/usr/local/nvidia/lib64/libcuda.so.1"} < words
    assert "nvidia0" not in words


async def test_by_cdi(world):
    """`RUN --device` gets the device that is named, once the build is allowed it."""
    kit, _ = world
    lines = [LOOK.replace("RUN ", "RUN --device=nvidia.com/gpu=1 ")]
    done = await kit.build(lines, "--allow", "device")
    if "device feature is only supported in" in done.stderr:
        pytest.skip("this buildkitd's own Dockerfile frontend knows no RUN --device")
    words = seen(done)
    assert {"nvidia1", "nvidiactl", "ENXIO", "/usr/local/nvidia/lib64/libcuda.so.1"} < words
    assert "nvidia0" not in words
    refused = await kit.build(lines)
    assert refused.code != 0
    assert "device" in refused.stderr
