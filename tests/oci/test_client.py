# SPDX-License-Identifier: Apache-2.0
"""The program that asks for one container: what it writes, what it refuses, what it starts."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from nri_nvidia.oci import install

MARKERS = (b"NVIDIA_VISIBLE_DEVICES=", b"CUDA_VERSION=", b"MY_GPU=")
SPEC = {
    "ociVersion": "1.0.2",
    "process": {
        "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0"],
        "later": {"kept": [1, 2.5, None]},
    },
    "root": {"path": "rootfs"},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "linux": {
        "cgroupsPath": "/a/b",
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
    },
    "unknown": "Sch\u00f6n",
}
PATCH = {
    "env": {"A": "b"},
    "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
    "rules": [{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}],
    "mounts": [{"destination": "/usr/local/nvidia", "source": "/v", "type": "bind"}],
    "hooks": {"createContainer": [{"path": "/p", "args": ["p", "/x/nri-nvidia-hook"]}]},
}


@pytest.fixture(scope="session")
def interpreter():
    return install.interpreter()


@pytest.fixture
def place(interpreter):
    """A short directory that any user may enter: the client in place, a bundle, a runtime."""
    with tempfile.TemporaryDirectory(prefix="nnc-", dir="/tmp") as name:
        top = Path(name)
        top.chmod(0o755)
        install.install_client(str(top / "run/runtime"), interpreter, MARKERS)
        program = top / "run/runtime/nri-nvidia-client.py"
        hurried = program.read_text().replace("\nRESTART = 3.0", "\nRESTART = RESTARTING")
        assert "RESTARTING" in hurried
        program.write_text(hurried.replace("RESTARTING", "0.1"))
        runtime = top / "real"
        runtime.write_text(f'#!/bin/sh\nprintf \'%s\\n\' "$PWD" "$@" >{top}/out/started\n')
        runtime.chmod(0o755)
        for each in ("bundle", "out"):
            (top / each).mkdir()
            (top / each).chmod(0o755)
        put(top, json.dumps(SPEC))
        yield top


def put(place, text):
    """Write the bundle's config.json."""
    (place / "bundle/config.json").write_text(text, encoding="utf-8")
    (place / "bundle/config.json").chmod(0o644)


@contextlib.contextmanager
def answering(place, answer, before=lambda: None):
    """Be a daemon for one question, which is yielded as a list once it has come."""
    asked = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/run/runtime.sock")
        os.chmod(f"{place}/run/runtime.sock", 0o666)
        listener.listen()

        def serve():
            with contextlib.suppress(OSError):
                channel, _ = listener.accept()
                with channel:
                    data = b"".join(iter(lambda: channel.recv(65536), b""))
                    asked.append(json.loads(data))
                    before()
                    channel.sendall(
                        answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                    )

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            os.unlink(f"{place}/run/runtime.sock")


def start(place, interpreter, words=("create", "x"), **options):
    """Start the client as the front does; give exit status, standard error and what was started."""
    (place / "out/started").unlink(missing_ok=True)
    command = [
        interpreter, "-I", "-S", place / "run/runtime/nri-nvidia-client", place / "run",
        place / "real", place / "bundle/config.json", "the-id", *words,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=place,
        env={"KEPT": "1"},
        **options,
    )
    started = place / "out/started"
    return (
        done.returncode,
        done.stderr,
        started.read_text().split("\n")[1:-1] if started.exists() else None,
    )


def config(place):
    return json.loads((place / "bundle/config.json").read_text(encoding="utf-8"))


def test_the_edits_are_made_and_the_runtime_started(place, interpreter):
    """All else is kept: unknown keys, owner, mode; the runtime gets the words as they were."""
    os.chown(place / "bundle/config.json", 0, 1234)
    (place / "bundle/config.json").chmod(0o640)
    words = ["--root", "/r", "create", "--bundle", "bundle", "the-id"]
    with answering(place, {"patch": PATCH}) as asked:
        assert start(place, interpreter, words) == (0, "", words)
    found = config(place)
    assert found["process"].pop("env") == [*SPEC["process"]["env"], "A=b"]
    assert found["process"] == {"later": {"kept": [1, 2.5, None]}}
    assert found["linux"]["resources"]["devices"] == [
        {"allow": False, "access": "rwm"},
        *PATCH["rules"],
    ]
    assert found["linux"]["devices"] == PATCH["devices"]
    assert found["mounts"] == [*SPEC["mounts"], *PATCH["mounts"]]
    assert (found["hooks"], found["unknown"], found["root"]) == (
        PATCH["hooks"],
        SPEC["unknown"],
        SPEC["root"],
    )
    status = (place / "bundle/config.json").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o640, 0, 1234)
    assert os.listdir(place / "bundle") == ["config.json"]
    (question,) = asked
    shown = {
        "process": {"env": SPEC["process"]["env"]},
        "mounts": SPEC["mounts"],
        "linux": {"cgroupsPath": "/a/b"},
    }
    assert question == {
        "protocol": 1,
        "id": "the-id",
        "spec": shown,
        "nested": False,
        "stays": False,
        "process": 0,
    }


@pytest.mark.parametrize(
    ("words", "stays"),
    [(["run", "x"], True), (["run", "-d", "x"], False), (["run", "--detach", "x"], False)],
)
def test_a_process_that_stays_says_so(place, interpreter, words, stays):
    """`run` in the foreground is there as long as its container."""
    with answering(place, {"patch": {}}) as asked:
        assert start(place, interpreter, words)[0] == 0
    assert asked[0]["stays"] is stays


def test_a_second_time_nothing_is_asked(place, interpreter):
    """Edits that came before, through NRI, CDI or an earlier try, stay as they are."""
    with answering(place, {"patch": PATCH}):
        assert start(place, interpreter)[0] == 0
    before = (place / "bundle/config.json").read_bytes()
    assert start(place, interpreter) == (0, "", ["create", "x"])
    assert (place / "bundle/config.json").read_bytes() == before


def test_nothing_given_leaves_the_file_alone(place, interpreter):
    """It is not even written again."""
    before = (place / "bundle/config.json").stat()
    with answering(place, {"patch": {}}):
        assert start(place, interpreter) == (0, "", ["create", "x"])
    assert (place / "bundle/config.json").stat().st_ino == before.st_ino


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_refusal_is_where_engines_look(place, interpreter, form):
    """The daemon's sentence: in the runtime's log and on standard error; nothing is started."""
    sentence = 'NVIDIA_VISIBLE_DEVICES=9: no such GPU ("\u00fc")'
    words = ["--log", "out/log", "--log-format", form, "create", "x"]
    with answering(place, {"message": sentence}):
        code, told, started = start(place, interpreter, words)
    assert (code, started) == (1, None)
    assert told == f"nri-nvidia: {sentence}\n"
    line = (place / "out/log").read_text()
    if form == "json":
        assert (json.loads(line)["level"], json.loads(line)["msg"]) == (
            "error",
            f"nri-nvidia: {sentence}",
        )
    else:
        assert 'level=error msg="nri-nvidia: NVIDIA_VISIBLE_DEVICES=9' in line
    assert config(place) == SPEC


def test_without_a_log_standard_error_has_the_form(place, interpreter):
    """podman reads JSON there."""
    with answering(place, {"message": "no"}):
        told = start(place, interpreter, ["--log-format=json", "create", "x"])[1]
    assert json.loads(told)["msg"] == "nri-nvidia: no"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (json.dumps(SPEC)[:-7], "is not a whole JSON object: it ends too early"),
        (json.dumps(SPEC)[:40], "is not a whole JSON object: it ends too early"),
        ("", "is not a whole JSON object: no value behind 0 characters"),
        ("[1]", "is not a whole JSON object"),
        ('{"a":NaN}', "is not a whole JSON object: NaN and Infinity are no numbers"),
        ('{"a":' * 100000 + "1" + "}" * 100000, "whole JSON object: it is nested too deep"),
        ('\ufeff{"a":1}', "is not a whole JSON object: it begins with a byte order mark"),
        ('{"a":01}', "is not a whole JSON object"),
        ('{"a":1,}', "is not a whole JSON object"),
        ('{"a":1}\x0c', "is not a whole JSON object: it ends too early"),
        ('{"a":1}{"a":1}', "is not a whole JSON object: behind 7 characters there is more"),
        ('{"a":?}', "is not a whole JSON object: no value behind 5 characters"),
        ('{"Process":{"env":[]}}', "has 'Process', which runtimes take differently"),
        ('{"linux":{"DEVICES":[]}}', "has 'DEVICES', which runtimes take differently"),
        ('{"\\u017fpec":1,"hook\\u017f":{}}', "which runtimes take differently"),
        ('{"linux":[]}', "is no config.json: linux is no object"),
        ('{"linux":{"resources":"x"}}', "is no config.json: resources is no object"),
        ('{"linux":{"resources":{"devices":{}}}}', "is no config.json: devices is no list"),
        ('{"mounts":[1]}', "is no config.json: an entry of a list is no object: 1"),
        ('{"a":[{"b":1,"c":2,"b":1}]}', "an object in it has 'b' twice; remove one"),
        ('{"process":{},"process":{"env":[]}}', "has 'process' twice"),
        ('{"mounts":{"a":1}}', "is no config.json"),
        (" " * (16 << 20) + "{}", "16777218 bytes; 16777216 are read at most"),
    ],
)
def test_what_is_no_configuration_is_refused(place, interpreter, text, told):
    """The file stays as it is, and nothing beside it."""
    put(place, text)
    with answering(place, {"patch": PATCH}):
        code, said, started = start(place, interpreter)
    assert (code, started) == (1, None)
    assert told in said
    assert (place / "bundle/config.json").read_text() == text
    assert os.listdir(place / "bundle") == ["config.json"]


def test_what_is_not_utf8_is_refused(place, interpreter):
    """Go would put another sign in its place; no engine writes such a file."""
    path = place / "bundle/config.json"
    path.write_bytes(b'{"process":{"env":["A=\xff"]}}')
    with answering(place, {"patch": PATCH}):
        code, said, started = start(place, interpreter)
    assert (code, started) == (1, None)
    assert "is not a whole JSON object: byte 22 is not UTF-8" in said


NUMBERS = (
    "-0", "0.1000000000000000055511151231257827", "1E400", "1e-400", "1.0", "1e5", "-1.50e+07",
    "9223372036854775807", "18446744073709551616", "1" * 5000, "-0.0",
)  # fmt: skip


def test_what_is_not_edited_is_written_as_it_was(place, interpreter):
    """Numbers to the digit, half surrogates, the order of keys, texts that look like numbers."""
    numbers = ",".join(NUMBERS)
    more = f'"zz":[{numbers}],"a":{{"\\ud800":"1.0","":[[],{{}}]}}'
    put(place, f"{json.dumps(SPEC, separators=(',', ':'))[:-1]},{more}}}")
    with answering(place, {"patch": PATCH}):
        code, said, _ = start(place, interpreter)
    assert (code, said) == (0, "")
    assert (place / "bundle/config.json").read_text().partition('"unknown":')[2] == (
        f'"Sch\\u00f6n",{more},"hooks":{json.dumps(PATCH["hooks"], separators=(",", ":"))}}}'
    )


@pytest.mark.parametrize("value", [None, True, 5, 1.5, "x", [], {}, [1], {"a": 1}])
@pytest.mark.parametrize("daemon", [True, False])
def test_whatever_stands_in_a_hooks_place(place, interpreter, value, daemon):
    """It is the daemon's or the runtime's to refuse, and no defect of the program's."""
    for hooks in (
        value,
        {"prestart": value},
        {"prestart": [value]},
        {"prestart": [{"args": value}]},
    ):
        put(place, json.dumps({"process": {"env": value}, "mounts": value, "hooks": hooks}))
        with answering(place, {"patch": {}}) if daemon else contextlib.nullcontext():
            assert start(place, interpreter) == (0, "", ["create", "x"])


def _linked(place):
    (place / "bundle/config.json").rename(place / "out/real.json")
    (place / "bundle/config.json").symlink_to(place / "out/real.json")


def _fifo(place):
    (place / "bundle/config.json").unlink()
    os.mkfifo(place / "bundle/config.json")


SPOILT = {
    "link": (_linked, "a link is not followed"),
    "fifo": (_fifo, "is not a plain file"),
    "file's owner": (
        lambda p: os.chown(p / "bundle/config.json", 1234, 0),
        "belongs to user 1234",
    ),
    "directory's owner": (lambda p: os.chown(p / "bundle", 1234, 0), "belongs to user 1234"),
    "open directory": (lambda p: (p / "bundle").chmod(0o1777), "can be written by everybody"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_bundle_that_is_not_the_callers_is_refused(place, interpreter, how):
    """Root changes nothing in a place that another user could have exchanged."""
    spoil, told = SPOILT[how]
    spoil(place)
    code, said, started = start(place, interpreter)
    assert (code, started) == (1, None)
    assert told in said


def test_a_file_that_everybody_may_write_is_closed_first(place, interpreter):
    """buildkitd makes such a one; what is then read is its owner's, and stays so."""
    path = place / "bundle/config.json"
    path.chmod(0o666)
    modes = []
    with answering(place, {"patch": PATCH}, lambda: modes.append(path.stat().st_mode & 0o777)):
        assert start(place, interpreter)[0] == 0
    assert [*modes, path.stat().st_mode & 0o777] == [0o644, 0o644]
    assert "hooks" in config(place)


def test_a_hard_link_elsewhere_keeps_its_content(place, interpreter):
    """The name in the bundle gets a new file."""
    os.link(place / "bundle/config.json", place / "out/other")
    with answering(place, {"patch": PATCH}):
        assert start(place, interpreter)[0] == 0
    assert json.loads((place / "out/other").read_text()) == SPEC
    assert "hooks" in config(place)


@pytest.mark.parametrize("how", ["written", "exchanged", "removed"])
def test_a_file_changed_meanwhile_is_refused(place, interpreter, how):
    """What another wrote is not lost."""

    def change():
        path = place / "bundle/config.json"
        path.unlink() if how != "written" else None
        if how != "removed":
            path.write_text("{}")

    with answering(place, {"patch": PATCH}, change):
        code, told, started = start(place, interpreter)
    assert (code, started) == (1, None)
    assert "was changed by another meanwhile" in told
    left = {each.name: each.read_text() for each in (place / "bundle").iterdir()}
    assert left == ({} if how == "removed" else {"config.json": "{}"})


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        (["NVIDIA_VISIBLE_DEVICES=void"], ""),
        (["NVIDIA_VISIBLE_DEVICES= ,"], ""),
        (["NVIDIA_VISIBLE_DEVICES=0,void"], ""),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES="], ""),
        (["CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12"], ""),
        (["CUDA_VERSION=11", "NVIDIA_VISIBLE_DEVICES=void"], ""),
        (["NVIDIA_VISIBLE_DEVICES=0"], "NVIDIA_VISIBLE_DEVICES=0"),
        (["NVIDIA_VISIBLE_DEVICES=none"], "NVIDIA_VISIBLE_DEVICES=none"),
        (["CUDA_VERSION=11"], "CUDA_VERSION=11"),
        (["MY_GPU=GPU-1"], "MY_GPU=GPU-1"),
    ],
)
def test_without_a_daemon_only_what_asks_is_refused(place, interpreter, env, asked):
    """And the sentence says who does not answer, and what to do."""
    put(place, json.dumps({"process": {"env": env}}))
    code, told, started = start(place, interpreter)
    if not asked:
        assert (code, told, started) == (0, "", ["create", "x"])
        return
    assert (code, started) == (1, None)
    assert f"asks for a GPU ({asked}" in told
    assert f"nri-nvidia does not answer at {place}/run/runtime.sock" in told
    assert "systemctl start nri-nvidia" in told


@pytest.mark.parametrize(
    "spec",
    [
        {"process": {"env": 1}},
        {"process": {"env": "A=b"}, "hooks": {"prestart": [{"path": "/x", "args": 1}]}},
        {"hooks": {"prestart": 1}, "mounts": 1, "annotations": 1},
    ],
)
def test_a_list_that_is_none_is_the_runtimes_to_refuse(place, interpreter, spec):
    """Without a daemon, what cannot ask for anything goes on as it is: the real runtime judges."""
    put(place, json.dumps(spec))
    assert start(place, interpreter) == (0, "", ["create", "x"])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "ended while it was asked"),
        (b"{", "the answer of nri-nvidia is not a whole JSON object"),
        (b"{}", "an answer of another version"),
        (b'{"patch": {"devices": [1]}}', "is no config.json"),
    ],
)
def test_half_an_answer_is_none(place, interpreter, answer, told):
    """The container is refused and its file stays."""
    with answering(place, answer):
        code, said, started = start(place, interpreter)
    assert (code, started) == (1, None)
    assert told in said
    assert config(place) == SPEC


def test_a_user_is_served_with_his_own_rights(place, interpreter):
    """A bundle of his own, not root's."""
    with answering(place, {"patch": PATCH}):
        code, told, _ = start(place, interpreter, user=1234, group=1234, extra_groups=[])
    assert (code, "belongs to user 0, and user 1234 is to run it" in told) == (1, True)
    for path in (place / "bundle", place / "bundle/config.json", place / "out"):
        os.chown(path, 1234, 1234)
    with answering(place, {"patch": PATCH}):
        code, told, started = start(place, interpreter, user=1234, group=1234, extra_groups=[])
    assert (code, told, started) == (0, "", ["create", "x"])
    assert (place / "bundle/config.json").stat().st_uid == 1234


def test_a_runtime_that_cannot_be_started_is_named(place, interpreter):
    """Rather than a container that never comes."""
    (place / "real").write_text("not a program")
    with answering(place, {"patch": {}}):
        code, told, _ = start(place, interpreter)
    assert (code, f"{place}/real cannot be started" in told) == (1, True)


def test_its_modules_are_few(place, interpreter):
    """What it imports is in C, or was there before."""
    code = f"import sys; sys.argv = ['x']; exec(open('{place}/run/runtime/nri-nvidia-client.py').read(), {{'__name__': 'x'}}); print(*sys.modules)"
    done = subprocess.run(
        [interpreter, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    )
    assert {"re", "json", "socket", "typing", "os.path", "enum"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize("patch", [PATCH, {}])
def test_the_stand_in_for_gpus_is_taken_out(place, interpreter, patch):
    """docker's --gpus adds a hook of that name; only a link to the front is ours."""
    ours, other = place / "bin/nvidia-container-runtime-hook", "/no/nvidia-container-runtime-hook"
    ours.parent.mkdir()
    ours.symlink_to("/opt/nri-nvidia/bin/nri-nvidia-runtime")
    hooks = [{"path": str(ours), "args": ["h", "prestart"]}, {"path": other}]
    put(place, json.dumps({**SPEC, "hooks": {"prestart": hooks, "poststop": [{"path": "/x"}]}}))
    with answering(place, {"patch": patch}) as asked:
        assert start(place, interpreter)[0] == 0
    assert asked[0]["spec"]["hooks"]["prestart"] == [{"path": other}]
    found = config(place)["hooks"]
    assert (found["prestart"], found["poststop"]) == ([{"path": other}], [{"path": "/x"}])
    assert found.get("createContainer") == patch.get("hooks", {}).get("createContainer")


def test_the_stand_in_for_gpus_is_taken_out_of_what_came_by_cdi(place, interpreter):
    """`--gpus` beside a CDI device: that device is what the container has, and nobody is asked."""
    ours = place / "bin/nvidia-container-runtime-hook"
    ours.parent.mkdir()
    ours.symlink_to("/opt/nri-nvidia/bin/nri-nvidia-runtime")
    by_cdi = [{"path": "/run/nri-nvidia/hook/nri-nvidia-hook"}]
    hooks = {"prestart": [{"path": str(ours)}], "createContainer": by_cdi}
    put(place, json.dumps({**SPEC, "hooks": hooks}))
    assert start(place, interpreter)[0] == 0
    assert config(place)["hooks"] == {"prestart": [], "createContainer": by_cdi}


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"mounts": [{"destination": "/var/run/nvidia-container-devices/0"}]}, True),
        ({"mounts": [{"destination": "/data"}]}, False),
        ({"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}}, True),
        ({"annotations": {"cdi.k8s.io/x": "vendor.com/net=0"}}, False),
    ],
)
def test_without_a_daemon_ever_started_other_channels_count(place, interpreter, spec, asked):
    """A mount or a CDI name of NVIDIA's; what its settings were nobody knows."""
    (place / "run/runtime/markers").unlink()
    put(place, json.dumps(spec))
    assert start(place, interpreter)[0] == asked


def test_a_daemon_that_comes_back_is_waited_for(place, interpreter):
    """An upgrade of nri-nvidia fails no container."""
    program = place / "run/runtime/nri-nvidia-client.py"
    program.write_text(program.read_text().replace("\nRESTART = 0.1", "\nRESTART = 60.0"))
    command = [
        interpreter, "-I", "-S", place / "run/runtime/nri-nvidia-client", place / "run",
        place / "real", place / "bundle/config.json", "the-id", "create", "x",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=place) as waiting, answering(place, {"patch": PATCH}):
        assert waiting.wait(30) == 0
    assert "hooks" in config(place)
