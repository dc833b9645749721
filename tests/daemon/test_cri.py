# SPDX-License-Identifier: Apache-2.0
"""What is asked of a CRI service, on a real socket."""

import asyncio
import contextlib
import json

import grpclib
import pytest
from grpclib import const, server

from nri_nvidia._api.runtime import v1
from nri_nvidia.daemon import cri
from nri_nvidia.request import container, rules

NAME = "registry.example/cuda:12"
ACCESS = rules.Access(
    rules=(
        rules.Rule(
            number=1,
            action=rules.Action.IGNORE,
            namespaces=("team",),
            sources=frozenset({rules.Source.IMAGE}),
        ),
    )
)


def shown(namespace="team", **annotations):
    named = annotations or {"io.kubernetes.cri.image-name": NAME}
    return container.Container(namespace=namespace, annotations=named)


class Service(v1.ImageServiceBase):
    """A runtime with one image; `asked` are the questions, `told` overrides the answer."""

    def __init__(self, env=("A=1", "B", "C=x=y"), told=None):
        self.identifier = "sha256:1"
        self.env = env
        self.told = told
        self.asked = []
        self.waits = asyncio.Event()
        self.waits.set()

    async def image_status(self, image_status_request):
        self.asked.append((image_status_request.image.image, image_status_request.verbose))
        await self.waits.wait()
        if not self.identifier:
            return v1.ImageStatusResponse()
        about = {"imageSpec": {"config": {"Env": list(self.env)}}}
        info = {"info": json.dumps(about) if self.told is None else self.told}
        return v1.ImageStatusResponse(
            image=v1.Image(id=self.identifier),
            info=info if image_status_request.verbose else {},
        )


@contextlib.asynccontextmanager
async def serving(path, service):
    listening = server.Server([service])
    await listening.start(path=str(path))
    try:
        yield
    finally:
        listening.close()
        await listening.wait_closed()


def asker(path, limit=5.0):
    found = cri.Cri()
    found.use(str(path), limit)
    return found


class Containers(v1.RuntimeServiceBase):
    """A runtime with a container in each state, which heeds the filter or not."""

    def __init__(self, *, heeds):
        self.heeds = heeds

    async def list_containers(self, list_containers_request):
        wanted = list_containers_request.filter.state.state
        return v1.ListContainersResponse(
            containers=[
                v1.Container(id=state.name.lower(), state=state)
                for state in v1.ContainerState
                if state is wanted or not self.heeds
            ]
        )


async def ask(client, what=None, left=5.0):
    return await client.image(what or shown(), ACCESS, "containerd", left)


async def test_the_environment_is_read_and_kept_by_the_images_id(tmp_path):
    """The long answer is asked for once, until the name means another image."""
    service, path = Service(), tmp_path / "cri"
    async with serving(path, service):
        client = asker(path)
        for _ in range(2):
            assert (await ask(client)).env == {"A": "1", "C": "x=y"}
        assert service.asked == [(NAME, False), (NAME, True), (NAME, False)]
        service.identifier, service.env = "sha256:2", ("A=2",)
        assert (await ask(client)).env == {"A": "2"}


async def test_nobody_is_asked_where_no_rule_needs_it(tmp_path):
    """A container that no such rule is about costs nothing."""
    service, path = Service(), tmp_path / "cri"
    async with serving(path, service):
        assert await ask(asker(path), shown(namespace="other")) is None
        assert service.asked == []


async def test_an_image_without_variables(tmp_path):
    """OCI leaves out what is empty."""
    for told in ('{"imageSpec": {}}', '{"imageSpec": {"config": {"Env": null}}}'):
        path = tmp_path / str(len(told))
        async with serving(path, Service(told=told)):
            assert (await ask(asker(path))).env == {}


@pytest.mark.parametrize("told", ["", "[]", "{}", '{"imageSpec": 1}', "nonsense"])
async def test_what_is_no_answer_is_said(tmp_path, told):
    """A runtime that tells something else is named, with the image."""
    path = tmp_path / "cri"
    async with serving(path, Service(told=told)):
        found = await ask(asker(path))
    assert found.env is None
    assert found.problem == f"{path}: what is told of the image {NAME} is not understood"


async def test_no_runtime_no_image_no_name(tmp_path):
    """Each has its sentence."""
    path = tmp_path / "cri"
    assert (await ask(asker(path))).problem == f"{path}: No such file or directory"
    service = Service()
    service.identifier = ""
    async with serving(path, service):
        assert (await ask(asker(path))).problem == f"{path}: the runtime has no image {NAME}"
        nameless = await ask(asker(path), shown(other="x"))
    assert nameless.problem == "the runtime does not name the container's image"


async def test_a_runtime_that_does_not_serve_images(tmp_path):
    """Its own sentence is handed on."""

    class Refusing(Service):
        async def image_status(self, image_status_request):
            raise grpclib.GRPCError(const.Status.UNIMPLEMENTED, "no images here")

    path = tmp_path / "cri"
    async with serving(path, Refusing()):
        assert (await ask(asker(path))).problem == f"{path}: no images here"


@pytest.mark.parametrize(("limit", "left"), [(0.05, 5.0), (5.0, 0.05), (5.0, -1.0)])
async def test_a_runtime_that_hangs_is_not_waited_for(tmp_path, limit, left):
    """The setting is one limit, what is left for the decision another."""
    service, path = Service(), tmp_path / "cri"
    service.waits.clear()
    async with serving(path, service):
        assert (await ask(asker(path, limit), left=left)).problem == f"{path}: no answer in time"
        service.waits.set()


async def test_what_is_kept_is_bounded(tmp_path):
    """Any number of images may come by."""
    service, path = Service(), tmp_path / "cri"
    async with serving(path, service):
        client = asker(path)
        for number in range(300):
            service.identifier = f"sha256:{number}"
            await ask(client)
        assert len(client._known) == 256


@pytest.mark.parametrize("heeds", [True, False])
async def test_which_containers_have_ended(tmp_path, heeds):
    """Those alone that the runtime says have exited; nothing where it cannot be asked."""
    path = tmp_path / "cri"
    assert await asker(path).ended("containerd", 5.0) == frozenset()
    async with serving(path, Containers(heeds=heeds)):
        assert await asker(path).ended("containerd", 5.0) == {"container_exited"}
        assert await asker(path).ended("containerd", 0.0) == frozenset()


def test_sockets_of_runtimes():
    """Each runtime has its usual place; one that is not known is taken for containerd."""
    usual = cri._usual
    assert usual("cri-o") == "/var/run/crio/crio.sock"
    assert usual("") in {"/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"}
