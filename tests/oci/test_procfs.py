# SPDX-License-Identifier: Apache-2.0
"""What a container sees of /proc/driver/nvidia after the hook.

This machine's kernel may have no NVIDIA driver. A directory in memory on the container's own
/proc/driver, made by a hook that runs before ours, stands for the driver's part of the procfs.
"""

import json
import shlex
from pathlib import Path

import pytest

from nri_nvidia.oci import procfs

from . import bundles

GPUS = ("0000:07:00.0", "0000:0f:00.0", "00000000:17:00.0")
PARAMS = "Mobile: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"
SCRIPT = """
set -e
test -d "$1/proc/driver"
mount -n -t tmpfs none "$1/proc/driver"
cd "$1/proc/driver"
mkdir -p nvidia/capabilities/gpu0/mig/gi1/ci0 nvidia/capabilities/mig nvidia/patches
printf '%s' {params} > nvidia/params
echo 550.163.01 > nvidia/version
for gpu in {gpus}; do
    mkdir -p nvidia/gpus/$gpu
    echo "Bus Location: $gpu" > nvidia/gpus/$gpu/information
done
for place in gpu0/mig/gi1 gpu0/mig/gi1/ci0; do
    echo DeviceFileMinor: 3 > nvidia/capabilities/$place/access
done
echo DeviceFileMinor: 1 > nvidia/capabilities/mig/config
"""
# The shell of the image has no other program.
TOOLS = """
walk() { for each in "$1"/*; do if [ -d "$each" ]; then walk "$each"; else echo "$each"; fi; done; }
show() { while read -r line; do echo "$line"; done < "$1"; }
cd /proc/driver/nvidia
"""
MASKED = {"root": {"path": "rootfs"}, "linux": {"maskedPaths": ["/proc/kcore"]}}
LOOK = "walk .; show params; show version"


@pytest.fixture
def seen(case):
    """Give a function that runs a container with such a driver and gives what it saw, and more."""
    case.make("debian")

    def run(runtime, *options, look=LOOK, params=PARAMS, change=None):
        script = SCRIPT.format(params=shlex.quote(params), gpus=" ".join(GPUS))
        command = ["/bin/sh", "-c", script, "prepare", str(case.root)]
        before = {"path": command[0], "args": command, "env": ["PATH=/usr/bin:/bin"]}

        def prepare(document):
            document["hooks"]["createContainer"].insert(0, before)
            if change:
                change(document)

        return case.run(runtime, ["/bin/sh", "-c", TOOLS + look], options=options, change=prepare)

    return run


def shows(*entries):
    return [part for entry in entries for part in ("--show", entry)]


def test_only_the_own_gpus_are_listed(seen, runtime):
    """Another GPU's directory is not there, and the driver's texts are."""
    result = seen(runtime, *shows("gpus/0000:07:00.0"))
    assert (result.status, result.errors) == (0, "")
    assert result.output.split() == [
        "./gpus/0000:07:00.0/information", "./params", "./version",
        *PARAMS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0").split(), "550.163.01",
    ]  # fmt: skip
    assert result.step("proc") == {"name": "proc", "ok": True, "message": ""}


def test_a_gpu_with_a_long_domain(seen, runtime):
    """A directory that is named by a domain of eight digits is found by one of four."""
    result = seen(runtime, *shows("gpus/0000:17:00.0"), look="walk gpus; show gpus/*/*")
    place = "gpus/00000000:17:00.0/information"
    assert result.output.split("\n")[:2] == [place, "Bus Location: 00000000:17:00.0"]


def test_a_mig_device_has_its_two_files(seen, runtime):
    """Of the capabilities those of the own instances are there, and not the one to make others."""
    instance = "capabilities/gpu0/mig/gi1"
    wanted = ("gpus/0000:07:00.0", f"{instance}/access", f"{instance}/ci0/access")
    result = seen(runtime, *shows(*wanted), look="walk capabilities")
    assert sorted(result.output.split()) == [f"{instance}/access", f"{instance}/ci0/access"]


def test_without_a_gpu_none_is_listed(seen, runtime):
    """With no entry to show, as for `none`, the driver's texts alone are there."""
    result = seen(runtime, look="echo *")
    assert result.output == "params version\n"


def test_everything_but_the_switch(seen, runtime):
    """With a point all entries are there, the parameter is switched all the same."""
    result = seen(runtime, *shows("."), look=LOOK)
    assert {f"./gpus/{gpu}/information" for gpu in GPUS} < set(result.output.split("\n"))
    assert "./capabilities/mig/config" in result.output
    assert "ModifyDeviceFiles: 0" in result.output


def test_nothing_in_it_can_be_changed(seen, runtime):
    """It is read-only, also for the container's root, and holds no programs."""
    look = "for each in params new gpus/*/information; do (echo > $each) || echo $?; done"
    result = seen(runtime, *shows("gpus/0000:07:00.0"), look=look)
    assert result.output == "2\n2\n2\n"
    assert result.errors.count("Read-only file system") == 3


def test_the_host_has_no_mount_of_it(seen, runtime):
    """Also with shared propagation nothing of it is mounted in the host's namespace."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        before = file.read()

    def share(document):
        document["linux"]["rootfsPropagation"] = "shared"

    assert seen(runtime, *shows("gpus/0000:07:00.0"), change=share).status == 0
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        assert file.read() == before


def test_an_entry_that_is_not_there(seen, runtime):
    """It is reported by name, and what is to be hidden is hidden all the same."""
    result = seen(runtime, *shows("gpus/0000:99:00.0", "gpus/0000:07:00.0"), look="walk .")
    message = "/proc/driver/nvidia has no gpus/0000:99:00.0"
    assert result.step("proc") == {"name": "proc", "ok": False, "message": message}
    assert result.output.split() == ["./gpus/0000:07:00.0/information", "./params", "./version"]


def test_a_container_that_may_hold_others(seen, runtime):
    """Where the engine hides nothing of /proc, a user namespace inside can mount one of its own."""

    def unmask(document):
        del document["linux"]["maskedPaths"]

    result = seen(runtime, *shows("gpus/0000:07:00.0"), change=unmask)
    assert result.step("proc")["message"] == "this container is to see all of /proc"
    assert "ModifyDeviceFiles: 1" in result.output
    assert all(f"./gpus/{gpu}/information" in result.output for gpu in GPUS)


ALONE = """
mount -n -t proc proc "$0/proc"
{script}
"$@" || exit
{look}
"""


@pytest.mark.parametrize("label", ["", "system_u:object_r:container_file_t:s0:c1,c2"])
def test_the_label_of_the_containers_mounts(case, label):
    """The cover takes the container's label where the kernel has SELinux, and is there in any case."""
    case.make("debian").put_driver_in_root()
    script = SCRIPT.format(params=shlex.quote(PARAMS), gpus=" ".join(GPUS))
    look = 'cd /; cat "$0/proc/driver/nvidia/params"; grep driver/nvidia /proc/self/mountinfo >&2'
    text = ALONE.format(script=script.replace("$1", "$0"), look=look)
    prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", text, str(case.root)]
    document = {**MASKED, "linux": {**MASKED["linux"], "mountLabel": label}}
    result = case.direct(*shows("gpus/0000:07:00.0"), prefix=prefix, document=document)
    assert result.step("proc") == {"name": "proc", "ok": True, "message": ""}
    assert "ModifyDeviceFiles: 0" in result.output
    labelled = Path("/sys/fs/selinux/enforce").exists() and bool(label)
    assert (f'context="{label}"' in result.errors) is labelled


def test_a_step_that_is_left_out(seen, runtime):
    """With the step skipped the container sees all that the kernel shows."""
    result = seen(runtime, *shows("gpus/0000:07:00.0"), "--skip", "proc")
    assert "ModifyDeviceFiles: 1" in result.output
    assert [step["name"] for step in result.report["steps"]] == ["view", "links", "ldcache"]


def test_two_hooks_of_one_container(seen, runtime):
    """Each CDI device may bring a hook: what both show is there, and the rest is not."""
    instance = "capabilities/gpu0/mig/gi1"

    def twice(document):
        (first, own) = document["hooks"]["createContainer"]
        other = ["gpus/0000:17:00.0", f"{instance}/access"]
        args = [each for each in own["args"] if each not in ("--show", "gpus/0000:07:00.0")]
        more = {**own, "args": [*args, *shows(*other)]}
        document["hooks"]["createContainer"] = [first, more, own]

    result = seen(runtime, *shows("gpus/0000:07:00.0"), change=twice, look="walk .")
    assert set(result.output.split()) == {
        f"./{instance}/access",
        "./gpus/00000000:17:00.0/information",
        "./gpus/0000:07:00.0/information",
        "./params",
        "./version",
    }
    assert result.errors == ""


@pytest.mark.alone
def test_a_user_namespace(seen, runtime):
    """The root of a user namespace has it as well."""

    def change(document):
        document["linux"]["namespaces"].append({"type": "user"})
        for kind in ("uidMappings", "gidMappings"):
            document["linux"][kind] = [{"containerID": 0, "hostID": 0, "size": 65536}]

    result = seen(runtime, *shows("gpus/0000:07:00.0"), change=change)
    assert result.step("proc")["ok"], result
    assert result.output.startswith("./gpus/0000:07:00.0/information\n./params\n./version\n")


def test_a_kernel_without_the_driver(case, runtime):
    """Where /proc has nothing of the driver there is nothing to do, and no failure."""
    result = case.make("debian").run(runtime)
    message = "this container's /proc has no driver/nvidia"
    assert result.step("proc") == {"name": "proc", "ok": True, "message": message}


@pytest.mark.parametrize("where", ["proc", "proc/driver", "proc/driver/nvidia"])
def test_an_image_cannot_lead_it_elsewhere(case, where):
    """Links in the image's own /proc, where nothing is mounted, are not followed."""
    case.make("debian").put_driver_in_root()
    outside = case.place / "outside"
    for name in ("driver/nvidia", "nvidia"):
        (outside / name).mkdir(parents=True)
    (outside / "params").write_text(PARAMS)
    (case.root / "proc").rmdir()
    link = case.root / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    before = bundles.snapshot(outside)
    result = case.direct("--show", ".", document=MASKED)
    assert result.step("proc")["ok"]
    assert result.step("proc")["message"]
    assert bundles.snapshot(outside) == before


def test_a_directory_of_the_image_is_no_procfs(case):
    """What an image has at /proc/driver/nvidia is left alone and told."""
    case.make("debian").put_driver_in_root()
    (case.root / "proc/driver/nvidia").mkdir(parents=True)
    (case.root / "proc/driver/nvidia/params").write_text(PARAMS)
    result = case.direct("--show", ".", document=MASKED)
    assert result.step("proc")["message"] == "this container's /proc is not the kernel's"
    assert (case.root / "proc/driver/nvidia/params").read_text() == PARAMS


@pytest.mark.parametrize("text", ["", "gpus/../..", "/gpus", "gpus/", "./params", "a//b", ".."])
def test_only_entries_below_it_can_be_named(case, text):
    """A path that leads out, or is none, is refused before anything is done."""
    case.make("debian").put_driver_in_root()
    result = case.direct("--show", text)
    assert json.dumps(result.report["steps"]).count(f"--show does not take {text!r}") == 1


def test_the_switch_is_a_whole_line():
    """Only the line itself is switched, and what has none is as it was."""
    assert procfs.without_new_nodes(b"XModifyDeviceFiles: 1\n") == b"XModifyDeviceFiles: 1\n"
    assert procfs.without_new_nodes(b"a\nModifyDeviceFiles: 1") == b"a\nModifyDeviceFiles: 0\n"
