# SPDX-License-Identifier: Apache-2.0
"""Mounts of a container's own where the hook covers the driver's part of /proc.

runc makes none below /proc; crun does, with whatever the user has in a volume.
"""

import os
from pathlib import Path

from . import bundles
from .test_procfs import SCRIPT
from .weakened import both_ways

OTHERS, OWN = "0000:0f:00.0", "0000:07:00.0"
DRIVER = SCRIPT.format(params="'ModifyDeviceFiles: 1\n'", gpus=f"{OTHERS} {OWN}")
TELL = (
    "cd /proc/driver/nvidia; for each in gpus/*; do echo $each; done; "
    "while read -r line; do echo $line; done <params"
)
ANY = "if entry >= 0 and identity(entry) == mounted:", "if entry >= 0:"


def prepared(case, script):
    """Have a hook before ours that makes the driver's part of /proc, and then what a script says."""

    def change(document):
        command = ["/bin/sh", "-c", DRIVER + script, "prepare", str(case.root)]
        entry = {"path": command[0], "args": command, "env": ["PATH=/usr/bin:/bin"]}
        document["hooks"]["createContainer"].insert(0, entry)

    return change


def test_a_fifo_in_the_drivers_part_is_not_waited_for(case, runtime, place):
    """A volume at /proc/driver with a FIFO for a text: the hook goes on; else it waits for ever."""
    volume = place / "volume"
    (volume / "nvidia").mkdir(parents=True)
    os.mkfifo(volume / "nvidia/params")
    mounts = [bundles.bind(volume, "/proc/driver", ["rbind", "rw"]), *case.driver]
    waits = "READ | posix.O_NOFOLLOW", "posix.O_RDONLY"
    outcome, before = {}, bundles.snapshot(volume)
    for name, ready in both_ways(case, waits):
        result = ready.run(runtime, ["/bin/quiet"], mounts=mounts, options=["--timeout", "0.1"])
        if Path(runtime).name != "crun":
            assert "inside /proc" in result.errors
            return
        assert result.status == 0
        outcome[name] = "ldcache" in {step["name"] for step in result.report["steps"]}
        assert bundles.snapshot(volume) == before
    assert outcome == {"with": True, "without": False}


def test_a_name_in_a_mount_shows_no_other_gpu(case, runtime):
    """What is mounted below /proc/driver/nvidia stays if it is the driver's own entry of the name.

    So another hook of ours has left its GPU; a volume at another GPU's path does not show that.
    """
    script = f"""
    mount -n -t tmpfs none nvidia
    mkdir -p nvidia/gpus/{OTHERS}
    mount -n -t tmpfs none nvidia/gpus/{OTHERS}
    """
    outcome = {}
    for name, ready in both_ways(case, ANY):
        result = ready.run(
            runtime, ["/bin/sh", "-c", TELL], options=["--show", f"gpus/{OWN}"],
            change=prepared(ready, script),
        )  # fmt: skip
        assert result.status == 0, result.errors
        *gpus, params = result.output.splitlines()
        assert params == "ModifyDeviceFiles: 0"
        outcome[name] = gpus
    own = f"gpus/{OWN}"
    assert outcome == {"with": [own], "without": [own, f"gpus/{OTHERS}"]}


def test_a_volume_in_its_place_is_left_alone(case, runtime, place):
    """What the container has of its own there stays, and that is told."""
    volume = place / "volume"
    (volume / "gpus").mkdir(parents=True)
    (volume / "params").write_text("mine\n")
    before = bundles.snapshot(volume)
    result = case.make("debian").run(
        runtime, ["/bin/sh", "-c", TELL], options=["--show", f"gpus/{OWN}"],
        change=prepared(case, f"mount -n --bind {volume} nvidia"),
    )  # fmt: skip
    message = "this container has a mount of its own at /proc/driver/nvidia"
    assert result.step("proc") == {"name": "proc", "ok": True, "message": message}
    assert result.output.splitlines()[-1] == "mine"
    assert bundles.snapshot(volume) == before
