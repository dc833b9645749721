# SPDX-License-Identifier: Apache-2.0
"""A device that was not given cannot be reached, whichever way a container's root tries.

A node that may be opened answers ENXIO here, since no driver is behind it; EPERM is the device
cgroup's answer. It is that of whoever opens, not of whoever has the node.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_kernel, host_spec

from . import daemons, few_controllers, settings
from . import engine as engines

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MIGS = (host_spec.MigSpec(gi=1), host_spec.MigSpec(gi=2))
SPEC = host_spec.HostSpec(
    gpus=(
        host_spec.GpuSpec(),
        host_spec.GpuSpec(),
        host_spec.GpuSpec(mig_enabled=True, mig=MIGS),
    ),
    drm=True,
    imex_channels=(0,),
    groups=host_spec.GROUPS,
)
NVIDIA, CAPS, CHANNELS, DRM = 195, 508, 507, 226
UVM = 511
WHOLE_CAPS = tuple(host_kernel.cap_minor(2, gi, ci) for gi in (1, 2) for ci in (None, 0))
BEYOND = ((CAPS, 1), (CAPS, 2), (CHANNELS, 0), (DRM, 1), (DRM, 128), (NVIDIA, 254))
"""What is nobody's by default: MIG's management, a channel, DRM nodes, modeset."""


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with two whole GPUs, a divided one, and all other nodes."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, SPEC)
    links = directory / "dev/char"
    links.mkdir(exist_ok=True)
    for minor in range(3):
        link = links / f"{NVIDIA}:{minor}"
        if not link.is_symlink():
            link.symlink_to(f"../nvidia{minor}")
    return directory


@pytest.fixture(scope="module", params=["own", "version-2"])
def engine(
    request: pytest.FixtureRequest,
    start: Callable[..., engines.Engine],
    programs: dict[str, engines.Program],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[engines.Engine]:
    """A containerd with the machine's own cgroups, and one that sees only version 2.

    That version may have few controllers here, so runtimes are told of devices alone.
    """
    options = settings.Options()
    if request.param == "version-2":
        directory = tmp_path_factory.mktemp("runtimes")
        wrappers = {
            name: few_controllers.install(directory, name, programs[name].path)
            for name in ("runc", "runc-1.1.5", "crun")
        }
        options = settings.Options(unified=True, wrappers=wrappers)
    found = start("containerd-2", options)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def daemon(engine: engines.Engine, gpu_host: Path) -> Iterator[daemons.Daemon]:
    with daemons.running(engine.nri_socket, gpu_host) as found:
        yield found.nvml_answered()


async def made(container, numbers, directory="/tmp"):
    """Make nodes of these numbers in a container; give which of them may be opened."""
    paths = {f"{directory}/made-{major}-{minor}": (major, minor) for major, minor in numbers}
    script = "; ".join(f"/probe mknod {path} c {a} {b}" for path, (a, b) in paths.items())
    answers = (await container.exec(["/bin/sh", "-c", script])).stdout.splitlines()
    assert len(answers) == len(paths)
    assert {*answers} <= {"OK EPERM", "OK ENXIO", "OK ENODEV"}
    pairs = zip(paths.values(), answers, strict=True)
    return [number for number, answer in pairs if answer != "OK EPERM"]


GPUS = [(NVIDIA, minor) for minor in range(3)]


ASKED = {"0": [0], "1": [1], "none": [], "void": [], None: []}
"""What containers ask for, None for no variable at all, and the minors that they get."""


async def test_by_a_node_of_ones_own(engine, daemon, runtime, tmp_path):
    """What is made by mknod opens for what was given alone: in /dev, /tmp, and a host's mount."""
    tmp_path.chmod(0o755)
    async with engine.pod(runtime) as pod:
        for asked, given in ASKED.items():
            place = tmp_path / str(asked)
            place.mkdir()
            wishes = {"env": {} if asked is None else {VISIBLE: asked}}
            async with pod.container("debian", mounts=[(place, "/from-host")], **wishes) as it:
                for directory in ("/dev", "/tmp", "/from-host"):
                    assert await made(it, GPUS, directory) == [(NVIDIA, each) for each in given]
                caps = [(CAPS, minor) for minor in WHOLE_CAPS]
                assert await made(it, [*caps, *BEYOND]) == []
                control = [(NVIDIA, 255), (UVM, 0), (UVM, 1)]
                served = asked not in {"void", None}
                assert await made(it, control) == (control if served else [])
                assert await it.probe("mknod", "/tmp/block", "b", "195", "0") == "OK EPERM"
                for mode in ("r", "w"):
                    answer = await it.probe("open", "/tmp/made-195-1", mode)
                    assert answer == ("ENXIO" if 1 in given else "EPERM")


async def test_by_the_hosts_own_nodes(engine, daemon, runtime, gpu_host):
    """Mounting a node, all of the host's /dev or links into it gives no right to open anything."""
    mounts = [
        (gpu_host / "dev/nvidia1", "/dev/nvidia1"),
        (gpu_host / "dev", "/host-dev"),
        (gpu_host / "dev/char", "/links/char"),
        (gpu_host / "dev/nvidia1", "/links/nvidia1"),
    ]
    async with (
        engine.pod(runtime) as pod,
        pod.container("debian", env={VISIBLE: "0"}, mounts=mounts) as container,
    ):
        for path in (
            "/dev/nvidia1",
            "/host-dev/nvidia1",
            "/host-dev/char/195:1",
            "/links/char/195:1",
            "/host-dev/nvidia2",
            f"/host-dev/nvidia-caps/nvidia-cap{WHOLE_CAPS[0]}",
        ):
            assert await container.probe("open", path, "r") == "EPERM", path
        for path in ("/dev/nvidia0", "/host-dev/nvidia0", "/host-dev/char/195:0"):
            assert await container.probe("open", path, "rw") == "ENXIO", path


async def processes(container):
    return {name for name in (await container.probe("ls", "/proc")).split() if name.isdigit()}


async def test_by_a_neighbour_of_the_pod(engine, daemon, runtime):
    """Processes and IPC shared: the neighbour's root and its nodes are seen, and stay closed.

    Seeing them is what sharing processes is for (the user asked for it); opening is up to the
    cgroup of whoever does, so it works for a container's own GPU by the neighbour's node as well.
    """
    shares = {"share_processes": True, "capabilities": ["SYS_PTRACE"]}
    async with (
        engine.pod(runtime, share_processes=True) as pod,
        pod.container("debian", env={VISIBLE: "0"}, **shares) as first,
        pod.container("debian", env={VISIBLE: "1"}, **shares) as second,
        pod.container("debian", **shares) as third,
    ):
        roots = {}
        for process in await processes(third):
            for minor in (0, 1):
                path = f"/proc/{process}/root" + f"/dev/nvidia{minor}"
                if await third.probe("open", path, "rw") != "ENOENT":
                    roots.setdefault(minor, path)
        assert {*roots} == {0, 1}
        for container, own in ((first, 0), (second, 1), (third, None)):
            for minor, path in roots.items():
                answer = await container.probe("open", path, "rw")
                assert answer == ("ENXIO" if minor == own else "EPERM"), (path, own)
            control = f"{roots[0]}ctl".replace("nvidia0", "nvidia")
            assert (await container.probe("open", control, "rw") == "EPERM") == (
                container is third
            )
            expected = [] if own is None else [(NVIDIA, own)]
            assert await made(container, GPUS) == expected


async def test_by_the_cgroup(engine, daemon, runtime):
    """What is seen of cgroups is for reading: nobody adds a rule or moves elsewhere."""
    async with (
        engine.pod(runtime) as pod,
        pod.container("debian", env={VISIBLE: "0"}) as container,
    ):
        seen = (await container.probe("ls", "/sys/fs/cgroup")).split()
        places = ["/sys/fs/cgroup"] if "cgroup.procs" in seen else []
        places += [f"/sys/fs/cgroup/{name}" for name in seen if name in {"devices", "systemd"}]
        assert places
        for place in places:
            assert await container.probe("write", f"{place}/cgroup.procs") == "EROFS"
        if "devices" in seen:
            path = "/sys/fs/cgroup/devices/devices.allow"
            assert await container.probe("write", path) == "EROFS"


async def test_by_one_instance_of_a_divided_gpu(engine, daemon, runtime):
    """The parent's node is given with the instance; the other instance's nodes are not."""
    uuid = host_spec.mig_uuid_of(SPEC.gpus[2], 2, MIGS[1])
    own, others = WHOLE_CAPS[2:], WHOLE_CAPS[:2]
    async with (
        engine.pod(runtime) as pod,
        pod.container("debian", env={VISIBLE: uuid}) as container,
    ):
        assert await made(container, GPUS) == [(NVIDIA, 2)]
        assert await made(container, [(CAPS, minor) for minor in others]) == []
        assert await made(container, BEYOND) == []
        for minor in own:
            path = f"/dev/nvidia-caps/nvidia-cap{minor}"
            assert await container.probe("open", path, "r") == "ENXIO"


def descriptors(pid):
    """Give what a process has open beside its three standard streams."""
    return [
        os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if int(entry.name) > 2
    ]


def members(pid):
    """Give the processes of a process's own PID namespace."""
    namespace = Path(f"/proc/{pid}/ns/pid").readlink()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        # One may end meanwhile.
        with contextlib.suppress(OSError):
            if (entry / "ns/pid").readlink() == namespace:
                found.add(int(entry.name))
    return found


def mounted(pid):
    """Give what a process has mounted, by place: file system, and the root in it."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()
    return {line.split()[4]: (line.split(" - ")[1].split()[0], line.split()[3]) for line in lines}


def special(directory):
    """Give what is neither file, directory nor link below a directory, or is set to another's id."""
    return [
        path
        for path in directory.rglob("*")
        if not (path.is_symlink() or path.is_dir() or path.is_file())
        or (not path.is_symlink() and path.stat().st_mode & 0o6000)
    ]


async def test_by_what_the_hook_leaves_behind(engine, daemon, runtime):
    """No descriptor, mount, process or file of it opens a way; its token is nowhere to be read."""
    async with (
        engine.pod(runtime) as pod,
        pod.container("debian", name="plain") as plain,
        pod.container("debian", name="gpu", env={VISIBLE: "0"}) as container,
    ):
        daemon.until(
            lambda: [each["hook"] for each in daemon.status()["containers"]] == ["ok"],
            "the hook's report",
        )
        pids = {each: await each.pid() for each in (plain, container)}
        assert descriptors(pids[container]) == descriptors(pids[plain]) == []
        for each, pid in pids.items():
            assert members(pid) == {pid}, each.id

        config = container.config()
        told = {mount["destination"] for mount in config["mounts"]}
        beside = {*mounted(pids[container])} - {*mounted(pids[plain])} - told
        # In this image /lib is a link into /usr; /proc/driver/nvidia shows less than there is.
        beside -= {f"/usr{path}" for path in told}
        assert [path for path in beside if not path.startswith("/proc/driver/nvidia")] == []
        kinds = mounted(pids[container]).values()
        assert "devtmpfs" not in {kind for kind, _ in kinds}
        assert [root for _, root in kinds if "/dev/" in root] == []

        (hook,) = config["hooks"]["createContainer"]
        token = hook["args"][hook["args"].index("--token") + 1]
        for name in ("environ", "cmdline", "mountinfo"):
            assert token not in Path(f"/proc/{pids[container]}/{name}").read_text("utf-8")
        upper = upper_directory(pids[container])
        before = {
            path.relative_to(upper_directory(pids[plain])) for path in all_below(pids[plain])
        }
        added = {path.relative_to(upper) for path in all_below(pids[container])} - before
        assert {str(path).partition("/")[0] for path in added} <= {
            "etc",
            "usr",
            "run",
            "lib",
            "var",
        }
        assert special(upper) == special(upper_directory(pids[plain])) == []
        for path in added:
            if (upper / path).is_file() and not (upper / path).is_symlink():
                assert token.encode() not in (upper / path).read_bytes()


def upper_directory(pid):
    """Give the host's directory of what was written into a container's root."""
    for line in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines():
        if line.split()[4] == "/":
            options = line.split(" - ")[1].split()[2].split(",")
            (upper,) = [o.partition("=")[2] for o in options if o.startswith("upperdir=")]
            return Path(upper)
    raise AssertionError(f"process {pid} has no root")


def all_below(pid):
    return upper_directory(pid).rglob("*")
