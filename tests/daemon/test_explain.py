# SPDX-License-Identifier: Apache-2.0
"""`explain` of a daemon as a process: what it gave, refused, passed over and missed."""

import asyncio
import json
import pathlib
import shutil
import socket
import subprocess

import pytest

from nri_nvidia._api.nri.pkg.api import v1alpha1 as api
from nri_nvidia.testing import runtime
from tests.containerd import daemons
from tests.nri import messages

from .pairs import POD, container


async def explained(pair, query):
    """Give the record that the command prints."""
    done = await asyncio.to_thread(pair.daemon.ask, "explain", query, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def said(pair, query):
    """Give the command's exit status and what it says to a person."""
    done = await asyncio.to_thread(pair.daemon.ask, "explain", query)
    return done.returncode, done.stdout + done.stderr


def report(pair, adjusted, **document):
    """Be the hook of a container."""
    args = list(adjusted.hooks.create_container[0].args)
    told = {"token": args[args.index("--token") + 1], **document}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(told).encode(), str(pair.daemon.directory / "hook.sock"))


def test_what_was_given_is_what_the_runtime_was_told(together):
    """Every device, mount and hook of the adjustment, the source of the request, the time."""

    async def body(pair):
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=6")
        found = await explained(pair, container(1).id)
        assert [d["path"] for d in found["edits"]["devices"]] == [
            d.path for d in adjusted.linux.devices
        ]
        assert {m["destination"] for m in found["edits"]["mounts"]} == {
            m.destination for m in adjusted.mounts
        }
        assert found["edits"]["hooks"][0]["args"] == [*adjusted.hooks.create_container[0].args]
        assert (found["decision"], found["holds"], found["missed"]) == ("inject", True, False)
        assert found["request"]["source"] == "env"
        assert found["duration_ms"] > 0
        assert [gpu["index"] for gpu in found["gpus"]] == [6]

    together(body)


def test_text_of_what_was_given(together):
    """Names find it; the text has the request, each GPU with its index inside, the result."""

    async def body(pair):
        requirement = "NVIDIA_REQUIRE_DRIVER=driver>=500"
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=3,5", requirement)
        note = {"name": "compat", "ok": True, "message": "not used"}
        report(pair, adjusted, ok=True, steps=[note], duration_ms=12.25)
        await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["containers"][0]["hook"], "the report"
        )
        for query in ("team/pod/c1", "pod/c1", "c1", "pod"):
            status, text = await said(pair, query)
            assert status == 0
            assert "asked: NVIDIA_VISIBLE_DEVICES=3,5, in the container's environment" in text
            assert "index 0 in the container" in text
            assert "index 1 in the container" in text
            assert "hook's result: ok, 12.2 ms" in text
            assert "hook's note: compat: not used" in text
            assert "requirements: NVIDIA_REQUIRE_DRIVER: driver>=500" in text
            assert "cuda compatibility: a newer CUDA driver in the image is used" in text
            assert "[as-asked]" in text

    together(body)


def test_refused_and_passed_over(together):
    """A refusal is told with its reason, and so is a container that was created with nothing."""

    async def body(pair):
        with pytest.raises(runtime.CreationFailed):
            await pair.create(1, "NVIDIA_VISIBLE_DEVICES=9")
        found = await explained(pair, "c1")
        assert (found["decision"], found["reasons"][-1]["code"]) == ("error", "no-such-gpu")
        assert (found["edits"], found["holds"]) == (None, False)
        status, text = await said(pair, "c1")
        assert status == 0
        assert "created: no, its creation was refused: 20" in text
        hook = api.Hooks(prestart=[api.Hook(path="/usr/bin/nvidia-container-runtime-hook")])
        await pair.create(2, "NVIDIA_VISIBLE_DEVICES=1", hooks=bytes(hook))
        assert (await explained(pair, "c2"))["reasons"][-1]["code"] == "other-injector"

    together(body)


def test_what_had_no_effect_is_told(together):
    """Of a list that a keyword decides, of mounts that do not count, of a mount over the cache."""

    async def body(pair):
        assert bytes(await pair.create(1, "NVIDIA_VISIBLE_DEVICES=void,0")) == b""
        claim = messages.mount("/var/run/nvidia-container-devices/0", "/dev/null")
        assert bytes(await pair.create(2, "PATH=/bin", mounts=[claim])) == b""
        volume = messages.mount("/etc", "/data")
        await pair.create(3, "NVIDIA_VISIBLE_DEVICES=none,9", mounts=[volume])
        expected = {
            "c1": ("ignore", ["devices-without-effect"]),
            "c2": ("ignore", ["volume-mounts-not-accepted"]),
            "c3": (
                "inject",
                ["devices-without-effect", "users-mount-kept", "loader-cache-hidden"],
            ),
        }
        for name, told in expected.items():
            found = await explained(pair, name)
            assert (found["decision"], [each["code"] for each in found["reasons"]]) == told
        decisions = (await asyncio.to_thread(pair.daemon.status))["decisions"]
        shown = {
            each["name"]: [reason["code"] for reason in each["reasons"]] for each in decisions
        }
        assert shown == {name: codes for name, (_, codes) in expected.items()}
        _, text = await said(pair, "c1")
        assert "0 has no effect" in text

    together(body)


def test_what_several_containers_may_mean(together):
    """Nothing is guessed: exit status 1, and each candidate by name."""

    async def body(pair):
        for number in (1, 2):
            await pair.create(number, "NVIDIA_VISIBLE_DEVICES=1")
        status, text = await said(pair, "container0000")
        assert status == 1
        assert "team/pod/c1" in text
        assert "team/pod/c2" in text
        status, text = await said(pair, "nothing-of-that-name")
        assert status == 1
        assert "nri-nvidia plan" in text

    together(body)


def test_missed_container_and_what_it_would_have_got(together):
    """What was created while the daemon was away is told with the GPU that it wanted."""
    before = [container(1, "NVIDIA_VISIBLE_DEVICES=4"), container(2, "NVIDIA_VISIBLE_DEVICES=99")]

    async def body(pair):
        await asyncio.to_thread(
            pair.daemon.until, lambda: len(pair.daemon.status()["missed"]) == 2, "what was missed"
        )
        for query, decision, gpus in (("c1", "inject", [4]), ("c2", "error", [])):
            found = await until_recorded(pair, query)
            assert (found["missed"], found["decision"]) == (True, decision)
            assert [gpu["index"] for gpu in found["gpus"]] == gpus
        status, text = await said(pair, "c1")
        assert status == 0
        assert "created while nri-nvidia was away" in text
        assert "/dev/nvidia4" in text

    together(body, containers=before, pods=[POD])


async def until_recorded(pair, query):
    while True:
        found = await explained(pair, query)
        if found["request"]:
            return found


def test_records_outlive_the_daemon(together):
    """After a kill and a restart all is told as before, also meanwhile; a stop is known."""

    async def body(pair):
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=2")
        report(pair, adjusted, ok=False, steps=[{"name": "ldcache", "ok": False, "message": "x"}])
        await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["containers"][0]["hook"], "the report"
        )
        first = await explained(pair, "c1")
        await asyncio.to_thread(pair.daemon.end)
        done = await asyncio.to_thread(pair.daemon.ask, "explain", "c1", "--json")
        assert done.returncode == 0
        assert "this is what the last daemon kept" in done.stderr
        kept = json.loads(done.stdout)
        assert kept == {**first, "holds": None, "stale": None, "loaded_driver": None}
        given = container(
            1,
            "NVIDIA_VISIBLE_DEVICES=2",
            hooks=bytes(adjusted.hooks),
            devices=adjusted.linux.devices,
        )
        pair.runtime.containers = [given]
        pair.runtime.pods = [POD]
        await asyncio.to_thread(lambda: pair.daemon.start().ready())
        await asyncio.to_thread(
            pair.daemon.until, lambda: pair.daemon.status()["containers"], "the adoption"
        )
        again = await explained(pair, "c1")
        assert again == first
        held = await asyncio.to_thread(pair.daemon.status)
        entry = held["containers"][0]
        assert (entry["adopted"], entry["since"]) == (True, first["time"])
        assert (entry["hook"], entry["capabilities"]) == (
            "ldcache: x", first["request"]["capabilities"],
        )  # fmt: skip
        await pair.runtime.stop(given.id)
        assert (await explained(pair, "c1"))["ended"]

    together(body)


def test_without_daemon_and_without_records(tmp_path):
    """Exit status 3, as of every verb that asks the daemon."""
    done = subprocess.run(
        [daemons.COMMAND, "explain", "c1", "--socket", str(tmp_path / "control.sock")],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert "no daemon answers" in done.stderr


def test_directory_that_cannot_be_had(together):
    """Decisions go on, the finding says why they are not kept, and memory still tells them."""

    async def body(pair):
        place = pathlib.Path(pair.daemon.directory) / "decisions"
        shutil.rmtree(place, ignore_errors=True)
        place.write_text("in the way")
        await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0")
        found = await explained(pair, "c1")
        assert (found["decision"], found["edits"]) == ("inject", None)
        status = await asyncio.to_thread(pair.daemon.status)
        assert "decisions-not-kept" in [finding["code"] for finding in status["findings"]]

    together(body)


def test_name_that_is_not_known_is_answered_with_those_that_are(together):
    """The error names what is near, else what was last; ids are shown as far as they differ."""

    async def body(pair):
        for number in (1, 2):
            await pair.create(number, "NVIDIA_VISIBLE_DEVICES=0")
        done = await asyncio.to_thread(pair.daemon.ask, "explain", "team/pod/c1x")
        assert done.returncode == 1
        first, hint = done.stderr.splitlines()
        assert first.startswith("nri-nvidia: team/pod/c1x: no decision over such a container")
        assert "; known are team/pod/c1, team/pod/c2" in first
        assert "nri-nvidia status lists" in hint
        assert "docker inspect -f {{.Id}} NAME" in hint
        done = await asyncio.to_thread(pair.daemon.ask, "explain", "")
        assert done.stderr.startswith("nri-nvidia: '': no decision")
        done = await asyncio.to_thread(pair.daemon.ask, "explain", "container0")
        shown = [line.split()[0] for line in done.stderr.splitlines()[1:3]]
        assert len({*shown}) == 2
        for part in shown:
            again = await asyncio.to_thread(pair.daemon.ask, "explain", part)
            assert again.returncode == 0, again.stderr

    together(body)
