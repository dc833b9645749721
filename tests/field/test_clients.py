# SPDX-License-Identifier: Apache-2.0
"""Field cases: clients beyond NRI, engines' configurations, MPS, SELinux's labels."""

import errno
import importlib
import json
import os
import tempfile
from pathlib import Path

import pytest

from nri_nvidia import cli
from nri_nvidia.configure import engines
from nri_nvidia.host import placing
from nri_nvidia.oci import procfs
from tests.configure import trees

from . import harness
from .harness import asked, capable, decide

CONTAINER = "system_u:object_r:container_file_t:s0:c1,c2"
LIBRARY = b"system_u:object_r:lib_t:s0\0"


def files(top):
    """Give what is in each file of a tree."""
    return {path: path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", [2, 3])
def test_no_configuration_is_touched_unasked(tmp_path, capsys, version):
    """FC-089: for containerd 1.7 and 2.x, what would change is shown, and no file is written."""
    path = tmp_path / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'version = {version}\n[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n')
    before = files(tmp_path)
    assert cli.main(["configure", "containerd", "--root", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "-disable = true\n+disable = false\n" in told.out
    assert "--apply" in told.err
    assert files(tmp_path) == before


@pytest.mark.parametrize(("capability", "given"), [("compute", True), ("utility", False)])
def test_the_pipe_of_mps(tmp_path, capability, given):
    """FC-090: MPS' directory is at its place in containers that compute, if the host has it."""
    environment = asked("0", capable(capability))
    found = harness.built(tmp_path, gpus=harness.gpus(1))
    assert "/tmp/nvidia-mps" not in harness.mounted(decide(found, *environment))
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    plan = decide(harness.look(tmp_path), *environment)
    assert ("/tmp/nvidia-mps" in harness.mounted(plan)) is given
    pipes = [each for each in plan.edits.mounts if each.destination == "/tmp/nvidia-mps"]
    assert not any("ro" in each.options for each in pipes)


def generated(capsys, host, *words):
    """Run `cdi generate` for a recorded host; give what it printed."""
    assert cli.main(["cdi", "generate", "--host", str(host), *words]) == 0
    return capsys.readouterr().out


def test_cdi_for_clients_that_nri_does_not_see(tmp_path, capsys):
    """FC-100, FC-134: devices by index, by UUID and all; all has the nodes and files of NRI's way."""
    found = harness.built(tmp_path, gpus=harness.gpus(2))
    document = json.loads(generated(capsys, tmp_path))
    named = {device["name"]: device["containerEdits"] for device in document["devices"]}
    assert set(named) == {"all", "0", "1", *(gpu.uuid for gpu in found.gpus)}
    common = document["containerEdits"]
    plan = decide(found, *asked("all", capable("all")))
    nodes = [*common["deviceNodes"], *named["all"]["deviceNodes"]]
    assert {node["path"] for node in nodes} == set(harness.nodes(plan))
    mounts = [*common["mounts"], *named["all"].get("mounts", [])]
    assert {m["containerPath"]: m["hostPath"] for m in mounts} == harness.mounted(plan)


def test_builds_of_docker():
    """FC-134: BuildKit's RUN steps get GPUs by our runtime, which a drop-in puts on dockerd's PATH."""
    after = trees.settled(
        engines.docker, trees.Paper(), trees.options(builds=True, unit="docker.service")
    )
    (drop_in,) = [path for path in after.files if path.endswith(".conf")]
    assert "PATH=" in after.files[drop_in]


def test_a_user_generates_for_his_own_engine(capsys):
    """FC-111: without root, into a directory of his own, with no node made."""
    user = 1000
    with tempfile.TemporaryDirectory() as place:
        host, own = Path(place, "host"), Path(place, "config/cdi")
        harness.built(host, gpus=harness.gpus(1))
        own.mkdir(parents=True)
        for path in (Path(place), own):
            path.chmod(0o755)
        printed = json.loads(generated(capsys, host))
        os.chown(own, user, user)
        before = files(host)
        os.seteuid(user)
        try:
            generated(capsys, host, "--output", f"{own}/")
        finally:
            os.seteuid(0)
            importlib.invalidate_caches()  # of directories that this user may not list
        (written,) = own.iterdir()
        assert (written.stat().st_uid, json.loads(written.read_text())) == (user, printed)
        assert files(host) == before


def test_the_hooks_files_have_the_containers_label(monkeypatch):
    """FC-112: what the hook mounts of its own is mounted with linux.mountLabel."""
    calls = []
    monkeypatch.setattr(procfs, "call", lambda *arguments: calls.append(arguments))
    procfs.mount_memory(3, CONTAINER)
    (mounted,) = calls
    assert f',context="{CONTAINER}"'.encode() in mounted[-1]


@pytest.mark.parametrize("linked", [True, False])
def test_host_files_keep_their_label(tmp_path, monkeypatch, linked):
    """FC-112: a copy has the label of its source; a hard link, and so the host's file, keeps it."""
    source, place = tmp_path / "libcuda.so.550", tmp_path / "v/libcuda.so.1"
    source.write_bytes(b"library")
    try:
        os.setxattr(source, "security.selinux", LIBRARY)
    except OSError as error:
        pytest.skip(f"no label can be set on {source}: {error.strerror}")
    set_label, given = os.setxattr, []

    def no_link(*_):
        raise OSError(errno.EXDEV, "another file system")

    def label(path, *more, **options):
        given.append(Path(path))
        set_label(path, *more, **options)

    if not linked:
        monkeypatch.setattr(placing.os, "link", no_link)
    monkeypatch.setattr(placing.os, "setxattr", label)
    assert (placing.give(place, str(source), lambda _: None, labels=True) == "link") is linked
    assert given == ([] if linked else [place])
    assert {os.getxattr(path, "security.selinux") for path in (source, place)} == {LIBRARY}
