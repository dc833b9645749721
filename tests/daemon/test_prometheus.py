# SPDX-License-Identifier: Apache-2.0
"""The alert rules and the dashboard in contrib/prometheus, against what a daemon serves."""

import asyncio
import http.client
import json
import re
import subprocess
from pathlib import Path

import pytest

from nri_nvidia.testing import runtime

from . import http as web
from .test_explain import report

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib/prometheus"
ALERTS = CONTRIB / "alerts.yaml"
DASHBOARD = CONTRIB / "dashboard.json"
NAME = re.compile(r"\bnri_nvidia_\w+")
SELECTED = re.compile(r"\b(nri_nvidia_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)")


def served(together, place):
    """Give the text of a daemon that has given, refused and heard of both kinds of hooks."""
    texts = []

    async def body(pair):
        await asyncio.to_thread(pair.daemon.nvml_answered)
        for number, ok in enumerate((True, False)):
            adjusted = await pair.create(number, "NVIDIA_VISIBLE_DEVICES=0")
            report(pair, adjusted, ok=ok, steps=[])
        with pytest.raises(runtime.CreationFailed):
            await pair.create(2, "NVIDIA_VISIBLE_DEVICES=9")
        await asyncio.to_thread(
            pair.daemon.until,
            lambda: all(entry["hook"] for entry in pair.daemon.status()["containers"]),
            "the reports",
        )
        code, text = await asyncio.to_thread(web.ask, place)
        assert code == http.client.OK
        texts.append(text)

    together(body, "--metrics", f"unix:{place}")
    return texts[0]


def expressions():
    """Give each expression of the rules and of the dashboard."""
    rules = re.findall(r"^ +expr: (.*)$", ALERTS.read_text("utf-8"), re.MULTILINE)
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    assert rules
    assert shown
    return [*rules, *shown]


def test_what_they_name_is_served(together, tmp_path):
    """Each series that they name is served, with the labels and values they select by."""
    samples = web.series(served(together, str(tmp_path / "metrics.sock")))
    labels: dict[str, dict[str, set[str]]] = {}
    for sample in samples:
        known = labels.setdefault(sample.partition("{")[0], {})
        for label, value in re.findall(r'(\w+)="([^"]*)"', sample):
            known.setdefault(label, set()).add(value)
    named = {*NAME.findall(ALERTS.read_text("utf-8")), *NAME.findall(DASHBOARD.read_text("utf-8"))}
    assert named <= set(labels)
    of_prometheus = {"instance"}
    for expression in expressions():
        here = set().union(*(labels[name] for name in NAME.findall(expression)))
        for group in GROUPED.findall(expression):
            assert {each.strip() for each in group.split(",")} <= here | of_prometheus
        for name, selector in SELECTED.findall(expression):
            for label, _, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', selector):
                assert label in labels[name].keys() | of_prometheus
                if label not in of_prometheus:
                    assert set(value.split("|")) & labels[name][label]


def test_readme_leads_to_them():
    """Who reads of metrics in the README is told of both files."""
    text = (ROOT / "README.md").read_text("utf-8").partition("### Metrics and health")[2]
    section = text.partition("\n### ")[0]
    for path in (ALERTS, DASHBOARD):
        assert str(path.relative_to(ROOT)) in section


def test_panels_lie_beside_each_other():
    """No two panels of the dashboard have a number or a place in common, and none sticks out."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        taken |= cells


@pytest.fixture(scope="module")
def promtool():
    """Prometheus' own judge, as contrib/setup unpacks it for the long tests."""
    known = json.loads((ROOT / ".cache/engines/engines.json").read_text("utf-8"))["clients"]
    found = [each["path"] for each in known if each["name"] == "promtool"]
    if not found:
        pytest.fail("promtool is not there: run contrib/setup --long")
    return found[0]


@pytest.mark.long
def test_promtool_takes_the_metrics(together, promtool, tmp_path):
    """Prometheus finds no fault with names, types and help of what is served."""
    text = served(together, str(tmp_path / "metrics.sock"))
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.long
def test_promtool_takes_the_rules(promtool, tmp_path):
    """Prometheus reads each rule and each expression of the dashboard."""
    done = subprocess.run(
        [promtool, "check", "rules", ALERTS], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    count = len(re.findall(r"- alert:", ALERTS.read_text("utf-8")))
    assert f"SUCCESS: {count} rules found" in done.stdout
    rules = [
        {"record": f"panel:{number}", "expr": each.replace("$__rate_interval", "5m")}
        for number, each in enumerate(expressions())
    ]
    panels = tmp_path / "panels.json"  # JSON is YAML
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", panels], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout


FIRING = {
    "NriNvidiaAbsent": {},
    "NriNvidiaNotRegistered": {"nri_nvidia_registered": "0x60"},
    "NriNvidiaNotReady": {"nri_nvidia_ready": "0x60", "nri_nvidia_registered": "1x60"},
    "NriNvidiaReconnects": {"nri_nvidia_registrations_total": "1+1x60"},
    "NriNvidiaMissedContainers": {"nri_nvidia_missed_containers": "1x60"},
    "NriNvidiaStaleContainers": {"nri_nvidia_stale_containers": "2x200"},
    "NriNvidiaRefusals": {
        'nri_nvidia_decisions_total{decision="error",reason="no-such-gpu"}': "0+1x60"
    },
    "NriNvidiaSlowDecisions": {
        'nri_nvidia_decision_duration_seconds_bucket{le="1.0"}': "0x60",
        'nri_nvidia_decision_duration_seconds_bucket{le="2.0"}': "0+3x60",
        'nri_nvidia_decision_duration_seconds_bucket{le="+Inf"}': "0+3x60",
    },
    "NriNvidiaHooksFail": {'nri_nvidia_hooks_total{result="failed"}': "0+1x60"},
    "NriNvidiaHostProblems": {"nri_nvidia_host_problems": "1x60"},
    "NriNvidiaNvmlSilent": {"nri_nvidia_nvml_answers": "0x60", "nri_nvidia_gpus": "8x60"},
    "NriNvidiaFewerGpus": {"nri_nvidia_gpus": "8x10 7x50"},
}
"""For each alert the series of a node by the minute that it is there for."""
HEALTHY = {
    "nri_nvidia_build_info": "1x60",
    "nri_nvidia_registered": "1x60",
    "nri_nvidia_ready": "1x60",
    "nri_nvidia_registrations_total": "1x60",
    "nri_nvidia_missed_containers": "0x60",
    "nri_nvidia_stale_containers": "0x60",
    'nri_nvidia_decisions_total{decision="inject",reason="as-asked"}': "0+9x60",
    'nri_nvidia_decisions_total{decision="error",reason="no-such-gpu"}': "0 0 1x58",
    'nri_nvidia_decision_duration_seconds_bucket{le="0.01"}': "0+9x60",
    'nri_nvidia_decision_duration_seconds_bucket{le="+Inf"}': "0+9x60",
    'nri_nvidia_hooks_total{result="ok"}': "0+9x60",
    "nri_nvidia_host_problems": "0x60",
    "nri_nvidia_nvml_answers": "1x60",
    "nri_nvidia_gpus": "8x60",
}


@pytest.mark.long
def test_each_alert_fires_when_it_should_and_no_other(promtool, tmp_path):
    """A node's series over an hour or more: those of a healthy one raise none."""
    names = re.findall(r"- alert: (\w+)", ALERTS.read_text("utf-8"))
    assert set(names) == set(FIRING)

    def case(series, expected, after):
        conditions = [f'{{alertname="{name}",alertstate="firing"}}' for name in names]
        return {
            "interval": "1m",
            "input_series": [
                {"series": name, "values": values} for name, values in series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": f"count(ALERTS{condition}) or vector(0)",
                    "eval_time": after,
                    "exp_samples": [{"labels": "{}", "value": int(name == expected)}],
                }
                for name, condition in zip(names, conditions, strict=True)
            ],
        }

    long = {
        name: values.replace("x60", "x200").replace("x58", "x198")
        for name, values in HEALTHY.items()
    }
    tests = [case(HEALTHY, None, "30m"), case(long, None, "150m")]
    for name, series in FIRING.items():
        stale = name == "NriNvidiaStaleContainers"
        base = {} if name == "NriNvidiaAbsent" else (long if stale else HEALTHY)
        kept = {
            k: v
            for k, v in base.items()
            if k.partition("{")[0] not in {each.partition("{")[0] for each in series}
        }
        tests.append(case({**kept, **series}, name, "150m" if stale else "30m"))
    path = tmp_path / "tests.json"
    path.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(
        [promtool, "test", "rules", path], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
