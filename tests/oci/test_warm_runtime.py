# SPDX-License-Identifier: Apache-2.0
"""A process that stands ready does for nri-nvidia-runtime what its client would."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from nri_nvidia.oci import install

from . import standing
from .test_client import PATCH, SPEC, answering, interpreter, place, put
from .test_runtime_front import FRONT
from .test_warm import taken, until

__all__ = ("interpreter", "place")
ASKING = {**SPEC, "process": {**SPEC["process"], "env": ["NVIDIA_VISIBLE_DEVICES=all"]}}
PLAIN = {**SPEC, "process": {**SPEC["process"], "env": ["PATH=/bin"]}}


@pytest.fixture
def running(place, python_hook):
    """A process that stands ready, with a client in place that is no program of anybody's."""
    client = place / "run/runtime/nri-nvidia-client"
    client.write_text("#!/nowhere/python3 -IS\n")
    found = standing.start(python_hook, place / "run")
    yield found
    standing.end(found)


def call(place, *, spec=None, words=(), bundle=None, prefix=(), cwd=None):
    """Call the front; give exit status, errors, and the words of the runtime that it became."""
    if spec is not None:
        put(place, json.dumps(spec))
    (place / "out/started").unlink(missing_ok=True)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NRI_NVIDIA_RUN": f"{place}/run",
           "NRI_NVIDIA_RUNTIME": f"{place}/real"}  # fmt: skip
    with subprocess.Popen(
        [*prefix, FRONT, *words, "create", "--bundle", bundle or place / "bundle", "the-id"],
        env=env, cwd=cwd or place, stderr=subprocess.PIPE, text=True,
    ) as front:  # fmt: skip
        errors = front.communicate(timeout=60)[1]
    started = place / "out/started"
    lines = started.read_text().splitlines()[1:] if started.exists() else None
    return front.returncode, errors, lines, front.pid


def read(place):
    """Give what the bundle's config.json holds."""
    return json.loads((place / "bundle/config.json").read_text())


def test_a_container_that_asks_for_nothing(place, running):
    """The runtime is started, and who stands ready does not come to know of it."""
    before = running.folder.stat().st_mtime_ns
    status, errors, words, _ = call(place, spec=PLAIN)
    assert (status, errors, words[0]) == (0, "", "create")
    assert running.folder.stat().st_mtime_ns == before
    assert read(place) == PLAIN


def test_a_container_with_gpus(place, running):
    """The daemon is asked for the process that was called, and its edits are made."""
    with answering(place, {"patch": PATCH}) as asked:
        status, errors, words, pid = call(place, spec=ASKING)
    assert (status, errors, words[-1]) == (0, "", "the-id")
    assert (asked[0]["process"], asked[0]["id"], asked[0]["stays"]) == (pid, "the-id", False)
    assert "A=b" in read(place)["process"]["env"]
    assert [hook["path"] for hook in read(place)["hooks"]["createContainer"]][-1] == "/p"


def test_a_refusal(place, running):
    """It is said where engines look, no runtime is started, and the file is as it was."""
    log = place / "out/log"
    words = ["--log", str(log), "--log-format", "json"]
    with answering(place, {"message": "no such GPU; this node has 0-7"}):
        status, errors, started, _ = call(place, spec=ASKING, words=words)
    assert (status, started) == (1, None)
    assert errors == "nri-nvidia: no such GPU; this node has 0-7\n"
    assert json.loads(log.read_text())["msg"] == "nri-nvidia: no such GPU; this node has 0-7"
    assert read(place) == ASKING


def test_without_a_daemon(place, running):
    """Who asks for a GPU is told that nobody answers, and what to start."""
    program = place / "run/runtime/nri-nvidia-client.py"
    assert "RESTART = 0.1" in program.read_text()
    status, errors, started, _ = call(place, spec=ASKING)
    assert (status, started) == (1, None)
    assert "asks for a GPU (NVIDIA_VISIBLE_DEVICES=all)" in errors
    assert "systemctl start nri-nvidia" in errors


@pytest.mark.parametrize("spec", [PLAIN, ASKING])
def test_a_caller_in_another_mount_namespace(place, running, spec):
    """The file that counts is the one that the caller sees, not what is here by that name."""
    other = ASKING if spec is PLAIN else PLAIN
    put(place, json.dumps(spec))
    (place / "seen").mkdir()
    (place / "bundle/config.json").rename(place / "seen/config.json")
    put(place, json.dumps(other))
    script = 'mount -n --bind "$0/seen" "$0/bundle" && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", script, str(place)]
    with answering(place, {"patch": PATCH}) as asked:
        status, errors, words, _ = call(place, prefix=prefix)
        if spec is PLAIN:
            assert asked == []
    assert (status, errors, words[0]) == (0, "", "create")
    assert read(place) == other
    seen = json.loads((place / "seen/config.json").read_text())
    assert ("hooks" in seen) == (spec is ASKING)


def test_a_caller_in_another_root(place, running):
    """A link in the caller's root leads to a file there."""
    root = place / "root"
    for name in ("bundle", "held"):
        (root / f"{place}/{name}".strip("/")).mkdir(parents=True)
    put(place, json.dumps(PLAIN))
    held = root / f"{place}/held/config.json".strip("/")
    held.write_text(json.dumps(ASKING))
    (root / f"{place}/bundle/config.json".strip("/")).symlink_to(place / "held/config.json")
    script = (
        'for each in bin lib lib64 usr proc dev; do mkdir -p "$0/root/$each"; '
        'mount -n --rbind "/$each" "$0/root/$each"; done; '
        'for each in run out; do mkdir -p "$0/root$0/$each"; '
        'mount -n --bind "$0/$each" "$0/root$0/$each"; done; cp "$0/real" "$0/root$0/real"; '
        f'mkdir -p "$0/root{FRONT.parent}"; mount -n --bind {FRONT.parent} "$0/root{FRONT.parent}"; '
        'exec chroot "$0/root" "$@"'
    )
    prefix = ["unshare", "--mount", "sh", "-c", script, str(place)]
    status, errors, words, _ = call(place, prefix=prefix)
    assert (status, words) == (1, None)
    assert "config.json cannot be opened" in errors  # a link is not followed: it was looked at
    assert "asks for a GPU" not in errors


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "not JSON"])
def test_a_config_that_is_none(place, running, kind):
    """It is the runtime's to refuse what holds no request, and nobody waits for a FIFO."""
    path = place / "bundle/config.json"
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "not JSON":
        path.write_text("NVIDIA_VISIBLE_DEVICES=all")
    status, errors, words, _ = call(place)
    assert status == 0 or "config.json" in errors or "/nowhere/python3" in errors or words is None
    if kind == "not JSON":
        assert (status, words) == (1, None)
        assert "is not a whole JSON object" in errors
    if kind == "missing":
        assert (status, words[0]) == (0, "create")
    until(lambda: not taken(running), "the slot is free")


def test_a_config_that_is_too_long(place, running):
    """It is the runtime's own business where it asks for nothing."""
    spec = {**PLAIN, "annotations": {"a": "b" * (16 << 20)}}
    status, errors, words, _ = call(place, spec=spec)
    assert (status, errors, words[0]) == (0, "", "create")


@pytest.mark.parametrize("number", [7, 8, 9])
def test_descriptors_for_the_container(place, running, number):
    """What the caller has open goes to the runtime, as with LISTEN_FDS or --preserve-fds."""
    (place / "real").write_text(f"#!/bin/sh\necho given >&{number}\n")
    prefix = ["sh", "-c", f'exec {number}>"$0"; exec "$@"', str(place / "out/given")]
    status, errors, _, _ = call(place, spec=PLAIN, prefix=prefix)
    assert (status, errors) == (0, "")
    assert (place / "out/given").read_text() == "given\n"


def test_a_client_that_a_newer_daemon_puts_in_place(place, python_hook):
    """One that was there before is not asked by any more."""
    client = place / "run/runtime/nri-nvidia-client.py"
    newer = client.read_text()
    client.write_text("def prepared(of_another_version):\n    raise OSError\n")
    running = standing.start(python_hook, place / "run")
    try:
        install.replace(client, newer.encode())
        with answering(place, {"patch": PATCH}) as asked:
            until(lambda: call(place, spec=ASKING)[0] == 0, "the newer one is used")
        assert len(asked) == 1
    finally:
        standing.end(running)


def test_other_verbs_ask_nobody(place, running):
    """`run` stays as long as its container, and its process is to be watched: Python is that."""
    put(place, json.dumps(PLAIN))
    env = {"PATH": "/usr/bin:/bin", "NRI_NVIDIA_RUN": f"{place}/run",
           "NRI_NVIDIA_RUNTIME": f"{place}/real"}  # fmt: skip
    before = Path(f"{place}/run/warm").stat().st_mtime_ns
    for words in (["run", "--bundle", f"{place}/bundle", "x"], ["state", "x"]):
        subprocess.run([FRONT, *words], env=env, cwd=place, check=True)
    assert Path(f"{place}/run/warm").stat().st_mtime_ns == before
