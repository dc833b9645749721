# SPDX-License-Identifier: Apache-2.0
"""Who may ask for what, as the node's operator set it."""

import attrs

from nri_nvidia.request import model, rules


@attrs.frozen(kw_only=True, cache_hash=True)
class RequestPolicy:
    """How requests are read. The defaults are those of NVIDIA's own stack.

    `accept_env_when_unprivileged` and `accept_volume_mounts` are the two switches of
    /etc/nvidia-container-runtime/config.toml with the long names. `swarm_resources` are variables
    that replace NVIDIA_VISIBLE_DEVICES where one of them is set. `ignore_imex_channels` is the
    toolkit's feature `ignore-imex-channel-requests`. `annotation_prefixes` are
    those of the container annotations that hold CDI names; none where it is empty.
    `accept_pod_annotations` takes the place of NVIDIA's NRI plugin, which gives a pod what its
    annotations `nvidia.cdi.k8s.io` name. Pods of `management_namespaces` may name management
    devices, as privileged containers may. `access` is the preset with the operator's rules.
    """

    accept_env_when_unprivileged: bool = True
    accept_volume_mounts: bool = False
    supported_capabilities: frozenset[model.Capability] = model.ALL_CAPABILITIES
    default_capabilities: frozenset[model.Capability] = model.DEFAULT_CAPABILITIES
    disable_require: bool = False
    swarm_resources: tuple[str, ...] = ()
    ignore_imex_channels: bool = False
    annotation_prefixes: tuple[str, ...] = ("cdi.k8s.io/",)
    accept_pod_annotations: bool = False
    management_namespaces: tuple[str, ...] = ()
    access: rules.Access = attrs.field(factory=rules.Access)
