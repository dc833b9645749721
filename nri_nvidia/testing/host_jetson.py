# SPDX-License-Identifier: Apache-2.0
"""Simulated Jetsons: lists, nodes and files as JetPack 5 and 6 have them, and a Thor with a card.

The paths are those of NVIDIA's own lists, far fewer of them.
"""

import json
import pathlib
from typing import Any

import attrs

from nri_nvidia.host import nodes

from . import host_spec, stubs
from .host_kernel import put, write_nodes
from .host_spec import HostSpec

LISTS = "etc/nvidia-container-runtime/host-files-for-container.d"
ARCH = "usr/lib/aarch64-linux-gnu"
UUID = "ddd3e4c5-9a15-5d0c-8a4b-2f0d6b1b7a11"
_VIDEO = 44
# What lists name on every board, and few boards have.
_NODES = (
    "/dev/dri/card*", "/dev/dri/renderD*", "/dev/fb0", "/dev/fb1", "/dev/host1x-fence",
    "/dev/nvhost-as-gpu", "/dev/nvhost-ctrl", "/dev/nvhost-ctrl-gpu", "/dev/nvhost-gpu",
    "/dev/nvgpu/igpu0/as", "/dev/nvgpu/igpu0/channel", "/dev/nvgpu/igpu0/ctrl",
    "/dev/nvidia-modeset", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvmap",
    "/dev/nvsciipc", "/dev/v4l2-nvdec", "/dev/v4l2-nvenc",
)  # fmt: skip


@attrs.frozen(kw_only=True)
class Board:
    """A kind of board.

    `nodes` are lines of dev.nodes; `own` is the directory of its libraries below the triplet's;
    `pci` the GPUs on the PCI bus as bus id, model, minor.
    """

    name: str
    release: str
    own: str
    list_name: str
    nodes: tuple[str, ...]
    module: str = ""
    integrated: str = ""
    pci: tuple[tuple[str, str, int], ...] = ()
    lists: tuple[tuple[str, str], ...] = ()


def _lines(*names: str, mode: str = "0660", major: int = 489) -> tuple[str, ...]:
    return tuple(f"c {major} {at} {mode} 0 {_VIDEO} /dev/{name}" for at, name in enumerate(names))


BOARDS: dict[str, Board] = {
    "jetson-xavier": Board(
        name="NVIDIA Jetson AGX Xavier Developer Kit",
        release="# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64",
        own="tegra",
        list_name="l4t.csv",
        nodes=(
            *_lines("nvhost-as-gpu", "nvhost-ctrl", "nvhost-ctrl-gpu", "nvhost-gpu"),
            "c 10 61 0440 0 44 /dev/nvmap",
            "c 29 0 0660 0 44 /dev/fb0",
        ),
        lists=(("cuda.csv", "dir, /usr/local/cuda-11.4\n"),),
    ),
    "jetson-orin": Board(
        name="NVIDIA Jetson AGX Orin Developer Kit",
        release="# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64",
        own="nvidia",
        list_name="drivers.csv",
        module="540.4.0",
        integrated="Orin (nvgpu)",
        nodes=(
            *_lines("nvgpu/igpu0/as", "nvgpu/igpu0/channel", "nvgpu/igpu0/ctrl", "nvhost-gpu"),
            *_lines("dri/card0", "dri/card1", major=226),
            "c 226 128 0660 0 105 /dev/dri/renderD128",
            "c 10 61 0660 0 44 /dev/nvmap",
            "c 195 0 0666 0 0 /dev/nvidia0",
            "c 195 255 0666 0 0 /dev/nvidiactl",
            "c 195 254 0666 0 0 /dev/nvidia-modeset",
        ),
    ),
    "jetson-thor": Board(
        name="NVIDIA Jetson AGX Thor Developer Kit",
        release="# R38 (release), REVISION: 2.0, GCID: 41844464, BOARD: generic, EABI: aarch64",
        own="nvidia",
        list_name="drivers.csv",
        module="580.00",
        integrated="NVIDIA Thor",
        pci=(("0000:01:00.0", "NVIDIA Thor", 0), ("0005:01:00.0", "NVIDIA RTX 6000", 1)),
        nodes=(
            "c 10 61 0660 0 44 /dev/nvmap",
            "c 195 0 0666 0 0 /dev/nvidia0",
            "c 195 1 0666 0 0 /dev/nvidia1",
            "c 195 255 0666 0 0 /dev/nvidiactl",
            "c 195 254 0666 0 0 /dev/nvidia-modeset",
            "c 511 0 0666 0 0 /dev/nvidia-uvm",
            "c 511 1 0666 0 0 /dev/nvidia-uvm-tools",
        ),
    ),
}


def write(top: pathlib.Path, spec: HostSpec) -> None:
    """Write the whole host; of the spec only the layout and whether NVML answers count."""
    board = BOARDS[spec.layout]
    put(top / "etc/os-release", b"ID=ubuntu\nID_LIKE=debian\n")
    put(top / "etc/nv_tegra_release", f"{board.release}\n".encode())
    put(top / "proc/device-tree/model", f"{board.name}\0".encode())
    put(top / "sys/devices/soc0/family", b"Tegra\n")
    write_nodes(top, spec, nodes.parse_listed("\n".join(board.nodes)))
    _write_kernel(top, board)
    # A live one is for containers of this machine.
    _write_files(top, board, stubs.EM_AARCH64 if spec.recorded else 0)
    if spec.nvml and board.integrated:
        text = json.dumps(document(board, spec.cuda), indent=1, sort_keys=True)
        put(top / "nvml.json", f"{text}\n".encode())


def document(board: Board, cuda: str) -> dict[str, Any]:
    """Give what NVML says: Orin's GPU has no PCI address, and a UUID without a prefix."""
    told = [
        {"index": at, "uuid": uuid_of(at), "minor": minor, "bus_id": f"0000{bus_id}", "name": name}
        for at, (bus_id, name, minor) in enumerate(board.pci)
    ]
    own = {"index": 0, "uuid": UUID, "minor": -1, "bus_id": "", "name": board.integrated}
    return {
        "driver_version": board.module,
        "cuda_version": cuda,
        "gpus": told or [own],
    }


def uuid_of(place: int) -> str:
    """Give the UUID of a GPU on a board's PCI bus."""
    return host_spec.uuid_of(host_spec.GpuSpec(), place)


def _write_kernel(top: pathlib.Path, board: Board) -> None:
    lines = ["Character devices:", "  1 mem", " 10 misc", "226 drm", "489 nvhost"]
    if board.module:
        lines += ["195 nvidia", "195 nvidia-modeset"]
        lines += ["511 nvidia-uvm"] if board.pci else []
        put(top / "sys/module/nvidia/version", f"{board.module}\n".encode())
    put(top / "proc/devices", "\n".join([*lines, "", "Block devices:", ""]).encode())
    for at, (bus_id, name, minor) in enumerate(board.pci):
        text = (
            f"Model: \t\t {name}\nGPU UUID: \t {uuid_of(at)}\nBus Location: \t {bus_id}\n"
            f"Device Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
        put(top / f"proc/driver/nvidia/gpus/{bus_id}/information", text.encode())


def _write_files(top: pathlib.Path, board: Board, machine: int) -> None:
    """Write the files and the lists that name them, and some that are not there."""
    own = f"{ARCH}/{board.own}"
    lines = []
    for name, soname in (
        ("libcuda.so.1.1", "libcuda.so.1"), ("libnvidia-ml.so.1", "libnvidia-ml.so.1"),
        ("libnvrm_gpu.so", "libnvrm_gpu.so"), ("libnvos.so", "libnvos.so"),
        ("libnvidia-ptxjitcompiler.so.580.00", "libnvidia-ptxjitcompiler.so.1"),
    ):  # fmt: skip
        data = stubs.shared_object(soname, machine=machine)
        put(top / own / name, data)
        lines.append(f"lib, /{own}/{name}")
    plugin = f"{ARCH}/gstreamer-1.0/libgstnvvidconv.so"
    put(top / plugin, stubs.shared_object("libgstnvvidconv.so", machine=machine))
    put(top / own / "nvidia_icd.json", b"{}\n")
    lines += [f"lib, /{plugin}", f"lib, /{own}/libnot-here.so.1", "", "no line of the form"]
    for link, target in (
        (f"{own}/libcuda.so", "libcuda.so.1.1"), (f"{own}/libcuda.so.1", "libcuda.so.1.1"),
        (f"{ARCH}/libcuda.so", f"{board.own}/libcuda.so"),
        ("etc/vulkan/icd.d/nvidia_icd.json", f"/{own}/nvidia_icd.json"),
    ):  # fmt: skip
        place = top / link
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
        lines.append(f"sym, /{link}")
    put(top / "usr/share/nvidia-api/README", b"a directory of the list\n")
    lines.append("dir, /usr/share/nvidia-api")
    put(top / LISTS / board.list_name, "".join(f"{line}\n" for line in lines).encode())
    devices = "".join(f"dev, {path}\n" for path in _NODES)
    put(top / LISTS / "devices.csv", devices.encode())
    for name, text in board.lists:
        put(top / LISTS / name, text.encode())
        put(top / text.partition("/")[2].strip() / "version.txt", b"11.4\n")
