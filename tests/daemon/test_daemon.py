# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process, against the runtime's side of NRI on a real socket."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess

import grpclib.client
import pytest

from nri_nvidia._api.control import v1
from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import host, runtime
from tests.containerd import daemons

from .pairs import EIGHT, POD, container, status


def test_a_gpu_container_and_one_that_is_none(together):
    """The adjustment has the nodes; a container that asks for nothing gets an empty answer."""

    async def body(pair):
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=6")
        assert [d.path for d in adjusted.linux.devices][-1] == "/dev/nvidia6"
        assert bytes(await pair.create(2, "PATH=/bin")) == b""
        found = await status(pair)
        assert [entry["id"] for entry in found["containers"]] == [container(1).id]
        assert len(found["decisions"]) == 1

    together(body)


@pytest.mark.parametrize("nri", ["0.6.1", "0.8.0", "0.12.0"])
def test_stop_and_remove_free_the_gpu(together, nri):
    """After either event nobody holds it, on old and new runtimes."""

    async def body(pair):
        for number, end in enumerate((pair.runtime.stop, pair.runtime.remove)):
            await pair.create(number, "NVIDIA_VISIBLE_DEVICES=1")
            assert (await status(pair))["gpus"][1]["containers"]
            await end(container(number).id)
            assert not (await status(pair))["gpus"][1]["containers"]

    together(body, nri_version=nri)


def test_refusal_keeps_the_connection(together):
    """A refused creation says why; the next container of the same connection works."""

    async def body(pair):
        with pytest.raises(runtime.CreationFailed, match="this node has 0-7"):
            await pair.create(1, "NVIDIA_VISIBLE_DEVICES=9")
        await pair.create(2, "NVIDIA_VISIBLE_DEVICES=0")
        found = await status(pair)
        assert found["counts"] == {"error": 1, "inject": 1}
        assert found["runtime"]["registrations"] == 1

    together(body)


def test_what_ran_before_is_adopted_or_listed(together):
    """A container with nodes is known as a holder, one that was missed is listed, others not."""
    node = api.LinuxDevice(path="/dev/nvidia3", type="c", major=195, minor=3)
    before = [
        container(1, "NVIDIA_VISIBLE_DEVICES=3", devices=[node]),
        container(2, "NVIDIA_VISIBLE_DEVICES=all"),
        container(3),
    ]

    async def body(pair):
        await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["missed"], "what was missed"
        )
        found = await status(pair)
        assert [c["id"] for c in found["gpus"][3]["containers"]] == [before[0].id]
        assert [entry["id"] for entry in found["missed"]] == [before[1].id]

    together(body, containers=before, pods=[POD])


def test_five_hundred_containers_do_not_delay_the_registration(together):
    """A node full of containers is taken in while new ones are created."""
    many = [container(n, *(f"SERVICE_{i}=x" for i in range(50))) for n in range(500)]

    async def body(pair):
        await pair.create(1000, "NVIDIA_VISIBLE_DEVICES=0")
        assert (await status(pair))["runtime"]["registered"]

    together(body, containers=many, pods=[POD])


def test_control_socket_is_roots_alone(together):
    """Nobody else may connect; the one for hooks can be written by all and read by none."""

    async def body(pair):
        control = os.stat(pair.daemon.control)
        assert stat.S_IMODE(control.st_mode) == 0o600
        hook = os.stat(pair.daemon.directory / "hook.sock")
        assert stat.S_IMODE(hook.st_mode) == 0o222
        channel = grpclib.client.Channel(path=str(pair.daemon.control))
        try:
            reply = await v1.ControlStub(channel).status(v1.StatusRequest())
        finally:
            channel.close()
        assert json.loads(reply.json)["schema"] == reply.schema

    together(body)


def test_hook_reports_count_with_their_token_alone(together):
    """Rubbish and wrong tokens are dropped; the right one is shown once."""

    async def body(pair):
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        args = list(adjusted.hooks.create_container[0].args)
        token = args[args.index("--token") + 1]
        path = str(pair.daemon.directory / "hook.sock")
        step = {"name": "ldcache", "ok": False, "message": "no ldconfig"}
        good = {"token": token, "ok": False, "steps": [step], "duration_ms": 3}
        bad = [b"", b"\xff", b"[]", b"{}", b'{"token": 1, "ok": true}', b"[" * 5000]
        bad.append(json.dumps({**good, "token": "0" * 32}).encode())
        bad.append(json.dumps({**good, "steps": 3}).encode())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for data in [
                *bad,
                json.dumps(good).encode(),
                json.dumps({**good, "ok": True}).encode(),
            ]:
                sender.sendto(data, path)
        found = await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["containers"][0]["hook"], "the report"
        )
        assert found == "ldcache: no ldconfig"
        assert pair.daemon.says("no ldconfig")

    together(body)


def test_second_daemon_stands_back(together):
    """Two on one node would claim the same keys: the second says which socket is taken."""

    async def body(pair):
        second = await asyncio.to_thread(
            subprocess.run,
            [daemons.COMMAND, "run", "--control-socket", str(pair.daemon.control),
             "--nri-socket", "/nonexistent/nri.sock"],
            check=False, capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        assert second.returncode == 1
        assert "another nri-nvidia is running" in second.stderr
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        assert (await status(pair))["counts"] == {"inject": 1}

    together(body)


def test_reload_takes_a_good_file_and_leaves_the_old_for_a_bad_one(together, tmp_path):
    """SIGHUP: a bad file is reported with its line and changes nothing."""
    config = tmp_path / "config.toml"
    config.write_text("")

    async def body(pair):
        async def reload(text, expected):
            config.write_text(text)
            pair.daemon.send(signal.SIGHUP)
            await asyncio.to_thread(
                pair.daemon.until, lambda: expected in pair.daemon.logged(), expected
            )

        await reload("inject.library_dri = 1\n", "config.toml:1: inject.library_dri")
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        assert adjusted.mounts[0].destination.startswith("/usr/local/nvidia")
        await reload('inject.library_dir = "/opt/gpu"\n', "read again")
        adjusted = await pair.create(2, "NVIDIA_VISIBLE_DEVICES=0")
        assert adjusted.mounts[0].destination.startswith("/opt/gpu")
        fixed = "nri.enabled, metrics.listen counts from the next start"
        for _ in range(2):  # it is not in force after the first time either
            await reload('nri.enabled = false\nmetrics.listen = "127.0.0.1:1"\n', fixed)
            pair.daemon.log.write_text("")

    together(body, "--config", str(config))


def test_configuration_of_the_runtime_is_used_and_a_bad_one_is_told(together):
    """The Configure string overrides the file; for one that is wrong GPU containers are refused.

    The creation's error and the status name the key, other containers are created.
    """

    async def good(pair):
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        assert adjusted.mounts[0].destination.startswith("/opt/gpu")

    together(good, config='inject.library_dir = "/opt/gpu"')

    async def bad(pair):
        with pytest.raises(runtime.CreationFailed, match=r"inject\.library_dir"):
            await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        assert bytes(await pair.create(2)) == b""
        await asyncio.to_thread(
            pair.daemon.until, lambda: "library_dir" in pair.daemon.logged(), "the log's line"
        )
        assert "library_dir" in (await status(pair))["findings"][0]["message"]

    together(bad, config="inject.library_dir = 3")


def test_docker_is_given_nothing(together):
    """Its NRI refuses a container for any device: it gets an empty answer, and that is said."""

    async def body(pair):
        assert bytes(await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")) == b""
        assert pair.daemon.says("takes no devices from NRI plugins")

    together(body, name="docker", version="29.7.2", nri_version="0.12.1")


def test_driver_that_comes_later(together, tmp_path):
    """The daemon starts on a node without a driver, and gives GPUs once there is one."""
    empty = tmp_path / "host"
    empty.mkdir()

    async def body(pair):
        assert (await pair.create(1, "NVIDIA_VISIBLE_DEVICES=all")) is not None
        with pytest.raises(runtime.CreationFailed, match="no NVIDIA GPU"):
            await pair.create(2, "NVIDIA_VISIBLE_DEVICES=0")
        await asyncio.to_thread(host.build, empty, EIGHT)
        adjusted = await pair.create(3, "NVIDIA_VISIBLE_DEVICES=0")
        assert [d.path for d in adjusted.linux.devices][-1] == "/dev/nvidia0"

    together(body, gpus=empty)


def test_nvml_that_hangs_delays_nobody(together, tmp_path):
    """With NVML stuck in its child, containers get their GPUs and the status says so."""
    stuck = tmp_path / "host"
    host.build(stuck, EIGHT)
    (stuck / "nvml.fault").write_text("hang")

    async def body(pair):
        for number in range(5):
            await pair.create(number, f"NVIDIA_VISIBLE_DEVICES={number}")
        found = await status(pair)
        assert found["driver"]["nvml"] == "absent"
        assert found["counts"] == {"inject": 5}

    together(body, gpus=stuck)


def test_end_leaves_no_socket(together):
    """SIGTERM: exit status 0, control and hook sockets removed."""

    async def body(pair):
        assert await asyncio.to_thread(pair.daemon.end) == 0
        left = {path.name for path in pair.daemon.directory.iterdir()}
        assert not left & {"control.sock", "hook.sock"}

    together(body)
