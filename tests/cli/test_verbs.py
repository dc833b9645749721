# SPDX-License-Identifier: Apache-2.0
"""The other verbs' output and exit status."""

import json
import pathlib

import pytest

from nri_nvidia import cli
from nri_nvidia.cli import output
from nri_nvidia.config import place

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"


@pytest.mark.parametrize("name", sorted(path.name for path in HOSTS.iterdir()))
def test_devices_shows_every_recorded_host(capsys, name):
    """Text, list and JSON of each; 0 only where a driver is loaded and nothing is wrong."""
    host = ["devices", "--host", str(HOSTS / name)]
    exits = {cli.main(host), cli.main([*host, "--list"])}
    capsys.readouterr()
    exits.add(cli.main([*host, "--json"]))
    found = json.loads(capsys.readouterr().out)
    driven = found["driver_version"] or found["platform"] != "pci"
    assert exits == {0 if driven and not found["problems"] else 1}
    assert {"gpus", "control", "files", "nvml_state", "layout"} <= set(found)


def test_devices_text_has_what_one_asks_by(capsys):
    """Index, UUID, minor, bus id and model of each GPU stand in one line."""
    assert cli.main(["devices", "--host", str(HOSTS / "debian-minors-swapped")]) == 0
    text = capsys.readouterr().out
    assert "driver: 550.163.01" in text
    lines = [line.split() for line in text.splitlines() if "0000:" in line]
    assert all(line[1].startswith("GPU-") for line in lines)
    assert [line[0] for line in lines] == [str(i) for i in range(len(lines))]


def test_status_without_a_daemon_exits_with_3(capsys, tmp_path):
    """It says which socket was asked and how to start the daemon."""
    path = tmp_path / "control.sock"
    assert cli.main(["status", "--socket", str(path)]) == 3
    said = capsys.readouterr().err
    assert str(path) in said
    assert "nri-nvidia run" in said


def test_status_names_what_can_be_started(capsys, tmp_path, monkeypatch):
    """Where no unit is installed there is none to start, and install is named."""
    unit = tmp_path / "nri-nvidia.service"
    monkeypatch.setattr(place, "UNITS", (str(unit),))
    asked = ["status", "--socket", str(tmp_path / "control.sock")]
    assert cli.main(asked) == 3
    said = capsys.readouterr().err
    assert ("nri-nvidia install" in said, "systemctl" in said) == (True, False)
    unit.touch()
    assert cli.main(asked) == 3
    assert "systemctl start nri-nvidia" in capsys.readouterr().err


def test_columns_of_rows_of_different_length():
    """A row may be longer or shorter than the first."""
    assert output.columns([("a", "b"), ("cc", "d", "e"), ("f",)]) == ["a   b", "cc  d  e", "f"]


def test_no_lines_are_no_line(capsys):
    """An empty list prints nothing, so that `| wc -l` counts right."""
    output.print_lines([])
    assert capsys.readouterr().out == ""


def test_sizes():
    """Bytes are written as a person reads them; 0 is not known."""
    assert [output.size(n) for n in (0, 512, 85520809984)] == ["", "512 B", "79.65 GiB"]
