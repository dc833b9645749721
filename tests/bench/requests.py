# SPDX-License-Identifier: Apache-2.0
"""CreateContainer requests as containerd sends them, of the size that a kubelet makes."""

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from tests.nri import messages

CREATE = "/nri.pkg.api.v1alpha1.Plugin/CreateContainer"
STOP = "/nri.pkg.api.v1alpha1.Plugin/StopContainer"
ALL = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")


def identifier(number: int) -> str:
    """Give a container id of containerd's length."""
    return f"{number:064x}"


def create(number: int, *env: str) -> bytes:
    """Give an undecoded CreateContainer: some 6 kB, 50 variables and 30 mounts, no device."""
    container = messages.container(identifier(number))
    container.linux.devices = []
    container.env = [*container.env, *env]
    return bytes(api.CreateContainerRequest(pod=messages.pod(), container=container))


def stop(number: int) -> bytes:
    """Give an undecoded StopContainer."""
    reference = api.ContainerReference(id=identifier(number))
    return bytes(api.StopContainerRequest(container=reference))
