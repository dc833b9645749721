# SPDX-License-Identifier: Apache-2.0
"""The README's pod, created as a kubelet would, sees what the README says it sees."""

import json
import re
from pathlib import Path

from . import daemons
from .test_gpu import gpu_host

__all__ = ["gpu_host"]

README = Path(__file__).parents[2] / "README.md"


def value(text, key):
    """Read a key whose value stands in one line and is JSON (which YAML takes as well)."""
    (found,) = re.findall(rf"^ +{key}: (\[.*\])$", text, re.MULTILINE)
    return json.loads(found)


async def test_the_sidecar_sees_the_gpu_of_the_other_container(engine, gpu_host):
    """The pod that shares: what the device plugin does for its first container is done here."""
    section = README.read_text("utf-8").partition("\n#### A sidecar on ")[2].partition("\n#")[0]
    _, pod, _ = re.split(r"^```(?:yaml)?\n", section, flags=re.MULTILINE)
    (found,) = re.findall(r"^ +annotations: (\{.*\})$", pod, re.MULTILINE)
    names = re.findall(r"^    - name: (.*)$", pod, re.MULTILINE)
    wait, look = map(json.loads, re.findall(r"^ +command: (\[.*\])$", pod, re.MULTILINE))
    env = {"NVIDIA_VISIBLE_DEVICES": "1"}
    with daemons.running(engine.nri_socket, gpu_host):
        async with (
            engine.pod(annotations=json.loads(found)) as started,
            started.container("debian", command=wait, env=env, name=names[0]),
        ):
            result = await started.run("debian", command=look, name=names[1])
    assert (result.code, result.stdout) == (0, "/dev/nvidia1\n")


async def test_the_pod_sees_what_is_said_of_it(engine, gpu_host):
    """Its command's whole output is that of the README, with both versions of containerd."""
    section = README.read_text("utf-8").partition("\n### Kubernetes\n")[2].partition("\n### ")[0]
    _, pod, _, output, *_ = re.split(r"^```(?:yaml)?\n", section, flags=re.MULTILINE)
    command = value(pod, "command")
    env = {each["name"]: each["value"] for each in value(pod, "env")}
    with daemons.running(engine.nri_socket, gpu_host):
        async with engine.pod() as started:
            result = await started.run("debian", command=command, env=env, name="gpu")
    assert (result.code, result.stdout) == (0, output)
