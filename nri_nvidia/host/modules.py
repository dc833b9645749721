# SPDX-License-Identifier: Apache-2.0
"""The driver's kernel modules, loaded where the operator wants that.

Without them there are no device numbers to make nodes from. NVIDIA's legacy stack loads them for
each container (libnvidia-container, `--load-kmods`); here it is done once, and beside the answers.
"""

from collections.abc import Iterable

from . import child, presets, proc
from .model import Inventory, Problem
from .options import Options
from .root import Root

_OUTPUT_LIMIT = 1 << 16
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_DEFAULT_TOOL = "/sbin/modprobe"


def missing(inventory: Inventory) -> tuple[str, ...]:
    """Name the modules that a node with a GPU on its PCI bus lacks, in the order to load them."""
    if not inventory.hardware or any(gpu.nodes for gpu in inventory.gpus):
        return ()
    control = inventory.control
    wanted = (
        ("nvidia", bool(inventory.driver_version)),
        ("nvidia-uvm", control.uvm is not None),
        ("nvidia-modeset", control.modeset is not None),
    )
    return tuple(name for name, there in wanted if not there)


def load(options: Options, names: Iterable[str]) -> tuple[Problem, ...]:
    """Load modules; blocks for up to the time limit for each. Gives what hindered it."""
    command = [options.modprobe or _tool(options.system), *_directory(options)]
    problems: list[Problem] = []
    for name in names:
        problem = _load(options, command, name)
        if problem:
            problems.append(problem)
            if name == "nvidia":  # the others stand on it
                break
    return tuple(problems)


def _load(options: Options, command: list[str], name: str) -> Problem | None:
    try:
        ended = child.run(
            [*command, name], _ENVIRONMENT, seconds=options.modules_timeout, limit=_OUTPUT_LIMIT
        )
    except OSError as error:
        why = f"{command[0]} cannot be run: {error.strerror}"
    else:
        if ended.late:
            why = f"{command[0]} did not end within {options.modules_timeout:g} s"
        elif ended.status or ended.much:
            why = ended.said
        else:
            return None
    return Problem(
        code="module-not-loaded",
        message=f"the kernel module {name} cannot be loaded: {why}",
        hint=f"{' '.join([*command, name])}; dmesg says more",
    )


def _tool(system: Root) -> str:
    """Give the program that the kernel itself loads modules by."""
    text = (system.text("/proc/sys/kernel/modprobe") or "").strip()
    return text if text.startswith("/") else _DEFAULT_TOOL


def _directory(options: Options) -> list[str]:
    """Name the driver's own root where that holds the modules of the running kernel."""
    options, _choice = presets.settle(options)
    release = proc.kernel_release(options.system)
    own = options.driver_root not in {"", options.root}
    if not own or not release or "/" in release:
        return []
    index = options.driver.stat(f"/lib/modules/{release}/modules.dep")
    return ["--dirname", options.driver_root] if index else []
