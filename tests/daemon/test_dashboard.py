# SPDX-License-Identifier: Apache-2.0
"""The dashboard in contrib/prometheus: each panel's queries, asked of a real Prometheus."""

import asyncio
import http.client
import json
import socket
import subprocess
import time
import urllib.parse
from pathlib import Path

import pytest

from nri_nvidia.testing import runtime

from .test_explain import report

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "contrib/prometheus/dashboard.json").read_text("utf-8"))
KINDS = {"stat", "timeseries", "table"}
EMPTY_WHEN_WELL = {"nri_nvidia_host_problems", "nri_nvidia_nvml_answers"}
"""Series of a panel that shows what is wrong alone: of a node that is well there is nothing."""
NODE = "127.0.0.1.*"
PATIENCE = 60


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def queries():
    """Give title and expression of each query, variables in place, as Grafana asks."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], expression.replace("$node", NODE)


def test_panels_are_of_the_schema():
    """Each has what Grafana's schema of this version wants, of kinds that every Grafana has."""
    assert DASHBOARD["schemaVersion"] >= 36  # a data source is named by type and uid since
    assert {"title", "uid", "time", "refresh"} <= set(DASHBOARD)
    names = {f"${{{each['name']}}}" for each in DASHBOARD["templating"]["list"]}
    for panel in DASHBOARD["panels"]:
        assert {"id", "type", "title", "gridPos", "targets", "fieldConfig"} <= set(panel)
        assert panel["type"] in KINDS
        assert set(panel["gridPos"]) == {"x", "y", "w", "h"}
        assert set(panel["fieldConfig"]) == {"defaults", "overrides"}
        assert panel["datasource"]["type"] == "prometheus"
        assert panel["datasource"]["uid"] in names
        references = [target["refId"] for target in panel["targets"]]
        assert len({*references}) == len(references) > 0


class Prometheus:
    """One server that asks a daemon each second; by its HTTP interface it is asked."""

    def __init__(self, program, directory, target):
        self.port = free_port()
        self.log = directory / "prometheus.log"
        settings = directory / "prometheus.json"  # JSON is YAML
        job = {"job_name": "nri-nvidia", "static_configs": [{"targets": [target]}]}
        every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        settings.write_text(json.dumps({"global": every, "scrape_configs": [job]}))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program, f"--config.file={settings}", f"--storage.tsdb.path={directory}/data",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def query(self, expression):
        """Give the result of an instant query, None where it cannot be asked (yet)."""
        path = f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        caller = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            caller.request("GET", path)
            answer = json.loads(caller.getresponse().read())
        except (OSError, ValueError):
            return None
        finally:
            caller.close()
        assert answer.get("status") == "success", (expression, answer)
        return answer["data"]["result"]

    def until(self, expression):
        """Wait until a query has a result."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.query(expression)):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{expression}: nothing in {PATIENCE} s"
            time.sleep(0.2)
        return found

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.mark.long
def test_every_panel_shows_data(together, tmp_path):
    """Prometheus scrapes a daemon, and each query of each panel has a result there."""
    known = json.loads((ROOT / ".cache/engines/engines.json").read_text("utf-8"))["clients"]
    program = next((each["path"] for each in known if each["name"] == "prometheus"), None)
    assert program, "prometheus is not there: run contrib/setup --long"
    target = f"127.0.0.1:{free_port()}"

    async def body(pair):
        await asyncio.to_thread(pair.daemon.nvml_answered)
        server = Prometheus(program, tmp_path, target)
        try:
            await asyncio.to_thread(server.until, "count_over_time(nri_nvidia_ready[1m]) > 1")
            for number, ok in enumerate((True, False)):
                adjusted = await pair.create(number, "NVIDIA_VISIBLE_DEVICES=0")
                report(pair, adjusted, ok=ok, steps=[])
            with pytest.raises(runtime.CreationFailed):
                await pair.create(2, "NVIDIA_VISIBLE_DEVICES=9")
            wanted = 'nri_nvidia_decisions_total{decision="error"} > 0'
            await asyncio.to_thread(server.until, wanted)
            await asyncio.to_thread(server.until, 'nri_nvidia_hooks_total{result="failed"} > 0')
            rising = "rate(nri_nvidia_hook_duration_seconds_count[5m]) > 0"
            await asyncio.to_thread(server.until, rising)
            for title, expression in queries():
                if any(expression.startswith(name) for name in EMPTY_WHEN_WELL):
                    assert not server.query(expression), title
                else:  # a rate has none before the second sample
                    await asyncio.to_thread(server.until, expression)
            (held,) = await asyncio.to_thread(
                server.query, 'count by (gpu) (nri_nvidia_container_gpu{namespace="team"})'
            )
            assert (held["metric"]["gpu"], held["value"][1]) == ("0", "2")
        finally:
            server.close()

    together(body, "--metrics", target, limit=100)
