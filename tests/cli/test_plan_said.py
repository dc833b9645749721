# SPDX-License-Identifier: Apache-2.0
"""What `plan` says of options and lists that would else be passed over without a word."""

import json

import pytest

from nri_nvidia import cli
from nri_nvidia.request import mountlist

from .test_plan import EIGHT, HOSTS, UUIDS


@pytest.fixture
def said(capsys):
    """Run the verb on eight GPUs; give its exit status, output and errors."""

    def run(*arguments, host=EIGHT):
        status = cli.main(["plan", "--host", str(host), *arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("devices", "lost"), [("none,9", "9"), ("all,GPU-typo", "GPU-typo"), ("void,0", "0")]
)
def test_members_of_a_list_without_effect(said, devices, lost):
    """The decision is NVIDIA's, and what of the list did not count is a reason."""
    status, out, _ = said("--env", f"NVIDIA_VISIBLE_DEVICES={devices}")
    assert status == 0
    assert f"{lost} has no effect [devices-without-effect]" in out


def test_mounts_where_they_are_not_accepted(said):
    """The setting is named, and nobody is told that nothing was asked for."""
    status, out, _ = said("--mount", f"/dev/null:{mountlist.ROOT}/0")
    assert (status, "decision: ignore" in out) == (0, True)
    assert "request.accept_volume_mounts is false" in out
    assert "asks for no GPU" not in out
    assert "asks for no GPU" in said()[1]


@pytest.mark.parametrize("device", ["GPU-00000000-0000-0000-0000-000000000000", "MIG-0", "GPU-a8"])
def test_held_device_that_the_host_does_not_have(said, device):
    """A holder of nothing would change nothing: what was named and what there is are told."""
    held = ("--held", f"{device}=other")
    status, out, err = said("--env", "NVIDIA_VISIBLE_DEVICES=0", *held)
    assert (status, out) == (2, "")
    assert err.startswith(f"nri-nvidia: --held={device}: no such ")
    assert "this node has" in err
    status, out, _ = said(*held, "--json")
    assert (status, json.loads(out)["decision"]) == (2, "error")


def test_held_device_by_the_beginning_of_its_uuid(said, tmp_path):
    """It is named as in the variable, and the GPU that begins so is the one that is held."""
    config = tmp_path / "config.toml"
    config.write_text("policy.exclusive = true\n")
    held = ("--config", str(config), "--held", f"{UUIDS[3][:12]}=other")
    assert said("--env", "NVIDIA_VISIBLE_DEVICES=2", *held)[0] == 0
    status, out, _ = said("--env", "NVIDIA_VISIBLE_DEVICES=3", *held)
    assert (status, "held by other" in out) == (1, True)


def test_held_device_of_a_host_that_cannot_say(said):
    """Where no UUID is known the decision is told as it is without a holder."""
    host = HOSTS / "debian-module-unloaded"
    asked = ("--env", "NVIDIA_VISIBLE_DEVICES=0")
    status, out, _ = said(*asked, "--held", f"{UUIDS[3]}=other", host=host)
    assert (status, out) == said(*asked, host=host)[:2]
    assert "driver-not-loaded" in out


@pytest.mark.parametrize("verb", ["plan", "devices", "check", "docker-args"])
def test_directory_that_is_no_recorded_host(capsys, tmp_path, verb):
    """It would pass for a host without a GPU; of a directory of recordings those are named."""
    words = [verb, *(["0"] if verb == "docker-args" else []), "--host"]
    (tmp_path / "lib").mkdir()
    assert cli.main([*words, str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"nri-nvidia: --host {tmp_path}: no recorded host")
    assert "--record" in err
    assert cli.main([*words, str(HOSTS)]) == 2
    err = capsys.readouterr().err
    assert "below it are bottlerocket-1xl4, cache-1xa100, " in err
    assert f"--host {HOSTS}/bottlerocket-1xl4" in err


@pytest.mark.parametrize(
    ("written", "works"),
    [
        ("0-3", "0,1,2,3"),
        ('"0"', "0"),
        ("'0,1'", "0"),
        ("6-9", "6,7"),
        ("8-9", "each index, as 0,1"),
        ("0f:00.0", "0000:0f:00.0"),
        ("7:00.0", "0000:07:00.0"),
        (UUIDS[2].removeprefix("GPU-"), UUIDS[2]),
        (UUIDS[2][4:12], UUIDS[2][:12]),
    ],
)
def test_forms_of_other_tools(said, written, works):
    """A span, a bus id without its domain, a UUID's digits: the hint has the form that works."""
    status, out, _ = said("--env", f"NVIDIA_VISIBLE_DEVICES={written}")
    assert (status, "no such GPU" in out) == (1, True)
    assert out.endswith(f"; write {works}\nrequest: NVIDIA_VISIBLE_DEVICES: {written}; "
                        "capabilities compute,utility\n")  # fmt: skip
    if "as" not in works:
        assert said("--env", f"NVIDIA_VISIBLE_DEVICES={works}")[0] == 0


def test_digits_of_a_mig_device(said):
    """They are told with MIG before them."""
    host = HOSTS / "debian-mig"
    _, out, _ = said("--env", "NVIDIA_VISIBLE_DEVICES=0a54cd11-2be5", host=host)
    assert "write MIG-0a54cd11-2be5\n" in out


@pytest.mark.parametrize("written", ["0a:00.0", "12345678", "deadbeef", "gpu0", "-1"])
def test_what_is_like_nothing_that_is_there(said, written):
    """No form is proposed that would fail as well."""
    _, out, _ = said("--env", f"NVIDIA_VISIBLE_DEVICES={written}")
    assert "\n  nri-nvidia devices lists them\n" in out
