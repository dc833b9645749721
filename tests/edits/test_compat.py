# SPDX-License-Identifier: Apache-2.0
"""Whether an image's newer CUDA driver may be used, as far as that can be told ahead."""

import attrs
import pytest

from nri_nvidia import pipeline, resolve
from nri_nvidia.edits import compat, options
from nri_nvidia.host import model as host
from nri_nvidia.request import container, model
from tests import inventories

A100 = inventories.gpu(0, brand="nvidia")
GEFORCE = inventories.gpu(1, brand="geforce_rtx", name="NVIDIA GeForce RTX 4090")
UNKNOWN = inventories.gpu(2)
NODE = inventories.with_gpus(A100, GEFORCE, UNKNOWN)


def decide(devices, *env, capabilities="compute", inventory=NODE, **inject):
    asked = (f"NVIDIA_VISIBLE_DEVICES={devices}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    rules = pipeline.Policy(inject=options.InjectOptions(**inject))
    return pipeline.plan(container.Container(env=(*asked, *env)), inventory, rules)


def told(plan):
    """Give the version and the directory that the hook is told, if it is."""
    (hook,) = plan.edits.hooks
    if "--compat" not in hook.args:
        return None
    at = hook.args.index("--compat")
    return hook.args[at + 1], hook.args[at + 3]


def outcome(plan):
    choice = plan.cuda_compat
    assert choice.allowed is (told(plan) is not None)
    return choice.allowed, choice.reason.code.removeprefix("cuda-compat-")


@pytest.mark.parametrize(
    ("devices", "mode", "expected"),
    [
        ("0", "auto", (True, "data-center-gpu")),
        ("1", "auto", (False, "not-on-this-gpu")),
        ("0,1", "auto", (False, "not-on-this-gpu")),
        ("2", "auto", (True, "unknown-gpu")),
        ("0,2", "auto", (True, "unknown-gpu")),
        ("1", "always", (True, "always")),
        ("0", "never", (False, "off")),
    ],
)
def test_gpu_and_setting(devices, mode, expected):
    """Every GPU has to be of a kind that takes it; the setting is above that."""
    assert outcome(decide(devices, cuda_compat=mode)) == expected


def test_hook_is_told_the_drivers_version_and_the_directory():
    """The hook compares what it finds with the driver that is loaded."""
    plan = decide("0", cuda_compat_dir="/usr/local/cuda/compat_orin")
    assert told(plan) == ("550.163.01", "/usr/local/cuda/compat_orin")


@pytest.mark.parametrize(
    ("devices", "capabilities", "decided"),
    [
        ("0", "utility", False),
        ("0", "graphics", False),
        ("0", "video", True),
        ("none", "all", False),
    ],
)
def test_it_is_a_matter_of_cuda_on_a_gpu(devices, capabilities, decided):
    """Without a GPU or without libcuda there is nothing to decide."""
    plan = decide(devices, capabilities=capabilities)
    assert (plan.cuda_compat is not None) is decided
    assert (told(plan) is not None) is decided


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/usr/local/nvidia/lib:/usr/local/nvidia/lib64", True),
        ("/usr/local/cuda/lib64:/usr/local/nvidia//lib/:/x:/usr/local/nvidia/lib64", True),
        ("/usr/local/nvidia/lib64", False),
        ("/usr/local/nvidia/lib64:/usr/local/nvidia/lib", False),
        ("/usr/local/cuda/lib64", True),
        ("", True),
    ],
)
def test_search_path_that_has_the_hosts_first(path, allowed):
    """Where LD_LIBRARY_PATH would mix both drivers, the host's alone is used, and that is told."""
    plan = decide("0", f"LD_LIBRARY_PATH={path}")
    assert outcome(plan) == ((True, "data-center-gpu") if allowed else (False, "shadowed"))


def test_without_a_hook_nothing_looks_into_the_image():
    """With the hook off it is not used, and the reason says so."""
    plan = decide("0", hook=None)
    assert (plan.cuda_compat.allowed, plan.edits.hooks) == (False, ())
    assert plan.cuda_compat.reason.code == "cuda-compat-no-hook"


@pytest.mark.parametrize(
    ("name", "directory"),
    [("Orin (nvgpu)", "/usr/local/cuda/compat_orin"), ("Xavier", "/usr/local/cuda/compat")],
)
def test_jetson_compares_cuda_versions(name, directory):
    """Its driver's version is that of the board's software, so CUDA's is told; Orin has its own."""
    board = inventories.with_gpus(
        inventories.gpu(0, name=name), platform=host.Platform.TEGRA, driver_version=""
    )
    choice = compat.choose(*asked(board))
    assert (choice.allowed, choice.host, choice.directory) == (True, "cuda=12.4", directory)
    told_nothing = attrs.evolve(board, cuda_version="")
    assert compat.choose(*asked(told_nothing)).reason.code == "cuda-compat-no-version"


def test_windows_has_its_own():
    """In WSL the driver's user-space part goes with the Windows driver, whatever an image has."""
    board = attrs.evolve(NODE, platform=host.Platform.WSL)
    assert compat.choose(*asked(board)).reason.code == "cuda-compat-wsl"


def asked(inventory):
    request = model.GpuRequest(source=model.Source.ENV, devices=("0",))
    given = resolve.Allocation(assigned=(resolve.Assigned(gpu=inventory.gpus[0]),))
    return request, given, inventory, container.Container(), options.InjectOptions()


def test_loaded_driver_counts():
    """A host whose module does not tell a version has none to compare with."""
    gone = attrs.evolve(NODE, driver_version="", gpus=(A100,))
    assert decide("0", inventory=gone).decision is pipeline.Decision.ERROR
