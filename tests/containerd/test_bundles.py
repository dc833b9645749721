# SPDX-License-Identifier: Apache-2.0
"""Bundles as nobody's engine should write them, through nri-nvidia-runtime to the real runc."""

import json
import os
import subprocess
import threading

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, doors

SAYS = "ls /dev; echo started"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """A daemon on a host with two GPUs."""
    host = tmp_path_factory.mktemp("host")
    simulated.build(host, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
    with daemons.alone(host) as found:
        found.until((found.directory / "runtime/nri-nvidia-client").exists, "its program")
        yield found


@pytest.fixture(scope="module")
def wrapped(daemon, programs):
    """nri-nvidia-runtime in front of runc."""
    return doors.wrapper(daemon, programs["runc"].path)


@pytest.fixture
def bundle(tmp_path, library):
    """A bundle that asks for a GPU and lists its nodes."""
    image = library["busybox"]
    place = tmp_path / "bundle"
    (place / "rootfs").mkdir(parents=True)
    image.unpack(place / "rootfs")
    write(place, config())
    return place


def config(value="1"):
    """Give a config.json's text, with the request early and much behind it."""
    return json.dumps({
        "process": {
            "env": ["PATH=/bin:/usr/bin", f"NVIDIA_VISIBLE_DEVICES={value}"], "cwd": "/",
            "user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "-c", SAYS],
        },
        "ociVersion": "1.0.2", "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc", "uts")]},
    })  # fmt: skip


def write(place, text):
    """Put it in place at once, as an engine would."""
    (place / "new").write_text(text)
    (place / "new").rename(place / "config.json")


def run(wrapped, bundle, *words, cwd="/", name="odd"):
    """Run it; give the finished process."""
    options = words or ("--bundle", str(bundle))
    return subprocess.run(
        [wrapped, "--root", f"{bundle}.state", "run", *options, f"{name}-{os.getpid()}"],
        check=False, capture_output=True, text=True, cwd=cwd, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def refused(done, bundle, before, told):
    """Hold a refusal to its promise: nothing was started, and not a byte is other than before."""
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert told in done.stderr
    assert (bundle / "config.json").read_bytes() == before
    assert sorted(os.listdir(bundle)) == ["config.json", "rootfs"]


def test_ways_to_name_a_bundle(wrapped, bundle):
    """By its path, a relative one, a link, as the working directory, and behind `=`."""
    linked = bundle.parent / "linked"
    linked.symlink_to(bundle.name)
    for words, cwd in (
        (["--bundle", str(bundle)], "/"),
        (["--bundle=bundle"], bundle.parent),
        (["-b", "./linked"], bundle.parent),
        (["--bundle="], bundle),
        ([], bundle),
    ):
        write(bundle, config())
        command = words or ["--no-pivot"]
        done = run(wrapped, bundle, *command, cwd=cwd)
        assert done.returncode == 0, done.stderr
        assert "nvidia1" in done.stdout.split()
        assert "nvidia0" not in done.stdout.split()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.99])
def test_a_truncated_one(wrapped, bundle, share):
    """Wherever the engine was interrupted."""
    text = config()
    before = text[: int(len(text) * share)].encode()
    (bundle / "config.json").write_bytes(before)
    refused(run(wrapped, bundle), bundle, before, "is not a whole JSON object")


def test_a_huge_one(wrapped, bundle):
    """Two hundred megabytes, of which nobody reads more than a few."""
    with (bundle / "config.json").open("r+b") as file:
        file.truncate(200 << 20)
    size = (bundle / "config.json").stat().st_size
    done = run(wrapped, bundle)
    assert (done.returncode, f"has {size} bytes" in done.stderr) == (1, True)
    assert (bundle / "config.json").stat().st_size == size


def test_links_and_others_bundles(wrapped, bundle):
    """What another could exchange is not changed by root."""
    real = bundle.parent / "real.json"
    (bundle / "config.json").rename(real)
    (bundle / "config.json").symlink_to(real)
    refused(run(wrapped, bundle), bundle, real.read_bytes(), "a link is not followed")
    assert (bundle / "config.json").is_symlink()
    (bundle / "config.json").unlink()
    write(bundle, config())
    before = (bundle / "config.json").read_bytes()
    for path, told in ((bundle / "config.json", "belongs to user 1234"), (bundle, "belongs to")):
        os.chown(path, 1234, 1234)
        refused(run(wrapped, bundle), bundle, before, told)
        os.chown(path, 0, 0)
    assert run(wrapped, bundle).returncode == 0


def test_one_that_is_written_all_the_time(wrapped, bundle):
    """Each container is of one of the contents, or is refused; what is there is always whole."""
    ends = threading.Event()

    def writer():
        turn = 0
        while not ends.wait(0.002):
            turn += 1
            write(bundle, config("0" if turn % 2 else "1"))

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        for number in range(12):
            done = run(wrapped, bundle, name=f"busy{number}")
            json.loads((bundle / "config.json").read_text())
            if done.returncode:
                assert (
                    "changed by another meanwhile" in done.stderr or "while it was" in done.stderr
                )
                assert done.stdout == ""
            else:
                assert "started" in done.stdout
    finally:
        ends.set()
        thread.join()
    assert [name for name in os.listdir(bundle) if "nri-nvidia" in name] == []
