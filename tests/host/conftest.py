# SPDX-License-Identifier: Apache-2.0
"""A tree that stands for a host's `/`, written piece by piece."""

import os
import pathlib
import stat

import attrs
import pytest

from nri_nvidia.host import options, scan
from nri_nvidia.host.model import Inventory
from nri_nvidia.testing import stubs


@attrs.frozen
class Tree:
    """A directory taken for `/`; paths are absolute as in the tree."""

    top: pathlib.Path

    def at(self, path: str) -> pathlib.Path:
        """Give a path of the tree on this machine, its directory made."""
        place = self.top / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def put(self, path: str, data: bytes | str = b"", mode: int = 0o644) -> pathlib.Path:
        """Write a file."""
        place = self.at(path)
        place.write_bytes(data if isinstance(data, bytes) else data.encode())
        place.chmod(mode)
        return place

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        self.at(path).symlink_to(target)

    def node(self, path: str, major: int, minor: int, mode: int = 0o666) -> None:
        """Make a character device."""
        place = self.at(path)
        os.mknod(place, stat.S_IFCHR | mode, os.makedev(major, minor))
        place.chmod(mode)

    def library(self, path: str, soname: str = "", **options: object) -> pathlib.Path:
        """Write a shared object; its SONAME is the file's name unless given."""
        name = soname or path.rpartition("/")[2]
        return self.put(path, stubs.shared_object(name, **options))  # type: ignore[arg-type]

    def leading(self, directory: str, version: str, **options: object) -> None:
        """Write libcuda and libnvidia-ml of a version."""
        self.library(f"{directory}/libcuda.so.{version}", "libcuda.so.1", **options)
        self.library(f"{directory}/libnvidia-ml.so.{version}", "libnvidia-ml.so.1", **options)

    def module(self, version: str) -> None:
        """Load the kernel module."""
        self.put("/sys/module/nvidia/version", f"{version}\n")

    def gpu(self, bus_id: str, minor: int, uuid: str, **more: str) -> None:
        """Show a GPU in /proc."""
        fields = {"Model": "NVIDIA Test", "GPU UUID": uuid, "Bus Location": bus_id, **more}
        fields["Device Minor"] = str(minor)
        text = "".join(f"{key}: \t {value}\n" for key, value in fields.items())
        self.put(f"/proc/driver/nvidia/gpus/{bus_id}/information", text)

    def majors(self, **majors: int) -> None:
        """Write /proc/devices; underscores stand for hyphens."""
        lines = [f"{number:3} {name.replace('_', '-')}" for name, number in majors.items()]
        self.put("/proc/devices", "Character devices:\n  1 mem\n" + "\n".join(lines) + "\n")

    def live(self, **changes: object) -> options.Options:
        """Give the options of a live host here."""
        top = str(self.top)
        given = options.Options(root=top, driver_root=top, dev_root=top)
        return attrs.evolve(given, **changes)  # type: ignore[arg-type]

    def recorded(self) -> options.Options:
        """Give the options of a recorded host here."""
        return options.Options.for_recorded(str(self.top))

    def scan(self) -> Inventory:
        """Scan it as a recorded host."""
        return scan.scan(self.recorded())


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> Tree:
    top = tmp_path / "host"
    top.mkdir()
    return Tree(top)
