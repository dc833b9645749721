# SPDX-License-Identifier: Apache-2.0
"""Field cases: the runtime, its restarts, its limits, and what it shows."""

import asyncio
import contextlib
import os
import signal

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import runtime
from tests.containerd import daemons

from . import harness
from .conftest import POD, Pair
from .harness import asked

ONE = harness.gpus(1)

# Takes the place of a disk or driver that hangs: each look at the host waits at a fifo first.
STUCK = """
import os
import nri_nvidia.host.cache as cache
look = cache.scan
def stuck(*arguments):
    with open(os.environ["STUCK"], "rb") as gate:
        gate.read()
    return look(*arguments)
cache.scan = stuck
"""


@pytest.fixture
def stuck(tmp_path):
    """Give the environment of a daemon whose looks at the host wait, and the function that ends it."""
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opened = []

    def open_gate():
        # From now on a reader neither waits for the fifo to be opened nor finds an open writer.
        if not opened:
            opened.append(os.open(gate, os.O_RDONLY | os.O_NONBLOCK))
            gate.rename(tmp_path / "old-gate")
            gate.write_bytes(b"")
            os.close(os.open(tmp_path / "old-gate", os.O_WRONLY))

    yield {"PYTHONPATH": str(tmp_path), "STUCK": str(gate)}, open_gate
    open_gate()
    for descriptor in opened:
        os.close(descriptor)


def test_a_look_at_the_host_that_hangs(together, live, stuck):
    """FC-092, FC-106: registered and synchronised meanwhile; containers get an answer, in time.

    The runtime here drops a plugin that does not answer within two seconds, and registers none
    that takes five; it keeps this one.
    """
    environment, open_gate = stuck

    async def body(pair):
        (plugin,) = pair.runtime.plugins
        assert plugin.synchronized == 1
        assert "could not be read within" in await pair.refused(1, *asked("0"))
        assert bytes(await pair.create(2, "PATH=/bin")) == b""
        several = (pair.refused(number, *asked("all")) for number in range(3, 8))
        for said in await asyncio.gather(*several):
            assert "could not be read within" in said
        assert pair.runtime.plugins == [plugin]
        open_gate()
        await pair.until(lambda status: status["driver"]["version"], "the driver")
        await pair.create(9, *asked("0"))
        assert (await pair.status())["runtime"]["registrations"] == 1

    many = [api.Container(id=f"before{n}", env=["A=b"]) for n in range(50)]
    together(body, live(gpus=ONE), environment=environment, containers=many)


@contextlib.asynccontextmanager
async def daemon_of(path, directory, *arguments):
    """Have a daemon that is started, whatever it finds."""
    daemon = daemons.Daemon(path, directory, "--layout", "files", *arguments)
    try:
        yield daemon.start()
    finally:
        await asyncio.to_thread(daemon.close)


def shown(container, adjusted):
    """Give a container as the runtime lists it once an adjustment is made."""
    return api.Container(
        id=container.id,
        pod_sandbox_id=container.pod_sandbox_id,
        name=container.name,
        env=container.env,
        mounts=[bytes(mount) for mount in adjusted.mounts],
        hooks=bytes(adjusted.hooks),
        linux=api.LinuxContainer(devices=[bytes(each) for each in adjusted.linux.devices]),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_what_was_created_while_the_daemon_was_away(tmp_path, live, number):
    """FC-084, FC-094: of those in the gap exactly the one that wanted a GPU is listed and named."""
    path = tmp_path / "nri.sock"
    rt = runtime.Runtime(pods=[api.PodSandbox(id="p", name="pod", namespace="team")])
    async with asyncio.timeout(60), rt.listening(path), daemon_of(path, live(gpus=ONE)) as daemon:
        pair = Pair(rt, daemon, None)
        await rt.attached()
        await asyncio.to_thread(daemon.ready)
        served = pair.container(1, *asked("0"))
        rt.containers.append(shown(served, await rt.create(served)))
        quiet = pair.container(5, *asked("0"), name="none")
        quiet.env = [*asked("none")]
        rt.containers.append(shown(quiet, await rt.create(quiet)))
        await asyncio.to_thread(daemon.end, number)
        await rt.said("is gone")
        for env in (asked("0"), ("PATH=/bin",), asked("void")):
            missed = pair.container(len(rt.containers), *env)
            assert bytes(await rt.create(missed)) == b""
            rt.containers.append(missed)
        await asyncio.to_thread(daemon.start().ready)
        status = await pair.until(lambda status: status["missed"] and status, "what was missed")
        assert [entry["id"] for entry in status["missed"]] == [rt.containers[2].id]
        assert {entry["id"] for entry in status["containers"]} == {served.id, quiet.id}
        assert daemon.says("team/pod/c2")
        await rt.remove(rt.containers[2].id)
        assert not (await pair.status())["missed"]


def test_a_node_without_a_gpu_misses_nobody(together, live):
    """FC-084, FC-085: what would be given nothing was not missed, and no line says so."""

    async def body(pair):
        assert bytes(await pair.create(9, *asked("all"))) == b""
        status = await pair.until(
            lambda status: len(status["missed"]) == 1 and status, "what was missed"
        )
        assert status["missed"][0]["id"] == before[3].id
        logged = pair.daemon.logged()
        assert logged.count("while nri-nvidia was away") == 1

    pair = Pair(None, None, None)
    values = ("all", "all", "none", "0", "void")
    before = [pair.container(number, *asked(value)) for number, value in enumerate(values)]
    none = live(driver="", libraries="", hardware=False, nvml=False)
    together(body, none, containers=before, pods=[POD])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_what_was_passed_over_is_not_missed(tmp_path, live, number):
    """FC-091, FC-094: a container that another injector serves stays decided after a restart."""
    path = tmp_path / "nri.sock"
    note = {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0"}
    pod = api.PodSandbox(id="p", name="pod", namespace="team", annotations=note)
    rt = runtime.Runtime(pods=[pod])
    async with asyncio.timeout(60), rt.listening(path), daemon_of(path, live(gpus=ONE)) as daemon:
        pair = Pair(rt, daemon, None)
        await rt.attached()
        await asyncio.to_thread(daemon.ready)
        for of in range(3):
            other = pair.container(of, *asked("all"))
            assert bytes(await rt.create(other, pod)) == b""
            rt.containers.append(other)
        gone = pair.container(7, *asked("all"))
        gone.pod_sandbox_id = "q"
        rt.pods.append(api.PodSandbox(id="q", name="other", namespace="team"))
        await asyncio.to_thread(daemon.end, number)
        await rt.said("is gone")
        rt.containers.append(gone)
        await asyncio.to_thread(daemon.start().ready)
        status = await pair.until(lambda status: status["missed"] and status, "what was missed")
        assert [entry["id"] for entry in status["missed"]] == [gone.id]
        assert "team/pod/" not in daemon.logged().rpartition("registered")[2]


async def test_the_runtime_restarts(tmp_path, live):
    """FC-095, FC-099: away and back with another socket: same process, registered, state kept."""
    path = tmp_path / "nri.sock"
    async with asyncio.timeout(60), daemon_of(path, live(gpus=ONE)) as daemon:
        pair = Pair(None, daemon, None)
        listed, inodes = [], set()
        for times in range(1, 4):
            rt = pair.runtime = runtime.Runtime(containers=listed)
            async with rt.listening(path):
                await rt.attached()
                inodes.add(path.stat().st_ino)
                container = pair.container(times, *asked("0"))
                listed.append(shown(container, await rt.create(container)))
                status = await pair.status()
                assert status["runtime"]["registered"]
                assert status["runtime"]["registrations"] == times
                assert [entry["id"] for entry in status["containers"]] == [c.id for c in listed]
                assert not status["missed"]
            path.rename(tmp_path / f"old{times}")
            status = await pair.until(
                lambda status: not status["runtime"]["registered"] and status, "the loss"
            )
            assert status["pid"] == daemon.pid
        assert len(inodes) == 3


async def test_a_socket_that_is_a_directory(tmp_path, live):
    """FC-099: what a mount of a missing socket makes is told as what it is; the daemon waits."""
    path = tmp_path / "nri.sock"
    path.mkdir()
    async with asyncio.timeout(60), daemon_of(path, live(gpus=ONE)) as daemon:
        await asyncio.to_thread(
            daemon.until, lambda: f"{path} is a directory" in daemon.logged(), "the reason"
        )
        path.rmdir()
        rt = runtime.Runtime()
        async with rt.listening(path):
            await rt.attached()


def test_the_same_name_again(together, live):
    """FC-097: a container that a runtime made anew is handled; the first one is forgotten."""

    async def body(pair):
        first = pair.container(1, *asked("0"), name="same")
        second = pair.container(2, *asked("0"), name="same")
        one, other = [await pair.runtime.create(each) for each in (first, second)]
        assert one.linux == other.linux
        assert one.mounts == other.mounts
        await pair.runtime.remove(first.id)
        assert [entry["id"] for entry in (await pair.status())["containers"]] == [second.id]

    together(body, live(gpus=ONE))


@pytest.mark.parametrize(
    ("name", "version"),
    [("containerd", "1.7.24~ds1"), ("containerd", "v2.1.4"), ("cri-o", "1.33.1")],
)
def test_every_runtime_gets_plain_edits(together, live, name, version):
    """FC-098: the answer is devices, mounts and a hook, whoever asks; no CDI name, no variable."""

    async def body(pair):
        adjusted = await pair.create(1, *asked("0"))
        assert [device.path for device in adjusted.linux.devices][-1] == "/dev/nvidia0"
        assert adjusted.mounts
        assert adjusted.hooks.create_container
        assert (adjusted.env, adjusted.annotations, adjusted.cdi_devices) == ([], {}, [])

    together(body, live(gpus=ONE), name=name, version=version)


def test_the_runtime_class_does_not_matter(together, live):
    """FC-088: without a class and with one the answer is the same."""

    async def body(pair):
        plain = await pair.create(0, *asked("0"))
        for number, handler in enumerate(("nvidia", "runc", "kata"), 1):
            pod = api.PodSandbox(id="p", name="pod", namespace="team", runtime_handler=handler)
            other = await pair.create(number, *asked("0"), pod=pod)
            assert (plain.linux, plain.mounts) == (other.linux, other.mounts)

    together(body, live(gpus=ONE))


def test_the_hooks_environment_is_nobodys(together, live):
    """FC-050, FC-117: whatever the daemon, its caller or the image have in theirs, it is constant."""
    odd = {"TERMCAP": "x{{||}}y", "LD_LIBRARY_PATH": "/x", "PYTHONPATH": "/y", "LANG": "{{.}}"}

    async def body(pair):
        image = ("LD_PRELOAD=/proc/self/cwd/evil.so", "PYTHONSTARTUP=/evil.py", "PYTHONPATH=/")
        adjusted = await pair.create(1, *image, *asked("0"))
        (hook,) = adjusted.hooks.create_container
        assert hook.env == ["LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        assert hook.args[1:3] == ["-I", "-S"]
        assert hook.path == hook.args[0]
        assert not [part for part in hook.args if "evil" in part or "{{" in part]

    together(body, live(gpus=ONE), environment=odd)


def test_one_switch_for_the_log(together, live, tmp_path):
    """FC-128: the level changes by a reload without a restart; a hook's lines carry its container."""
    config = tmp_path / "config.toml"
    config.write_text('log.level = "warning"\n')

    async def body(pair):
        await pair.create(1, *asked("0"))
        assert "inject" not in pair.daemon.logged()
        config.write_text('log.level = "info"\n')
        pid = pair.daemon.pid
        pair.daemon.send(signal.SIGHUP)

        async def reloaded():
            await pair.create(2, *asked("0"))
            return "inject" in pair.daemon.logged()

        while not await reloaded():
            await asyncio.sleep(0)
        assert (await pair.status())["pid"] == pid
        adjusted = await pair.create(3, *asked("0"))
        harness.report(adjusted.hooks.create_container[0].args, "ldcache", "no ldconfig")
        await asyncio.to_thread(
            pair.daemon.until, lambda: "no ldconfig" in pair.daemon.logged(), "the hook's line"
        )
        (line,) = [x for x in pair.daemon.logged().splitlines() if "no ldconfig" in x]
        assert pair.container(3).id[:12] in line

    together(body, live(gpus=ONE), "--config", str(config), log_level=None)
