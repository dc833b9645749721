# SPDX-License-Identifier: Apache-2.0
"""What is compared: containers that differ in one thing from another."""

import enum
from collections.abc import Mapping

import attrs

from . import instrumented, world

GPU_ENV = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
IMAGES = {"busybox": "busybox", "debian": world.DEBIAN}


class Runtime(enum.Enum):
    """What ctr is told to run a container by."""

    REAL = "real"
    OURS = "nri-nvidia-runtime"


@attrs.frozen(kw_only=True)
class Arm:
    """One kind of container: which engine makes it, of which image, with which environment.

    `base` names the arm that it is compared with, empty for none. `runtime` tells how one that ctr
    makes comes to its GPUs: by the engine's low-level runtime alone, or by ours before it; it is
    None for those that CRI makes.
    """

    name: str
    engine: str
    image: str
    env: Mapping[str, str] = attrs.field(factory=dict)
    base: str = ""
    what: str = ""
    runtime: Runtime | None = None


def creations() -> list[Arm]:
    """Give the arms of the headline: plain, its control, GPU-less, a GPU container in each layout."""
    layouts = list(world.layouts())
    found = []
    for short, image in IMAGES.items():
        plain = f"plain {short}"

        def arm(name: str, engine: str, what: str, env: Mapping[str, str] | None = None) -> Arm:
            return Arm(
                name=f"{name} {short}", engine=engine, image=image, env=env or {},  # noqa: B023
                base="" if name == "plain" else plain, what=what,  # noqa: B023
            )  # fmt: skip

        found += [
            arm("plain", "plain", "no plugin"),
            arm("control", "control", "no plugin, another containerd: the bias of having two"),
            arm("gpu-less", layouts[0], "daemon registered, nothing asked"),
            *(arm(f"gpu {each}", each, f"8 GPUs, layout {each}", GPU_ENV) for each in layouts),
        ]
    return found


def by_ctr() -> list[Arm]:
    """Give the arms of `ctr run`, which NRI does not see: by the runtime alone, and by ours."""
    layouts, found = list(world.layouts()), []
    for short, image in IMAGES.items():
        plain = Arm(
            name=f"ctr plain {short}", engine="plain", image=image,
            what="by ctr run", runtime=Runtime.REAL,
        )  # fmt: skip
        ours = attrs.evolve(
            plain, name=f"ctr gpu-less {short}", engine=layouts[0], base=plain.name,
            what="by ctr run and nri-nvidia-runtime, nothing asked", runtime=Runtime.OURS,
        )  # fmt: skip
        found += [plain, ours]
        found += [
            attrs.evolve(
                ours, name=f"ctr gpu {each} {short}", engine=each, env=GPU_ENV,
                what=f"the same, 8 GPUs, layout {each}",
            )
            for each in layouts
        ]  # fmt: skip
    return found


def engines_for_creations() -> dict[str, str | None]:
    """Give the engines of these arms, each with its daemon's settings, None for no daemon."""
    return {"plain": None, "control": None, **world.layouts()}


PARTS = (
    ("plugin", "", "gpu-less", "the daemon is asked and answers: nothing"),
    ("decision", "nothing", "plugin", "the decision over 8 GPUs, its answer dropped"),
    ("nodes", "nodes", "decision", "the device nodes and their cgroup rules alone"),
    ("files", "files", "decision", "the file mounts alone"),
    ("nodes and files", "nodes+files", "files", "the device nodes, beside the mounts"),
    ("hook: a process", "hook:quiet", "nodes and files", "a static program that ends at once"),
    ("hook: Python", "hook:python", "hook: a process", "python3 -I -S -c pass instead of it"),
    ("hook: imports", "hook:imports", "hook: Python", "the modules that the hook imports"),
    ("hook: script", "hook:script", "hook: imports", "loading the script: compiling it, its definitions"),
    ("hook: view", "hook:view", "hook: script", "running it: state, config.json, a child in the clean view, the report"),
    ("hook: links", "hook:links", "hook: view", "links"),
    ("hook: ldconfig", "all", "hook: links", "ld.so.cache: all of the hook"),
)  # fmt: skip
"""Name, BENCH_PART, the arm before it, and what the difference to that one is."""


def parts() -> list[Arm]:
    """Give the arms of the breakdown: one containerd, one daemon, pieces switched off one by one."""
    found = []
    for name, part, before, what in PARTS:
        assert part in {"", *instrumented.PARTS}
        env = {**GPU_ENV, "BENCH_PART": part} if part else {}
        base = "" if before == "gpu-less" else before
        found.append(
            Arm(name=name, engine="parts", image=world.DEBIAN, env=env, base=base, what=what)
        )
    return found
