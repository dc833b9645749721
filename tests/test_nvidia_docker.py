# SPDX-License-Identifier: Apache-2.0
"""contrib/nvidia-docker, with a stand-in that records what the engine is called with."""

import os
import pathlib
import subprocess

import pytest

COMMAND = pathlib.Path(__file__).parents[1] / "contrib/nvidia-docker"
RUNTIME = ["--runtime", "nri-nvidia"]
PATHED = ["--runtime", "/r"]
GPUS = ["-e", "NVIDIA_VISIBLE_DEVICES=0,1"]


@pytest.fixture
def engine(tmp_path):
    """Call it in front of an engine of a name; give its exit status, the words and the errors."""

    def call(name, *words, **env):
        directory = tmp_path / "bin"
        directory.mkdir(exist_ok=True)
        program, record = directory / name, tmp_path / "words"
        program.write_text(
            f'#!/bin/sh\n: >{record}\nfor word do printf "%s\\0" "$word"; done >{record}\nexit 7\n'
        )
        program.chmod(0o755)
        record.unlink(missing_ok=True)
        done = subprocess.run(
            [COMMAND, *words], check=False, capture_output=True, text=True,
            env={"PATH": f"{directory}:{os.environ['PATH']}", "NV_DOCKER": str(program),
                 "NRI_NVIDIA_RUNTIME_PATH": "/r", **env},
        )  # fmt: skip
        told = record.read_bytes().split(b"\0")[:-1] if record.exists() else None
        found = [os.fsdecode(word) for word in told] if told is not None else None
        return done.returncode, found, done.stderr

    return call


@pytest.mark.parametrize("value", ["0,1", "0 1", " 0, 1 ", "0,,1,"])
def test_gpus_of_the_variable(engine, value):
    """With blanks or commas between, as nvidia-docker 1 and 2 took them."""
    assert engine("docker", "run", "--rm", "image", NV_GPU=value) == (
        7, ["run", *RUNTIME, *GPUS, "--rm", "image"], "",
    )  # fmt: skip


@pytest.mark.parametrize("value", ["", " ", ","])
def test_without_it_the_image_decides(engine, value):
    """An empty variable is as good as none."""
    assert engine("docker", "run", "image", NV_GPU=value)[1] == ["run", *RUNTIME, "image"]
    assert engine("docker", "create", "image")[1] == ["create", *RUNTIME, "image"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("docker", ["-H", "run", "--tls", "--log-level=debug", "-c", "create"]),
        ("docker", ["--config", "run"]),
        ("docker", ["-Dc", "run"]),
        ("docker", ["-DH", "unix:///a", "-lwarn"]),
        ("nerdctl", ["-n", "run", "--debug", "--address", "/a b"]),
    ],
)
def test_options_before_the_verb(engine, kind, words):
    """Their values are no verbs, whatever they are."""
    runtime = RUNTIME if kind == "docker" else PATHED
    for verb in (["run"], ["container", "run"], ["container", "create"]):
        assert engine(kind, *words, *verb, "-i", "image", NV_GPU="0,1")[1] == [
            *words, *verb, *runtime, *GPUS, "-i", "image",
        ]  # fmt: skip


def test_podman_has_its_runtime_before_the_verb(engine):
    """It is an option of podman itself."""
    words = ["--root", "run", "--remote", "run"]
    assert engine("podman", *words, "image", NV_GPU="0,1")[1] == [
        *PATHED, *words, *GPUS, "image",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["docker", "nerdctl", "podman"])
@pytest.mark.parametrize(
    "words",
    [[], ["ps", "run"], ["--version"], ["container", "ls", "run"], ["exec", "-it", "x", "create"],
     ["volume", "create", "x"], ["compose", "run", "x"]],
)  # fmt: skip
def test_other_verbs_are_passed_on(engine, kind, words):
    """Word by word."""
    assert engine(kind, *words, NV_GPU="0") == (7, words, "")


def test_words_stay_whole(engine):
    """Blanks, line breaks, quotes, patterns, empty words and what looks like an option."""
    words = ["a b", "", "*", "$(id)", "`id`", "'\"", "x\ny", "--", "run", "\\n", "-e"]
    assert engine("docker", "run", *words, NV_GPU="0,1")[1] == ["run", *RUNTIME, *GPUS, *words]


@pytest.mark.parametrize(
    "words",
    [["--volume-driver=nvidia-docker"], ["--volume-driver", "nvidia-docker"],
     ["-v", "nvidia_driver_361.48:/usr/local/nvidia:ro"],
     ["--volume=nvidia_driver_361.48:/usr/local/nvidia:ro"],
     ["-vnvidia_driver_361.48:/usr/local/nvidia:ro"],
     ["--mount", "type=volume,src=nvidia_driver_361.48,dst=/usr/local/nvidia"]],
)  # fmt: skip
def test_the_former_volume_driver_is_refused(engine, words):
    """With what to write instead; the engine is not called."""
    code, called, err = engine("docker", "run", *words, "image")
    assert (code, called) == (2, None)
    assert "leave that option away" in err
    assert engine("docker", "run", "image", "nvidia-docker")[0] == 7


@pytest.mark.parametrize(
    "words",
    [["sh", "-c", "echo nvidia_driver_x:1"], ["nvidia_driver_x:1"], ["-e", "A=nvidia_driver_a:b"]],
)
def test_such_a_word_elsewhere_is_the_users(engine, words):
    """A name in a command or in a variable is no volume."""
    assert engine("docker", "run", "image", *words)[1] == ["run", *RUNTIME, "image", *words]


@pytest.mark.parametrize("kind", ["docker", "nerdctl", "podman"])
def test_a_command_of_several_words(engine, tmp_path, kind):
    """`NV_DOCKER='sudo docker -D'`, as nvidia-docker 1 took it; nothing in it is expanded."""
    chosen = RUNTIME if kind == "docker" else PATHED
    runs = [*chosen, "run", *GPUS, "i"] if kind == "podman" else ["run", *chosen, *GPUS, "i"]
    found = engine(
        kind, "run", "i", NV_GPU="0,1", NV_DOCKER=f"env A=1  {tmp_path}/bin/{kind} -D *"
    )
    assert found[1] == ["-D", "*", *runs]


def test_a_program_with_a_blank_in_its_path_is_one(engine, tmp_path):
    """Where there is such a program it is not taken apart."""
    assert engine("docker", "run", "i")[0] == 7
    (tmp_path / "a b").symlink_to(tmp_path / "bin")
    found = engine("docker", "run", "i", NV_DOCKER=f"{tmp_path}/a b/docker")
    assert found[1] == ["run", *RUNTIME, "i"]


def test_the_first_engine_on_the_path(engine, tmp_path):
    """docker before nerdctl before podman; none is told."""
    found = tmp_path / "bin"  # the machine's own engines are not to be found, nor any other
    found.mkdir()
    for kind in ("podman", "nerdctl", "docker"):
        env = {"NV_DOCKER": " " if kind == "docker" else "", "PATH": str(found)}
        _, called, _ = engine(kind, "run", "image", NV_GPU="0 1", **env)
        assert called is not None
        assert GPUS[1] in called
        assert ("nri-nvidia" in called) is (kind == "docker")
    bare = tmp_path / "bare"
    bare.mkdir()
    code, _, err = engine("docker", "run", "image", NV_DOCKER="", PATH=str(bare))
    assert (code, "name one by NV_DOCKER" in err) == (127, True)


def test_where_the_runtime_is_found(engine, tmp_path):
    """On PATH, else where it is installed."""
    unset = {"NRI_NVIDIA_RUNTIME_PATH": ""}
    usual = "/opt/nri-nvidia/bin/nri-nvidia-runtime"
    bare = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    assert engine("nerdctl", "run", "image", **unset, **bare)[1][2] == usual
    own = tmp_path / "bin/nri-nvidia-runtime"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert engine("nerdctl", "run", "image", **unset, **bare)[1][2] == str(own)


def test_linked_as_docker(engine, tmp_path):
    """The next docker on PATH is meant, by its name too; itself it calls never."""
    first = tmp_path / "first"
    first.mkdir()
    for kind in ("docker", "podman"):
        (first / kind).symlink_to(COMMAND)
    path = f"{first}:{tmp_path}/bin:{os.environ['PATH']}"
    for chosen in ("", "docker"):
        found = engine("docker", "run", "i", NV_DOCKER=chosen, PATH=path)
        assert found == (7, ["run", *RUNTIME, "i"], "")
    code, called, err = engine("docker", "run", "i", NV_DOCKER=f"{first}/podman")
    assert (code, called, "is this program itself" in err) == (127, None, True)


@pytest.mark.parametrize("chosen", ["no-such-engine", "no-such-engine docker", "/no/such engine"])
def test_an_engine_that_is_not_there(engine, chosen):
    """It is named."""
    code, called, err = engine("docker", "run", "i", NV_DOCKER=chosen)
    assert (code, called) == (127, None)
    assert f"{chosen.split()[0]}: there is no such program" in err


def test_the_former_plugins_address_is_told(engine):
    """It has no effect, which must not be found out from another machine's GPUs."""
    code, called, err = engine("docker", "run", "i", NV_HOST="ssh://me@there:")
    assert (code, called) == (7, ["run", *RUNTIME, "i"])
    assert "NV_HOST has no effect" in err
