# SPDX-License-Identifier: Apache-2.0
"""Composes what the kernel, the file system and NVML tell into one Inventory."""

import os
import re
from collections.abc import Iterable, Iterator

import attrs

from nri_nvidia.errors import HostError

from . import boards, catalog, char_links, devices, files, libraries, presets, proc, reach, report
from .model import DriverFile, Gpu, Inventory, Platform, Problem
from .options import Options
from .root import Root


def scan(options: Options, nvml: report.Report | None = None) -> Inventory:
    """Look at the host now.

    `nvml` is what NVML last said, None if it did not say anything. On a recorded host it is read
    from `nvml.json`. Missing device nodes and links to them are made if the options allow it.
    Nothing is raised for what a host lacks: it shows as a problem, or as a node that does not
    exist.
    """
    options, choice = presets.settle(options)
    system = options.system
    problems: list[Problem] = []
    if options.recorded and nvml is None:
        nvml, said = _recorded_report(system)
        problems += said
    if choice.preset.platform is not Platform.PCI:
        return _of_board(options, choice, nvml, tuple(problems))
    nvml = nvml and attrs.evolve(nvml, gpus=tuple(gpu for gpu in nvml.gpus if gpu.bus_id))
    version = proc.module_version(system)
    known = devices.tables(options)
    gpus = _gpus(system, known, nvml)
    hardware = proc.hardware(system)
    if hardware and not version:
        problems.append(_NO_DRIVER)
    order = _order_problem(gpus, nvml)
    user_space = user_space_of(options, version)
    extra_nodes = devices.on_request(known)
    inventory = Inventory(
        driver_version=version,
        libraries_version=user_space.found.version,
        cuda_version=nvml.cuda_version if nvml else "",
        hardware=hardware or bool(gpus),
        gpus=gpus,
        control=devices.control(known),
        caps_nodes=devices.caps(known, _caps_of(gpus)),
        imex_major=known.majors.get("nvidia-caps-imex-channels", -1),
        imex_channels=devices.imex_channels(known),
        imex_count=known.imex_count if options.create_device_nodes else 0,
        extra_nodes=extra_nodes,
        extra_mounts=devices.extra_mounts(known, options, extra_nodes),
        files=user_space.files,
        nvml_state="absent" if nvml is None else "mismatch" if order else "ok",
        layout=_layout(user_space.found.directory),
        platform=choice.preset.platform,
        preset=choice.preset.name,
        preset_reason=choice.why,
        driver_root=options.driver.reported("/"),
        dev_root=options.dev.reported("/"),
        problems=(*problems, *order, *_nvml_problems(nvml, version, gpus), *user_space.problems),
    )
    unreachable = tuple(dict.fromkeys(reach.problems(inventory)))
    inventory = attrs.evolve(inventory, problems=(*inventory.problems, *unreachable))
    # A user who only looks (the verbs `plan` and `devices`) could not make them, and need not.
    if options.dev_char_symlinks and not options.recorded and os.geteuid() == 0:
        links = char_links.ensure(options.dev, inventory.nodes)
        inventory = attrs.evolve(inventory, problems=(*inventory.problems, *links))
    return inventory


def _of_board(
    options: Options,
    choice: presets.Choice,
    nvml: report.Report | None,
    problems: tuple[Problem, ...],
) -> Inventory:
    found = boards.scan(options, choice, nvml)
    more = found.with_all_lists
    return attrs.evolve(
        found,
        files=identified(found.files, options),
        with_all_lists=more and attrs.evolve(more, files=identified(more.files, options)),
        problems=(*problems, *found.problems),
        preset=choice.preset.name,
        preset_reason=choice.why,
    )


def identified(files: Iterable[DriverFile], options: Options) -> tuple[DriverFile, ...]:
    """Give files with what tells each from another of the same name, save on a recorded host."""
    if options.recorded:
        return tuple(files)
    return tuple(attrs.evolve(file, identity=_identity(file.source)) for file in files)


# Of NVML_ERROR_NO_PERMISSION: a fault of the one who asks and not of the GPU.
_NOT_PERMITTED = "Insufficient Permissions"


@attrs.frozen(kw_only=True)
class UserSpace:
    """The driver's files, where they were found and what is wrong with them."""

    found: libraries.Found
    files: tuple[DriverFile, ...]
    problems: tuple[Problem, ...]


def user_space_of(options: Options, version: str) -> UserSpace:
    """Find the driver's files below the driver root of settled options.

    A driver root that holds no driver (yet) gives way to the host's own root, if the module's
    version is there: a driver container's directory exists long before it is filled, and after
    it was left.
    """
    root = options.driver
    found = libraries.find(root, options.library_search_paths, version)
    problems: tuple[Problem, ...] = ()
    empty = version and not found.files and not found.version
    if empty and options.driver_root != options.root:
        other = libraries.find(options.system, (), version)
        if other.files:
            root, found = options.system, other
            problems = (_moved(options),)
    system = options.system
    parts: list[DriverFile] = list(found.files)
    if found.files:
        parts += files.binaries(root, found.version, found.directory)
        parts += files.firmware(root, system, found.version)
        parts += files.xorg(root, found.version, found)
        parts += files.configs(root, found.directory)
        parts += files.sockets(root)
    said = found.problems if parts else _with_container(found.problems, options)
    return UserSpace(found=found, files=identified(parts, options), problems=(*problems, *said))


def _with_container(problems: tuple[Problem, ...], options: Options) -> tuple[Problem, ...]:
    """Add what stands empty of a driver container to what is said of missing files."""
    empty = presets.empty_container(options)
    if not empty:
        return problems
    return tuple(
        attrs.evolve(
            problem,
            message=f"{problem.message}; {empty}",
            hint=f"wait for the driver container, or {problem.hint}",
        )
        if problem.code == "driver-libraries-missing"
        else problem
        for problem in problems
    )


def _identity(path: str) -> str:
    try:
        found = os.stat(path)  # noqa: PTH116 - one of some fifty, and a name, not a Path
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def _gpus(system: Root, known: devices.Tables, nvml: report.Report | None) -> tuple[Gpu, ...]:
    """Join the GPUs of /proc with those of NVML, in PCI order."""
    listed = {gpu.bus_id: gpu for gpu in proc.gpus(system)}
    told = {gpu.bus_id: gpu for gpu in (nvml.gpus if nvml else ())}
    sliced = devices.mig_gpus(known)
    gpus: list[Gpu] = []
    index = 0
    for bus_id in sorted({*listed, *told}, key=proc.bus_key):
        base = listed.get(bus_id) or _from_nvml(told[bus_id])
        gpu = _joined(base, told.get(bus_id), index)
        gpus.append(
            attrs.evolve(
                gpu,
                node=None if gpu.excluded else devices.gpu(known, gpu.minor),
                # NVML may be silent, but an instance in /proc means that the GPU is divided.
                mig_enabled=gpu.mig_enabled or gpu.minor in sliced,
                dri_nodes=devices.dri(known, proc.drm_names(system, bus_id)),
                problem="" if gpu.excluded or bus_id in told else _unanswered(gpu, nvml),
            )
        )
        index += not gpu.excluded
    return tuple(gpus)


def _unanswered(gpu: Gpu, nvml: report.Report | None) -> str:
    """Say what NVML says of a GPU that it does not describe, if it answered at all.

    A GPU that fell off the bus stays in /proc. NVML may count it and fail at it, or leave it out.
    """
    if nvml is None:
        return ""
    said = {place: why for place, _, why in (text.partition(": ") for text in nvml.errors)}
    why = said.get(f"GPU {gpu.index}")
    if why == _NOT_PERMITTED:
        return ""
    return f"NVML cannot describe it: {why}" if why else "NVML does not list it"


def _joined(base: proc.ProcGpu, told: report.ReportGpu | None, index: int) -> Gpu:
    gpu = Gpu(
        index=-1 if base.excluded else index,
        uuid=base.uuid,
        minor=base.minor,
        bus_id=base.bus_id,
        name=base.name,
        excluded=base.excluded,
    )
    if told is None:
        return gpu
    return attrs.evolve(
        gpu,
        uuid=base.uuid or told.uuid,
        minor=base.minor if base.minor >= 0 else told.minor,
        name=told.name or base.name,
        brand=told.brand,
        architecture=told.architecture,
        compute_capability=told.compute_capability,
        memory_bytes=told.memory_bytes,
        mig_enabled=told.mig_enabled,
        mig_devices=told.mig_devices,
    )


def _from_nvml(told: report.ReportGpu) -> proc.ProcGpu:
    return proc.ProcGpu(bus_id=told.bus_id, uuid=told.uuid, minor=told.minor, name=told.name)


def _caps_of(gpus: tuple[Gpu, ...]) -> Iterator[str]:
    """Name the capabilities of NVML's MIG devices; the number is the GPU's minor."""
    for gpu in gpus:
        for device in gpu.mig_devices:
            yield f"gpu{gpu.minor}/gi{device.gi}/access"
            yield f"gpu{gpu.minor}/gi{device.gi}/ci{device.ci}/access"


def _order_problem(gpus: tuple[Gpu, ...], nvml: report.Report | None) -> tuple[Problem, ...]:
    """Compare NVML's indexes with PCI order: where they differ, an index means nothing."""
    by_bus = {gpu.bus_id: gpu.index for gpu in gpus}
    for told in nvml.gpus if nvml else ():
        if by_bus[told.bus_id] != told.index:
            return (
                Problem(
                    code="gpu-order-mismatch",
                    message=f"NVML calls GPU {told.uuid} index {told.index}, "
                    f"its place in PCI order is {by_bus[told.bus_id]}",
                    hint="ask for GPUs by UUID",
                ),
            )
    return ()


def _nvml_problems(
    nvml: report.Report | None, version: str, gpus: tuple[Gpu, ...]
) -> Iterator[Problem]:
    # What it says of a GPU of /proc is that GPU's problem.
    known = {f"GPU {gpu.index}" for gpu in gpus if gpu.problem}
    for sentence in nvml.errors if nvml else ():
        if sentence.partition(": ")[0] not in known:
            yield Problem(code="gpu-not-answering", message=f"NVML cannot describe {sentence}")
    if nvml and version and nvml.driver_version != version:
        yield Problem(
            code="nvml-version-mismatch",
            message=f"NVML speaks of driver {nvml.driver_version}, "
            f"the loaded kernel module is {version}",
        )


def _recorded_report(root: Root) -> tuple[report.Report | None, list[Problem]]:
    document = root.data("/nvml.json")
    if document is None:
        return None, []
    try:
        return report.parse(document), []
    except HostError as error:
        return None, [Problem(code=error.code, message=error.message, hint=error.hint)]


def _layout(directory: str) -> str:
    if not directory:
        return ""
    return next(name for pattern, name in catalog.LAYOUTS if re.fullmatch(pattern, directory))


def _moved(options: Options) -> Problem:
    return Problem(
        code="driver-root-empty",
        message=f"{options.driver.reported('/')} holds no driver libraries, "
        f"those of {options.system.reported('/')} are used",
        hint="wait for the driver container, or set host.driver_root to "
        f"{options.system.reported('/')}",
    )


_NO_DRIVER = Problem(
    code="driver-not-loaded",
    message="there is an NVIDIA GPU, but the NVIDIA kernel module is not loaded",
    hint="load it: modprobe nvidia",
)
