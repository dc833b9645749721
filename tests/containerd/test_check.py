# SPDX-License-Identifier: Apache-2.0
"""`nri-nvidia check` on the configurations that real containerd writes."""

import json
import subprocess

import pytest

from tests.check import nodes

from .conftest import ENGINES


@pytest.mark.parametrize("name", ENGINES)
def test_default_configuration(programs, tmp_path, capsys, name):
    """NRI is off in that of containerd 1.7 and on in that of 2, and check tells which."""
    program = programs[name]
    text, version = (
        subprocess.run(
            [program.path, *arguments], check=True, capture_output=True, text=True, timeout=60
        ).stdout
        for arguments in (("config", "default"), ("--version",))
    )
    node = nodes.Node(tmp_path / "node")
    node.write("etc/containerd/config.toml", text)
    node.write("versions.json", json.dumps({"containerd": version.split()[2].lstrip("v")}))
    _, found = node.findings(capsys)
    expected = ["nri-off"] if program.version.startswith("1.") else []
    assert [finding["code"] for finding in found] == expected
    if found:
        old = "disable = true"
        assert old in text.partition("io.containerd.nri.v1.nri")[2]
        head, _, tail = text.partition("io.containerd.nri.v1.nri")
        node.write(
            "etc/containerd/config.toml",
            f"{head}io.containerd.nri.v1.nri{tail.replace(old, 'disable = false', 1)}",
        )
        assert node.findings(capsys) == (0, [])
