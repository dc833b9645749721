# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia devices`: what a node has, and what nobody holds."""

import json
import pathlib
import shutil

import pytest

from nri_nvidia import cli
from nri_nvidia.cli import devices

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
UUIDS = [f"GPU-{n}" for n in range(3)]


def gpu(index, *holders, **more):
    """Give a GPU as a daemon's status has it; holders are MIG UUIDs, or None for all of it."""
    values = {
        "index": index, "uuid": UUIDS[index], "name": "NVIDIA H100", "memory_bytes": 1 << 30,
        "excluded": False, "problem": None, "mig_enabled": False, "mig_devices": [],
        "containers": [{"name": "c", "mig": mig} for mig in holders],
    }  # fmt: skip
    return {**values, **more}


def divided(index, *holders):
    migs = [{"index": n, "uuid": f"MIG-{index}-{n}", "profile": "1g.10gb", "memory_bytes": 1}
            for n in range(2)]  # fmt: skip
    return gpu(index, *holders, mig_enabled=True, mig_devices=migs)


def ids(*gpus):
    return [found["id"] for found in devices.free([*gpus])]


def test_what_a_container_holds_is_not_free():
    """A held GPU is left out, as is an excluded one and one that NVML does not describe."""
    assert ids(gpu(0), gpu(1, None), gpu(2)) == ["0", "2"]
    assert ids(gpu(0, excluded=True), gpu(1, problem="NVML does not list it")) == []
    assert devices.free([gpu(1)]) == [
        {"id": "1", "uuid": "GPU-1", "name": "NVIDIA H100", "memory_bytes": 1 << 30}
    ]


def test_mig_devices_are_free_each_by_itself():
    """Of a divided GPU its devices are listed, none where somebody holds the whole of it."""
    assert ids(divided(0), gpu(1)) == ["0:0", "0:1", "1"]
    assert ids(divided(0, "MIG-0-1")) == ["0:0"]
    assert ids(divided(0, "MIG-0-1", None)) == []
    assert devices.free([divided(0)])[1]["name"] == "NVIDIA H100 MIG 1g.10gb"


def test_without_a_daemon_nobody_knows(tmp_path, capsys):
    """--free says that no daemon answers and exits with 3; another host has no daemon to ask."""
    path = str(tmp_path / "control.sock")
    assert cli.main(["devices", "--free", "--socket", path]) == 3
    assert "no daemon answers" in capsys.readouterr().err
    assert cli.main(["devices", "--free", "--host", str(HOSTS / "no-gpu")]) == 2
    with pytest.raises(SystemExit):
        cli.main(["devices", "--free", "--list"])


def listed(capsys, name):
    assert cli.main(["devices", "--host", str(HOSTS / name), "--list"]) == 0
    return capsys.readouterr().out.splitlines()


def test_every_path_is_listed_once_nodes_first(capsys):
    """--list has control nodes, GPUs with their DRM nodes, channels, groups, then files by kind."""
    paths = listed(capsys, "rhel-fabric")
    assert len(paths) == len(set(paths))
    wanted = [
        "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
        "/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD129", "/dev/nvidia1",
        "/dev/nvidia-caps-imex-channels/channel0", "/dev/nvidia-caps-imex-channels/channel1",
        "/dev/nvidia-fs0", "/dev/infiniband/rdma_cm", "/dev/gdrdrv", "/dev/nvidia-nvswitchctl",
        "/usr/bin/nvidia-smi", "/usr/lib64/libcuda.so.550.163.01",
        "/run/nvidia-persistenced/socket",
        "/usr/lib/firmware/nvidia/550.163.01/gsp_ga10x.bin",
        "/etc/cufile.json", "/dev/dri/by-path",
    ]  # fmt: skip
    assert [path for path in paths if path in wanted] == wanted
    assert "/dev/dri/card0" not in paths


def test_mig_capability_nodes_are_listed(capsys):
    """--list names the nodes of the instances and of MIG's management."""
    paths = listed(capsys, "debian-mig")
    caps = [path for path in paths if path.startswith("/dev/nvidia-caps/")]
    assert {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"} < set(caps)
    assert len(caps) == 6


def test_the_table_has_what_identifies_a_gpu(capsys):
    """Index, UUID, minor, bus id, model, compute capability and brand, as its driver tells them."""
    assert cli.main(["devices", "--host", str(HOSTS / "rhel-2xt4")]) == 0
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if line.startswith("1  "))
    for word in ("GPU-", "0000:0f:00.0", "Tesla T4", "15 GiB", "7.5", "tesla"):
        assert word in row
    assert "driver: 535.183.01" in said


def test_a_gpu_that_does_not_answer_is_shown(tmp_path, capsys):
    """The table says so, the reason is among the problems, and the exit status is 1."""
    top = tmp_path / "host"
    cli_host = ["devices", "--host", str(top)]
    _copy("debian-8xh100", top)
    nvml = json.loads((top / "nvml.json").read_text())
    nvml["gpus"] = [told for told in nvml["gpus"] if told["index"] != 2]
    nvml["errors"] = ["GPU 2: GPU is lost"]
    (top / "nvml.json").write_text(json.dumps(nvml))
    assert cli.main(cli_host) == 1
    said = capsys.readouterr().out
    assert "not answering" in next(line for line in said.splitlines() if line.startswith("2  "))
    assert "GPU is lost [gpu-not-answering]" in said


@pytest.mark.parametrize(
    ("name", "code"),
    [("no-gpu", "no-gpu-on-node"), ("debian-module-unloaded", "driver-not-loaded"),
     ("debian-mismatch", "driver-version-mismatch")],
)  # fmt: skip
def test_why_nothing_can_be_given(capsys, name, code):
    """--list says it beside the paths that there are, --json has it as its error."""
    host = ["devices", "--host", str(HOSTS / name)]
    assert cli.main([*host, "--json"]) == 1
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert error["code"] == code
    assert said.err.startswith(f"nri-nvidia: {error['message']}\n  {error['hint']}")
    assert cli.main([*host, "--list"]) == 1
    listed = capsys.readouterr()
    assert listed.err == said.err
    assert (listed.out == "") is (name == "no-gpu")
    assert "" not in listed.out.splitlines()


def test_no_error_where_a_gpu_can_be_had(capsys):
    """Then neither has one, and nothing is said."""
    assert cli.main(["devices", "--host", str(HOSTS / "rhel-2xt4"), "--json"]) == 0
    said = capsys.readouterr()
    assert ("error" in json.loads(said.out), said.err) == (False, "")


def test_a_node_that_is_missing_is_shown_as_check_does(capsys, tmp_path):
    """A recording that lacks a node is told so, and that it is made when asked for, if it is."""
    host = ["--host", str(HOSTS / "ubuntu-1xl4")]
    assert cli.main(["devices", *host]) == 0
    lines = capsys.readouterr().out.splitlines()
    missing = {line.split()[0] for line in lines if "  missing (the daemon makes it" in line}
    assert missing == {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    assert cli.main(["check", *host, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {each["message"].split()[0] for each in found} == missing
    assert cli.main(["devices", *host, "--list"]) == 0
    assert missing < set(capsys.readouterr().out.splitlines())
    settings = tmp_path / "config.toml"
    settings.write_text("host.create_device_nodes = false\n")
    assert cli.main(["devices", *host, "--config", str(settings)]) == 1
    shown = capsys.readouterr().out
    assert "the daemon makes it" not in shown
    assert "/dev/nvidia-uvm is missing [device-node-missing]" in shown


def test_a_node_of_other_numbers_is_not_said_to_be_made(capsys, tmp_path):
    """Nothing is made in the place of what is there: it stays a problem."""
    top = tmp_path / "host"
    _copy("ubuntu-1xl4", top)
    with (top / "dev.nodes").open("a") as file:
        file.write("c 7 0 0666 0 0 /dev/nvidia-uvm\n")
    assert cli.main(["devices", "--host", str(top)]) == 1
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("  /dev/nvidia-uvm ")]
    assert row.endswith("missing")


def test_a_recording_is_told_to_programs(capsys, tmp_path):
    """--record with --json says what was written, and where."""
    host = ["devices", "--host", str(HOSTS / "ubuntu-1xl4")]
    assert cli.main([*host, "--record", str(tmp_path / "new"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["directory"] == str(tmp_path / "new")
    assert set(written) == {"directory", "files", "links", "nodes"}


def _copy(name, top):
    shutil.copytree(HOSTS / name, top, symlinks=True)
