# SPDX-License-Identifier: Apache-2.0
"""What `runtime.sh` gives to the real runtime at once, and what to the program that asks."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from nri_nvidia.oci import install

FRONT = Path(__file__).parents[2] / "nri_nvidia/oci/runtime.sh"
ASKING = {"process": {"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0"]}}
PLAIN = {"process": {"env": ["PATH=/bin", "VISIBLE=1", "A=<b>&"]}}
GLOBAL = (
    [],
    ["--root", "create"],
    ["--root=/run/x", "--log", "/l", "--log-format", "json", "--systemd-cgroup"],
    ["-root", "/x", "-debug"],
    ["--rootless", "true", "--criu", "run", "--cgroup-manager=systemd"],
    ["--unknown", "value"],
    ["--unknown=value"],
)
OTHERS = (
    ["state", "create"],
    ["delete", "--force", "run"],
    ["kill", "x", "9"],
    ["exec", "--process", "p", "create", "run"],
    ["start", "x"],
    ["--version"],
    ["--help"],
    [],
    ["a-verb-to-come", "create"],
)


@pytest.fixture
def world(tmp_path):
    """A bundle, a runtime and a client that write down how they were started."""
    for name in ("real", "python"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' {name} \"$@\" >{tmp_path}/started\n")
        program.chmod(0o755)
    client = tmp_path / "run/runtime/nri-nvidia-client"
    client.parent.mkdir(parents=True)
    client.write_text(f"#!{tmp_path}/python -IS\n")
    (tmp_path / "bundle").mkdir()
    return tmp_path


def call(world, *words, spec=ASKING, cwd=None, prefix=(), **environment):
    """Call the front; give what was started, and with which words."""
    text = spec if isinstance(spec, str) else json.dumps(spec)
    (world / "bundle/config.json").write_text(text)
    (world / "started").unlink(missing_ok=True)
    env = {"PATH": "/usr/bin:/bin", "NRI_NVIDIA_RUN": f"{world}/run",
           "NRI_NVIDIA_RUNTIME": f"{world}/real", **environment}  # fmt: skip
    done = subprocess.run(
        [*prefix, FRONT, *words],
        env=env,
        cwd=cwd or world,
        check=False,
        capture_output=True,
        text=True,
    )
    if not (world / "started").exists():
        return "", [done.stderr]
    started, *given = (world / "started").read_text().splitlines()
    return started, given


@pytest.mark.parametrize("options", GLOBAL)
@pytest.mark.parametrize("words", OTHERS)
def test_other_verbs_go_to_the_runtime(world, options, words):
    """Whatever the global options and the arguments look like, and untouched."""
    assert call(world, *options, *words) == ("real", [*options, *words])


@pytest.mark.parametrize("options", GLOBAL)
@pytest.mark.parametrize("verb", ["create", "run"])
@pytest.mark.parametrize("bundle", [["--bundle"], ["-b"], ["-bundle"]])
@pytest.mark.parametrize("joined", [False, True])
def test_containers_that_ask_go_to_the_client(world, options, verb, bundle, joined):
    """With the file, the id, and the words as they were."""
    place = str(world / "bundle")
    named = [f"{bundle[0]}={place}"] if joined else [*bundle, place]
    words = [*options, verb, *named, "--pid-file", "/p", "--no-pivot", "some-id"]
    started, given = call(world, *words)
    assert started == "python"
    client = f"{world}/run/runtime/nri-nvidia-client"
    head = ["-I", "-S", client, f"{world}/run", f"{world}/real", f"{place}/config.json", "some-id"]
    assert given == [*head, *words]


def test_the_bundle_is_the_working_directory_unless_named(world):
    """As runtimes have it; crun takes another name of the file besides."""
    assert call(world, "create", "x", cwd=world / "bundle")[1][5] == "./config.json"
    (world / "other.json").write_text("NVIDIA_VISIBLE_DEVICES=0")
    for option in (["--config", "other.json"], ["--config=other.json"], ["-f", "other.json"]):
        words = ["create", "-b", "bundle", *option, "x"]
        assert call(world, *words, spec=PLAIN)[1][5] == "other.json"


@pytest.mark.parametrize(
    ("words", "config", "identifier"),
    [
        (["create", "x", "--bundle", "bundle"], "bundle/config.json", "x"),
        (["create", "--pid-file", "p", "x", "-b=bundle"], "bundle/config.json", "x"),
        (["create", "--bundle", "other", "--bundle=bundle", "x"], "bundle/config.json", "x"),
        (["create", "--bundle", "bundle", "--", "x"], "bundle/config.json", "x"),
        (["create", "--bundle", "bundle", "--", "-b"], "bundle/config.json", "-b"),
        (["--", "create", "--bundle", "bundle", "x"], "bundle/config.json", "x"),
        (["run", "-bbundle", "x"], "bundle/config.json", "x"),
        (["run", "-fbundle/config.json", "x"], "bundle/config.json", "x"),
        (["run", "--bundle", "./bundle/../bundle/", "x"], "./bundle/../bundle//config.json", "x"),
        (["run", "--bundle", "a b'\"$(id)\\*", "x"], "a b'\"$(id)\\*/config.json", "x"),
        (["create", "--bundle", "link", "x"], "link/config.json", "x"),
    ],
)
def test_odd_command_lines(world, words, config, identifier):
    """Options behind the id, the last of two, `--`, joined values, quotes, a linked bundle."""
    (world / "link").symlink_to("bundle")
    (world / "a b'\"$(id)\\*").symlink_to("bundle")
    started, given = call(world, *words)
    assert (started, given[5:7]) == ("python", [config, identifier])
    assert given[7:] == words


@pytest.mark.parametrize("words", [["--bundle="], ["--bundle", ""], ["-b", ""], []])
def test_an_empty_bundle_is_the_working_directory(world, words):
    """As runc has it, and not the root of the file system."""
    assert call(world, "create", *words, "x", cwd=world / "bundle")[1][5] == "./config.json"


def test_a_configuration_that_is_no_file_is_not_waited_for(world):
    """What asks refuses it; grep would wait for a writer."""
    (world / "fifo").mkdir()
    os.mkfifo(world / "fifo/config.json")
    assert call(world, "create", "-b", "fifo", "x")[0] == "python"


@pytest.mark.parametrize("spec", [PLAIN, {}, "not JSON"])
def test_containers_that_ask_for_nothing_go_to_the_runtime(world, spec):
    """No interpreter is started for them."""
    words = ["create", "--bundle", "bundle", "x"]
    assert call(world, *words, spec=spec) == ("real", words)


def test_a_missing_configuration_is_the_runtimes_to_report(world):
    """Its own message is the one that people know."""
    words = ["create", "--bundle", "nowhere", "x"]
    assert call(world, *words) == ("real", words)


@pytest.mark.parametrize(
    "text",
    [
        '{"process":{"env":["CUDA_VERSION=11.0"]}}',
        '{"process":{"env":["DOCKER_RESOURCE_GPU=0"]}}',
        '{"mounts":[{"destination":"/var/run/nvidia-container-devices/all"}]}',
        r'{"process":{"env":["\u004eVIDIA_VISIBLE_DEVICES=0"]}}',
        r'{"process":{"env":["NVIDIA_VISIBLE_DEVICES\u003d0"]}}',
        r'{"mounts":[{"destination":"/nvidia\u002dcontainer-devices"}]}',
        r'{"annotations":{"cdi.k8s.io\/x":"nvidia.com/gpu=0"}}',
        r'{"annotations":{"cdi.k\u0038s.io/x":"nvidia.com/gpu=0"}}',
        r'{"annotations":{"cdi\u002Ek8s.io\u002fx":"nvidia.com/gpu=0"}}',
    ],
)
@pytest.mark.parametrize("told", [True, False])
def test_whatever_may_be_a_request_is_looked_at(world, text, told):
    """Also one whose letters somebody has escaped; by the daemon's list of texts and without."""
    if told:
        marks = [b"NVIDIA_VISIBLE_DEVICES=", b"CUDA_VERSION=", b"DOCKER_RESOURCE_",
                 b"nvidia-container-devices", b"cdi.k8s.io/"]  # fmt: skip
        (world / "run/runtime/markers").write_bytes(install.marker_file(marks))
    assert call(world, "create", "-b", "bundle", "x", spec=text)[0] == "python"


@pytest.mark.parametrize("fault", ["no memory", "no null device"])
def test_where_grep_cannot_tell_it_is_looked_at(world, fault):
    """Its failure is no word of what is in the file, which can be read."""
    path = "/usr/bin:/bin"
    if fault == "no memory":
        (world / "grep").write_text("#!/bin/sh\nexit 2\n")
        (world / "grep").chmod(0o755)
        path = f"{world}:{path}"
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /dev; exec "$@"', "-"]
    prefix = hidden if fault == "no null device" else []
    words = ["create", "-b", "bundle", "x"]
    assert call(world, *words, prefix=prefix, PATH=path)[0] == "python"


def test_the_daemons_settings_say_what_to_look_for(world):
    """A variable of `request.swarm_resources`; what is not among them is not looked at."""
    lines = install.marker_file([b"MY_GPU="])
    (world / "run/runtime/markers").write_bytes(lines)
    words = ["create", "-b", "bundle", "x"]
    assert call(world, *words, spec='{"env":["MY_GPU=1"]}')[0] == "python"
    assert call(world, *words, spec=ASKING)[0] == "real"
    assert call(world, *words, spec=r'{"env":["MY\u005fGPU=1"]}')[0] == "python"


def test_the_runtime_is_found(world):
    """Without a name runc comes before crun, a link to the front itself does not count."""
    folder, linked = world / "path", world / "linked"
    folder.mkdir()
    linked.mkdir()
    (linked / "runc").symlink_to(FRONT)
    path = f"{linked}:{folder}:/usr/bin:/bin"
    call_it = lambda: call(world, "state", "x", PATH=path, NRI_NVIDIA_RUNTIME="")  # noqa: E731
    started, told = call_it()
    assert (started, "runc or crun: no such runtime" in told[0]) == ("", True)
    (folder / "crun").symlink_to(world / "real")
    assert call_it()[0] == "real"


def test_the_runtime_by_its_name(world):
    """On PATH, as in the file of settings; one that is not there is named."""
    folder = world / "path"
    folder.mkdir()
    (folder / "youki").symlink_to(world / "real")
    path = f"{folder}:/usr/bin:/bin"
    assert call(world, "state", "x", PATH=path, NRI_NVIDIA_RUNTIME="youki")[0] == "real"
    started, told = call(world, "state", "x", NRI_NVIDIA_RUNTIME="nothing-like-it")
    assert started == ""
    assert "nothing-like-it: no such runtime" in told[0]
    assert "NRI_NVIDIA_RUNTIME names it" in told[0]


def test_itself_is_no_runtime(world):
    """It would start itself for ever: as where runc on PATH was made a link to it."""
    (world / "runc").symlink_to(FRONT)
    for name in (FRONT, world / "runc"):
        started, told = call(world, "state", "x", NRI_NVIDIA_RUNTIME=str(name))
        assert (started, "that is nri-nvidia-runtime itself" in told[0]) == ("", True)


def test_the_log_is_json_whatever_is_told(world):
    """Engines read it."""
    words = ["--log", "log.json", "create", "-b", "bundle", "x"]
    call(world, *words, NRI_NVIDIA_RUNTIME=f'{world}/"no\\such\n')
    assert "/'no/such?: no such runtime" in json.loads((world / "log.json").read_text())["msg"]


def test_without_any_program_to_ask_the_refusal_is_in_the_log(world):
    """An engine shows the log's last line."""
    (world / "run/runtime/nri-nvidia-client").unlink()
    words = ["--log", "log.json", "--log-format", "json", "create", "-b", "bundle", "x"]
    started, told = call(world, *words)
    logged = json.loads((world / "log.json").read_text())
    assert (started, logged["level"]) == ("", "error")
    assert "this container asks for a GPU, and nri-nvidia is not running" in logged["msg"]
    assert "not running on this node" in told[0]


def test_where_there_is_no_directory_of_the_daemons_the_refusal_says_so(world):
    """A user's own engine does not see one that was made after its start."""
    told = call(world, "create", "-b", "bundle", "x", NRI_NVIDIA_RUN="/nowhere")[1]
    assert "there is no /nowhere here: start nri-nvidia" in told[0]
    assert "restart a user's own engine" in told[0]


def test_as_the_hook_of_gpus_it_refuses(world):
    """Where that hook runs, the container's runtime is another one and has given nothing.

    One that asks for none, as by `--gpus 0`, or that has them by CDI is not refused.
    """
    link = world / "nvidia-container-runtime-hook"
    link.symlink_to(FRONT)
    config, state = world / "bundle/config.json", json.dumps({"bundle": f"{world}/bundle"})
    asking, by_cdi = ["NVIDIA_VISIBLE_DEVICES=all"], {"path": "/run/hook/nri-nvidia-hook"}
    for env, hooks, status in (
        (asking, [], 1),
        (["NVIDIA_VISIBLE_DEVICES="], [], 0),
        (["NVIDIA_VISIBLE_DEVICES=void"], [], 0),
        ([], [], 0),
        (asking, [by_cdi], 0),
    ):
        spec = {"process": {"env": env}, "hooks": {"createContainer": hooks}}
        config.write_text(json.dumps(spec))
        done = subprocess.run(
            [link, "prestart"], check=False, capture_output=True, text=True, input=state
        )
        assert (done.returncode, "add --runtime nri-nvidia" in done.stderr) == (
            status,
            status == 1,
        )
    config.unlink()
    done = subprocess.run(
        [link, "prestart"], check=False, capture_output=True, text=True, input="{}"
    )
    assert "this container's runtime is not nri-nvidia-runtime" in done.stderr
