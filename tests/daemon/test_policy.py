# SPDX-License-Identifier: Apache-2.0
"""Policy in the daemon: who holds what, at once and one after another, and what it says."""

import asyncio
import json
import signal
import socket

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import host_spec, runtime

from .pairs import POD, container, status

EXCLUSIVE = "policy.exclusive = true\n"
UUID = host_spec.uuid_of(host_spec.GpuSpec(), 1)
CUDA = "NVIDIA_VISIBLE_DEVICES=1"


@pytest.fixture
def settled(tmp_path, together):
    """Run a body with a daemon of these settings."""

    def run(settings, body, **options):
        config = tmp_path / "config.toml"
        config.write_text(settings)
        together(body, "--config", str(config), **options)

    return run


def test_a_held_gpu_is_refused_until_its_holder_stops(settled):
    """The refusal names the holder; when that stops, or is removed, the next one gets it."""

    async def body(pair):
        for number, end in ((1, pair.runtime.stop), (3, pair.runtime.remove)):
            await pair.create(number, CUDA)
            with pytest.raises(runtime.CreationFailed) as caught:
                await pair.create(number + 1, CUDA)
            said = str(caught.value)
            assert f"GPU 1 ({UUID}) is held by team/pod/c{number} (container000)" in said
            await pair.create(number + 10, "NVIDIA_VISIBLE_DEVICES=2")
            await pair.runtime.remove(container(number + 10).id)
            await end(container(number).id)
        await pair.create(5, CUDA)
        counts = (await status(pair))["counts"]
        assert counts == {"inject": 5, "deny": 2}

    settled(EXCLUSIVE, body)


def test_of_many_at_once_one_gets_it(settled):
    """Creations that are decided side by side cannot both be given one GPU."""

    async def body(pair):
        (attached,) = pair.runtime.plugins

        async def create(number):
            request = api.CreateContainerRequest(
                pod=POD, container=container(number, f"NVIDIA_VISIBLE_DEVICES={number % 2}")
            )
            return await attached.stub.create_container(request)

        answers = await asyncio.gather(*map(create, range(16)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert len(refused) == 14
        assert all("is held by team/pod/c" in str(error) for error in refused)
        held = [gpu["containers"] for gpu in (await status(pair))["gpus"]]
        assert [len(holders) for holders in held] == [1, 1, 0, 0, 0, 0, 0, 0]

    settled(EXCLUSIVE, body)


def test_a_later_attempt_at_a_container_takes_over(settled):
    """A kubelet makes a container anew under its name and never runs two of it."""
    pod = api.PodSandbox(id="p", name="pod", namespace="team", uid="u1")
    other = api.PodSandbox(id="q", name="pod", namespace="team", uid="u2")

    def attempt(number):
        found = container(number, CUDA)
        found.name = "main"
        return found

    async def body(pair):
        await pair.runtime.create(attempt(1), pod)
        await pair.runtime.create(attempt(2), pod)
        with pytest.raises(runtime.CreationFailed, match="is held by team/pod/main"):
            await pair.runtime.create(attempt(3), other)

    settled(EXCLUSIVE, body)


def test_who_runs_at_the_start_is_known_as_holder(settled):
    """A daemon that has just started refuses what containers from before it hold."""
    node = api.LinuxDevice(path="/dev/nvidia1", type="c", major=195, minor=1)
    before = container(1, CUDA, devices=[node])

    async def body(pair):
        with pytest.raises(runtime.CreationFailed, match="is held by team/pod/c1"):
            await pair.create(2, CUDA)
        await pair.create(3, "NVIDIA_VISIBLE_DEVICES=0")

    settled(EXCLUSIVE, body, pods=[POD], containers=[before])


def test_who_shares_neither_holds_nor_is_refused(settled):
    """Such a container may look at every GPU while others come and go."""
    rule = '[[policy_rules]]\naction = "allow"\nlabels = {watch = "yes"}\nshares = true\n'

    async def body(pair):
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=all", labels={"watch": "yes"})
        await pair.create(2, CUDA)
        await pair.create(3, "NVIDIA_VISIBLE_DEVICES=all", labels={"watch": "yes"})
        with pytest.raises(runtime.CreationFailed, match="is held by team/pod/c2"):
            await pair.create(4, CUDA)

    settled(EXCLUSIVE + rule, body)


STRICT = """policy = "strict"
[[policy_rules]]
name = "ours"
labels = {gpu = "yes"}
devices = ["all"]
action = "allow"
[[policy_rules]]
name = "nobody"
labels = {gpu = "no"}
action = "deny"
"""


def test_strict_and_rules_are_named_wherever_a_decision_is_shown(settled):
    """The answer, status, explain, the log and the metrics' code tell the same."""

    async def body(pair):
        everything = "NVIDIA_VISIBLE_DEVICES=all"
        assert not (await pair.create(1, everything)).linux
        await pair.create(2, everything, labels={"gpu": "yes"})
        with pytest.raises(runtime.CreationFailed, match=r"denied by policy_rules\[2\] \(nobody"):
            await pair.create(3, everything, labels={"gpu": "no"})
        found = await status(pair)
        assert found["counts"] == {"ignore": 1, "inject": 1, "deny": 1}
        assert [each["policy_rule"] for each in found["decisions"]] == [
            None, "policy_rules[1] (ours)", "policy_rules[2] (nobody)",
        ]  # fmt: skip
        assert found["policy"] == {
            "preset": "strict",
            "exclusive": False,
            "rules": ["policy_rules[1] (ours)", "policy_rules[2] (nobody)"],
        }
        text = (await asyncio.to_thread(pair.daemon.ask, "status")).stdout
        assert "policy: strict, 2 rules" in text
        for said in ("strict-policy", "denied-by-rule"):
            assert said in text
        for number, said in ((1, "policy = strict"), (2, "allowed by policy_rules[1] (ours)")):
            told = await asyncio.to_thread(pair.daemon.ask, "explain", f"c{number}")
            assert said in told.stdout
        told = await asyncio.to_thread(pair.daemon.ask, "explain", "c3", "--json")
        record = json.loads(told.stdout)
        assert record.get("explanation", record)["policy_rule"] == "policy_rules[2] (nobody)"
        assert pair.daemon.says("denied by policy_rules[2] (nobody)")

    settled(STRICT, body)


def test_what_policy_ignores_is_not_missed(settled):
    """A container from before, to which strict gives nothing, is not to be recreated."""
    before = [container(1, "NVIDIA_VISIBLE_DEVICES=all"), container(2, f"X={UUID}")]
    before[1].env = [f"NVIDIA_VISIBLE_DEVICES={UUID}"]

    async def body(pair):
        missed = await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["missed"], "what was missed"
        )
        assert [each["name"] for each in missed] == ["c2"]

    settled('policy = "strict"\n', body, pods=[POD], containers=before)


def test_rules_are_read_again(settled, tmp_path):
    """SIGHUP puts other rules in force, and a bad one leaves the old."""

    async def body(pair):
        config = tmp_path / "config.toml"
        everything = "NVIDIA_VISIBLE_DEVICES=all"
        await pair.create(1, everything)
        for text, said in (
            ('policy = "strict"', "the settings were read again"),
            ("policy_rules = 1", "the old settings stay in force"),
        ):
            config.write_text(text)
            pair.daemon.send(signal.SIGHUP)
            await asyncio.to_thread(
                pair.daemon.until, lambda said=said: said in pair.daemon.logged(), said
            )
            assert not (await pair.create(len(text), everything)).linux
        assert pair.daemon.says("policy_rules: 1 is not a list of tables")

    settled("", body)


def test_a_cri_service_that_hangs_holds_up_nobody_else(settled, tmp_path):
    """Whom a rule is about gets a decision in time, which says what is not known; others at once."""
    path = tmp_path / "cri.sock"
    settings = f"""
    policy = {{cri_socket = "{path}", cri_timeout = 10}}
    [[policy_rules]]
    namespaces = ["team"]
    sources = ["image"]
    action = "ignore"
    """
    named = {"annotations": {"io.kubernetes.cri.image-name": "i"}}
    other = api.PodSandbox(id="q", name="pod", namespace="other")

    async def body(pair):
        with socket.socket(socket.AF_UNIX) as mute:
            mute.bind(str(path))
            mute.listen()
            (attached,) = pair.runtime.plugins
            held = api.CreateContainerRequest(pod=POD, container=container(1, CUDA, **named))
            waiting = asyncio.ensure_future(attached.stub.create_container(held))
            peer, _ = await asyncio.to_thread(mute.accept)
            free = api.CreateContainerRequest(pod=other, container=container(2, CUDA, **named))
            assert (await attached.stub.create_container(free)).adjust.linux
            assert not waiting.done()
            with peer:
                assert (await waiting).adjust.linux
        last = (await status(pair))["decisions"][-1]
        assert last["name"] == "c1"
        assert [each["code"] for each in last["reasons"]] == ["image-not-known"]

    settled(settings, body)
