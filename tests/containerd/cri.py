# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of CRI: betterproto's messages over a grpclib channel."""

from collections.abc import Sequence
from typing import TypeVar

import betterproto

from . import messages

T = TypeVar("T", bound=betterproto.Message)


class Client(betterproto.ServiceStub):
    """Calls of runtime.v1's RuntimeService and ImageService over a grpclib channel.

    Every call raises grpclib.GRPCError with the runtime's own sentence.
    """

    async def _runtime(self, method: str, request: betterproto.Message, answer: type[T]) -> T:
        return await self._unary_unary(f"/runtime.v1.RuntimeService/{method}", request, answer)

    async def version(self) -> messages.VersionResponse:
        return await self._runtime("Version", messages.VersionRequest(), messages.VersionResponse)

    async def status(self) -> messages.StatusResponse:
        return await self._runtime(
            "Status", messages.StatusRequest(verbose=True), messages.StatusResponse
        )

    async def run_pod(self, config: messages.PodSandboxConfig, handler: str) -> str:
        request = messages.RunPodSandboxRequest(config=config, runtime_handler=handler)
        return (
            await self._runtime("RunPodSandbox", request, messages.PodSandboxId)
        ).pod_sandbox_id

    async def stop_pod(self, pod: str) -> None:
        await self._runtime(
            "StopPodSandbox", messages.PodSandboxId(pod_sandbox_id=pod), messages.Empty
        )

    async def remove_pod(self, pod: str) -> None:
        await self._runtime(
            "RemovePodSandbox", messages.PodSandboxId(pod_sandbox_id=pod), messages.Empty
        )

    async def list_pods(self) -> list[messages.PodSandbox]:
        answer = await self._runtime(
            "ListPodSandbox", messages.ListPodSandboxRequest(), messages.ListPodSandboxResponse
        )
        return answer.items

    async def create_container(
        self, pod: str, config: messages.ContainerConfig, sandbox: messages.PodSandboxConfig
    ) -> str:
        request = messages.CreateContainerRequest(
            pod_sandbox_id=pod, config=config, sandbox_config=sandbox
        )
        return (await self._runtime("CreateContainer", request, messages.ContainerId)).container_id

    async def start_container(self, container: str) -> None:
        await self._runtime(
            "StartContainer", messages.ContainerId(container_id=container), messages.Empty
        )

    async def stop_container(self, container: str, *, grace: int = 0) -> None:
        """Stop it, with SIGKILL at once or after `grace` seconds."""
        request = messages.StopContainerRequest(container_id=container, timeout=grace)
        await self._runtime("StopContainer", request, messages.Empty)

    async def remove_container(self, container: str) -> None:
        await self._runtime(
            "RemoveContainer", messages.ContainerId(container_id=container), messages.Empty
        )

    async def update_resources(
        self, container: str, resources: messages.LinuxContainerResources
    ) -> None:
        request = messages.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        await self._runtime("UpdateContainerResources", request, messages.Empty)

    async def container_status(self, container: str) -> messages.ContainerStatusResponse:
        request = messages.ContainerStatusRequest(container_id=container, verbose=True)
        return await self._runtime("ContainerStatus", request, messages.ContainerStatusResponse)

    async def list_containers(self) -> list[messages.Container]:
        answer = await self._runtime(
            "ListContainers", messages.ListContainersRequest(), messages.ListContainersResponse
        )
        return answer.containers

    async def exec_sync(
        self, container: str, command: Sequence[str], *, limit: int
    ) -> messages.ExecSyncResponse:
        """Run a command inside; `limit` is in seconds."""
        request = messages.ExecSyncRequest(
            container_id=container, cmd=list(command), timeout=limit
        )
        return await self._runtime("ExecSync", request, messages.ExecSyncResponse)

    async def image_status(self, reference: str) -> messages.Image:
        """Return the image as the runtime's CRI side knows it, with an empty id if it does not."""
        request = messages.ImageStatusRequest(image=messages.ImageSpec(image=reference))
        route = "/runtime.v1.ImageService/ImageStatus"
        return (await self._unary_unary(route, request, messages.ImageStatusResponse)).image
