# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia config`: the settings in force with their origins, and a file's faults."""

import json
import tomllib

import attrs
import pytest

from nri_nvidia import cli
from nri_nvidia.config import load, model


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.toml"

    def write(text):
        path.write_text(text)
        return str(path)

    return write


def test_every_setting_with_its_origin(capsys, file, monkeypatch):
    """Default, file and line, option, variable of the runtime."""
    path = file('[log]\nlevel = "debug"\n\n[inject]\nlayout = "volume"\n')
    monkeypatch.setenv("NRI_PLUGIN_IDX", "77")
    assert cli.main(["config", "--config", path, "--layout", "files", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    settings = {entry["key"]: (entry["value"], entry["origin"]) for entry in found["settings"]}
    assert settings["log.level"] == ("debug", f"{path}:2")
    assert settings["inject.layout"] == ("files", "--layout")
    assert settings["nri.index"] == ("77", "NRI_PLUGIN_IDX")
    assert settings["nri.name"] == ("nri-nvidia", "default")
    groups = {field.name for field in attrs.fields(model.Config)}
    assert {key.partition(".")[0] for key in settings} == groups


def test_text_can_be_read_as_settings_again(capsys, file):
    """What is printed is TOML that means the same."""
    path = file('[hook]\nsteps = ["links"]\n')
    assert cli.main(["config", "--config", path]) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["hook"]["steps"] == ["links"]
    again = file(text)
    assert cli.main(["config", "--config", again, "--json"]) == 0
    values = {e["key"]: e["value"] for e in json.loads(capsys.readouterr().out)["settings"]}
    assert values["hook.steps"] == ["links"]


RULES = """policy = "strict"
[[policy_rules]]
name = "a \\"name\\""
action = "allow"
annotations = {"example.com/gpu" = "*"}
max_devices = 2
shares = true
[[policy_rules]]
action = "deny"
privileged = false
"""


def test_rules_can_be_read_as_settings_again(capsys, tmp_path):
    """What is printed of rules means the same when it is read."""
    path = tmp_path / "config.toml"
    path.write_text(RULES)
    before = load.load([load.read(str(path))])
    assert cli.main(["config", "--config", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"# {path}:2" in printed
    path.write_text(printed)
    assert load.load([load.read(str(path))]) == before


def test_check_of_no_name(capsys):
    """`--check "$F"` with F not set checks nothing, and does not look like success."""
    assert cli.main(["config", "--check", ""]) == 1
    assert "No such file" in capsys.readouterr().out


def test_check_of_a_file(capsys, file):
    """0 and a word where it is right, 1 and every fault with its line where it is not."""
    path = file('[log]\nlevel = "info"\n')
    assert cli.main(["config", "--check", path]) == 0
    assert capsys.readouterr().out == f"{path}: nothing is wrong\n"
    path = file('[log]\nlevel = "loud"\n[hok]\n')
    assert cli.main(["config", "--check", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{path}:2", f"{path}:3"]
    assert cli.main(["config", "--check", path, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == lines


def test_programs_that_are_not_there(capsys, file):
    """An ldconfig that this host lacks is a fault, but not where the host is another."""
    path = file('[hook]\nldconfig = "/no/ldconfig"\n')
    assert cli.main(["config", "--check", path]) == 1
    assert "hook.ldconfig: /no/ldconfig is not a program" in capsys.readouterr().out
    assert cli.main(["config", "--config", path]) == 0
    assert "hook.ldconfig" in capsys.readouterr().err
    path = file('[host]\nroot = "/host"\n[hook]\nldconfig = "/no/ldconfig"\n')
    assert cli.main(["config", "--check", path]) == 0


def test_file_that_is_not_there(capsys, tmp_path):
    """Its name and why."""
    assert cli.main(["config", "--check", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().out
    assert cli.main(["config", "--config", str(tmp_path / "none")]) == 2
