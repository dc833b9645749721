# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia configure`."""

import json
import os

import pytest

from nri_nvidia import cli
from nri_nvidia.cli import configure

DAEMON = '{\n\t"debug": true\n}\n'


@pytest.fixture
def node(tmp_path):
    """A node with docker's configuration."""
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_text(DAEMON)
    return tmp_path


def run(capsys, node, *words):
    """Run the verb; give exit status, output and errors."""
    given = ["configure", *words, "--root", str(node)]
    code = cli.main([*given, "--runtime-path", "/opt/r"] if words[0] != "crio" else given)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_shown_applied_and_undone(capsys, node):
    """The diff is exact, to its tabs; nothing changes unasked, nor a second time."""
    file = node / "etc/docker/daemon.json"
    code, out, err = run(capsys, node, "docker")
    assert (code, file.read_text()) == (0, DAEMON)
    assert '-\t"debug": true\n+\t"debug": true,\n+\t"runtimes": {\n' in out
    assert "repeat it with --apply" in err
    code, again, err = run(capsys, node, "docker", "--apply")
    assert (code, again) == (0, out)
    assert "systemctl reload docker" in err
    assert json.loads(file.read_text())["runtimes"]["nri-nvidia"]["path"] == "/opt/r"
    assert run(capsys, node, "docker", "--apply")[:2] == (0, "")
    code, out, err = run(capsys, node, "docker", "--undo")
    assert (code, file.read_text()) == (0, DAEMON)
    assert '+\t"debug": true\n' in out
    assert "systemctl restart docker" in err  # a reload keeps a runtime that is gone


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["docker", "--builds"], "systemctl daemon-reload && systemctl restart docker"),
        (["nerdctl"], "systemctl daemon-reload && systemctl restart containerd"),
        (["crio"], "systemctl restart crio"),
        (["podman"], "it counts from the next container on"),
    ],
)
def test_an_undo_says_what_makes_it_count(capsys, node, words, told):
    """As what it undoes did: podman has nothing to restart, a unit's drop-in has systemd."""
    assert run(capsys, node, *words, "--apply")[0] == 0
    code, _, err = run(capsys, node, words[0], "--undo")
    assert (code, err.splitlines()[-1].endswith(told)) == (0, True), err


def test_our_part_was_taken_out_by_hand(capsys, node):
    """The message says how to have it forgotten; else the product could not be removed."""
    file = node / "etc/docker/daemon.json"
    run(capsys, node, "docker", "--apply")
    file.write_text('{"debug": false}\n')
    code, _, err = run(capsys, node, "docker", "--undo")
    assert (code, "--undo --leave-changed" in err) == (2, True)
    code, out, err = run(capsys, node, "docker", "--undo", "--leave-changed")
    assert (code, out, file.read_text()) == (0, "", '{"debug": false}\n')
    assert "daemon.json: left as it is; as it was: /etc/docker/daemon.json.before" in err
    assert "all else is forgotten" in err
    assert "nothing is recorded" in run(capsys, node, "docker", "--undo")[2]
    assert run(capsys, node, "docker", "--leave-changed")[0] == 2


def test_what_cannot_be_read_is_refused_and_left(capsys, node):
    """The line and the reason are said."""
    file = node / "etc/docker/daemon.json"
    file.write_text("{\n  oops\n}\n")
    code, out, err = run(capsys, node, "docker", "--apply")
    assert (code, out, file.read_text()) == (2, "", "{\n  oops\n}\n")
    assert "/etc/docker/daemon.json: not valid JSON" in err
    assert "line 2" in err


@pytest.mark.parametrize("engine", configure.ENGINES)
def test_every_engine_on_a_bare_node(capsys, tmp_path, engine):
    """Nothing is there before, and nothing after an undo."""
    code, _, err = run(capsys, tmp_path, engine, "--apply")
    assert (code, "done" in err) == (0, True)
    assert run(capsys, tmp_path, engine, "--apply")[:2] == (0, "")
    assert run(capsys, tmp_path, engine, "--undo")[0] == 0
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    code, _, err = run(capsys, tmp_path, engine, "--undo")
    assert (code, f"configured for {engine}" in err) == (2, True)


@pytest.mark.parametrize("version", ["2.2.0", "v2.2.0", "2.2", "v2.3.0-rc.1", "2.2.1~ds1-1"])
def test_a_version_as_engines_tell_it(capsys, tmp_path, version):
    """containerd says v2.2.0: of it NRI is on, and has a list of required plugins."""
    words = ["containerd", "--engine-version", version]
    assert "nothing to do" in run(capsys, tmp_path, *words)[2]
    code, out, _ = run(capsys, tmp_path, *words, "--require")
    assert (code, "required_plugins" in out) == (0, True)


@pytest.mark.parametrize("version", ["", "abc", "2", "two.1", "2.x"])
def test_what_is_no_version(capsys, tmp_path, version):
    """It is told, and not taken for one that is not known."""
    code, _, err = run(capsys, tmp_path, "crio", "--engine-version", version)
    assert (code, f"--engine-version {version}: not a version" in err) == (2, True)


def test_as_json(capsys, node):
    """For programs: what changes, and what makes it count."""
    found = json.loads(run(capsys, node, "docker", "--json")[1])
    assert (found["done"], found["then"]) == (False, ["systemctl reload docker"])
    (change,) = found["changes"]
    assert change["path"] == "/etc/docker/daemon.json"
    assert "+++ /etc/docker/daemon.json\n" in change["diff"]
    assert json.loads(run(capsys, node, "docker", "--json", "--apply")[1])["done"]
    found = json.loads(run(capsys, node, "docker", "--json", "--apply")[1])
    assert (found["done"], found["changes"], found["then"]) == (False, [], [])
    assert json.loads(run(capsys, node, "docker", "--json", "--undo")[1])["done"]


def test_what_the_terminal_would_obey_is_made_visible(capsys, node):
    """A configuration may hold anything."""
    (node / "etc/docker/daemon.json").write_text('{\n  "a": "\x7f"\n}\n')
    assert "\x7f" not in run(capsys, node, "docker")[1]


def test_our_runtime_is_found_beside_the_program(capsys, node, tmp_path, monkeypatch):
    """Else on PATH, else it has to be named."""
    program = tmp_path / "bin/nri-nvidia"
    program.parent.mkdir()
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert cli.main(["configure", "docker", "--root", str(node)]) == 2
    assert "--runtime-path" in capsys.readouterr().err
    beside = program.parent / "nri-nvidia-runtime"
    beside.write_text("#!/bin/sh\n")
    os.chmod(beside, 0o755)
    assert cli.main(["configure", "docker", "--root", str(node)]) == 0
    assert str(beside) in capsys.readouterr().out


@pytest.mark.parametrize("engine", configure.ENGINES)
def test_an_engine_that_is_not_there(capsys, tmp_path, engine):
    """A new file for it is told as that, with its path; a program, or its own file, is enough."""
    program = "dockerd" if engine == "docker" else engine
    given = [engine, "--apply"]
    code, out, err = run(capsys, tmp_path, *given)
    assert code == 0
    assert f"no {engine} was found here" in err
    new = [line.split()[1] for line in out.splitlines() if line.startswith("+++ /etc")]
    assert f"{', '.join(new)} {'is a new file' if len(new) == 1 else 'are new files'}" in err
    assert "was found here" not in run(capsys, tmp_path, *given)[2]  # nothing is to be done
    run(capsys, tmp_path, engine, "--undo")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin" / program).touch()
    assert "was found here" not in run(capsys, tmp_path, *given)[2]


def test_a_containerd_of_k3s_is_one(capsys, tmp_path):
    """It brings its own program, and has its own file."""
    place = tmp_path / "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    place.parent.mkdir(parents=True)
    place.write_text("version = 2\n")
    code, out, err = run(capsys, tmp_path, "containerd")
    assert (code, "config.toml.tmpl" in out, "was found here" in err) == (0, True, False)


@pytest.mark.parametrize(
    "words", [["docker"], ["podman"], ["nerdctl"], ["containerd", "--transparent"]]
)
def test_a_path_in_a_virtual_environment_is_told(capsys, tmp_path, monkeypatch, words):
    """It goes away with the environment: the note names it and what to do; elsewhere none is."""
    program = tmp_path / "venv/bin/nri-nvidia"
    program.parent.mkdir(parents=True)
    beside = program.parent / "nri-nvidia-runtime"
    beside.write_text("#!/bin/sh\n")
    beside.chmod(0o755)
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("sys.argv", [str(program)])

    def said(*more):
        assert cli.main(["configure", *words, *more, "--root", str(tmp_path / "node")]) == 0
        return capsys.readouterr().err

    assert "virtual environment" not in said()
    (tmp_path / "venv/pyvenv.cfg").touch()
    note = next(line for line in said().splitlines() if "virtual environment" in line)
    assert note.startswith(f"nri-nvidia: {beside} is in a virtual environment")
    assert "nri-nvidia install puts it at /opt/nri-nvidia/bin/nri-nvidia-runtime" in note
    assert "virtual environment" not in said("--runtime-path", str(beside))
    monkeypatch.setattr(configure.install, "HOME", str(tmp_path))
    assert "virtual environment" not in said()


def test_the_installed_program_is_named_where_there_is_one(capsys, tmp_path, monkeypatch):
    """Then nothing has to be installed first."""
    for place in ("venv", "home"):
        (tmp_path / place / "bin").mkdir(parents=True)
        runtime = tmp_path / place / "bin/nri-nvidia-runtime"
        runtime.write_text("#!/bin/sh\n")
        runtime.chmod(0o755)
    (tmp_path / "venv/pyvenv.cfg").touch()
    monkeypatch.setattr("sys.argv", [str(tmp_path / "venv/bin/nri-nvidia")])
    monkeypatch.setattr(configure.install, "HOME", str(tmp_path / "home"))
    assert cli.main(["configure", "docker", "--root", str(tmp_path)]) == 0
    assert f"--runtime-path {tmp_path}/home/bin/nri-nvidia-runtime" in capsys.readouterr().err


def test_a_file_without_our_path_needs_no_note(capsys, tmp_path):
    """NRI is switched on without the name of a program."""
    assert cli.main(["configure", "containerd", "--root", str(tmp_path)]) == 0
    assert "virtual environment" not in capsys.readouterr().err


def test_a_user_has_files_and_a_record_of_its_own(capsys, tmp_path, monkeypatch):
    """docker and podman without root: nothing of the system is read or written."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run(capsys, "/", "docker", "--apply")[0] == 0
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert found == ["config/docker/daemon.json", "state/nri-nvidia/configured/docker.json"]
    code, _, err = run(capsys, "/", "docker", "--undo")
    assert (code, "systemctl --user restart docker" in err) == (0, True)


def test_a_users_directory_that_is_not_absolute(capsys, tmp_path, monkeypatch):
    """Is as good as none, by the specification: no directory of that name is made below /."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "tmp/relative")
    monkeypatch.setenv("XDG_STATE_HOME", "tmp/relative")
    assert run(capsys, "/", "docker", "--apply")[0] == 0
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert found == [
        ".config/docker/daemon.json", ".local/state/nri-nvidia/configured/docker.json",
    ]  # fmt: skip
    assert run(capsys, "/", "docker", "--undo")[0] == 0


def test_a_relative_path(capsys, tmp_path, monkeypatch):
    """Is one of the working directory, and none below another root."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "daemon.json").write_text("{}")
    code, out, _ = run(capsys, "/", "docker", "--config", "daemon.json")
    assert (code, f"+++ {tmp_path}/daemon.json" in out) == (0, True)
    assert run(capsys, tmp_path, "docker", "--config", "daemon.json")[0] == 2
