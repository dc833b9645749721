# SPDX-License-Identifier: Apache-2.0
"""The user-space driver of a simulated host: libraries, programs, firmware, sockets."""

import functools
import pathlib
import socket
import subprocess
import tempfile
from collections.abc import Iterator

from . import host_layouts, stubs
from .host_kernel import put
from .host_spec import HostSpec

_SOURCES = pathlib.Path(__file__).parent / "nvml"

# Library -> the end of its SONAME (FULL: its own version), and what it needs of the driver.
FULL = "{version}"
LIBRARIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "libcuda": ("1", ()),
    "libcudadebugger": ("1", ()),
    "libnvidia-ml": ("1", ()),
    "libnvidia-cfg": ("1", ()),
    "libnvidia-opencl": ("1", ()),
    "libnvidia-gpucomp": (FULL, ()),
    "libnvidia-ptxjitcompiler": ("1", ()),
    "libnvidia-allocator": ("1", ()),
    "libnvidia-pkcs11-openssl3": (FULL, ()),
    "libnvidia-nvvm": ("4", ()),
    "libnvidia-encode": ("1", ()),
    "libnvidia-opticalflow": ("1", ()),
    "libnvcuvid": ("1", ()),
    "libvdpau_nvidia": ("1", ()),
    "libnvidia-eglcore": (FULL, ("libnvidia-glsi", "libnvidia-gpucomp")),
    "libnvidia-glcore": (FULL, ("libnvidia-tls", "libnvidia-gpucomp")),
    "libnvidia-tls": (FULL, ()),
    "libnvidia-glsi": (FULL, ()),
    "libnvidia-fbc": ("1", ()),
    "libnvidia-rtcore": (FULL, ()),
    "libnvoptix": ("1", ()),
    "libGLX_nvidia": ("0", ("libnvidia-glsi", "libnvidia-tls", "libnvidia-glcore")),
    "libEGL_nvidia": ("0", ("libnvidia-glsi",)),
    "libnvidia-glvkspirv": (FULL, ()),
    "libnvidia-ngx": ("1", ()),
}
_COMPAT32 = ("libcuda", "libnvidia-ml", "libnvidia-opencl", "libnvidia-ptxjitcompiler",
             "libnvidia-encode", "libnvcuvid", "libnvidia-gpucomp")  # fmt: skip

# What finds libraries by their SONAMEs: path below the directory of shared files -> library.
_LOADERS = {
    "vulkan/implicit_layer.d/nvidia_layers.json": "libGLX_nvidia.so.0",
    "glvnd/egl_vendor.d/10_nvidia.json": "libEGL_nvidia.so.0",
    "egl/egl_external_platform.d/10_nvidia_wayland.json": "libnvidia-egl-wayland.so.1",
    "egl/egl_external_platform.d/15_nvidia_gbm.json": "libnvidia-egl-gbm.so.1",
}
# These have versions of their own.
_PLATFORMS = {"libnvidia-egl-wayland": "1.1.18", "libnvidia-egl-gbm": "1.1.2"}
# The X server's driver and its GLX, where they are not in one directory beside the libraries.
_XORG = {
    "debian": ("usr/lib/nvidia/current", "usr/lib/nvidia/current"),
    "rhel": ("usr/lib64/xorg/modules/drivers", "usr/lib64/xorg/modules/extensions"),
    "cache": ("usr/lib/xorg/modules/drivers", "usr/lib/xorg/modules/extensions"),
}
_BINARIES = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced",
             "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")  # fmt: skip


def write(top: pathlib.Path, spec: HostSpec) -> None:
    """Write the driver's files in the layout that the spec names."""
    layout = host_layouts.LAYOUTS[spec.layout]
    version = spec.files_version
    _write_base(top, layout, version or spec.driver)
    if not version:
        return
    wide = layout.at(top, layout.libraries, version)
    written = list(_write_libraries(wide, spec, version, 64, tuple(LIBRARIES)))
    if spec.compat32:
        narrow = layout.at(top, layout.libraries32, version)
        written += _write_libraries(narrow, spec, version, 32, _COMPAT32)
    if spec.graphics:
        written += _write_platforms(wide, _machine(spec))
    if layout.farm:
        _write_farm(top, top / layout.farm, written)
    if spec.layout == "debian":
        _write_alternatives(top, written)
    if spec.layout == "cache":
        entries = [(soname, f"/{path.relative_to(top)}", bits) for soname, path, bits in written]
        put(top / "etc/ld.so.cache", stubs.library_cache(entries))
    _write_binaries(top, spec, layout.at(top, layout.programs, version))
    etc = layout.at(top, layout.etc, version)
    # NixOS writes whole paths where others write names.
    place = f"/{layout.libraries.format(version=version)}/" if layout.farm else ""
    put(etc / "OpenCL/vendors/nvidia.icd", f"{place}libnvidia-opencl.so.1\n".encode())
    share = layout.at(top, layout.share, version)
    _write_loader(share / "vulkan/icd.d/nvidia_icd.json", f"{place}libGLX_nvidia.so.0")
    if spec.graphics:
        _write_graphics(top, spec.layout, version, share)
    firmware = layout.at(top, layout.firmware, version) / "nvidia" / version
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin") if spec.firmware else ():
        put(firmware / name, b"firmware\n")
    if layout.firmware_path:
        parameter = top / "sys/module/firmware_class/parameters/path"
        put(parameter, f"{layout.firmware_path}\n".encode())
    for name in ("nvidia-persistenced", "nvidia-fabricmanager") if spec.sockets else ():
        _write_socket(top / layout.prefix / f"run/{name}/socket", spec.recorded)


@functools.cache
def compiled(source: str, *options: str) -> bytes:
    """Compile one of our C sources with gcc; each once a process. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="nri-nvidia-gcc-") as directory:
        output = pathlib.Path(directory) / "out"
        command = ["gcc", "-O1", "-s", "-o", str(output), *options, str(_SOURCES / source), "-ldl"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return output.read_bytes()


def _write_base(top: pathlib.Path, layout: host_layouts.Layout, version: str) -> None:
    """Write what tells the distribution, and the links that everything else goes through."""
    put(top / "etc/os-release", layout.os_release.encode())
    for name, target in layout.links:
        link = top / layout.prefix / name
        if link.is_symlink():
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target.format(version=version))
        if not target.startswith("/") and len(layout.links) > len(host_layouts.MERGED_USR):
            (link.parent / target.format(version=version)).mkdir(parents=True, exist_ok=True)


def _write_farm(
    top: pathlib.Path, farm: pathlib.Path, written: list[tuple[str, pathlib.Path, int]]
) -> None:
    """Make a directory of absolute links to the 64-bit libraries, by each of their names."""
    farm.mkdir(parents=True, exist_ok=True)
    for _soname, path, bits in written:
        for name in {path.name, path.readlink().name if path.is_symlink() else path.name}:
            if bits == 64:
                (farm / name).symlink_to(f"/{path.parent.relative_to(top)}/{name}")


def _write_libraries(
    directory: pathlib.Path, spec: HostSpec, version: str, bits: int, names: tuple[str, ...]
) -> Iterator[tuple[str, pathlib.Path, int]]:
    """Write libraries and their SONAME links; give SONAME, path of that name, word size."""
    for name in names:
        ending, needs = LIBRARIES[name]
        soname = f"{name}.so.{ending.format(version=version)}"
        file = directory / f"{name}.so.{version}"
        needed = [f"{need}.so.{version}" for need in needs]
        data = None if spec.recorded or bits == 32 else _with_code(name, soname, spec.cuda)
        stub = stubs.shared_object(soname, needed=needed, bits=bits, machine=_machine(spec))
        put(file, data or stub)
        link = directory / soname
        if link != file:
            link.symlink_to(file.name)
        yield soname, link, bits


def _write_loader(path: pathlib.Path, library: str) -> None:
    text = f'{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{library}"}}}}\n'
    put(path, text.encode())


def _machine(spec: HostSpec) -> int:
    """Give the ELF machine number of 64-bit files; 0 stands for the PC's."""
    return stubs.EM_AARCH64 if spec.layout.endswith("-arm") else 0


def _write_platforms(
    directory: pathlib.Path, machine: int
) -> Iterator[tuple[str, pathlib.Path, int]]:
    """Write the libraries of EGL's platforms; give them as `_write_libraries` does."""
    for name, own in _PLATFORMS.items():
        link = directory / f"{name}.so.1"
        put(directory / f"{name}.so.{own}", stubs.shared_object(link.name, machine=machine))
        link.symlink_to(f"{name}.so.{own}")
        yield link.name, link, 64


def _write_graphics(top: pathlib.Path, name: str, version: str, share: pathlib.Path) -> None:
    """Write what graphics needs besides libraries."""
    for path, library in _LOADERS.items():
        _write_loader(share / path, library)
    layout = host_layouts.LAYOUTS[name]
    beside = layout.at(top, layout.libraries, version) / "nvidia/xorg"
    driver, extension = (top / place for place in _XORG.get(name, (beside, beside)))
    glx = f"libglxserver_nvidia.so.{version}"
    put(driver / "nvidia_drv.so", stubs.shared_object("nvidia_drv.so"))
    put(extension / glx, stubs.shared_object("libglxserver_nvidia.so"))
    (extension / "libglxserver_nvidia.so").symlink_to(glx)
    conf = b'Section "OutputClass"\n  MatchDriver "nvidia-drm"\n  Driver "nvidia"\nEndSection\n'
    put(share / "X11/xorg.conf.d/nvidia-drm-outputclass.conf", conf)


def _with_code(name: str, soname: str, cuda: str) -> bytes | None:
    options = ("-shared", "-fPIC", f"-Wl,-soname,{soname}")
    if name == "libnvidia-ml":
        return compiled("nvml.c", *options)
    if name == "libcuda":
        major, minor = cuda.split(".")
        number = int(major) * 1000 + int(minor) * 10
        return compiled("cuda.c", *options, f"-DSIM_CUDA_VERSION={number}")
    return None


def _write_alternatives(top: pathlib.Path, written: list[tuple[str, pathlib.Path, int]]) -> None:
    """Make Debian's links: the usual name, by /etc/alternatives, to the flavour's directory."""
    for soname, path, _bits in written:
        if not soname.startswith(("libcuda.so", "libnvidia-ml.so")):
            continue
        triplet = path.relative_to(top).parts[2]
        _link(top, f"usr/lib/{triplet}/{soname}", f"nvidia--{soname}-{triplet}", path)


def _link(top: pathlib.Path, usual: str, name: str, target: pathlib.Path) -> None:
    alternative = top / "etc/alternatives" / name
    alternative.parent.mkdir(parents=True, exist_ok=True)
    alternative.symlink_to(f"/{target.relative_to(top)}")
    place = top / usual
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(f"/etc/alternatives/{name}")


def _write_binaries(top: pathlib.Path, spec: HostSpec, directory: pathlib.Path) -> None:
    for name in _BINARIES:
        data = f"#!/bin/sh\necho {name} of a simulated host\n".encode()
        if name == "nvidia-smi" and not spec.recorded:
            data = compiled("smi.c")
        put(directory / name, data, 0o755)
    if spec.layout == "debian":
        _link(top, "usr/bin/nvidia-smi", "nvidia--nvidia-smi", directory / "nvidia-smi")


def _write_socket(path: pathlib.Path, recorded: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if recorded:
        path.write_bytes(b"")  # a repository holds no sockets
        return
    # Bound by its name in the directory: a whole path may be longer than an address allows.
    with socket.socket(socket.AF_UNIX) as bound, tempfile.TemporaryDirectory() as short:
        link = pathlib.Path(short) / "d"
        link.symlink_to(path.parent.resolve())
        bound.bind(str(link / path.name))
