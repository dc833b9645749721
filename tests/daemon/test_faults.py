# SPDX-License-Identifier: Apache-2.0
"""What breaks around the daemon does not break it, and nobody gets a wrong answer for it."""

import asyncio
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import host, runtime
from tests.containerd import daemons

from . import pairs, stalls

needs_fuse = pytest.mark.skipif(
    not pathlib.Path(stalls.DEVICE).exists(), reason="the kernel has no FUSE here"
)


def threads(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/task"))


def children(daemon):
    tasks = pathlib.Path(f"/proc/{daemon.pid}/task").iterdir()
    return [pid for task in tasks for pid in (task / "children").read_text().split()]


async def eventually(daemon, condition, what):
    return await asyncio.to_thread(daemon.until, condition, what)


@needs_fuse
def test_driver_root_that_never_answers(together, tmp_path):
    """GPU containers are refused in time, others made; one thread waits; SIGTERM ends it all."""
    stuck = tmp_path / "stuck"
    stuck.mkdir()

    async def body(pair):
        # Else a busy machine is refused for the hook, which is not in place yet.
        hook = pair.daemon.directory / "hook/nri-nvidia-hook"
        await eventually(pair.daemon, hook.exists, "the hook")
        for number in range(3):
            with pytest.raises(runtime.CreationFailed, match="could not be read within"):
                await pair.create(number, "NVIDIA_VISIBLE_DEVICES=0")
            if not number:
                before = threads(pair.daemon)
            assert bytes(await pair.create(10 + number, "PATH=/bin")) == b""
        assert threads(pair.daemon) == before
        assert len(pair.runtime.plugins) == 1
        found = await pairs.status(pair)
        assert found["runtime"]["registrations"] == 1
        assert [d["reasons"][-1]["code"] for d in found["decisions"]] == ["host-scan-late"] * 3
        assert "host-scan-late" in {finding["code"] for finding in found["findings"]}
        assert await asyncio.to_thread(pair.daemon.end) == 0

    with stalls.unanswering(stuck):
        together(body, "--driver-root", str(stuck), request_timeout=0.7)


@needs_fuse
def test_hook_directory_that_never_answers(together, tmp_path):
    """The daemon registers all the same and refuses GPU containers by the hook's name."""
    stuck = tmp_path / "stuck"
    stuck.mkdir()

    async def body(pair):
        with pytest.raises(runtime.CreationFailed, match="the hook was not in place"):
            await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        assert bytes(await pair.create(2, "PATH=/bin")) == b""
        assert await asyncio.to_thread(pair.daemon.end) == 0

    with stalls.unanswering(stuck):
        together(body, "--hook-directory", str(stuck), request_timeout=0.7)


def test_configuration_file_that_never_answers(together, tmp_path):
    """A reload from a fifo stops no container: with a writer that is silent, and without any."""
    config = tmp_path / "config.toml"
    config.write_text("")

    async def body(pair):
        config.unlink()
        os.mkfifo(config)
        pair.daemon.send(signal.SIGHUP)
        words = "to which nobody wrote"
        await eventually(pair.daemon, lambda: words in pair.daemon.logged(), "the reason")
        silent = os.open(config, os.O_RDWR)
        pair.daemon.send(signal.SIGHUP)
        await eventually(pair.daemon, lambda: "within 0.7 s" in pair.daemon.logged(), "the reason")
        os.close(silent)
        assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        assert await asyncio.to_thread(pair.daemon.end) == 0

    together(body, "--config", str(config))


def test_nvml_child_ends_with_the_daemon(together, tmp_path):
    """One that hangs is killed with it, however the daemon ends."""
    stuck = tmp_path / "host"
    host.build(stuck, pairs.EIGHT)
    (stuck / "nvml.fault").write_text("hang")

    async def body(pair):
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        found = await eventually(pair.daemon, lambda: _hanging(pair.daemon), "the NVML process")
        await asyncio.to_thread(pair.daemon.end, signal.SIGKILL)
        for pid in found:
            await eventually(
                pair.daemon, lambda pid=pid: not _runs(pid), "the NVML process to end"
            )

    together(body, gpus=stuck)


def _hanging(daemon):
    """Give the NVML processes that have loaded the driver's library."""
    found = []
    for pid in children(daemon):
        with contextlib.suppress(OSError):
            if "libnvidia-ml" in pathlib.Path(f"/proc/{pid}/maps").read_text():
                found.append(pid)
    return found


def _runs(pid):
    with contextlib.suppress(OSError):
        return "(zombie)" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    return False


def test_log_that_nobody_reads(tmp_path, gpu_host):
    """A full pipe behind standard error stops neither containers nor the end."""

    async def body():
        rt = runtime.Runtime()
        path = tmp_path / "nri.sock"
        async with asyncio.timeout(60), rt.listening(path):
            with launching(path, gpu_host) as start:
                reading, writing = os.pipe()
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
                process = start("--log-level", "debug", stderr=writing)
                os.close(writing)
                await rt.attached()
                for number in range(60):
                    env = f"NVIDIA_VISIBLE_DEVICES={number % 8}"
                    assert (await rt.create(pairs.container(number, env), pairs.POD)).mounts
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 20) == 0
                os.close(reading)

    asyncio.run(body())


OWN_RUN = (
    "unshare", "--mount", "--propagation", "private",
    "sh", "-c", 'mount -n -t tmpfs tmpfs /run && mount -n -t tmpfs tmpfs /var/lib && exec "$@"', "sh",
)  # fmt: skip
"""Through this a daemon that falls back to its default places makes none on the machine."""


@contextlib.contextmanager
def launching(nri_socket, host_root):
    """Give a function that starts a daemon by hand; what it started is ended."""
    with contextlib.ExitStack() as stack:
        # The hook's directory must be one that any uid may enter.
        state = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        state.chmod(0o755)

        def start(*extra, log=os.devnull, through=(), **options):
            command = [
                *through, daemons.COMMAND, "run", "--nri-socket", str(nri_socket),
                "--host-root", str(host_root), "--driver-root", str(host_root),
                "--dev-root", str(host_root), "--control-socket", str(state / "control.sock"),
                "--hook-directory", str(state / "hook"),
                "--volume-directory", str(state / "volumes"), *extra,
            ]  # fmt: skip
            with pathlib.Path(log).open("wb") as opened:
                options = {"env": {}, "stdin": opened, "stderr": opened, **options}
                process = subprocess.Popen(command, **options)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


def test_daemons_that_start_at_once(tmp_path, gpu_host):
    """Exactly one serves, and the others say that it is running."""
    with launching(tmp_path / "no.sock", gpu_host) as start:
        started = [start(stderr=subprocess.PIPE) for _ in range(4)]
        ended = []
        until = time.monotonic() + daemons.PATIENCE
        while len(ended) < 3 and time.monotonic() < until:
            ended = [process for process in started if process.poll() is not None]
            time.sleep(0.02)
        assert [process.returncode for process in ended] == [1, 1, 1]
        for process in ended:
            with process.stderr:
                assert b"another nri-nvidia is running" in process.stderr.read()
        [serving] = [process for process in started if process not in ended]
        assert serving.poll() is None
        serving.terminate()
        with serving.stderr:
            assert b"ends; containers keep" in serving.stderr.read()


def test_second_daemon_leaves_the_hooks_socket_alone(together):
    """The first one's hooks still report after a second has tried to start."""

    async def body(pair):
        path = pair.daemon.directory / "hook.sock"
        before = path.stat().st_ino
        second = await asyncio.to_thread(
            subprocess.run,
            [daemons.COMMAND, "run", "--control-socket", str(pair.daemon.control)],
            check=False, capture_output=True, timeout=20,
        )  # fmt: skip
        assert second.returncode == 1
        assert path.stat().st_ino == before

    together(body)


def test_socket_of_a_killed_daemon_is_replaced(together):
    """After kill -9 the next daemon takes the place."""

    async def body(pair):
        await asyncio.to_thread(pair.daemon.end, signal.SIGKILL)
        assert stat.S_ISSOCK(pair.daemon.control.stat().st_mode)
        pair.daemon.start()
        await asyncio.to_thread(pair.daemon.ready)
        assert (await pairs.status(pair))["runtime"]["registered"]

    together(body)


@pytest.mark.parametrize("what", ["file", "directory", "listener", "long"])
def test_control_socket_that_cannot_be_had(tmp_path, gpu_host, what):
    """What stands there stays; containers are served; the log says why status will not work."""
    control = tmp_path / "state" / ("x" * 120 if what == "long" else "control.sock")
    control.parent.mkdir()

    async def body():
        rt = runtime.Runtime()
        with contextlib.ExitStack() as stack:
            if what == "file":
                control.write_text("mine")
            elif what == "directory":
                control.mkdir()
            elif what == "listener":
                other = stack.enter_context(socket.socket(socket.AF_UNIX))
                other.bind(str(control))
                other.listen()
            async with rt.launched(name="gpu", index="07") as environment, asyncio.timeout(60):
                descriptor = int(environment["NRI_PLUGIN_SOCKET"])
                with launching("/none", gpu_host) as start:
                    start(
                        "--control-socket", str(control), env=environment,
                        pass_fds=[descriptor], log=tmp_path / "log",
                    )  # fmt: skip
                    os.close(descriptor)
                    await rt.attached()
                    adjusted = await rt.create(
                        pairs.container(1, "NVIDIA_VISIBLE_DEVICES=0"), pairs.POD
                    )
                    assert adjusted.mounts
            assert what == "long" or control.exists()
            assert str(control) in (tmp_path / "log").read_text()

    asyncio.run(body())


@pytest.mark.parametrize("state", ["/proc/nothing", "/sys"])
def test_directory_that_cannot_be_written(together, state):
    """Containers get their GPUs; nobody can ask the daemon."""

    async def served(pair):
        assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        assert pair.daemon.says("cannot be asked")

    together(served, "--control-socket", f"{state}/control.sock")


def test_launched_with_a_broken_configuration(tmp_path, gpu_host):
    """The daemon stays, since containerd 1.7 would end with it; GPU containers say why not.

    The file's repair and SIGHUP are enough.
    """
    config = tmp_path / "config.toml"
    config.write_text("inject.library_dri = 1\n")

    async def body():
        rt = runtime.Runtime()
        async with rt.launched(name="gpu", index="07") as environment, asyncio.timeout(60):
            descriptor = int(environment["NRI_PLUGIN_SOCKET"])
            with launching("/none", gpu_host) as start:
                log = tmp_path / "log"
                process = start(
                    "--config", str(config), env=environment, pass_fds=[descriptor], log=log,
                    through=OWN_RUN,
                )  # fmt: skip
                os.close(descriptor)
                await rt.attached()
                gpu = pairs.container(1, "NVIDIA_VISIBLE_DEVICES=0")
                with pytest.raises(runtime.CreationFailed, match=r"toml:1: inject\.library_dri"):
                    await rt.create(gpu, pairs.POD)
                assert bytes(await rt.create(pairs.container(2), pairs.POD)) == b""
                config.write_text('inject.library_dir = "/opt/gpu"\n')
                process.send_signal(signal.SIGHUP)
                while "read again" not in log.read_text():
                    await asyncio.sleep(0.02)
                adjusted = await rt.create(gpu, pairs.POD)
                assert adjusted.mounts[0].destination.startswith("/opt/gpu")

    asyncio.run(body())


def test_no_standard_streams(tmp_path, gpu_host):
    """With descriptors 0 to 2 closed, none of the daemon's own takes their places."""

    async def body():
        rt = runtime.Runtime()
        path = tmp_path / "nri.sock"
        async with asyncio.timeout(60), rt.listening(path):
            with launching(path, gpu_host) as start:
                shut = 'exec "$@" 0<&- 1>&- 2>&-'
                process = start(through=["/bin/sh", "-c", shut, "sh"])
                await rt.attached()
                links = [os.readlink(f"/proc/{process.pid}/fd/{n}") for n in range(3)]
                assert links == ["/dev/null"] * 3
                gpu = pairs.container(1, "NVIDIA_VISIBLE_DEVICES=0")
                assert (await rt.create(gpu, pairs.POD)).mounts

    asyncio.run(body())


def test_callers_of_the_control_socket_that_misbehave(together):
    """Mute ones and those that talk nonsense stop neither others nor the daemon's end."""

    async def body(pair):
        with contextlib.ExitStack() as stack:
            for data in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", os.urandom(65536), b"\0" * 99):
                caller = stack.enter_context(socket.socket(socket.AF_UNIX))
                caller.connect(str(pair.daemon.control))
                caller.sendall(data)
            for _ in range(2):
                assert (await pairs.status(pair))["runtime"]["registered"]
            assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")).mounts
            assert await asyncio.to_thread(pair.daemon.end) == 0
        assert not pair.daemon.control.exists()

    together(body)


def test_hook_that_was_removed_is_put_back(together):
    """A cleaner of /run does not make every GPU container fail."""

    async def body(pair):
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        script = pathlib.Path(adjusted.hooks.create_container[0].args[3])
        shutil.rmtree(script.parent)
        await pair.create(2, "NVIDIA_VISIBLE_DEVICES=0")
        assert script.stat().st_mode & 0o777 == 0o755

    together(body)


def test_hook_directory_that_becomes_good(together):
    """What was wrong with it is found right again without a signal."""
    place = pathlib.Path(f"/tmp/place-{os.getpid()}")
    place.write_text("")

    async def body(pair):
        with pytest.raises(runtime.CreationFailed, match=r"place.* cannot be made"):
            await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        place.unlink()
        assert (await pair.create(2, "NVIDIA_VISIBLE_DEVICES=0")).hooks.create_container

    try:
        together(body, "--hook-directory", str(place / "hook"))
    finally:
        shutil.rmtree(place)


HOSTILE = "9\n2026-01-01 00:00:00 info: all is well\x1b[2J\x07\x9b\u202e\u2028"


@pytest.mark.parametrize("form", ["text", "json"])
def test_names_and_values_write_no_line_of_their_own(together, form):
    """Line breaks and escape sequences reach neither the log, nor a terminal, nor the runtime."""

    async def body(pair):
        odd = pairs.container(1, f"NVIDIA_VISIBLE_DEVICES={HOSTILE}")
        odd.name = f"c\n{HOSTILE}"
        with pytest.raises(runtime.CreationFailed) as failure:
            await pair.runtime.create(odd, pairs.POD)
        assert str(failure.value).isprintable()
        good = pairs.container(2, "NVIDIA_VISIBLE_DEVICES=0")
        good.name = odd.name
        good.id = "\x1b]0;title\x07\n"
        await pair.runtime.create(good, pairs.POD)
        shown = await asyncio.to_thread(pair.daemon.ask, "status")
        assert all(line.isprintable() for line in shown.stdout.split("\n"))
        done = await asyncio.to_thread(pair.daemon.end)
        assert done == 0
        lines = pair.daemon.logged().rstrip("\n").split("\n")
        assert all(line.isprintable() for line in lines)
        assert not any(line.startswith("2026-01-01") for line in lines)
        if form == "json":
            assert all("message" in json.loads(line) for line in lines[1:])

    together(body, "--log-format", form)


@pytest.mark.parametrize("ids", [("",), ("same", "same"), ("x" * 5000,), ("../../etc",)])
def test_odd_container_ids(together, ids):
    """Each is answered; the next container works."""

    async def body(pair):
        for odd in ids:
            made = pairs.container(1, "NVIDIA_VISIBLE_DEVICES=0")
            made.id = odd
            with contextlib.suppress(runtime.CreationFailed):
                await pair.runtime.create(made, pairs.POD)
            await pair.runtime.stop(odd)
            await pair.runtime.stop(odd)
            await pair.runtime.remove(odd)
        assert (await pair.create(2, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        assert len((await pairs.status(pair))["containers"]) == 1

    together(body)


def test_huge_environment(together):
    """2000 variables, and a request of a megabyte: answered, with a sentence of bearable length."""

    async def body(pair):
        many = [f"SERVICE_{n}_PORT=tcp://10.0.0.1:80" for n in range(2000)]
        assert (await pair.create(1, *many, "NVIDIA_VISIBLE_DEVICES=0")).mounts
        with pytest.raises(runtime.CreationFailed) as failure:
            await pair.create(2, "NVIDIA_VISIBLE_DEVICES=" + "a" * (1 << 20))
        assert len(str(failure.value)) < 5000
        with pytest.raises(runtime.CreationFailed):
            await pair.create(3, "NVIDIA_VISIBLE_DEVICES=" + "7777," * (1 << 17))
        assert len(json.dumps(await pairs.status(pair))) < 200_000
        assert all(len(line) < 20_000 for line in pair.daemon.logged().split("\n"))

    together(body)


def test_request_as_long_as_a_message_may_be(together):
    """Of nearly 4 MiB, in 2,000 variables or in one: it gets its GPU, and what follows does too."""
    limit = 4 * 1024 * 1024 - 4096

    async def body(pair):
        each = "x" * (limit // 2000 - 32)
        many = [f"VARIABLE_{number}={each}" for number in range(2000)]
        for number, env in enumerate((many, ["ONE=" + "x" * limit], [])):
            adjusted = await pair.create(number, *env, f"NVIDIA_VISIBLE_DEVICES={number}")
            assert [d.path for d in adjusted.linux.devices][-1] == f"/dev/nvidia{number}"
        found = await pairs.status(pair)
        assert len(found["containers"]) == 3
        assert found["runtime"]["registrations"] == 1

    together(body)


def test_container_made_while_the_list_is_read(together):
    """One that is created, or ends, right behind the Synchronize is as the ledger says."""
    node = api.LinuxDevice(path="/dev/nvidia3", type="c", major=195, minor=3)
    env = [f"SERVICE_{i}=x" for i in range(50)]
    many = [pairs.container(n, *env, devices=[node]) for n in range(400)]

    async def body(pair):
        await pair.create(1000, "NVIDIA_VISIBLE_DEVICES=5")
        await pair.runtime.stop(many[-1].id)
        found = await eventually(
            pair.daemon,
            lambda: len((s := pair.daemon.status())["gpus"][3]["containers"]) >= 399 and s,
            "adoption",
        )
        assert [c["name"] for c in found["gpus"][5]["containers"]] == ["c1000"]
        assert len(found["gpus"][3]["containers"]) == 399
        assert found["missed"] == []

    together(body, containers=many, pods=[pairs.POD])


def test_answer_that_never_arrived(together):
    """A container that was decided over but made without us is listed, not counted as served."""

    async def body(pair):
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=5")
        pair.runtime.containers.append(pairs.container(1, "NVIDIA_VISIBLE_DEVICES=5"))
        pair.runtime.plugins[0].peer.link.close()
        found = await eventually(
            pair.daemon,
            lambda: (s := pair.daemon.status())["missed"] and s,
            "the container to be listed",
        )
        assert [entry["name"] for entry in found["missed"]] == ["c1"]
        assert found["containers"] == []

    together(body)


@pytest.mark.parametrize(
    "address", ["/" + "x" * 200, "@none", "relative", "/etc/passwd", "vsock:2"]
)
def test_service_manager_that_cannot_be_told(tmp_path, gpu_host, address):
    """A bad NOTIFY_SOCKET is a line in the log."""

    async def body():
        rt = runtime.Runtime()
        path = tmp_path / "nri.sock"
        async with asyncio.timeout(60), rt.listening(path):
            with launching(path, gpu_host) as start:
                log = tmp_path / "log"
                process = start(env={"NOTIFY_SOCKET": address}, log=log)
                await rt.attached()
                process.terminate()
                assert await asyncio.to_thread(process.wait, 20) == 0
                said = [x for x in log.read_text().split("\n") if "systemd could not be told" in x]
                assert said
                assert not any(line.endswith("None") for line in said)

    asyncio.run(body())


def test_memory_stays(together):
    """What is kept of containers does not grow with what they bring along."""

    async def body(pair):
        many = [f"SERVICE_{n}_PORT={'x' * 100}" for n in range(300)]

        async def cycle(first, count):
            for number in range(first, first + count):
                await pair.create(number, *many, f"NVIDIA_VISIBLE_DEVICES={number % 8}")
                await pair.runtime.stop(pairs.container(number).id)
            status = pathlib.Path(f"/proc/{pair.daemon.pid}/status").read_text()
            [line] = [line for line in status.split("\n") if line.startswith("VmRSS")]
            return int(line.split()[1])

        before = await cycle(0, 60)
        assert await cycle(60, 60) - before < 2000

    together(body)
