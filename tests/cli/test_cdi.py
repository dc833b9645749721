# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia cdi`."""

import json
from pathlib import Path

import pytest

from nri_nvidia import cli
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

HOSTS = Path(__file__).parents[1] / "hosts"


def run(capsys, *words):
    """Run the verb; give exit status, output and errors."""
    code = cli.main(["cdi", *map(str, words)])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_generate_prints(capsys):
    """A recorded host's, as JSON."""
    code, out, _ = run(capsys, "generate", "--host", HOSTS / "ubuntu-1xl4")
    assert code == 0
    assert json.loads(out)["kind"] == "nvidia.com/gpu"


def test_generate_says_what_it_leaves_out(capsys):
    """On standard error, so that the document stays one."""
    code, out, err = run(capsys, "generate", "--host", HOSTS / "debian-nvml-order")
    assert (code, "left out: 0: NVML and the kernel count" in err) == (0, True)
    json.loads(out)


@pytest.mark.parametrize("kind", ["gpu", "gds", "imex-channel"])
def test_a_refusal_names_no_variable(capsys, kind):
    """Nobody has set one: it says what is wrong with the host."""
    host = HOSTS / "debian-mismatch"
    code, out, err = run(capsys, "generate", "--host", host, "--kind", kind)
    assert (code, out) == (1, "")
    assert err.startswith("nri-nvidia: the loaded kernel module is 570.124.06, but")


def test_generate_refuses_a_host_without_a_gpu(capsys):
    """With what to do."""
    code, out, err = run(capsys, "generate", "--host", HOSTS / "no-gpu")
    assert (code, out) == (1, "")
    assert "no NVIDIA GPU with its driver loaded" in err


def test_several_kinds_need_a_directory(capsys):
    """One file is one kind."""
    words = ["generate", "--host", HOSTS / "no-gpu", "--kind", "gpu", "--kind", "gds"]
    assert run(capsys, *words)[0] == 2


@pytest.fixture
def live(tmp_path):
    """A simulated host, and settings by which it is this one."""
    simulated.build(tmp_path / "host", host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
    host, hook = tmp_path / "host", tmp_path / "hook"
    (tmp_path / "config.toml").write_text(
        f'host.root = "{host}"\nhost.driver_root = "{host}"\nhost.dev_root = "{host}"\n'
        f'hook.directory = "{hook}"\n'
    )
    return tmp_path


def test_written_listed_and_validated(capsys, live, monkeypatch):
    """The hook is put in place, since without it no container would start."""
    monkeypatch.setattr("nri_nvidia.oci.install.check", lambda _: None)  # pytest's place is 0700
    directory = live / "cdi"
    words = ["generate", "--config", live / "config.toml", "--output", directory]
    code, out, err = run(capsys, *words)  # the directory is made
    assert (code, err) == (0, "")
    assert out.startswith(f"{directory}/nri-nvidia-gpu.json: nvidia.com/gpu=all, nvidia.com/gpu=0")
    assert (live / "hook/nri-nvidia-hook").exists()
    code, out, err = run(capsys, "list", "--spec-dir", directory)
    assert (code, len(out.split()), err) == (0, 5, "")
    code, out, _ = run(capsys, "validate", "--spec-dir", directory)
    assert (code, out) == (0, f"{directory}/nri-nvidia-gpu.json: good, 5 devices\n")
    shown = json.loads(run(capsys, "validate", "--json", "--spec-dir", directory)[1])
    assert shown["files"][0]["faults"] == []
    # Another generator's beside it, and a driver that has gone.
    (directory / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    (live / "host/dev/nvidia1").unlink()
    code, out, err = run(
        capsys, "validate", directory / "nri-nvidia-gpu.json", "--spec-dir", directory
    )
    assert code == 1
    assert "nvidia.yaml defines the same kind" in out
    assert "/dev/nvidia1 is not on this host" in out
    assert f"cdi generate --kind gpu --output {directory} writes it again" in err
    # What engines take neither of is not listed in silence.
    assert "nvidia.yaml defines the same kind" in run(capsys, "list", "--spec-dir", directory)[2]


def test_what_is_in_two_directories_is_listed_once(capsys, tmp_path):
    """Engines find it once: the later directory's counts."""
    for name in ("a", "b"):
        words = ["generate", "--host", HOSTS / "ubuntu-1xl4", "--output", tmp_path / name]
        assert run(capsys, *words)[0] == 0
    both = ["--spec-dir", tmp_path / "a", "--spec-dir", tmp_path / "b"]
    code, out, err = run(capsys, "list", *both)
    assert (code, err) == (0, "")
    assert sorted(out.split()) == sorted({*out.split()})


@pytest.mark.parametrize("name", ["package.json", "README.md"])
def test_other_files_are_left_alone(capsys, tmp_path, name):
    """One that is no specification, or that no engine would read, is not written over."""
    path = tmp_path / name
    path.write_text('{"name": "mine"}')
    code, out, err = run(capsys, "generate", "--host", HOSTS / "debian-8xh100", "--output", path)
    assert (code, out) == (1, "")
    assert str(path) in err
    assert path.read_text() == '{"name": "mine"}'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["vendor.com/net", "nvidia.com/gds"])
def test_a_specification_of_other_devices_is_left_alone(capsys, tmp_path, kind):
    """It is somebody else's; one of the same devices is written anew."""
    path, host = tmp_path / "x.json", HOSTS / "debian-8xh100"
    device = {"name": "a", "containerEdits": {"env": ["A=1"]}}
    there = json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [device]})
    path.write_text(there)
    code, out, err = run(capsys, "generate", "--host", host, "--output", path)
    assert (code, out, path.read_text()) == (1, "", there)
    assert f"has the devices of {kind}, and not nvidia.com/gpu" in err
    path.write_text(there.replace(kind, "nvidia.com/gpu"))
    assert run(capsys, "generate", "--host", host, "--output", path)[0] == 0
    assert len(json.loads(path.read_text())["devices"]) > 1


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.yml", "nvidia.JSON"])
def test_a_name_that_looks_like_a_files(capsys, tmp_path, name):
    """It would become a directory, in which no engine looks."""
    path = tmp_path / name
    code, out, err = run(capsys, "generate", "--host", HOSTS / "debian-8xh100", "--output", path)
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert f"--output {tmp_path}/nvidia.json" in err


def test_a_hyphen_is_the_output(capsys, tmp_path, monkeypatch):
    """As with other programs; no directory of that name is made."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "generate", "--host", HOSTS / "debian-8xh100", "--output", "-")
    assert (code, json.loads(out)["kind"]) == (0, "nvidia.com/gpu")
    assert list(tmp_path.iterdir()) == []


def test_nothing_there_is_said(capsys, tmp_path):
    """With the command that makes one."""
    code, _, err = run(capsys, "validate", "--spec-dir", tmp_path)
    assert (code, "cdi generate --output /etc/cdi" in err) == (1, True)
    code, out, err = run(capsys, "list", "--spec-dir", tmp_path)
    assert (code, out) == (0, "")
    assert err.startswith(f"nri-nvidia: there is no specification in {tmp_path} (")
    assert "cdi generate --output /etc/cdi" in err
