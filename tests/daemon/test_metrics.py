# SPDX-License-Identifier: Apache-2.0
"""Metrics and health of a daemon as a process, over HTTP."""

import asyncio
import contextlib
import http.client
import shutil
import socket

import pytest
from prometheus_client import parser

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import host, host_spec, runtime

from . import http as web
from .pairs import POD, container, status


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "metrics.sock")


async def scraped(place):
    code, body = await asyncio.to_thread(web.ask, place)
    assert code == http.client.OK
    families = {family.name for family in parser.text_string_to_metric_families(body)}
    assert all(name.startswith("nri_nvidia_") for name in families)
    return web.series(body)


def test_one_of_each_result(together, place):
    """Decisions are counted by result and reason, with their times; GPUs by who holds them."""

    async def body(pair):
        await asyncio.to_thread(pair.daemon.nvml_answered)
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=2,3")
        with pytest.raises(runtime.CreationFailed):
            await pair.create(2, "NVIDIA_VISIBLE_DEVICES=9")
        hook = api.Hooks(prestart=[api.Hook(path="/usr/bin/nvidia-container-runtime-hook")])
        await pair.create(3, "NVIDIA_VISIBLE_DEVICES=1", hooks=bytes(hook))
        found = await scraped(place)
        decisions = {
            name: n for name, n in found.items() if name.startswith("nri_nvidia_decisions")
        }
        assert decisions == {
            'nri_nvidia_decisions_total{decision="inject",reason="as-asked"}': 1,
            'nri_nvidia_decisions_total{decision="error",reason="no-such-gpu"}': 1,
            'nri_nvidia_decisions_total{decision="ignore",reason="other-injector"}': 1,
        }
        assert found["nri_nvidia_decision_duration_seconds_count"] == 3
        assert found["nri_nvidia_decision_duration_seconds_sum"] > 0
        assert found['nri_nvidia_decision_duration_seconds_bucket{le="+Inf"}'] == 3
        assert found["nri_nvidia_registered"] == found["nri_nvidia_ready"] == 1
        assert found["nri_nvidia_registrations_total"] == 1
        assert found["nri_nvidia_gpus"] == 8
        assert found["nri_nvidia_scans_total"] >= 1
        assert found["nri_nvidia_nvml_answers"] == 1
        gpu = (await status(pair))["gpus"][2]
        label = (
            f'nri_nvidia_container_gpu{{container="c1",gpu="2",mig="",minor="2",'
            f'namespace="team",pod="pod",source="env",uuid="{gpu["uuid"]}"}}'
        )
        assert found[label] == 1
        assert found["nri_nvidia_containers"] == 1
        await pair.runtime.stop(container(1).id)
        after = await scraped(place)
        assert not any(name.startswith("nri_nvidia_container_gpu{") for name in after)

    together(body, "--metrics", f"unix:{place}")


def test_stale_and_missed_containers(together, place, tmp_path):
    """A container with another driver's files, and one that was missed, are counted."""
    gpus = tmp_path / "host"
    host.build(gpus, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),)))

    async def body(pair):
        await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["missed"], "what was missed"
        )
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        found = await scraped(place)
        assert (found["nri_nvidia_stale_containers"], found["nri_nvidia_missed_containers"]) == (
            0,
            1,
        )
        (gpus / "sys/module/nvidia/version").write_text("535.161.07\n")
        found = await scraped(place)
        assert found["nri_nvidia_stale_containers"] == 1
        assert found["nri_nvidia_ready"] == 0

    missed = container(5, "NVIDIA_VISIBLE_DEVICES=0")
    together(body, "--metrics", f"unix:{place}", gpus=gpus, containers=[missed], pods=[POD])


def test_names_cannot_make_series(together, place):
    """Quotes, backslashes and line breaks of names stay within their label."""
    name = 'c"} 7\nnri_nvidia_registered 0\\'

    async def body(pair):
        pod = api.PodSandbox(id="p", name='po"d\\', namespace="team")
        made = container(1, "NVIDIA_VISIBLE_DEVICES=0")
        made.name = name
        await pair.runtime.create(made, pod)
        found = await scraped(place)
        assert found["nri_nvidia_registered"] == 1
        held = [line for line in found if line.startswith("nri_nvidia_container_gpu{")]
        assert len(held) == 1

    together(body, "--metrics", f"unix:{place}")


def test_health_and_readiness(together, place, tmp_path):
    """Both are told; without a usable driver a node is healthy and not ready, with the reason."""
    gpus = tmp_path / "host"
    host.build(gpus, host_spec.HostSpec(driver="", hardware=False, nvml=False))

    async def body(pair):
        assert await asyncio.to_thread(web.ask, place, "/healthz") == (200, "ok\n")
        code, said = await asyncio.to_thread(web.ask, place, "/readyz")
        assert code == 503
        assert said.startswith("no-gpu-on-node: ")
        done = await asyncio.to_thread(pair.daemon.ask, "status", "--ready")
        assert done.returncode == 1
        assert "[no-gpu-on-node]" in done.stdout

    together(body, "--metrics", f"unix:{place}", gpus=gpus)


def test_ready_again_without_a_container(together, place):
    """Where the hook cannot be put in place, and then can, the next question finds it so."""

    async def body(pair):
        hook = pair.daemon.directory / "hook"
        script = hook / "nri-nvidia-hook"
        await asyncio.to_thread(pair.daemon.until, script.exists, "the hook")
        shutil.rmtree(hook)
        hook.write_text("in the way")
        code, said = await asyncio.to_thread(web.ask, place, "/readyz")
        assert code == 503
        assert str(hook) in said
        hook.unlink()
        assert await asyncio.to_thread(web.ask, place, "/readyz") == (200, "ok\n")

    together(body, "--metrics", f"unix:{place}")


def test_ready_node(together, place):
    """With a GPU that can be given it is ready, and so says the command."""

    async def body(pair):
        assert await asyncio.to_thread(web.ask, place, "/readyz") == (200, "ok\n")
        done = await asyncio.to_thread(pair.daemon.ask, "status", "--ready")
        assert (done.returncode, done.stdout) == (0, "ready\n")
        pair.runtime.containers = []

    together(body, "--metrics", f"unix:{place}")


def test_tcp_and_what_callers_may_send(together):
    """An address works as well; rubbish, long heads and other methods get an error each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()

    async def body(pair):
        ask = lambda *a, **k: asyncio.to_thread(web.ask, address, *a, **k)  # noqa: E731
        assert (await ask("/metrics?x=1"))[0] == 200
        assert await ask("/readyz", method="HEAD") == (200, "")
        assert (await ask("/other"))[0] == 404
        assert (await ask("/metrics", method="POST"))[0] == 405
        assert (await ask(raw=b"\xff\x00\r\n\r\n"))[0] == 400
        assert (await ask(raw=b"GET / HTTP/1.1\r\n" + b"x" * 70000))[0] == 431
        mute = [socket.create_connection(address) for _ in range(80)]
        try:
            await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
            assert (await ask("/healthz"))[0] in {200, 503}
        finally:
            for caller in mute:
                caller.close()

    together(body, "--metrics", f"127.0.0.1:{address[1]}")


def test_address_that_is_taken(together, place):
    """The daemon serves containers without metrics, and says why there are none."""

    async def body(pair):
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        found = await status(pair)
        assert "metrics-not-served" in [finding["code"] for finding in found["findings"]]

    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        together(body, "--metrics", f"127.0.0.1:{taken.getsockname()[1]}")


def test_hook_results(together, place):
    """What hooks report is counted, with its time."""
    from .test_explain import report

    async def body(pair):
        for number, ok in enumerate((True, False)):
            adjusted = await pair.create(number, "NVIDIA_VISIBLE_DEVICES=0")
            steps = [] if ok else [{"name": "ldcache", "ok": False, "message": "x"}]
            report(pair, adjusted, ok=ok, steps=steps, duration_ms=20 if ok else float("nan"))
        await asyncio.to_thread(
            pair.daemon.until,
            lambda: all(entry["hook"] for entry in pair.daemon.status()["containers"]),
            "the reports",
        )
        found = await scraped(place)
        assert found['nri_nvidia_hooks_total{result="ok"}'] == 1
        assert found['nri_nvidia_hooks_total{result="failed"}'] == 1
        assert found['nri_nvidia_hook_duration_seconds_bucket{le="0.025"}'] == 1

    together(body, "--metrics", f"unix:{place}")
