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
    code, out, _ = run(capsys, node, "docker", "--undo")
    assert (code, file.read_text()) == (0, DAEMON)
    assert '+\t"debug": true\n' in out


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


def test_a_user_has_files_and_a_record_of_its_own(capsys, tmp_path, monkeypatch):
    """docker and podman without root: nothing of the system is read or written."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run(capsys, "/", "docker", "--apply")[0] == 0
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert found == ["config/docker/daemon.json", "state/nri-nvidia/configured/docker.json"]
    assert run(capsys, "/", "docker", "--undo")[0] == 0


def test_a_relative_path(capsys, tmp_path, monkeypatch):
    """Is one of the working directory, and none below another root."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "daemon.json").write_text("{}")
    code, out, _ = run(capsys, "/", "docker", "--config", "daemon.json")
    assert (code, f"+++ {tmp_path}/daemon.json" in out) == (0, True)
    assert run(capsys, tmp_path, "docker", "--config", "daemon.json")[0] == 2
