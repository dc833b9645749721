# SPDX-License-Identifier: Apache-2.0
"""Field cases about what an operator can see: why a container got what it got."""

from nri_nvidia import pipeline
from nri_nvidia.cli import explain
from nri_nvidia.config import model as config_model
from nri_nvidia.daemon import ledger, records
from nri_nvidia.request import container as containers
from nri_nvidia.request import policy

from . import harness


def explained(inventory, *env, rules=harness.RULES):
    """Give the record of a decision and its text."""
    shown = containers.Container(id="abc", namespace="x", pod="p", name="c", env=env)
    plan = pipeline.plan(shown, inventory, rules)
    record = records.document(
        ledger.Decided(time=1.0, container=shown, plan=plan, duration_ms=1.0)
    )
    now = {"holds": plan.decision == "inject", "stale": False, "loaded_driver": None}
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


def test_adjustment_can_be_seen(tmp_path):
    """FC-101: each device and mount of the answer stands in the explanation."""
    inventory = harness.built(tmp_path, gpus=harness.gpus(1))
    rules = config_model.Config().policy(interpreter="/usr/bin/python3")
    record, text = explained(inventory, *harness.asked("0"), rules=rules)
    assert record["edits"]["devices"]
    for device in record["edits"]["devices"]:
        assert device["path"] in text
    for mount in record["edits"]["mounts"]:
        assert f"{mount['destination']} " in text
