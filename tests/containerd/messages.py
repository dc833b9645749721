# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF009  -- calling a field function as the default is how betterproto is used
"""CRI's messages, as far as the tests need them.

Field numbers and names follow k8s.io/cri-api v0.36, runtime/v1/api.proto; what is not used here
is left out, which the wire allows.
"""

from dataclasses import dataclass

import betterproto
from betterproto import (
    bool_field,
    bytes_field,
    enum_field,
    int32_field,
    int64_field,
    map_field,
    message_field,
    string_field,
    uint32_field,
)


def _map(number: int) -> dict[str, str]:
    field: dict[str, str] = map_field(number, betterproto.TYPE_STRING, betterproto.TYPE_STRING)
    return field


class NamespaceMode(betterproto.Enum):
    POD = 0
    CONTAINER = 1
    NODE = 2
    TARGET = 3


class ProfileType(betterproto.Enum):
    RUNTIME_DEFAULT = 0
    UNCONFINED = 1
    LOCALHOST = 2


class ContainerState(betterproto.Enum):
    CREATED = 0
    RUNNING = 1
    EXITED = 2
    UNKNOWN = 3


class Propagation(betterproto.Enum):
    PRIVATE = 0
    HOST_TO_CONTAINER = 1
    BIDIRECTIONAL = 2


@dataclass(eq=False, repr=False)
class IdMapping(betterproto.Message):
    host_id: int = uint32_field(1)
    container_id: int = uint32_field(2)
    length: int = uint32_field(3)


@dataclass(eq=False, repr=False)
class UserNamespace(betterproto.Message):
    mode: NamespaceMode = enum_field(1)
    uids: list[IdMapping] = message_field(2)
    gids: list[IdMapping] = message_field(3)


@dataclass(eq=False, repr=False)
class NamespaceOption(betterproto.Message):
    network: NamespaceMode = enum_field(1)
    pid: NamespaceMode = enum_field(2)
    ipc: NamespaceMode = enum_field(3)
    target_id: str = string_field(4)
    userns_options: UserNamespace = message_field(5)


@dataclass(eq=False, repr=False)
class Int64Value(betterproto.Message):
    value: int = int64_field(1)


@dataclass(eq=False, repr=False)
class SecurityProfile(betterproto.Message):
    profile_type: ProfileType = enum_field(1)


@dataclass(eq=False, repr=False)
class Capability(betterproto.Message):
    add_capabilities: list[str] = string_field(1)
    drop_capabilities: list[str] = string_field(2)


@dataclass(eq=False, repr=False)
class SandboxSecurityContext(betterproto.Message):
    namespace_options: NamespaceOption = message_field(1)
    privileged: bool = bool_field(6)
    seccomp: SecurityProfile = message_field(9)
    apparmor: SecurityProfile = message_field(10)


@dataclass(eq=False, repr=False)
class LinuxPodSandboxConfig(betterproto.Message):
    cgroup_parent: str = string_field(1)
    security_context: SandboxSecurityContext = message_field(2)


@dataclass(eq=False, repr=False)
class PodSandboxMetadata(betterproto.Message):
    name: str = string_field(1)
    uid: str = string_field(2)
    namespace: str = string_field(3)
    attempt: int = uint32_field(4)


@dataclass(eq=False, repr=False)
class PodSandboxConfig(betterproto.Message):
    metadata: PodSandboxMetadata = message_field(1)
    hostname: str = string_field(2)
    log_directory: str = string_field(3)
    labels: dict[str, str] = _map(6)
    annotations: dict[str, str] = _map(7)
    linux: LinuxPodSandboxConfig = message_field(8)


@dataclass(eq=False, repr=False)
class ImageSpec(betterproto.Message):
    image: str = string_field(1)


@dataclass(eq=False, repr=False)
class KeyValue(betterproto.Message):
    key: str = string_field(1)
    value: bytes = bytes_field(2)  # bytes, so that what is not UTF-8 can be tried


@dataclass(eq=False, repr=False)
class Mount(betterproto.Message):
    container_path: str = string_field(1)
    host_path: str = string_field(2)
    readonly: bool = bool_field(3)
    propagation: Propagation = enum_field(5)


@dataclass(eq=False, repr=False)
class Device(betterproto.Message):
    container_path: str = string_field(1)
    host_path: str = string_field(2)
    permissions: str = string_field(3)


@dataclass(eq=False, repr=False)
class CdiDevice(betterproto.Message):
    name: str = string_field(1)


@dataclass(eq=False, repr=False)
class LinuxContainerResources(betterproto.Message):
    cpu_period: int = int64_field(1)
    cpu_quota: int = int64_field(2)
    cpu_shares: int = int64_field(3)
    memory_limit_in_bytes: int = int64_field(4)
    oom_score_adj: int = int64_field(5)


@dataclass(eq=False, repr=False)
class ContainerSecurityContext(betterproto.Message):
    capabilities: Capability = message_field(1)
    privileged: bool = bool_field(2)
    namespace_options: NamespaceOption = message_field(3)
    run_as_user: Int64Value = message_field(5)
    run_as_group: Int64Value = message_field(12)
    readonly_rootfs: bool = bool_field(7)
    supplemental_groups: list[int] = int64_field(8)
    no_new_privs: bool = bool_field(11)
    seccomp: SecurityProfile = message_field(15)
    apparmor: SecurityProfile = message_field(16)


@dataclass(eq=False, repr=False)
class LinuxContainerConfig(betterproto.Message):
    resources: LinuxContainerResources = message_field(1)
    security_context: ContainerSecurityContext = message_field(2)


@dataclass(eq=False, repr=False)
class ContainerMetadata(betterproto.Message):
    name: str = string_field(1)
    attempt: int = uint32_field(2)


@dataclass(eq=False, repr=False)
class ContainerConfig(betterproto.Message):
    metadata: ContainerMetadata = message_field(1)
    image: ImageSpec = message_field(2)
    command: list[str] = string_field(3)
    args: list[str] = string_field(4)
    working_dir: str = string_field(5)
    envs: list[KeyValue] = message_field(6)
    mounts: list[Mount] = message_field(7)
    devices: list[Device] = message_field(8)
    labels: dict[str, str] = _map(9)
    annotations: dict[str, str] = _map(10)
    log_path: str = string_field(11)
    linux: LinuxContainerConfig = message_field(15)
    cdi_devices: list[CdiDevice] = message_field(17)


@dataclass(eq=False, repr=False)
class VersionRequest(betterproto.Message):
    version: str = string_field(1)


@dataclass(eq=False, repr=False)
class VersionResponse(betterproto.Message):
    version: str = string_field(1)
    runtime_name: str = string_field(2)
    runtime_version: str = string_field(3)
    runtime_api_version: str = string_field(4)


@dataclass(eq=False, repr=False)
class RuntimeCondition(betterproto.Message):
    type: str = string_field(1)
    status: bool = bool_field(2)
    reason: str = string_field(3)
    message: str = string_field(4)


@dataclass(eq=False, repr=False)
class RuntimeStatus(betterproto.Message):
    conditions: list[RuntimeCondition] = message_field(1)


@dataclass(eq=False, repr=False)
class RuntimeHandlerFeatures(betterproto.Message):
    recursive_read_only_mounts: bool = bool_field(1)
    user_namespaces: bool = bool_field(2)


@dataclass(eq=False, repr=False)
class RuntimeHandler(betterproto.Message):
    name: str = string_field(1)
    features: RuntimeHandlerFeatures = message_field(2)


@dataclass(eq=False, repr=False)
class StatusRequest(betterproto.Message):
    verbose: bool = bool_field(1)


@dataclass(eq=False, repr=False)
class StatusResponse(betterproto.Message):
    status: RuntimeStatus = message_field(1)
    info: dict[str, str] = _map(2)
    runtime_handlers: list[RuntimeHandler] = message_field(3)


@dataclass(eq=False, repr=False)
class RunPodSandboxRequest(betterproto.Message):
    config: PodSandboxConfig = message_field(1)
    runtime_handler: str = string_field(2)


@dataclass(eq=False, repr=False)
class PodSandboxId(betterproto.Message):
    """RunPodSandboxResponse, and the requests that name a pod only."""

    pod_sandbox_id: str = string_field(1)


@dataclass(eq=False, repr=False)
class CreateContainerRequest(betterproto.Message):
    pod_sandbox_id: str = string_field(1)
    config: ContainerConfig = message_field(2)
    sandbox_config: PodSandboxConfig = message_field(3)


@dataclass(eq=False, repr=False)
class ContainerId(betterproto.Message):
    """CreateContainerResponse, and the requests that name a container only."""

    container_id: str = string_field(1)


@dataclass(eq=False, repr=False)
class StopContainerRequest(betterproto.Message):
    container_id: str = string_field(1)
    timeout: int = int64_field(2)  # seconds before SIGKILL


@dataclass(eq=False, repr=False)
class UpdateContainerResourcesRequest(betterproto.Message):
    container_id: str = string_field(1)
    linux: LinuxContainerResources = message_field(2)


@dataclass(eq=False, repr=False)
class ContainerStatusRequest(betterproto.Message):
    container_id: str = string_field(1)
    verbose: bool = bool_field(2)


@dataclass(eq=False, repr=False)
class ContainerStatus(betterproto.Message):
    id: str = string_field(1)
    metadata: ContainerMetadata = message_field(2)
    state: ContainerState = enum_field(3)
    exit_code: int = int32_field(7)
    reason: str = string_field(10)
    message: str = string_field(11)
    labels: dict[str, str] = _map(12)
    annotations: dict[str, str] = _map(13)
    mounts: list[Mount] = message_field(14)
    log_path: str = string_field(15)


@dataclass(eq=False, repr=False)
class ContainerStatusResponse(betterproto.Message):
    status: ContainerStatus = message_field(1)
    info: dict[str, str] = _map(2)


@dataclass(eq=False, repr=False)
class ListContainersRequest(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class Container(betterproto.Message):
    id: str = string_field(1)
    pod_sandbox_id: str = string_field(2)
    metadata: ContainerMetadata = message_field(3)
    state: ContainerState = enum_field(6)


@dataclass(eq=False, repr=False)
class ListContainersResponse(betterproto.Message):
    containers: list[Container] = message_field(1)


@dataclass(eq=False, repr=False)
class ListPodSandboxRequest(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class PodSandbox(betterproto.Message):
    id: str = string_field(1)
    metadata: PodSandboxMetadata = message_field(2)


@dataclass(eq=False, repr=False)
class ListPodSandboxResponse(betterproto.Message):
    items: list[PodSandbox] = message_field(1)


@dataclass(eq=False, repr=False)
class ExecSyncRequest(betterproto.Message):
    container_id: str = string_field(1)
    cmd: list[str] = string_field(2)
    timeout: int = int64_field(3)  # seconds


@dataclass(eq=False, repr=False)
class ExecSyncResponse(betterproto.Message):
    stdout: bytes = bytes_field(1)
    stderr: bytes = bytes_field(2)
    exit_code: int = int32_field(3)


@dataclass(eq=False, repr=False)
class ImageStatusRequest(betterproto.Message):
    image: ImageSpec = message_field(1)


@dataclass(eq=False, repr=False)
class Image(betterproto.Message):
    id: str = string_field(1)
    repo_tags: list[str] = string_field(2)


@dataclass(eq=False, repr=False)
class ImageStatusResponse(betterproto.Message):
    image: Image = message_field(1)


@dataclass(eq=False, repr=False)
class Empty(betterproto.Message):
    """Every answer without content."""
