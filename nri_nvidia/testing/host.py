# SPDX-License-Identifier: Apache-2.0
"""Builds a simulated host in a directory: `python -m nri_nvidia.testing.host DIR --gpus 8`.

The tree is laid out like `/`. A live one (the default) has real device nodes where they may be
made, libraries with code in them and NVML; it is used with `options_for`. A recorded one is plain
small files, the same bytes each time, and is used with `host.options.Options.for_recorded`.
"""

import argparse
import pathlib
import sys

import attrs

from nri_nvidia.host.options import Options

from . import host_driver, host_jetson, host_kernel, host_spec, host_wsl
from .host_spec import GpuSpec, HostSpec, MigSpec

__all__ = ["GpuSpec", "HostSpec", "MigSpec", "build", "options_for", "recorded_specs"]

# Seven slices of an H100: the profiles that fill it and the instance ids that the driver gives.
_MIG_SLICES = tuple(MigSpec(gi=gi) for gi in range(7, 14))


def build(directory: str | pathlib.Path, spec: HostSpec) -> None:
    """Build a host in an empty or new directory.

    Raises ValueError for a host that cannot be, and FileExistsError where something is already.
    """
    faults = host_spec.check(spec)
    if faults:
        raise ValueError(f"impossible host: {'; '.join(faults)}")
    top = pathlib.Path(directory)
    if top.exists() and any(top.iterdir()):
        raise FileExistsError(f"{top} is not empty")
    if spec.layout == "wsl":
        host_wsl.write(top, spec)
        return
    if spec.layout in host_jetson.BOARDS:
        host_jetson.write(top, spec)
        return
    host_kernel.write(top, spec)
    host_driver.write(top, spec)


def options_for(directory: str | pathlib.Path, *, create_device_nodes: bool = True) -> Options:
    """Give the options by which a built live host is looked at from this machine."""
    top = str(pathlib.Path(directory).resolve())
    return Options(
        root=top, driver_root=top, dev_root=top, create_device_nodes=create_device_nodes
    )


def recorded_specs() -> dict[str, HostSpec]:
    """Give the recorded hosts of the project's tests by name.

    After a change here, empty tests/hosts and run
    `python -m nri_nvidia.testing.host --all-recorded tests/hosts`.
    """
    eight = tuple(GpuSpec() for _ in range(8))
    mig = (
        GpuSpec(mig_enabled=True, mig=(MigSpec(gi=1), MigSpec(gi=2, profile="3g.40gb"))),
        GpuSpec(),
    )
    specs = {
        "debian-8xh100": HostSpec(gpus=eight),
        "debian-8xh100-no-nvml": HostSpec(gpus=eight, nvml=False),
        "ubuntu-1xl4": HostSpec(
            gpus=(GpuSpec(model="L4"),), layout="ubuntu", driver="570.124.06", cuda="12.8",
            compat32=True, drm=True, missing_nodes=("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
        ),
        "rhel-2xt4": HostSpec(
            gpus=(GpuSpec(model="T4"), GpuSpec(model="T4")), layout="rhel", driver="535.183.01",
            cuda="12.2",
        ),
        "debian-mig": HostSpec(gpus=mig),
        "debian-mig-no-nvml": HostSpec(gpus=mig, nvml=False),
        "debian-minors-swapped": HostSpec(gpus=(GpuSpec(minor=1), GpuSpec(minor=0))),
        "debian-nvml-order": HostSpec(gpus=(GpuSpec(), GpuSpec()), nvml_order=(1, 0)),
        "debian-excluded": HostSpec(gpus=(GpuSpec(), GpuSpec(excluded=True), GpuSpec())),
        "debian-uninitialised": HostSpec(gpus=(GpuSpec(), GpuSpec(initialised=False)), nvml=False),
        "debian-mismatch": HostSpec(
            gpus=(GpuSpec(),), driver="570.124.06", libraries="570.133.07", nvml=False
        ),
        "debian-module-unloaded": HostSpec(
            gpus=(GpuSpec(),), driver="", libraries="550.163.01", nvml=False
        ),
        "no-gpu": HostSpec(driver="", hardware=False, nvml=False),
        "rhel-fabric": HostSpec(
            gpus=(GpuSpec(), GpuSpec()), layout="rhel", imex_channels=(0, 1), drm=True,
            groups=host_spec.GROUPS,
        ),
        "cache-1xa100": HostSpec(gpus=(GpuSpec(model="A100"),), layout="cache"),
    }  # fmt: skip
    for name, chip in (
        ("fedora-1xt4", "T4"), ("suse-1xa100", "A100"), ("nixos-1xl4", "L4"),
        ("talos-1xl4", "L4"), ("cos-1xt4", "T4"), ("flatcar-1xa100", "A100"),
        ("bottlerocket-1xl4", "L4"), ("operator-1xa100", "A100"), ("ubuntu-arm-1xgh200", "GH200"),
    ):  # fmt: skip
        gpus = (GpuSpec(model=chip),)
        layout = name.rpartition("-")[0]
        specs[name] = HostSpec(gpus=gpus, layout=layout, driver="570.172.08", cuda="12.8")
    two = (GpuSpec(model="RTX4090"), GpuSpec(model="RTX4090"))
    for name, windows, nvml in (("wsl-2xrtx4090", two, True), ("wsl-no-nvml", two[:1], False)):
        specs[name] = HostSpec(gpus=windows, layout="wsl", driver="566.36", cuda="12.7", nvml=nvml)
    for name in host_jetson.BOARDS:
        specs[name] = HostSpec(layout=name, cuda="12.6")
    return {name: attrs.evolve(spec, recorded=True) for name, spec in specs.items()}


def main(arguments: list[str] | None = None) -> int:
    """Build a host from the command line, or all recorded ones below a directory."""
    parser = argparse.ArgumentParser(prog="python -m nri_nvidia.testing.host", description=__doc__)
    parser.add_argument("directory", help="where to build; it must be empty or not exist")
    parser.add_argument("--gpus", type=int, default=1, help="how many GPUs (default: 1)")
    parser.add_argument("--model", default="H100", choices=sorted(host_spec.MODELS))
    parser.add_argument("--driver", default="550.163.01", help="version of the kernel module")
    parser.add_argument("--libraries", help="version of the files (default: the driver's)")
    parser.add_argument("--layout", default="debian", choices=host_spec.LAYOUTS)
    parser.add_argument("--mig", action="store_true", help="slice each GPU into seven")
    parser.add_argument("--compat32", action="store_true", help="with 32-bit libraries")
    parser.add_argument("--no-nvml", action="store_true", help="NVML does not answer")
    parser.add_argument("--missing-node", action="append", default=[], metavar="PATH")
    parser.add_argument("--recorded", action="store_true", help="plain small files only")
    parser.add_argument("--all-recorded", action="store_true", help="the hosts of tests/hosts")
    given = parser.parse_args(arguments)
    try:
        for name, spec in _wanted(given).items():
            build(pathlib.Path(given.directory) / name, spec)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command line
        return 1
    return 0


def _wanted(given: argparse.Namespace) -> dict[str, HostSpec]:
    if given.all_recorded:
        return recorded_specs()
    mig = _MIG_SLICES if given.mig else ()
    gpu = GpuSpec(model=given.model, mig_enabled=given.mig, mig=mig)
    spec = HostSpec(
        gpus=(gpu,) * given.gpus,
        driver=given.driver,
        libraries=given.libraries,
        layout=given.layout,
        compat32=given.compat32,
        nvml=not given.no_nvml,
        missing_nodes=tuple(given.missing_node),
        recorded=given.recorded,
    )
    return {"": spec}


if __name__ == "__main__":
    sys.exit(main())
