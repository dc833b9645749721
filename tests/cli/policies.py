# SPDX-License-Identifier: Apache-2.0
"""What the tests of policy share: settings in TOML, and options of `plan`."""

import json

from .test_plan import HOSTS

MIG = HOSTS / "debian-mig"
POD = ("--namespace", "team", "--pod", "p")
LIST = "/var/run/nvidia-container-devices"
STRICT = 'policy = "strict"\n'


def visible(devices):
    return ("--env", f"NVIDIA_VISIBLE_DEVICES={devices}")


def mounted(device):
    return ("--mount", f"/dev/null:{LIST}/{device}")


def rule(action, **keys):
    """Write one rule in TOML, for which JSON's notation of values is the same."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if key != "labels"]
    if "labels" in keys:
        pairs = ", ".join(f"{name} = {json.dumps(v)}" for name, v in keys["labels"].items())
        lines.append(f"labels = {{{pairs}}}")
    return "\n".join(["[[policy_rules]]", f'action = "{action}"', *lines, ""])
