# SPDX-License-Identifier: Apache-2.0
"""The neutral view of a container that every front end produces."""

from collections.abc import Mapping

import attrs

PLUGIN_PREFIX = "nvidia.cdi.k8s.io"
SHARE_PREFIX = "nri-nvidia/share."
"""Of an annotation of a pod; behind it is the name of the container that shares another's GPUs."""


@attrs.frozen(kw_only=True)
class Mount:
    """A mount that the container's spec already holds."""

    source: str
    destination: str
    type: str = ""
    options: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Device:
    """A device node that the container's spec already holds; `type` is `c`, `b` or `p`."""

    path: str
    type: str = "c"
    major: int = -1
    minor: int = -1


@attrs.frozen(kw_only=True)
class Hook:
    """A hook that the container's spec already holds; only what names its owner is kept."""

    stage: str
    path: str
    args: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Container:
    """One container as NRI, an OCI config.json or a command line shows it.

    `env` holds `KEY=VALUE` entries in the order of the spec; entries without `=` may occur and
    mean nothing. `privileged` is None where the front end cannot tell. `user_namespace` tells one
    whose users are others than the host's. `runtime_handler` is what its pod's runtime class
    names, empty for the runtime's default and where the front end has none. `pod_annotations` are
    those that the pod's author wrote; they are among `annotations` too, as far as the container
    has no other of their names.
    `sandbox` is the id of its pod's sandbox, and only from who makes pods, since it tells whose
    GPUs a container may share; empty else.
    `cgroup` is the spec's `linux.cgroupsPath`, empty where the front end does not tell.
    """

    id: str = ""
    name: str = ""
    pod: str = ""
    namespace: str = ""
    pod_uid: str = ""
    sandbox: str = ""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    pod_annotations: Mapping[str, str] = attrs.field(factory=dict)
    env: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    hooks: tuple[Hook, ...] = ()
    privileged: bool | None = None
    user_namespace: bool = False
    runtime_handler: str = ""
    cgroup: str = ""

    @property
    def display(self) -> str:
        """The name a person knows it by: `namespace/pod/container`, else its name or short id."""
        if self.pod and self.name:
            prefix = f"{self.namespace}/" if self.namespace else ""
            return f"{prefix}{self.pod}/{self.name}"
        return self.name or self.id[:12] or "container"

    @property
    def plugin_annotation(self) -> str:
        """The annotation by which NVIDIA's NRI plugin would serve it, if one has a value.

        That for this container comes before that for the pod (toolkit `nri/plugin.go`).
        """
        keys = (f"{PLUGIN_PREFIX}{end}" for end in (f"/container.{self.name}", "/pod", ""))
        return next((key for key in keys if self.annotations.get(key)), "")

    def environment(self, prefix: str = "") -> dict[str, str]:
        """Give the variables, those with a prefix; of one that occurs twice the later counts.

        Engines append the user's values after the image's. An entry without `=` is ignored.
        """
        entries = [entry for entry in self.env if "=" in entry and entry.startswith(prefix)]
        return dict([entry.split("=", 1) for entry in entries])

    def variable(self, name: str) -> str | None:
        """Give a variable's value, None where it is not set."""
        marker = f"{name}="
        found = [entry for entry in self.env if entry.startswith(marker)]
        return found[-1][len(marker) :] if found else None
