# SPDX-License-Identifier: Apache-2.0
"""Field cases about what an operator can see: why a container got what it got."""

import asyncio
import contextlib
import types

from nri_nvidia import pipeline
from nri_nvidia.cli import explain
from nri_nvidia.config import model as config_model
from nri_nvidia.daemon import connection, ledger, readiness, records
from nri_nvidia.nri import plugin
from nri_nvidia.request import container as containers
from nri_nvidia.request import policy
from tests.containerd import daemons
from tests.daemon import http
from tests.daemon.conftest import gpu_host, together
from tests.daemon.pairs import container, status

from . import harness

__all__ = ["gpu_host", "together"]


def explained(inventory, *env, rules=harness.RULES, inside=None):
    """Give the record of a decision and its text."""
    shown = containers.Container(id="abc", namespace="x", pod="p", name="c", env=env)
    plan = pipeline.plan(shown, inventory, rules)
    record = records.document(
        ledger.Decided(time=1.0, container=shown, plan=plan, duration_ms=1.0)
    )
    now = {
        "holds": plan.decision == "inject",
        "stale": False,
        "loaded_driver": None,
        "inside": inside,
    }
    return record, "\n".join(explain.text({**record, **now}, 2.0))


def test_why_a_container_got_no_gpu(tmp_path):
    """FC-130: the record says where the value came from and which setting passed it over."""
    inventory = harness.built(tmp_path, gpus=harness.gpus(1))
    rules = pipeline.Policy(request=policy.RequestPolicy(accept_env_when_unprivileged=False))
    record, text = explained(inventory, *harness.asked("all"), rules=rules)
    assert record["decision"] in {"ignore", "error"}
    assert record["reasons"][-1]["code"] == "environment-not-accepted"
    assert "NVIDIA_VISIBLE_DEVICES" in text
    assert record["reasons"][-1]["message"] in text
    assert "[environment-not-accepted]" in text


def test_index_on_the_host_and_in_the_container(tmp_path):
    """FC-072: host index 3 is shown as index 0 in the container; the variable is not changed."""
    inventory = harness.built(tmp_path, gpus=harness.gpus(4))
    record, text = explained(inventory, *harness.asked("3"))
    assert [(gpu["index"], gpu["container_index"]) for gpu in record["gpus"]] == [(3, 0)]
    assert record["edits"]["env"] == {}
    line = next(line for line in text.splitlines() if line.startswith("gpu 3: "))
    assert line.endswith("index 0 in the container")


def test_what_the_image_lacks_for_graphics(tmp_path):
    """FC-062: the X libraries that an image lacks are named where graphics was asked for."""
    inventory = harness.built(tmp_path, gpus=harness.gpus(1))
    inside = {"pid": 7, "shadows": [], "lacking": ["libX11.so.6"]}
    for capabilities, expected in (("graphics", True), ("display", True), ("compute", False)):
        env = (*harness.asked("0"), harness.capable(capabilities))
        _, text = explained(inventory, *env, inside=inside)
        assert ("the image has no libX11.so.6" in text) is expected


def test_adjustment_can_be_seen(tmp_path):
    """FC-101: each device and mount of the answer stands in the explanation."""
    inventory = harness.built(tmp_path, gpus=harness.gpus(1))
    rules = config_model.Config().rules(interpreter="/usr/bin/python3")
    record, text = explained(inventory, *harness.asked("0"), rules=rules)
    assert record["edits"]["devices"]
    for device in record["edits"]["devices"]:
        assert device["path"] in text
    for mount in record["edits"]["mounts"]:
        assert f"{mount['destination']} " in text


def test_which_container_holds_which_gpu(together, tmp_path):
    """FC-125: a series for each device with namespace, pod, container and source, while held."""
    place = str(tmp_path / "metrics.sock")

    async def held():
        _, text = await asyncio.to_thread(http.ask, place)
        return [name for name in http.series(text) if name.startswith("nri_nvidia_container_gpu{")]

    async def body(pair):
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=2,5")
        gpus = (await status(pair))["gpus"]
        found = await held()
        assert len(found) == 2
        for series, minor in zip(sorted(found), (2, 5), strict=True):
            for label in (
                'namespace="team"', 'pod="pod"', 'container="c1"', 'source="env"',
                f'minor="{minor}"', f'uuid="{gpus[minor]["uuid"]}"',
            ):  # fmt: skip
                assert label in series
        await pair.runtime.remove(container(1).id)
        assert await held() == []

    together(body, "--metrics", f"unix:{place}")


def test_counters_by_result_and_reason(together, tmp_path):
    """FC-129: one of each result is counted once, with its reason and the time that it took."""
    place = str(tmp_path / "metrics.sock")

    async def body(pair):
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        with contextlib.suppress(Exception):
            await pair.create(2, "NVIDIA_VISIBLE_DEVICES=77")
        _, text = await asyncio.to_thread(http.ask, place)
        found = http.series(text)
        assert found['nri_nvidia_decisions_total{decision="inject",reason="as-asked"}'] == 1
        assert found['nri_nvidia_decisions_total{decision="error",reason="no-such-gpu"}'] == 1
        assert found["nri_nvidia_decision_duration_seconds_count"] == 2
        assert found["nri_nvidia_registered"] == 1
        assert any(name.startswith("nri_nvidia_driver_info{") for name in found)

    together(body, "--metrics", f"unix:{place}")


def test_health_that_does_not_lie(tmp_path, gpu_host):
    """FC-107: not registered is healthy and not ready; a handler that hangs is not healthy."""
    place = str(tmp_path / "metrics.sock")
    daemon = daemons.Daemon(tmp_path / "no.sock", gpu_host, "--metrics", f"unix:{place}")
    try:
        daemon.start()

        def served():
            with contextlib.suppress(OSError):
                return http.ask(place, "/healthz")
            return None

        assert daemon.until(served, "an answer") == (200, "ok\n")
        code, text = http.ask(place, "/readyz")
        assert code == 503
        assert text.startswith("not-registered: ")
    finally:
        daemon.close()
    runtime = plugin.RuntimeInfo(name="containerd", request_timeout=2.0)
    for waited, expected in ((1.9, []), (3.9, []), (5.0, ["handler-stuck"])):
        state = types.SimpleNamespace(
            connection=connection.Connection(runtime=runtime, since=1.0), longest_decision=waited
        )
        assert [reason.code for reason in readiness.stuck(state)] == expected
