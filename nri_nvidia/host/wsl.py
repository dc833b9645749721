# SPDX-License-Identifier: Apache-2.0
"""A host in WSL: the driver is Windows', and Linux sees one node, /dev/dxg.

`/usr/lib/wsl/lib` holds the libraries that programs load. They ask libdxcore, which asks Windows
by /dev/dxg, where the driver's own files are: a directory of the driver store, below
`/usr/lib/wsl/drivers`, that therefore has the same path in a container (container toolkit
`pkg/nvcdi/driver-wsl.go`). Nothing tells the GPUs apart but NVML, and nothing can keep a container
from one of them.
"""

import fnmatch
import stat
from collections.abc import Iterator

import attrs

from . import catalog, elf
from .model import DeviceNode, DriverFile, FileKind, Gpu, Problem
from .nodes import Directory
from .report import Report
from .root import Root

NODE = "/dev/dxg"
LIBRARIES = "/usr/lib/wsl/lib"
STORES = "/usr/lib/wsl/drivers"
_DXCORE = "libdxcore.so"
# By these a directory of the store is NVIDIA's; those of other vendors lie beside it.
_MARKS = ("libcuda.so.1.1", "libcuda_loader.so", "libnvidia-ml.so.1")
_WANTED = ("*.so", "*.so.*", "*.bin", "*.dll", "nvidia-smi")


@attrs.frozen(kw_only=True)
class Found:
    """What there is of the driver, and what is wrong with it."""

    files: tuple[DriverFile, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[Problem, ...] = ()


def find(root: Root, dev: Directory, nvml: Report | None) -> Found:
    """Look at a WSL host; `nvml` is what NVML said, None if it said nothing.

    Without NVML all GPUs count as one.
    """
    stores = tuple(_stores(root))
    libraries = tuple(_libraries(root, stores))
    if not any("libcuda.so.1" in file.names for file in libraries):
        return Found(problems=(_without_driver(root),))
    listed = tuple(file for store in stores for file in _listed(root, store))
    dxcore = tuple(_dxcore(root))
    return Found(
        files=(*dxcore, *libraries, *_program(root, stores), *listed),
        gpus=_gpus(dev, nvml),
        problems=() if dxcore else (_without_dxcore(root),),
    )


def watched(root: Root) -> Iterator[str]:
    """Give the directories in which something may appear."""
    yield from (LIBRARIES, STORES)
    yield from _stores(root)


def _stores(root: Root) -> Iterator[str]:
    for name in root.entries(STORES):
        place = f"{STORES}/{name}"
        if any(root.stat(f"{place}/{mark}") is not None for mark in _MARKS):
            yield place


def _libraries(root: Root, stores: tuple[str, ...]) -> Iterator[DriverFile]:
    """Give each library that programs load, once by its SONAME: the first place wins."""
    taken: set[str] = set()
    for place in (LIBRARIES, *stores):
        for name in root.entries(place):
            stem = name.partition(".so")[0]
            real = root.resolve(f"{place}/{name}")
            if stem not in catalog.LIBRARIES or real is None:
                continue
            file = elf.read(root.on_disk(real))
            soname = file.soname or name if file else ""
            if soname and soname not in taken:
                taken.add(soname)
                yield DriverFile(
                    kind=FileKind.LIBRARY,
                    source=root.reported(real),
                    names=tuple(dict.fromkeys((soname, *catalog.EXTRA_NAMES.get(stem, ())))),
                    capabilities=frozenset({catalog.LIBRARIES[stem]}),
                )


def _dxcore(root: Root) -> Iterator[DriverFile]:
    """Give libdxcore for those who look it up and for those who know where it is."""
    place = f"{LIBRARIES}/{_DXCORE}"
    real = root.resolve(place)
    if real is not None:
        source = root.reported(real)
        yield DriverFile(kind=FileKind.LIBRARY, source=source, names=(_DXCORE,))
        yield DriverFile(kind=FileKind.LISTED, source=source, destination=place)


def _program(root: Root, stores: tuple[str, ...]) -> Iterator[DriverFile]:
    for place in (*stores, LIBRARIES):
        real = root.resolve(f"{place}/nvidia-smi")
        if real is not None:
            yield DriverFile(
                kind=FileKind.BINARY,
                source=root.reported(real),
                names=("nvidia-smi",),
                capabilities=frozenset({"utility"}),
            )
            return


def _listed(root: Root, store: str) -> Iterator[DriverFile]:
    for name in root.entries(store):
        place = f"{store}/{name}"
        status = root.stat(place)
        wanted = any(fnmatch.fnmatchcase(name, pattern) for pattern in _WANTED)
        if wanted and status is not None and stat.S_ISREG(status.st_mode):
            capability = catalog.LIBRARIES.get(name.partition(".so")[0])
            yield DriverFile(
                kind=FileKind.LISTED,
                source=root.reported(root.resolve(place) or place),
                destination=place,
                capabilities=frozenset({capability} if capability else ()),
            )


def _gpus(dev: Directory, nvml: Report | None) -> tuple[Gpu, ...]:
    nodes = (dev.existing(NODE) or _absent(dev),)
    if nvml is None or not nvml.gpus:
        name = "the GPUs behind /dev/dxg"
        return (Gpu(index=0, uuid="", minor=-1, bus_id="", name=name, nodes=nodes),)
    return tuple(
        Gpu(
            index=told.index,
            uuid=told.uuid,
            minor=-1,
            bus_id=told.bus_id,
            name=told.name,
            brand=told.brand,
            architecture=told.architecture,
            compute_capability=told.compute_capability,
            memory_bytes=told.memory_bytes,
            nodes=nodes,
        )
        for told in sorted(nvml.gpus, key=lambda gpu: gpu.index)
    )


def _absent(dev: Directory) -> DeviceNode:
    path = dev.root.reported(NODE)
    return DeviceNode(
        path=NODE,
        host_path=path,
        major=10,
        minor=-1,
        exists=False,
        problem=f"{path} is missing: this WSL has no access to the GPU; "
        "update WSL and the driver of Windows, and see that gpuSupport is on in .wslconfig",
    )


def _without_driver(root: Root) -> Problem:
    places = f"{root.reported(LIBRARIES)} and {root.reported(STORES)}"
    return Problem(
        code="driver-libraries-missing",
        message=f"no libcuda of NVIDIA's driver for WSL was found in {places}",
        hint="install NVIDIA's driver in Windows, then restart WSL: wsl --shutdown",
    )


def _without_dxcore(root: Root) -> Problem:
    return Problem(
        code="driver-library-missing",
        message=f"{root.reported(LIBRARIES)}/{_DXCORE} is missing, by which the driver is found",
        hint="update WSL: wsl --update",
    )
