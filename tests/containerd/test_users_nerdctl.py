# SPDX-License-Identifier: Apache-2.0
"""A user's own containerd and nerdctl (rootless): by nri-nvidia-runtime, and by CDI."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nri_nvidia.oci import install
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import doors, nerdctls, processes, test_doors, test_rootless, users_dockers

pytestmark = pytest.mark.long
ASKED = {"NVIDIA_VISIBLE_DEVICES": "0,2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
BY_NAME = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=2"]
PROGRAMS = ("rootlesskit", "slirp4netns", "uidmap", "containerd-2", "runc")
WITHOUT_CRI = """version = 3
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
                    "io.containerd.grpc.v1.cri"]
"""


@contextlib.contextmanager
def started(place, space, script, nerdctl):
    """Have the user's containerd as nerdctl's script starts it."""
    with (place.directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*space, script], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            start_new_session=True,
        )  # fmt: skip
    namespace = 0
    try:
        end = time.monotonic() + users_dockers.dockers.PATIENCE
        while not nerdctl.answers:
            said = (place.directory / "log").read_text("utf-8", "replace")
            assert process.poll() is None, said
            assert time.monotonic() < end, said
            time.sleep(0.05)
        child = (place.directory / "xdg/containerd-rootless/child_pid").read_text("utf-8")
        namespace = Path(f"/proc/{child}/ns/user").stat().st_ino
        assert namespace != Path("/proc/self/ns/user").stat().st_ino
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(users_dockers.dockers.PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        processes.end(lambda each: (each / "ns/user").stat().st_ino == namespace, 30.0)


@pytest.fixture(scope="module")
def world(programs, library):
    """A user's containerd and nerdctl, in whose directory the CDI specification is linked."""
    program, script = nerdctls.found(), nerdctls.found("containerd-rootless.sh")
    paths = [programs[name].path for name in PROGRAMS if name in programs]
    for path in (*paths, program, script):
        if reason := install.closed_at(str(path)):
            pytest.skip(f"another user cannot start {path}: it {reason}")
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(test_rootless.place("nnh-")) / "host"
        simulated.build(host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 3))
        place = stack.enter_context(users_dockers.places(host, library.probe))
        place.provide_run()
        daemon = stack.enter_context(place.daemon(host))
        wrapper = users_dockers.wrapper(daemon, programs["runc"].path)
        settings = place.home / ".config"
        for name in ("containerd", "cdi"):
            (settings / name).mkdir()
        (settings / "containerd/config.toml").write_text(WITHOUT_CRI)
        # Of directories it follows no link, as that of /run/cdi is to it.
        (settings / "cdi/nri-nvidia-gpu.json").symlink_to("/run/cdi/nri-nvidia-gpu.json")
        place.own()
        space, _ = place.as_user(*(programs[name].bin for name in PROGRAMS))
        nerdctl = nerdctls.Nerdctl([*space, str(program)], place.directory)
        stack.enter_context(started(place, space, script, nerdctl))
        nerdctl.load(library["debian"])

        def run(env=None, *options):
            return nerdctl.container(library["debian"], env, *options)

        yield run, ["--runtime", str(wrapper)], daemon


async def test_by_the_runtime_and_by_cdi(world):
    """The same either way; the holder is told by the user."""
    run, wrapped, daemon = world
    async with run(ASKED, *wrapped) as container:
        by_runtime = await doors.facts(container)
        everything = await test_doors.everything(container)
        assert {"nvidia0", "nvidia2", "nvidiactl"} < by_runtime["nodes"].keys()
        assert by_runtime["opened"] == {"ENXIO"}
        (entry,) = daemon.status()["containers"]
        assert entry["id"].endswith(f"/{users_dockers.USER}")
    daemon.until(lambda: not daemon.status()["containers"], "the container's end")
    for options in (BY_NAME, ["--gpus", '"device=0,2"']):
        async with run(None, *options) as container:
            assert await doors.facts(container) == by_runtime
            assert await test_doors.everything(container) == everything


async def test_refusals_are_what_nerdctl_says(world):
    """The daemon's sentence by the runtime, nerdctl's own by CDI; plain containers run."""
    run, wrapped, daemon = world
    with pytest.raises(doors.RefusedError, match="DEVICES=9: no such GPU; this node has 0-2"):
        async with run({"NVIDIA_VISIBLE_DEVICES": "9"}, *wrapped):
            pass
    assert daemon.status()["containers"] == []
    with pytest.raises(doors.RefusedError, match=r"unresolvable CDI devices nvidia\.com/gpu=9"):
        async with run(None, "--device", "nvidia.com/gpu=9"):
            pass
    async with run({}, *wrapped) as container:
        assert "nvidia" not in await container.probe("ls", "/dev")
