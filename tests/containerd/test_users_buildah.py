# SPDX-License-Identifier: Apache-2.0
"""A user's own buildah (rootless), with subordinate ids: a RUN by nri-nvidia-runtime and by CDI."""

import contextlib

import attrs
import pytest

from nri_nvidia.oci import install
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import builds, doors, podmans, test_doors, test_rootless, users_dockers
from .test_builds import BY_NAME, GPUS, VARIABLES

pytestmark = pytest.mark.long
SETTINGS = {
    "policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
    "containers.conf": '[engine]\nhelper_binaries_dir = ["HOME/helpers"]\n',
    "storage.conf": '[storage]\ndriver = "overlay"\n',
}


@attrs.frozen(kw_only=True)
class Users:
    """buildah as the user of a place; a builds.Builder sees it as it sees a podman."""

    place: users_dockers.Place
    programs: dict

    @property
    def directory(self):
        return self.place.directory

    def command(self, *words, program):
        """Give the command that calls a program as the user."""
        folders = [self.programs[name].bin for name in ("uidmap", "runc")]
        return [*self.place.as_user(*folders)[0], str(program), *words]


@pytest.fixture(scope="module", params=["buildah-1.28", "buildah"])
def world(request, programs, library):
    """Each buildah with the Debian image, by nri-nvidia-runtime, and the daemon."""
    for name in (request.param, "uidmap", "runc"):
        if name not in programs:
            pytest.fail(f"{name} is not there: run contrib/setup --long")
        if reason := install.closed_at(str(programs[name].path)):
            pytest.skip(f"another user cannot start the unpacked programs: {name} {reason}")
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(test_rootless.place("nnh-")) / "host"
        simulated.build(host, host_spec.HostSpec(gpus=GPUS))
        place = stack.enter_context(users_dockers.places(host, library.probe))
        place.provide_run()
        daemon = stack.enter_context(place.daemon(host))
        (place.home / ".config/containers").mkdir(parents=True)
        for name, text in SETTINGS.items():
            written = text.replace("HOME", str(place.home))
            (place.home / ".config/containers" / name).write_text(written)
        netavark = place.home / "helpers/netavark"
        netavark.parent.mkdir()
        netavark.write_text("#!/bin/sh\nexit 1\n")
        netavark.chmod(0o755)
        place.own()
        users = Users(place=place, programs=programs)
        builder = builds.Builder(
            podman=users,
            buildah=programs[request.param].path,
            runtime=users_dockers.wrapper(daemon, programs["runc"].path),
        )
        yield builder, daemon, library["debian"]


async def test_by_the_runtime_and_by_cdi(world):
    """The same either way, where buildah takes CDI's names; the daemon knows whose it was."""
    builder, daemon, image = world
    archive = f"oci-archive:{image.archive}"
    done = await doors.run(*builder.podman.command("pull", "-q", archive, program=builder.buildah))
    assert done.code == 0, done
    words = ["tag", done.stdout.split()[-1], podmans.IMAGE]
    assert (await doors.run(*builder.podman.command(*words, program=builder.buildah))).code == 0
    by_runtime = await test_doors.everything(builds.Step(builder=builder, env=VARIABLES))
    assert any("/dev/nvidia2 " in line and "ENXIO" in line for line in by_runtime)
    users = {each["id"].rpartition("/")[2] for each in daemon.status()["decisions"]}
    assert users == {str(users_dockers.USER)}
    plain = builder.podman.programs["runc"].path
    named = builds.Step(builder=attrs.evolve(builder, runtime=plain, options=BY_NAME))
    if "1.28" in str(builder.buildah):
        with pytest.raises(doors.RefusedError, match="no such file"):
            await named.exec(["/probe", "ls", "/dev"])
    else:
        assert await test_doors.everything(named) == by_runtime
