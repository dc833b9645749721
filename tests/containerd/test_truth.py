# SPDX-License-Identifier: Apache-2.0
"""What `status` and `explain` tell of real containers, held against what runc was given."""

import json
import signal

import grpclib
import pytest

from nri_nvidia.testing import host, host_spec

from . import daemons

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
WISHES = {"one": "0", "two": "1,2", "all": "all", "files": "none"}
"""What each container that is created asks for; `plain` asks for nothing, `typo` for no GPU."""
GIVEN = {"one": [0], "two": [1, 2], "all": [0, 1, 2, 3], "files": []}


@pytest.fixture
def gpu_host(tmp_path):
    """A simulated host with four GPUs."""
    directory = tmp_path / "host"
    host.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 4))
    return directory


def explained(daemon, query):
    """Give the record that the command prints."""
    done = daemon.ask("explain", query, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def nodes(spec):
    """Give path and numbers of each of the spec's device nodes."""
    return sorted((d["path"], d["major"], d["minor"]) for d in spec["linux"].get("devices", ()))


def allowed(spec):
    """Give the numbers that the device cgroup allows beyond what every container has."""
    return {
        (rule["major"], rule["minor"])
        for rule in spec["linux"]["resources"]["devices"]
        if rule["allow"] and {"major", "minor"} <= rule.keys() and "w" in rule["access"]
    }


def mounts(spec):
    return {(m["destination"], m["source"], m["type"]) for m in spec["mounts"]}


def hooks(spec):
    return [
        (stage, each["args"]) for stage, all_ in spec.get("hooks", {}).items() for each in all_
    ]


def agrees(record, spec, plain):
    """Hold a record against a container's spec: all that it tells is there, and nothing else.

    `plain` is the spec of a container of the same pod that asked for nothing.
    """
    edits = record["edits"]
    told = sorted((d["path"], d["major"], d["minor"]) for d in edits["devices"])
    assert nodes(spec) == sorted([*nodes(plain), *told])
    numbers = {(major, minor) for _, major, minor in told}
    assert allowed(spec) - allowed(plain) == numbers
    assert mounts(spec) - mounts(plain) == {
        (m["destination"], m["source"], m["type"]) for m in edits["mounts"]
    }
    assert mounts(plain) <= mounts(spec)
    assert hooks(spec) == [("createContainer", hook["args"]) for hook in edits["hooks"]]
    added = {*spec["process"]["env"]} - {*plain["process"]["env"]}
    assert {e for e in added if not e.startswith(VARIABLE)} == {
        f"{key}={value}" for key, value in edits["env"].items()
    }


def holders(status):
    """Give who holds each GPU, by index, as `status` tells it."""
    return {
        gpu["index"]: sorted(held["name"].rpartition("/")[2] for held in gpu["containers"])
        for gpu in status["gpus"]
    }


def tells_the_truth(daemon, engine, made, pod):
    """Hold all that is told of the containers against their specs."""
    plain = engine.config_json(made["plain"].id)
    assert hooks(plain) == []
    assert not any("nvidia" in path for path, _, _ in nodes(plain))
    done = daemon.ask("explain", made["plain"].id)
    assert (done.returncode, "leaves none" in done.stderr) == (1, True)
    for name, wish in WISHES.items():
        record = explained(daemon, made[name].id)
        assert (record["decision"], record["holds"], record["missed"]) == ("inject", True, False)
        asked = [] if wish == "none" else wish.split(",")
        assert (record["request"]["devices"], record["pod"]) == (asked, pod)
        assert [gpu["index"] for gpu in record["gpus"]] == GIVEN[name]
        agrees(record, engine.config_json(made[name].id), plain)
    refused = explained(daemon, "typo")
    assert (refused["decision"], refused["edits"], refused["holds"]) == ("error", None, False)
    assert refused["reasons"][-1]["code"] == "no-such-gpu"
    held = {
        index: sorted(name for name, given in GIVEN.items() if index in given)
        for index in range(4)
    }
    status = daemon.status()
    assert holders(status) == held
    assert {each["id"] for each in status["containers"]} == {made[name].id for name in WISHES}


async def test_status_and_explain_tell_the_truth(engine, gpu_host):
    """FC-003: of each container all nodes, cgroup rules, mounts and hooks, and nothing more.

    The same after the daemon was killed and started anew; a container that was created meanwhile
    is listed as missed, has nothing, and is told with what it wanted.
    """
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        daemon.nvml_answered()
        async with engine.pod() as pod:
            made = {"plain": await pod.create("debian", name="plain")}
            for name, wish in WISHES.items():
                made[name] = await pod.create("debian", name=name, env={VARIABLE: wish})
            for container in made.values():
                await container.start()
            with pytest.raises(grpclib.GRPCError) as caught:
                await pod.create("debian", name="typo", env={VARIABLE: "GPU-typo"})
            record = explained(daemon, "typo")
            assert record["reasons"][-1]["message"] in str(caught.value)
            daemon.until(
                lambda: all(entry["hook"] == "ok" for entry in daemon.status()["containers"]),
                "the hooks' reports",
            )
            assert f"asked: {VARIABLE}=none," in daemon.ask("explain", "files").stdout
            tells_the_truth(daemon, engine, made, record["pod"])
            daemon.end(signal.SIGKILL)
            missed = await pod.create("debian", name="missed", env={VARIABLE: "3"})
            await missed.start()
            daemon.start().ready()
            daemon.until(lambda: daemon.status()["missed"], "what was missed")
            daemon.nvml_answered()
            tells_the_truth(daemon, engine, made, record["pod"])
            assert [entry["id"] for entry in daemon.status()["missed"]] == [missed.id]
            wanted = daemon.until(
                lambda: (found := explained(daemon, missed.id))["request"] and found, "its record"
            )
            assert (wanted["missed"], wanted["holds"]) == (True, False)
            assert [gpu["index"] for gpu in wanted["gpus"]] == [3]
            spec, plain = engine.config_json(missed.id), engine.config_json(made["plain"].id)
            assert (nodes(spec), hooks(spec)) == (nodes(plain), [])
            assert mounts(spec) == mounts(plain)
        daemon.until(lambda: not daemon.status()["containers"], "the end of all")
        status = daemon.status()
        assert not any(holders(status).values())
        assert status["missed"] == []
