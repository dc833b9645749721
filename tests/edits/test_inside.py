# SPDX-License-Identifier: Apache-2.0
"""What the hook is told of one container beside libraries and programs."""

import attrs
import pytest

from nri_nvidia import resolve
from nri_nvidia.edits import inside
from nri_nvidia.request import container as containers
from nri_nvidia.request import model
from tests import inventories

ALLOCATOR = attrs.evolve(
    inventories.library("libnvidia-allocator.so.1", "compute", "graphics"),
    links=("gbm/nvidia-drm_gbm.so",),
)
VDPAU = attrs.evolve(
    inventories.library("libvdpau_nvidia.so.1", "video"), links=("vdpau/libvdpau_nvidia.so.1",)
)
HOST = attrs.evolve(inventories.EIGHT, files=(*inventories.FILES, ALLOCATOR, VDPAU))


def told(capabilities, *gpus, inventory=HOST, container=None, nodes=(), management=()):
    """Give the options as pairs of name and value."""
    allocation = resolve.Allocation(assigned=gpus)
    asked = model.GpuRequest(
        source=model.Source.ENV,
        devices=("all",),
        capabilities=frozenset(model.Capability(name) for name in capabilities.split(",")),
        mig_management=management,
    )
    given = inside.options(
        asked, allocation, inventory, container or containers.Container(), nodes
    )
    return list(zip(given[::2], given[1::2], strict=True))


def whole(*numbers):
    return [resolve.Assigned(gpu=HOST.gpus[number]) for number in numbers]


@pytest.mark.parametrize("capability", ["graphics", "display", "graphics,compute"])
def test_what_draws_is_told_more(capability):
    """With graphics, which display brings, there are modules to link and GPUs to name to EGL."""
    found = dict(told(capability, *whole(0, 3)))
    assert found["--place"] == "gbm/nvidia-drm_gbm.so=lib64/libnvidia-allocator.so.1"
    assert found["--profile"] == "9"


def test_what_decodes_is_told_of_vdpau():
    """libvdpau looks for its backend in a directory of the image's own, without graphics too."""
    assert dict(told("video", *whole(0))) == {
        "--place": "vdpau/libvdpau_nvidia.so.1=lib64/libvdpau_nvidia.so.1",
        "--show": f"gpus/{HOST.gpus[0].bus_id}",
    }


@pytest.mark.parametrize("capability", ["compute", "utility", "ngx"])
def test_what_does_not_draw_is_told_no_such_thing(capability):
    """Nothing is made in an image's directories for a container that only computes."""
    assert {name for name, _ in told(capability, *whole(0))} == {"--show"}


def test_the_own_gpus_are_shown():
    """Each GPU's directory of /proc, in the order of the GPUs; nothing where there is none."""
    shown = [("--show", f"gpus/{HOST.gpus[number].bus_id}") for number in (1, 2)]
    assert told("utility", *whole(1, 2)) == shown
    assert told("utility") == []


def test_a_mig_devices_own_files_are_shown():
    """Its parent's directory and its two access files, by the GPU's minor and the instances."""
    host = inventories.mig_host()
    gpu = attrs.evolve(host.gpus[0], minor=5)
    found = told("utility", resolve.Assigned(gpu=gpu, mig=gpu.mig_devices[1]), inventory=host)
    assert [value for _, value in found] == [
        f"gpus/{gpu.bus_id}",
        "capabilities/gpu5/mig/gi2/access",
        "capabilities/gpu5/mig/gi2/ci0/access",
    ]


def test_what_manages_mig_sees_all_capabilities():
    """The right over MIG is an access file too, and instances come and go."""
    host = inventories.mig_host()
    gpu = host.gpus[0]
    given = [resolve.Assigned(gpu=gpu, mig=mig) for mig in gpu.mig_devices]
    found = told("utility", *given, inventory=host, management=(model.MigManagement.CONFIG,))
    assert [value for _, value in found] == ["capabilities", f"gpus/{gpu.bus_id}"]


def test_a_privileged_container_sees_everything():
    """From it nothing could be hidden."""
    container = containers.Container(privileged=True)
    assert told("utility", *whole(1), container=container) == [("--show", ".")]


def test_gpus_of_the_spec_are_named_too():
    """Nodes that a device plugin passed are the container's GPUs, by their real minors."""
    container = containers.Container(
        devices=(
            containers.Device(path="/dev/nvidia0", major=195, minor=2),
            containers.Device(path="/dev/nvidia1", major=195),
            containers.Device(path="/dev/nvidiactl", major=195, minor=255),
        )
    )
    assert dict(told("graphics", container=container))["--profile"] == "4"


def test_the_mask_has_64_bits():
    """A minor beyond is left out; none at all gives no profile."""
    assert inside.visible([0, 63, 64, 200]) == 1 << 63 | 1
    assert "--profile" not in dict(told("graphics"))
