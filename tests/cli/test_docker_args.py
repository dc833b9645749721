# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia docker-args`."""

import json
import shlex
from pathlib import Path

import pytest

from nri_nvidia import cli, errors
from nri_nvidia.edits import model
from nri_nvidia.render import docker
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

HOSTS = Path(__file__).parents[1] / "hosts"
EIGHT = str(HOSTS / "debian-8xh100")


def run(capsys, *words):
    """Run the verb; give exit status, its words and errors."""
    code = cli.main(["docker-args", *map(str, words)])
    told = capsys.readouterr()
    return code, shlex.split(told.out), told.err


def values(words, option):
    return [word.split("=", 1)[1] for word in words if word.startswith(f"{option}=")]


@pytest.mark.parametrize("gpus", [["0,2"], ["0", "2"], ["0 2"]])
def test_two_gpus(capsys, gpus):
    """Their nodes, the control nodes, the driver's directory, where its libraries are."""
    code, words, err = run(capsys, *gpus, "--host", EIGHT)
    assert (code, err) == (0, "")
    nodes = [value.split(":")[0] for value in values(words, "--device")]
    assert sorted(nodes) == [
        "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0", "/dev/nvidia2", "/dev/nvidiactl",
    ]  # fmt: skip
    (volume,) = [each for each in values(words, "--volume") if ":/usr/local/nvidia:" in each]
    assert volume.startswith("/var/lib/nri-nvidia/driver/550.163.01-")
    assert volume.endswith(":ro")
    assert values(words, "--env") == [
        "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/nvidia/lib32"
    ]


def test_all_is_what_nothing_means(capsys):
    """As nvidia-docker 1 gave all; capabilities choose nodes and files."""
    _, words, _ = run(capsys, "--host", EIGHT, "--no-library-path", "--capabilities", "utility")
    nodes = {value.split(":")[0] for value in values(words, "--device")}
    assert nodes == {"/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in range(8))}
    assert values(words, "--env") == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["9"], "NVIDIA_VISIBLE_DEVICES=9: no such GPU"), (["--capabilities", "magic"], "magic")],
)
def test_refused_as_everywhere(capsys, words, reason):
    """With the same sentence, and nothing is printed that a shell would run."""
    code, out, err = run(capsys, *words, "--host", EIGHT)
    assert (code, out) == (1, [])
    assert reason in err


def test_a_node_without_a_gpu(capsys):
    """`all` is nothing there, with the reason."""
    code, out, err = run(capsys, "--host", HOSTS / "no-gpu")
    assert (code, out) == (0, [])
    assert "no NVIDIA GPU" in err


def test_the_directory_is_made(capsys, tmp_path):
    """On this node, before it is named; a second time it is the same."""
    simulated.build(tmp_path / "host", host_spec.HostSpec(gpus=(host_spec.GpuSpec(),)))
    host = tmp_path / "host"
    config = tmp_path / "config.toml"
    config.write_text(
        f'host.root = "{host}"\nhost.driver_root = "{host}"\nhost.dev_root = "{host}"\n'
        f'inject.volume_dir = "{tmp_path}/volumes"\n'
    )
    code, words, err = run(capsys, "0", "--config", config)
    assert (code, err) == (0, "")
    place = Path(values(words, "--volume")[0].split(":")[0])
    assert place.parent == tmp_path / "volumes"
    assert (place / "lib64/libcuda.so.1").is_file()
    assert f"--device={host}/dev/nvidia0:/dev/nvidia0:rw" in words
    assert cli.main(["docker-args", "0", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == words


def test_a_directory_that_cannot_be_made(capsys, tmp_path):
    """It is named, and nothing is promised that docker does not do."""
    simulated.build(tmp_path / "host", host_spec.HostSpec(gpus=(host_spec.GpuSpec(),)))
    host = tmp_path / "host"
    (tmp_path / "file").touch()
    config = tmp_path / "config.toml"
    config.write_text(
        f'host.root = "{host}"\nhost.driver_root = "{host}"\nhost.dev_root = "{host}"\n'
        f'inject.volume_dir = "{tmp_path}/file/x"\n'
    )
    code, words, err = run(capsys, "0", "--config", config)
    assert (code, words) == (1, [])
    assert f"{tmp_path}/file/x" in err
    assert "inject.volume_dir names another place" in err
    assert "meanwhile" not in err


def test_paths_that_a_shell_or_docker_would_part():
    """A blank is quoted when printed; a colon cannot be said to docker."""
    mount = model.MountEdit(source="/a b", destination="/c")
    assert docker.arguments(model.ContainerEdits(mounts=(mount,))) == ("--volume=/a b:/c:ro",)
    mount = model.MountEdit(source="/a:b", destination="/c", options=("rbind",))
    with pytest.raises(errors.HostError, match="/a:b"):
        docker.arguments(model.ContainerEdits(mounts=(mount,)))
