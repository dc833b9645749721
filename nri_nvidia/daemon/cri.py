# SPDX-License-Identifier: Apache-2.0
"""What is asked of the runtime's CRI service, where policy needs it and NRI does not tell.

That is the environment of an image (its name may mean another one tomorrow, so its id is asked
each time, which is cheap; what is kept is kept by that), and which containers have ended.
"""

import asyncio
import collections
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping

import grpclib
from grpclib import client

from nri_nvidia import errors
from nri_nvidia._api.runtime import v1
from nri_nvidia.request import container as containers
from nri_nvidia.request import rules

logger = logging.getLogger(__name__)

_KEPT = 256
_NAMES = ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName")
"""Annotations of a container by which containerd and CRI-O name its image."""
_SOCKETS = {
    "containerd": ("/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"),
    "cri-o": ("/var/run/crio/crio.sock",),
}


class Cri:
    """Asks and remembers; used on the event loop, which it does not block."""

    def __init__(self) -> None:
        self._socket = self._said = ""
        self._limit = 0.0
        self._known: collections.OrderedDict[str, Mapping[str, str]] = collections.OrderedDict()

    def use(self, socket: str, limit: float) -> None:
        """Ask at this socket (empty: the runtime's usual one), for at most `limit` seconds."""
        self._socket, self._limit = socket, limit

    async def image(
        self, container: containers.Container, access: rules.Access, runtime: str, left: float
    ) -> rules.Image | None:
        """Give what is known of a container's image; None where no rule asks for it.

        `runtime` is the runtime's name, `left` the seconds that this may take at most.
        """
        if not rules.wants_image(container, access):
            return None
        name = next(filter(None, map(container.annotations.get, _NAMES)), "")
        if not name:
            return rules.Image(problem="the runtime does not name the container's image")
        path = self._socket or _usual(runtime)
        try:
            async with self._in_time(path, left) as channel:
                return await self._ask(channel, path, name)
        except errors.HostError as error:
            problem = error.message
        except (ValueError, LookupError, TypeError, AttributeError):
            problem = f"{path}: what is told of the image {name} is not understood"
        logger.warning("%s: the environment of its image: %s", container.display, problem)
        return rules.Image(problem=problem)

    async def ended(self, runtime: str, left: float) -> frozenset[str]:
        """Give the ids of containers that are there and do not run any more; none if not known.

        One that cannot be started is among them, of which NRI tells nothing until it is removed.
        """
        exited = v1.ContainerState(v1.ContainerState.CONTAINER_EXITED)
        state = v1.ContainerStateValue(state=exited)
        request = v1.ListContainersRequest(filter=v1.ContainerFilter(state=state))
        try:
            async with self._in_time(self._socket or _usual(runtime), left) as channel:
                found = await v1.RuntimeServiceStub(channel).list_containers(request)
        except errors.HostError as error:
            if str(error) != self._said:
                logger.info("which containers have ended is not known: %s", error)
            self._said = str(error)
            return frozenset()
        return frozenset(each.id for each in found.containers if each.state is exited)

    @contextlib.asynccontextmanager
    async def _in_time(self, path: str, left: float) -> AsyncIterator[client.Channel]:
        """Give a connection for as long as there is time; raises HostError for what goes wrong."""
        late = errors.HostError(f"{path}: no answer in time")
        if left <= 0:
            raise late
        channel = client.Channel(path=path)
        try:
            async with asyncio.timeout(min(self._limit, left)):
                yield channel
        except TimeoutError:
            raise late from None
        except grpclib.GRPCError as error:
            raise errors.HostError(f"{path}: {error.message}") from error
        except grpclib.exceptions.StreamTerminatedError as error:
            raise errors.HostError(f"{path}: {error}") from error
        except OSError as error:
            raise errors.HostError(f"{path}: {error.strerror or error}") from error
        finally:
            channel.close()

    async def _ask(self, channel: client.Channel, path: str, name: str) -> rules.Image:
        service = v1.ImageServiceStub(channel)
        spec = v1.ImageSpec(image=name)
        found = await service.image_status(v1.ImageStatusRequest(image=spec))
        identifier = found.image.id
        if identifier not in self._known:
            told = await service.image_status(v1.ImageStatusRequest(image=spec, verbose=True))
            identifier = told.image.id
            if not identifier:
                return rules.Image(problem=f"{path}: the runtime has no image {name}")
            self._known[identifier] = environment(told.info["info"])
        self._known.move_to_end(identifier)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return rules.Image(env=self._known[identifier])


def environment(text: str) -> dict[str, str]:
    """Read the variables of an image in what containerd and CRI-O tell of it.

    That is JSON with the image's OCI specification at `imageSpec` (OCI image-spec, config.md).
    Raises ValueError, LookupError, TypeError or AttributeError for anything else.
    """
    entries = json.loads(text)["imageSpec"].get("config", {}).get("Env") or ()
    pairs = (entry.partition("=") for entry in entries)
    return {key: value for key, separator, value in pairs if separator}


def _usual(runtime: str) -> str:
    """Give where a runtime has its CRI socket, the first that is there."""
    paths = _SOCKETS.get(runtime, _SOCKETS["containerd"])
    with contextlib.suppress(OSError):
        return next((path for path in paths if os.path.exists(path)), paths[0])  # noqa: PTH110
    return paths[0]
