# SPDX-License-Identifier: Apache-2.0
"""What several verbs' tests need."""

import json

import pytest

from nri_nvidia import cli

from .test_plan import EIGHT


@pytest.fixture
def decided(tmp_path, capsys):
    """Plan with settings; give decision, indices of GPUs, codes of reasons, and the JSON."""

    def run(settings, *arguments, host=EIGHT):
        config = tmp_path / "config.toml"
        config.write_text(settings)
        options = ("--host", str(host), "--config", str(config), "--format", "json")
        status = cli.main(["plan", *options, *arguments])
        found = json.loads(capsys.readouterr().out)
        assert status == (0 if found["decision"] in {"inject", "ignore"} else 1)
        gpus = [gpu["index"] for gpu in found["gpus"]]
        return found["decision"], gpus, [each["code"] for each in found["reasons"]], found

    return run
