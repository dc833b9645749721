# SPDX-License-Identifier: Apache-2.0
"""Field cases: who asks and through which channel, nodes without a GPU, hot-plug, the cost of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import pipeline
from nri_nvidia.request import container as containers
from nri_nvidia.request import mountlist, policy
from nri_nvidia.request import rules as access_rules
from nri_nvidia.testing import host_spec
from tests import inventories

from . import harness
from .harness import asked, codes, decide, indices

UUIDS = inventories.UUIDS
TRUSTED = harness.requests(accept_volume_mounts=True, accept_env_when_unprivileged=False)
BOTH = harness.requests(accept_volume_mounts=True)


def strict(*rules):
    """Give settings with the strict preset and rules, numbered from 1."""
    access = access_rules.Access(preset=access_rules.Preset.STRICT, rules=rules)
    return pipeline.Policy(request=policy.RequestPolicy(access=access))


def for_namespace(name, action, *devices):
    return access_rules.Rule(
        number=1,
        action=access_rules.Action(action),
        namespaces=(name,),
        devices=frozenset(map(access_rules.Kind, devices)),
    )


WEB = {"namespace": "default", "pod": "web", "name": "web"}


def test_an_image_does_not_take_every_gpu_of_the_node():
    """FC-077: a pod that `all` from its image would give everything gets nothing, and is told."""
    plan = decide(inventories.EIGHT, *asked("all"), rules=strict(), **WEB)
    assert (plan.decision, codes(plan)) == (pipeline.Decision.IGNORE, ["strict-policy"])
    assert not plan.edits
    allowed = strict(for_namespace("default", "allow", "all"))
    assert indices(decide(inventories.EIGHT, *asked("all"), rules=allowed, **WEB)) == [*range(8)]


def test_strict_breaks_no_pod_unless_told_to():
    """FC-078: the pod is created without a GPU; a rule can refuse it."""
    assert decide(inventories.EIGHT, *asked("all"), rules=strict(), **WEB).created
    denying = strict(for_namespace("default", "deny"))
    plan = decide(inventories.EIGHT, *asked("all"), rules=denying, **WEB)
    assert (plan.decision, codes(plan)) == (pipeline.Decision.DENY, ["denied-by-rule"])


def test_libraries_without_a_gpu_need_no_rule():
    """FC-082: `none` gives the driver's files in strict too, and no GPU's node."""
    plan = decide(inventories.EIGHT, *asked("none"), rules=strict(), **WEB)
    assert (plan.decision, indices(plan), codes(plan)) == (pipeline.Decision.INJECT, [], [])
    assert any(m.destination.endswith("/libcuda.so.1") for m in plan.edits.mounts)
    assert not any(d.path == "/dev/nvidia0" for d in plan.edits.devices)


@pytest.mark.parametrize("handler", ["runsc", "kata-qemu", "kata-clh"])
@pytest.mark.parametrize(("action", "decision"), [("ignore", "ignore"), ("deny", "deny")])
def test_sandboxes_that_cannot_use_a_gpu(handler, action, decision):
    """FC-116: pods of such a runtime handler get nothing, and the others what they ask for."""
    rule = access_rules.Rule(
        number=1,
        action=access_rules.Action(action),
        runtime_handlers=("kata*", "runsc"),
    )
    rules = pipeline.Policy(
        request=policy.RequestPolicy(access=access_rules.Access(rules=(rule,)))
    )
    kept_out = decide(inventories.EIGHT, *asked("0"), rules=rules, runtime_handler=handler, **WEB)
    assert (str(kept_out.decision), bool(kept_out.edits)) == (decision, False)
    for other in ("", "runc", "nvidia"):
        plan = decide(inventories.EIGHT, *asked("0"), rules=rules, runtime_handler=other, **WEB)
        assert indices(plan) == [0]


def test_management_is_for_namespaces_that_may():
    """FC-121: another's request for it is left out with a reason; a listed one's is honoured."""
    env = (*asked(UUIDS[1]), "NVIDIA_MIG_CONFIG_DEVICES=all")
    rules = strict(for_namespace("gpu-system", "allow", "mig-config", "uuid"))
    plan = decide(inventories.EIGHT, *env, rules=rules, namespace="team-a", pod="p")
    assert (indices(plan), codes(plan)) == ([1], ["strict-policy-beyond"])
    assert plan.request.mig_management == ()
    plan = decide(inventories.EIGHT, *env, rules=rules, namespace="gpu-system", pod="p")
    assert codes(plan)[:2] == ["allowed-by-rule", "allowed-by-rule"]
    assert [str(kind) for kind in plan.request.mig_management] == ["config"]


def claim(*names):
    """Give the mounts by which a device plugin names what it allocated."""
    return tuple(
        containers.Mount(source="/dev/null", destination=f"{mountlist.ROOT}/{name}", type="bind")
        for name in names
    )


@pytest.mark.parametrize("rules", [TRUSTED, BOTH])
@pytest.mark.parametrize("value", [UUIDS[5], "all", "0,1", "none"])
def test_mounts_beat_a_faked_variable(rules, value):
    """FC-079: what the device plugin mounted is given, and the variable that differs is told."""
    plan = decide(inventories.EIGHT, *asked(value), rules=rules, mounts=claim(UUIDS[2]))
    assert indices(plan) == [2]
    assert codes(plan) == ["environment-passed-over"]
    assert value in plan.reasons[0].message
    assert UUIDS[2] in plan.reasons[0].message


@pytest.mark.parametrize("value", [UUIDS[2], "void", "", mountlist.ROOT])
def test_variables_that_go_with_the_mounts_are_no_finding(value):
    """FC-079: the plugin's own mark, void, and the same device say nothing else."""
    plan = decide(inventories.EIGHT, *asked(value), rules=TRUSTED, mounts=claim(UUIDS[2]))
    assert (indices(plan), codes(plan)) == ([2], [])


@pytest.mark.parametrize("value", [UUIDS[5], "all", "none", "0"])
def test_the_variable_alone_is_not_trusted(value):
    """FC-079: without mounts nothing is given for the variable's sake, and that is told."""
    plan = decide(inventories.EIGHT, *asked(value), rules=TRUSTED)
    assert (plan.decision, codes(plan)) == (
        pipeline.Decision.IGNORE, ["environment-not-accepted"],
    )  # fmt: skip
    assert not plan.edits


@given(
    mounts=st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20))
)
def test_no_mount_gives_more_than_it_names(mounts):
    """FC-079: whatever is mounted below the plugin's root, no other GPU is given for it."""
    plan = decide(inventories.EIGHT, rules=TRUSTED, mounts=claim(*mounts))
    for item in plan.assigned:
        names = {item.gpu.uuid, str(item.gpu.index), item.gpu.bus_id, "all", item.gpu.uuid[:12]}
        assert any(name.lower() in mount.lower() for name in names for mount in mounts)


def resident(pid):
    """Give a process's resident memory in kibibytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_containers_that_ask_for_nothing_cost_nothing(together, tmp_path):
    """FC-085, FC-123: on a node without a GPU such creations are neither logged nor kept."""
    directory = tmp_path / "node"
    directory.mkdir()

    async def body(pair):
        async def some(first):
            for number in range(first, first + 200):
                env = ["PATH=/bin", *(f"SERVICE_{n}_HOST=10.0.0.{n}" for n in range(9))]
                assert bytes(await pair.create(number, *env)) == b""

        await some(0)
        lines, memory = len(pair.daemon.logged().splitlines()), resident(pair.daemon.pid)
        await some(200)
        assert len(pair.daemon.logged().splitlines()) <= lines + 1
        assert resident(pair.daemon.pid) < memory + 4096
        found = await pair.status()
        assert (found["counts"], found["decisions"], found["findings"]) == ({}, [], [])

    together(body, directory, log_level="info")


@pytest.mark.parametrize("value", ["all", "none"])
def test_a_cuda_image_on_a_node_without_a_gpu(value):
    """FC-085: it is created, given nothing, and the reason is that there is no GPU."""
    plan = decide(pipeline.host.Inventory(), *asked(value))
    assert (plan.decision, codes(plan)) == (pipeline.Decision.IGNORE, ["no-gpu-on-node"])
    assert not decide(pipeline.host.Inventory(), *asked("0")).created


def test_gpus_that_come_and_go(together, live):
    """FC-086: `all` is what is there now: a GPU plugged in, one taken out, none left, back again."""
    directory = live(gpus=harness.gpus(1))

    async def body(pair):
        async def found(number):
            adjusted = await pair.create(number, *asked("all"))
            names = [device.path for device in adjusted.linux.devices]
            return [name for name in names if name[-1].isdigit()]

        assert await found(1) == ["/dev/nvidia0"]
        harness.become(directory, "proc", "sys", "nvml.json", gpus=harness.gpus(3))
        assert await found(2) == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"]
        bus = host_spec.bus_id_of(host_spec.GpuSpec(), 1)
        shutil.rmtree(directory / f"proc/driver/nvidia/gpus/{bus}")
        assert await found(3) == ["/dev/nvidia0", "/dev/nvidia2"]
        adjusted = await pair.create(4, *asked("1"))
        assert adjusted.linux.devices[-1].path == "/dev/nvidia2"
        harness.become(directory, "proc", "sys", "nvml.json", gpus=harness.gpus(2))
        assert await found(5) == ["/dev/nvidia0", "/dev/nvidia1"]

    together(body, directory)


# Runs in a process of its own, since an audit hook stays for ever.
TRACE = """
import json, sys
opened, started = [], []
def hook(event, arguments):
    if event == "open":
        opened.append(str(arguments[0]))
    elif event == "subprocess.Popen":
        started.append(str(arguments[0]))
sys.addaudithook(hook)
from nri_nvidia import pipeline
from nri_nvidia.host import cache
from nri_nvidia.request import container
from nri_nvidia.testing import host
directory = sys.argv[1]
kept = cache.Cache(host.options_for(directory))
while (first := kept.get()) is not kept.get():
    pass
cold = [path for path in opened if path.startswith(directory)]
opened.clear()
scans = kept.scans
asks = container.Container(env=("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"))
for _ in range(50):
    assert pipeline.plan(asks, kept.get(), pipeline.Policy()).edits
warm = [path for path in opened if path.endswith((".so", ".cache")) or ".so." in path]
print(json.dumps({"cold": cold, "warm": warm, "started": started, "scans": kept.scans - scans}))
"""


def test_a_create_wakes_no_gpu(live):
    """FC-122: with sixteen GPUs no node is ever opened and NVML not started; warm, nothing is read."""
    directory = live(gpus=harness.gpus(16), compat32=True)
    done = subprocess.run(
        [sys.executable, "-c", TRACE, str(directory)],
        check=True, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2],
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert len(told["cold"]) > 60
    assert [path for path in told["cold"] if "/dev/" in path] == []
    assert (told["warm"], told["started"], told["scans"]) == ([], [], 0)


def test_containers_without_a_gpu_need_no_look_at_the_host(monkeypatch):
    """FC-123: ten thousand decisions over them never see the host; there is no hook in any."""
    looks = []

    class Untouchable:
        def __getattr__(self, name):
            looks.append(name)
            raise AssertionError(name)

    shown = containers.Container(env=("PATH=/bin", "A=b", "NVIDIA_VISIBLE_DEVICES=void"))
    for _ in range(10_000):
        assert not pipeline.asks(shown, harness.RULES)
    assert not pipeline.plan(shown, Untouchable(), harness.RULES).edits
    assert looks == []
