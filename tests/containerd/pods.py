# SPDX-License-Identifier: Apache-2.0
"""Pods and containers as a kubelet would ask for them, each as long as an `async with`."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from . import cri, messages

if TYPE_CHECKING:
    from . import engine

UNCONFINED = messages.SecurityProfile(profile_type=messages.ProfileType.UNCONFINED)
EXEC_LIMIT = 20
"""Seconds that a command inside a container may take."""

Env = Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]]


@attrs.frozen(kw_only=True)
class Result:
    """What a command inside a container answered."""

    code: int
    stdout: str
    stderr: str


def sandbox(
    *,
    name: str,
    cgroup: str,
    logs: Path,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    privileged: bool = False,
    share_processes: bool = False,
) -> messages.PodSandboxConfig:
    """Return the configuration of a pod on the host's network."""
    security = messages.SandboxSecurityContext(
        namespace_options=_namespaces(share_processes=share_processes),
        privileged=privileged,
        seccomp=UNCONFINED,
        apparmor=UNCONFINED,
    )
    return messages.PodSandboxConfig(
        metadata=messages.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace=namespace),
        log_directory=str(logs),
        labels=dict(labels or {}),
        annotations=dict(annotations or {}),
        linux=messages.LinuxPodSandboxConfig(cgroup_parent=cgroup, security_context=security),
    )


def container_config(
    image: str,
    *,
    name: str,
    command: Sequence[str] = (),
    args: Sequence[str] = (),
    env: Env = (),
    mounts: Iterable[tuple[str | Path, str] | tuple[str | Path, str, str]] = (),
    devices: Iterable[str | tuple[str, str, str]] = (),
    cdi: Iterable[str] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    privileged: bool = False,
    readonly: bool = False,
    user: int | None = None,
    group: int | None = None,
    groups: Sequence[int] = (),
    capabilities: Sequence[str] = (),
    resources: messages.LinuxContainerResources | None = None,
    attempt: int = 0,
    share_processes: bool = False,
) -> messages.ContainerConfig:
    """Return a container's configuration.

    env: a mapping, or pairs where one name is to appear twice. mounts: (host path, container
    path) and "ro" as a third where it is to be read-only. devices: a path, or (host path,
    container path, "rwm"). capabilities: added ones, without the CAP_. attempt: how many containers
    of the name there were in the pod. share_processes: with the pod's other containers, where the
    pod has it, too.
    """
    pairs = env.items() if isinstance(env, Mapping) else env
    security = messages.ContainerSecurityContext(
        namespace_options=_namespaces(share_processes=share_processes),
        privileged=privileged,
        readonly_rootfs=readonly,
        supplemental_groups=list(groups),
        capabilities=messages.Capability(add_capabilities=list(capabilities)),
        seccomp=UNCONFINED,
        apparmor=UNCONFINED,
    )
    if user is not None:
        security.run_as_user = messages.Int64Value(value=user)
    if group is not None:
        security.run_as_group = messages.Int64Value(value=group)
    linux = messages.LinuxContainerConfig(security_context=security)
    if resources is not None:
        linux.resources = resources
    return messages.ContainerConfig(
        metadata=messages.ContainerMetadata(name=name, attempt=attempt),
        image=messages.ImageSpec(image=image),
        command=list(command),
        args=list(args),
        envs=[messages.KeyValue(key=key, value=_bytes(value)) for key, value in pairs],
        mounts=[_mount(*each) for each in mounts],
        devices=[_device(each) for each in devices],
        cdi_devices=[messages.CdiDevice(name=each) for each in cdi],
        labels=dict(labels or {}),
        annotations=dict(annotations or {}),
        log_path=f"{name}.log",
        linux=linux,
    )


def _namespaces(*, share_processes: bool) -> messages.NamespaceOption:
    mode = messages.NamespaceMode
    pid = mode.POD if share_processes else mode.CONTAINER
    return messages.NamespaceOption(network=mode.NODE, pid=pid, ipc=mode.POD)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _mount(source: str | Path, destination: str, mode: str = "rw") -> messages.Mount:
    return messages.Mount(host_path=str(source), container_path=destination, readonly=mode == "ro")


def _device(device: str | tuple[str, str, str]) -> messages.Device:
    host, inside, access = (device, device, "rwm") if isinstance(device, str) else device
    return messages.Device(host_path=host, container_path=inside, permissions=access)


class Container:
    """A container that has been created, and started unless it was asked not to be."""

    def __init__(
        self, owner: "engine.Engine", client: cri.Client, identifier: str, log: Path
    ) -> None:
        self.id = identifier
        self._engine = owner
        self._client = client
        self._log = log

    async def start(self) -> None:
        await self._client.start_container(self.id)

    async def exec(self, command: Sequence[str], *, limit: int = EXEC_LIMIT) -> Result:
        """Run a command inside; `limit` is in seconds."""
        answer = await self._client.exec_sync(self.id, command, limit=limit)
        return Result(
            code=answer.exit_code,
            stdout=answer.stdout.decode(errors="surrogateescape"),
            stderr=answer.stderr.decode(errors="surrogateescape"),
        )

    async def probe(self, *arguments: str) -> str:
        """Run /probe, which every image has, and return its answer without the line's end.

        `probe("open", "/dev/nvidia0")` is `ENXIO` where the node is there and allowed and no
        driver behind it, `EPERM` where the device cgroup forbids it, `ENOENT` where it is not.
        """
        result = await self.exec(["/probe", *arguments])
        if result.code:
            raise AssertionError(f"probe {' '.join(arguments)}: {result}")
        return result.stdout.rstrip("\n")

    async def pid(self) -> int:
        """Return the process id of its first process, as the host sees it."""
        answer = await self._client.container_status(self.id)
        return int(json.loads(answer.info["info"])["pid"])

    async def status(self) -> messages.ContainerStatus:
        return (await self._client.container_status(self.id)).status

    async def wait(self) -> int:
        """Wait for its end; return the exit code."""
        async with asyncio.timeout(EXEC_LIMIT):
            while (status := await self.status()).state is not messages.ContainerState.EXITED:
                await asyncio.sleep(0.005)
        return status.exit_code

    def output(self) -> str:
        """Return what its first process wrote, both streams, without CRI's prefixes."""
        lines = self._log.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines)

    def config(self) -> dict[str, Any]:
        """Return the OCI configuration that the runtime was given."""
        return self._engine.config_json(self.id)

    async def update(self, resources: messages.LinuxContainerResources) -> None:
        """Change its resources, as a kubelet's in-place resize or CPU manager does."""
        await self._client.update_resources(self.id, resources)

    async def remove(self) -> None:
        """Kill and remove it; one that is gone already counts as removed."""
        await self._client.stop_container(self.id)
        await self._client.remove_container(self.id)


class Pod:
    """A running pod."""

    def __init__(
        self,
        owner: "engine.Engine",
        client: cri.Client,
        identifier: str,
        config: messages.PodSandboxConfig,
    ) -> None:
        self.id = identifier
        self.client = client
        self._engine = owner
        self._config = config
        self._count = 0

    async def create(self, image: str = "busybox", **wishes: Any) -> Container:
        """Create a container and do not start it; the pod's end removes it.

        The wishes are those of `container_config`. Without a command the image's own runs: the
        probe, waiting. Raises grpclib.GRPCError where the creation is refused.
        """
        self._count += 1
        wishes.setdefault("name", f"container-{self._count}")
        reference = await self._engine.use_image(image, self.client)
        config = container_config(reference, **wishes)
        identifier = await self.client.create_container(self.id, config, self._config)
        log = Path(self._config.log_directory, config.log_path)
        return Container(self._engine, self.client, identifier, log)

    @contextlib.asynccontextmanager
    async def container(self, image: str = "busybox", **wishes: Any) -> AsyncIterator[Container]:
        """Run a container and remove it at the end; see `create` for the wishes."""
        container = await self.create(image, **wishes)
        try:
            await container.start()
            yield container
        finally:
            if self._engine.alive:
                await container.remove()

    async def run(self, image: str = "busybox", **wishes: Any) -> Result:
        """Run a container to its end; its output is both streams together, as `stdout`."""
        async with self.container(image, **wishes) as container:
            code = await container.wait()
            return Result(code=code, stdout=container.output(), stderr="")
