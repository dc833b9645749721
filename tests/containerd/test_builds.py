# SPDX-License-Identifier: Apache-2.0
"""podman's builds and buildah's: a RUN has its GPUs by nri-nvidia-runtime, and by CDI."""

import contextlib

import attrs
import pytest

from nri_nvidia.oci import install
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import builds, daemons, doors, few_controllers, podmans, test_doors, test_rootless

pytestmark = pytest.mark.long
ASKED = {"NVIDIA_VISIBLE_DEVICES": "0,2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
VARIABLES = [f"{key}={value}" for key, value in ASKED.items()]
BY_NAME = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=2"]
GPUS = (host_spec.GpuSpec(),) * 3
TOOLS = {
    "podman-4": ("podman-4", None),
    "podman": ("podman", None),
    "buildah-1.28": ("podman", "buildah-1.28"),
    "buildah": ("podman", "buildah"),
}
"""Each builder by its name: which podman's place, and which buildah there, None for podman's own."""
KNOW_CDI = ("podman", "buildah")


def there(programs, *names):
    """Fail where a program is not."""
    for name in names:
        if name not in programs:
            pytest.fail(f"{name} is not there: run contrib/setup --long")


@contextlib.contextmanager
def worlds(programs, library, host, release, *, own=False, **more):
    """Have a podman's place and a daemon that keeps CDI files there.

    With `own` the host's nodes are those of the place's /dev.
    """
    there(programs, release, "conmon")
    simulated.build(host, host_spec.HostSpec(gpus=GPUS))
    nodes = test_rootless.own_dev(host) if own else ""
    with contextlib.ExitStack() as stack:
        podman = stack.enter_context(
            podmans.running(programs, library, release=release, more=nodes, **more)
        )
        text = f'cdi.keep = true\ncdi.directory = "{podman.cdi_specs}"\n'
        words = ["--dev-root", "/"] if own else []
        daemon = stack.enter_context(daemons.alone(host, text, words, prefix=podman.space))
        daemon.until((podman.cdi_specs / "nri-nvidia-gpu.json").exists, "the CDI specification")
        daemon.until((daemon.directory / "runtime/nri-nvidia-client").exists, "its program")
        yield podman, daemon


@pytest.fixture(scope="module", params=TOOLS)
def tool(request):
    """Each builder's name."""
    return request.param


@pytest.fixture(scope="module")
def world(tool, programs, library, tmp_path_factory):
    """A builder that has nri-nvidia-runtime, its podman's place, and the daemon."""
    release, buildah = TOOLS[tool]
    there(programs, *([buildah] if buildah else []))
    with worlds(programs, library, tmp_path_factory.mktemp("host"), release) as (podman, daemon):
        builder = builds.Builder(
            podman=podman,
            buildah=programs[buildah].path if buildah else None,
            runtime=doors.wrapper(daemon, programs["runc"].path),
            options=["--cap-add", "MKNOD"],
        )
        yield builder, podman, daemon


async def test_by_the_runtime(world):
    """A RUN has what a container has by the same door, and nothing is held once it is built."""
    builder, podman, daemon = world
    async with podman.container(ASKED, runtime=builder.runtime) as container:
        expected = await test_doors.everything(container)
    assert await test_doors.everything(builds.Step(builder=builder, env=VARIABLES)) == expected
    assert any("/dev/nvidia2 " in line and "ENXIO" in line for line in expected)
    daemon.until(lambda: not daemon.status()["containers"], "the build's end")


async def test_a_refusal_is_what_the_build_says(world):
    """The daemon's sentence, and no image."""
    step = builds.Step(builder=world[0], env=["NVIDIA_VISIBLE_DEVICES=9"])
    with pytest.raises(doors.RefusedError, match="DEVICES=9: no such GPU; this node has 0-2"):
        await step.exec(["/probe", "ls", "/dev"])


async def test_what_asks_for_nothing_gets_nothing(world):
    """By the runtime too."""
    done = await builds.Step(builder=world[0]).exec(["/probe", "ls", "/dev"])
    assert "null" in done.stdout.split()
    assert "nvidia" not in done.stdout


async def test_what_a_build_leaves_is_in_nobodys_way(world):
    """A container of the image gets its own GPU; without asking it has neither node nor driver."""
    builder, podman, _ = world
    lines = [f"FROM {podmans.IMAGE}", "ENV NVIDIA_VISIBLE_DEVICES=1", 'RUN ["/probe", "ls", "/"]']
    tagged = attrs.evolve(builder, options=["-t", "localhost/built:1"])
    done = await tagged.build(lines)
    assert done.code == 0, done
    for devices, given in (("2", {"nvidia2"}), ("void", set())):
        words = podman.command(
            "--runtime", str(builder.runtime), "run", "--rm", "--pull", "never", "--network", "none",
            "-e", f"NVIDIA_VISIBLE_DEVICES={devices}", "localhost/built:1",
        )  # fmt: skip
        seen = (await doors.run(*words, "/probe", "ls", "/dev")).stdout.split()
        assert {name for name in seen if name[6:].isdigit()} == given
        loaded = await doors.run(*words, "/probe-dlopen", "libcuda.so.1")
        assert (loaded.code == 0) == bool(given), loaded


async def test_cdi_on_runc(world, tool, programs):
    """Older builders know no CDI. Newer ones add a rule without access, which runc refuses."""
    builder, _, _ = world
    plain = attrs.evolve(builder, runtime=programs["runc"].path, options=BY_NAME)
    said = "device access at .* field cannot be empty"
    if tool not in KNOW_CDI:
        said = r"source device nvidia\.com/gpu=0: stat nvidia\.com/gpu=0: no such file"
    with pytest.raises(doors.RefusedError, match=said):
        await builds.Step(builder=plain).exec(["/probe", "ls", "/dev"])


@pytest.mark.parametrize("name", ["buildah-1.28", "buildah"])
async def test_a_working_container(name, programs, library, tmp_path):
    """`buildah run` in a container of `buildah from` gets what its command asks for."""
    there(programs, name)
    with worlds(programs, library, tmp_path / "host", "podman") as (podman, daemon):
        buildah = programs[name].path
        wrapper = str(doors.wrapper(daemon, programs["runc"].path))
        made = ["from", "--pull=never", *builds.LIMITS, podmans.IMAGE]
        done = await doors.run(*podman.command(*made, program=buildah))
        assert done.code == 0, done
        call = ["run", "--runtime", wrapper, "--network", "none"]
        more = [done.stdout.split()[-1], "--", "/probe", "ls", "/dev"]
        for asked, given in ((["-e", "NVIDIA_VISIBLE_DEVICES=1"], {"nvidia1"}), ([], set())):
            done = await doors.run(*podman.command(*call, *asked, *more, program=buildah))
            assert done.code == 0, done
            assert {each for each in done.stdout.split() if each[6:].isdigit()} == given


@pytest.mark.parametrize("name", KNOW_CDI)
async def test_cdi_on_crun(name, programs, library, tmp_path):
    """With cgroups of version 2, as by the runtime; an unknown device is the builder's to refuse."""
    there(programs, "crun", name)
    with worlds(programs, library, tmp_path / "host", "podman", unified=True) as (podman, daemon):
        crun = few_controllers.install(tmp_path, "crun", programs["crun"].path)
        builder = builds.Builder(
            podman=podman,
            buildah=programs[name].path if name == "buildah" else None,
            runtime=doors.wrapper(daemon, crun),
            options=["--cap-add", "MKNOD"],
        )
        expected = await test_doors.everything(builds.Step(builder=builder, env=VARIABLES))
        assert any("/dev/nvidia2 " in line and "ENXIO" in line for line in expected)
        named = attrs.evolve(builder, runtime=crun, options=["--cap-add", "MKNOD", *BY_NAME])
        assert await test_doors.everything(builds.Step(builder=named)) == expected
        unknown = attrs.evolve(builder, runtime=crun, options=["--device", "nvidia.com/gpu=9"])
        with pytest.raises(doors.RefusedError, match=r"unresolvable CDI .* nvidia\.com/gpu=9"):
            await builds.Step(builder=unknown).exec(["/probe", "ls", "/dev"])


async def test_a_users_own(programs, library):
    """Rootless podman builds by both doors, on runc too."""
    for name in ("podman", "conmon", "runc"):
        if reason := install.closed_at(str(programs[name].path)):
            pytest.skip(f"another user cannot start the unpacked programs: {name} {reason}")
    user = test_rootless.USER
    with (
        test_rootless.place("nnh-") as directory,
        worlds(programs, library, directory / "host", "podman", own=True, user=user) as found,
    ):
        podman, daemon = found
        builder = builds.Builder(
            podman=podman, runtime=doors.wrapper(daemon, programs["runc"].path)
        )
        expected = await test_doors.everything(builds.Step(builder=builder, env=VARIABLES))
        assert {each["id"].rpartition("/")[2] for each in daemon.status()["decisions"]} == {
            str(user)
        }
        named = attrs.evolve(builder, runtime=None, options=BY_NAME)
        assert await test_doors.everything(builds.Step(builder=named)) == expected


@pytest.mark.parametrize("name", KNOW_CDI)
async def test_chroot_isolation(name, programs, library, tmp_path):
    """No runtime and no hook there, and all nodes of the host; by CDI the files, behind a path."""
    there(programs, name)
    buildah = programs[name].path if name == "buildah" else None
    with worlds(programs, library, tmp_path / "host", "podman", own=True) as (podman, _):
        builder = builds.Builder(podman=podman, buildah=buildah, network="host")
        bare = attrs.evolve(builder, options=["--isolation", "chroot"])
        listed = await builds.Step(builder=bare).exec(["/probe", "ls", "/dev"])
        assert {"nvidia0", "nvidia1", "nvidia2", "nvidiactl"} < {*listed.stdout.split()}
        named = attrs.evolve(builder, options=["--isolation", "chroot", *BY_NAME])
        loading = ["/probe-dlopen", "libcuda.so.1"]
        with pytest.raises(doors.RefusedError):
            await builds.Step(builder=named).exec(loading)
        path = f"LD_LIBRARY_PATH={doors.LIBRARY_DIR}/lib64"
        assert (await builds.Step(builder=named, env=[path]).exec(loading)).code == 0
