# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia plan`, the contract of tests and tools."""

import json
import os
import pathlib
import shutil
import threading

import pytest

from nri_nvidia import cli
from nri_nvidia.testing import host_spec

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
EIGHT = HOSTS / "debian-8xh100"
UUIDS = [host_spec.uuid_of(host_spec.GpuSpec(), i) for i in range(8)]
REQUEST_KEYS = {"source", "devices", "capabilities", "imex_channels"}
DEVICE_KEYS = {
    "path", "host_path", "type", "major", "minor", "mode", "uid", "gid", "access",
}  # fmt: skip


@pytest.fixture
def plan(capsys):
    """Run the verb; give its exit status and its JSON."""

    def run(*arguments, host=EIGHT):
        status = cli.main(["plan", "--host", str(host), "--format", "json", *arguments])
        return status, json.loads(capsys.readouterr().out)

    return run


def visible(devices):
    return ("--env", f"NVIDIA_VISIBLE_DEVICES={devices}")


def test_inject_has_every_documented_key(plan):
    """Keys, types and values as the design gives them."""
    status, found = plan(*visible("1"))
    assert status == 0
    assert set(found) == {
        "decision", "reasons", "request", "gpus", "driver_version", "cuda_compat", "edits",
    }  # fmt: skip
    assert found["decision"] == "inject"
    assert found["driver_version"] == "550.163.01"
    assert found["request"] == {
        "source": "env",
        "devices": ["1"],
        "capabilities": ["compute", "utility"],
        "imex_channels": [],
    }
    assert found["gpus"] == [
        {"index": 1, "uuid": UUIDS[1], "minor": 1, "bus_id": "0000:0f:00.0", "mig": None}
    ]
    edits = found["edits"]
    assert set(edits) == {"env", "devices", "mounts", "hooks"}
    assert edits["env"] == {}
    for device in edits["devices"]:
        assert set(device) == DEVICE_KEYS
    assert edits["devices"][-1] == {
        "path": "/dev/nvidia1", "host_path": "/dev/nvidia1", "type": "c", "major": 195,
        "minor": 1, "mode": 438, "uid": 0, "gid": 0, "access": "rw",
    }  # fmt: skip
    for mount in edits["mounts"]:
        assert set(mount) == {"source", "destination", "type", "options"}
        assert not mount["source"].startswith(str(HOSTS))
        assert (EIGHT / mount["source"].lstrip("/")).exists()
    (hook,) = edits["hooks"]
    assert set(hook) == {"stage", "path", "args", "env", "timeout"}
    assert (hook["stage"], hook["timeout"]) == ("createContainer", 10)
    assert hook["env"]


def test_refusal_exits_with_1_and_shows_the_request(plan):
    """`error`: the reason names what was asked and what exists; no GPU, no edit."""
    status, found = plan(*visible("9"))
    assert (status, found["decision"]) == (1, "error")
    assert found["request"]["devices"] == ["9"]
    assert (found["gpus"], found["edits"]) == ([], None)
    assert found["reasons"] == [
        {
            "code": "no-such-gpu",
            "message": "NVIDIA_VISIBLE_DEVICES=9: no such GPU; this node has 0-7",
            "hint": "nri-nvidia devices lists them",
        }
    ]


@pytest.mark.parametrize("arguments", [(), visible("void"), visible("")])
def test_nothing_asked(plan, arguments):
    """`ignore` without a reason: not a GPU container."""
    status, found = plan(*arguments)
    assert (status, found["decision"], found["reasons"]) == (0, "ignore", [])
    assert found["request"] == {
        "source": None, "devices": [], "capabilities": [], "imex_channels": [],
    }  # fmt: skip


def test_host_without_nvml_is_one_whose_nvml_does_not_answer(plan):
    """/proc alone gives the same GPUs, nodes and files."""
    _, with_nvml = plan(*visible("all"))
    status, without = plan(*visible("all"), host=HOSTS / "debian-8xh100-no-nvml")
    assert status == 0
    for document in (with_nvml, without):  # the kind of the GPUs is NVML's alone to tell
        del document["cuda_compat"]
    assert without == with_nvml


def test_absolute_links_of_a_recorded_host_resolve_inside_it(plan):
    """Debian's alternatives lead to the recorded tree's files, not this machine's."""
    _, found = plan(*visible("0"))
    by_name = {m["destination"].rpartition("/")[2]: m["source"] for m in found["edits"]["mounts"]}
    assert by_name["libcuda.so.1"] == (
        "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.550.163.01"
    )


def test_mig_device_in_gpus(plan):
    """A MIG device is told with its instance ids, its parent's node and two capability nodes."""
    status, found = plan(*visible("0:0"), host=HOSTS / "debian-mig")
    assert status == 0
    (gpu,) = found["gpus"]
    assert set(gpu["mig"]) == {"uuid", "gi", "ci", "index", "profile"}
    assert gpu["mig"]["index"] == 0
    caps = [d["path"] for d in found["edits"]["devices"] if "nvidia-caps" in d["path"]]
    assert len(caps) == 2


def test_container_options_reach_the_decision(plan):
    """Devices, allocation, image environment and mounts of the spec each change the outcome."""
    _, devices = plan(*visible("all"), "--device", "/dev/nvidia3")
    assert [gpu["index"] for gpu in devices["gpus"]] == [3]
    _, allocated = plan(*visible("all"), "--allocated", UUIDS[2], "--allocated", UUIDS[5])
    assert [gpu["index"] for gpu in allocated["gpus"]] == [2, 5]
    status, denied = plan(*visible("0"), "--allocated", "none")
    assert (status, denied["decision"]) == (1, "deny")
    assert denied["request"]["devices"] == ["0"]
    _, image = plan("--image-env", "NVIDIA_VISIBLE_DEVICES=all", *visible("4"))
    assert [gpu["index"] for gpu in image["gpus"]] == [4]
    _, mount = plan(*visible("0"), "--mount", "/x:/usr/local/nvidia/lib64")
    assert [reason["code"] for reason in mount["reasons"]] == ["users-mount-kept"]


def test_configuration_file(plan, tmp_path):
    """--config is used: mounts as a channel, privilege, the place of the files."""
    config = tmp_path / "config.toml"
    config.write_text(
        "[request]\naccept_env_when_unprivileged = false\naccept_volume_mounts = true\n"
        '[inject]\nlibrary_dir = "/opt/driver"\n'
    )
    options = ("--config", str(config))
    status, ignored = plan(*options, *visible("0"))
    assert (status, ignored["decision"]) == (0, "ignore")
    assert [reason["code"] for reason in ignored["reasons"]] == ["environment-not-accepted"]
    _, privileged = plan(*options, *visible("0"), "--privileged")
    assert privileged["decision"] == "inject"
    claim = f"/dev/null:/var/run/nvidia-container-devices/{UUIDS[6]}"
    _, mounted = plan(*options, "--mount", claim)
    assert mounted["request"]["source"] == "mount"
    assert [gpu["index"] for gpu in mounted["gpus"]] == [6]
    assert any(
        m["destination"] == "/opt/driver/lib64/libcuda.so.1" for m in mounted["edits"]["mounts"]
    )


def test_spec_is_a_starting_point(plan, tmp_path, capsys):
    """--spec gives environment, devices and mounts; --format oci keeps what it does not know."""
    spec = tmp_path / "config.json"
    spec.write_text(
        json.dumps(
            {
                "ociVersion": "1.2.0",
                "unknown": {"kept": True},
                "process": {"env": ["NVIDIA_VISIBLE_DEVICES=5", "A=b"]},
                "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
            }
        )
    )
    _, found = plan("--spec", str(spec))
    assert [gpu["index"] for gpu in found["gpus"]] == [5]
    assert cli.main(["plan", "--host", str(EIGHT), "--spec", str(spec), "--format", "oci"]) == 0
    patched = json.loads(capsys.readouterr().out)
    assert patched["unknown"] == {"kept": True}
    assert patched["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=5", "A=b"]
    rules = patched["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert {"allow": True, "type": "c", "major": 195, "minor": 5, "access": "rw"} in rules
    assert len(rules) == 1 + len(patched["linux"]["devices"])
    assert patched["hooks"]["createContainer"]


@pytest.mark.parametrize("form", ["text", "nri", "oci", "cdi"])
def test_every_format_has_the_devices(capsys, form):
    """Each rendering names the GPU's node; a refusal is said and exits with 1 in each."""
    assert cli.main(["plan", "--host", str(EIGHT), "--format", form, *visible("2")]) == 0
    assert "/dev/nvidia2" in capsys.readouterr().out
    assert cli.main(["plan", "--host", str(EIGHT), "--format", form, *visible("9")]) == 1
    said = capsys.readouterr()
    assert "no such GPU" in said.out + said.err


ROOT = "/var/run/nvidia-container-devices"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"/dev/null:{ROOT}/0:1", ["0:1"]),
        (f"/dev/null:{ROOT}/0:1:ro", ["0:1"]),
        (f"/dev/null:{ROOT}/0000:0f:00.0", ["1"]),
        (f"/dev/null:{ROOT}/0000:0f:00.0:ro,nosuid", ["1"]),
        (f"/dev/null:{ROOT}/GPU-a34d5d8b-fa88-5fd2-a0e3-fe42bd7a77f9::3", ["1"]),
        (f"/dev/null:{ROOT}/cdi/nvidia.com/gpu/0:0", ["0:0"]),
        (f"/dev/null:{ROOT}/1:", ["1"]),
        (f"/dev/null:{ROOT}/1:rbind,mode=0755", ["1"]),
    ],
)
def test_a_colon_in_a_mounts_destination(plan, tmp_path, text, expected):
    """What follows the last colon is options only if it reads as such: MIG's names have colons."""
    config = tmp_path / "config.toml"
    config.write_text("request.accept_volume_mounts = true\n")
    _, found = plan("--config", str(config), "--mount", text, host=HOSTS / "debian-mig")
    names = [
        f"{gpu['index']}:{gpu['mig']['index']}" if gpu["mig"] else str(gpu["index"])
        for gpu in found["gpus"]
    ]
    assert names == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--host", "/nonexistent"],
        ["plan", "--host", str(EIGHT), "--env", "NO_EQUALS_SIGN"],
        ["plan", "--host", str(EIGHT), "--mount", "/no-destination"],
        ["plan", "--config", "/nonexistent.toml"],
        ["plan", "--host", str(EIGHT), "--mount", ":/destination"],
        ["plan", "--host", str(EIGHT), "--device", "dev/nvidia0"],
        ["plan", "--host", str(EIGHT), "--device", ""],
        ["plan", "--host", str(EIGHT), "--allocated", ""],
        ["plan", "--host", str(EIGHT), "--held", "0=somebody"],
        ["plan", "--host", str(EIGHT), "--held", f"{UUIDS[0]}="],
    ],
)
def test_wrong_use_exits_with_2_and_says_what(capsys, arguments):
    """What cannot be meant is refused with the option's name and without a traceback."""
    assert cli.main(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("nri-nvidia: ")
    assert arguments[-1] in said.err


@pytest.mark.parametrize("arguments", [["plan", "--format", "xml"], ["nothing"], []])
def test_usage_errors_exit_with_2(capsys, arguments):
    """argparse's own errors use the same status."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"mounts": 3}',
        '{"mounts": [{"destination": 1}]}',
        '{"linux": {"devices": [{}]}}',
        '{"linux": {"devices": [{"path": "/dev/x", "major": 1e400}]}}',
        '{"linux": {"resources": {"devices": "none"}}}',
        '{"process": "x"}',
        '{"process": {"env": "NVIDIA_VISIBLE_DEVICES=all"}}',
        '{"process": {"env": [null]}}',
        '{"hooks": {"prestart": [{"path": 3}]}}',
        '{"process": {"env": []}, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}',
        '{"a": NaN}',
    ],
)
@pytest.mark.parametrize("form", ["json", "text", "oci"])
def test_broken_spec_is_refused_with_its_name(capsys, tmp_path, text, form):
    """A config.json that is none is a refusal in words, as JSON too where that was wanted."""
    spec = tmp_path / "config.json"
    spec.write_text(text)
    assert cli.main(["plan", "--host", str(EIGHT), "--spec", str(spec), "--format", form]) == 1
    said = capsys.readouterr()
    assert "config.json" in said.err
    assert "Error" not in said.err
    if form == "json":
        assert json.loads(said.out)["decision"] == "error"
    else:
        assert said.out == ""


@pytest.mark.parametrize("option", ["--spec", "--config"])
def test_fifo_without_a_writer_is_not_waited_for(tmp_path, capsys, option):
    """A FIFO that nobody writes to is refused, as a directory is; neither hangs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert cli.main(["plan", "--host", str(EIGHT), option, str(fifo)]) in {1, 2}
    assert "to which nobody wrote" in capsys.readouterr().err
    assert cli.main(["plan", "--host", str(EIGHT), option, str(tmp_path)]) in {1, 2}


def test_spec_by_a_pipe(plan):
    """A pipe is read to its end, however its writer takes its time: `--spec <(command)`."""
    reading, writing = os.pipe()
    text = json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=3"]}}).encode()

    def write():
        for byte in text:
            os.write(writing, bytes([byte]))
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    _, found = plan("--spec", f"/proc/self/fd/{reading}")
    writer.join()
    os.close(reading)
    assert [gpu["index"] for gpu in found["gpus"]] == [3]


def test_spec_without_an_end(capsys):
    """What goes on and on is given up, with its name."""
    assert cli.main(["plan", "--host", str(EIGHT), "--spec", "/dev/zero"]) == 1
    assert "/dev/zero" in capsys.readouterr().err


@pytest.mark.parametrize("devices", ["0", "all"])
def test_driver_without_a_major(plan, tmp_path, devices):
    """A GPU that the kernel lists and has no numbers for is told as that, however it is named."""
    host = shutil.copytree(EIGHT, tmp_path / "host", symlinks=True)
    (host / "proc/devices").write_text("Character devices:\n  1 mem\n")
    status, found = plan(*visible(devices), host=host)
    assert (status, found["reasons"][-1]["code"]) == (1, "kernel-module-not-loaded")


@pytest.mark.parametrize(
    "device",
    [
        {"path": "/dev//nvidia2"},
        {"path": "/dev/nvidia2", "type": "u", "major": 195, "minor": 2},
        {"path": "/dev/gpu", "type": "c", "major": 195, "minor": 2},
    ],
)
def test_node_in_the_spec_however_it_is_written(plan, tmp_path, device):
    """A GPU that the spec holds is the container's, so `all` is no further one."""
    spec = tmp_path / "config.json"
    spec.write_text(json.dumps({"linux": {"devices": [device]}}))
    _, found = plan("--spec", str(spec), *visible("all"))
    assert [gpu["index"] for gpu in found["gpus"]] == [2]


@pytest.mark.parametrize("name", ["nvidia-container-runtime-hook", "nvidia-cdi-hook"])
def test_hooks_of_the_operators_installer(plan, tmp_path, name):
    """Under the name that the installer gives a program it is no less another injector."""
    path = f"/usr/local/nvidia/toolkit/{name}.real"
    spec = tmp_path / "config.json"
    spec.write_text(json.dumps({"hooks": {"prestart": [{"path": path}]}}))
    _, found = plan("--spec", str(spec), *visible("all"))
    assert (found["decision"], found["reasons"][0]["code"]) == ("ignore", "other-injector")


@pytest.mark.parametrize("option", ["--host", "--config", "--spec"])
def test_empty_path_is_no_default(capsys, option):
    """A variable of a script that is not set is told as that, not taken for a default."""
    given = ["plan", *visible("0"), option, ""]
    assert cli.main(given if option == "--host" else [*given, "--host", str(EIGHT)]) in {1, 2}
    said = capsys.readouterr()
    assert (said.out, "''" in said.err) == ("", True)


def test_fault_in_the_settings_as_json(tmp_path, capsys):
    """Whoever reads JSON finds the fault there: a decision, with the reason."""
    settings = tmp_path / "config.toml"
    settings.write_text("[nri]\nsokcet = 1\n")
    for words in (["--config", str(settings)], ["--host", "/nonexistent"], ["--held", "x"]):
        assert cli.main(["plan", "--json", *words]) == 2
        found = json.loads(capsys.readouterr().out)
        assert (found["decision"], found["edits"]) == ("error", None)
        assert [reason["code"] for reason in found["reasons"]] == ["bad-configuration"]
        assert found["reasons"][0]["message"]
