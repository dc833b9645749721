# SPDX-License-Identifier: Apache-2.0
"""What is to change for docker, podman, CRI-O and nerdctl."""

import json
import tomllib

import pytest

from nri_nvidia import errors
from nri_nvidia.configure import engines, transparent

from .trees import RUNTIME, Paper, options, settled

PODMAN = "/etc/containers/containers.conf.d/50-nri-nvidia.conf"
CRIO = "/etc/crio/crio.conf.d/50-nri-nvidia.conf"


@pytest.mark.parametrize(
    "text",
    [None, "", " \n", "{}", '{"runtimes": null}', '{"runtimes": {"nri-nvidia": null}}',
     '{"runtimes": {"nri-nvidia": {"path": null}}}'],
)  # fmt: skip
def test_docker_from_nothing(text):
    """docker takes an empty file for none, and null for what is not there."""
    tree = Paper() if text is None else Paper({engines.DOCKER: text})
    after = settled(engines.docker, tree, options())
    assert json.loads(after.files[engines.DOCKER]) == {
        "runtimes": {"nri-nvidia": {"path": RUNTIME}}
    }


def test_docker_keeps_what_is_there():
    """Other runtimes, order and form; a reload is enough, but not for CDI."""
    text = '{\n  "runtimes": {"other": {"path": "/o", "runtimeArgs": []}},\n  "debug": true\n}\n'
    tree = Paper({engines.DOCKER: text})
    after = settled(engines.docker, tree, options(default=True))
    assert after.files[engines.DOCKER] == (
        '{\n  "runtimes": {"other": {"path": "/o", "runtimeArgs": []}, "nri-nvidia": {"path": "'
        + RUNTIME
        + '"}},\n  "debug": true,\n  "default-runtime": "nri-nvidia"\n}\n'
    )
    assert engines.docker(tree, options()).then == ("systemctl reload docker",)
    found = engines.docker(tree, options(cdi=True))
    assert found.then == ("systemctl restart docker",)
    assert json.loads(found.needed[0].after)["features"] == {"cdi": True}


DOCKER_UNIT = "/lib/systemd/system/docker.service"
DROP_IN = "/etc/systemd/system/docker.service.d/own.conf"


@pytest.mark.parametrize(
    "files",
    [
        {DOCKER_UNIT: "[Service]\nExecStart=/usr/bin/dockerd --default-runtime=nvidia\n"},
        {DOCKER_UNIT: "[Service]\nExecStart=dockerd -H fd:// \\\n  --default-runtime nvidia\n"},
        {DOCKER_UNIT: "[Service]\nExecStart=dockerd\n",
         DROP_IN: "[Service]\nExecStart=\nExecStart=dockerd --default-runtime 'nvidia'\n"},
        {DOCKER_UNIT: "[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=dockerd $OPTS\n",
         "/etc/default/docker": 'OPTS="--default-runtime=nvidia --debug"\n'},
    ],
)  # fmt: skip
def test_docker_refuses_what_it_would_not_start_with(files):
    """A default runtime by its command line and by its file; else the option does not matter."""
    with pytest.raises(errors.ConfigError, match="started with --default-runtime nvidia"):
        engines.docker(Paper(files), options(default=True))
    settled(engines.docker, Paper(files), options())


@pytest.mark.parametrize(
    "files",
    [
        {DOCKER_UNIT: "[Service]\nExecStart=dockerd --default-runtime-x=a\n"},
        {DOCKER_UNIT: "[Service]\n#ExecStart=dockerd --default-runtime=a\n"},
        {DOCKER_UNIT: "[Service]\nExecStart=dockerd --default-runtime=a\n",
         DROP_IN: "[Service]\nExecStart=\nExecStart=dockerd\n"},
        {DOCKER_UNIT: "[Service]\nEnvironmentFile=/etc/default/docker\nExecStart=dockerd\n",
         "/etc/default/docker": "# OPTS=--default-runtime=a\n"},
        {"/etc/default/docker": "OPTS=--default-runtime=a\n"},
    ],
)  # fmt: skip
def test_docker_is_not_started_with_it(files):
    """What is said in vain, or of something else."""
    settled(engines.docker, Paper(files), options(default=True))


def test_docker_with_a_file_of_its_own():
    """A change in the usual file would have no effect."""
    tree = Paper({DOCKER_UNIT: "[Service]\nExecStart=dockerd --config-file=/etc/d.json\n"})
    with pytest.raises(errors.ConfigError, match=r"--config-file /etc/d\.json") as caught:
        engines.docker(tree, options())
    assert caught.value.hint == "name that file: --config /etc/d.json"
    settled(engines.docker, tree, options(config="/etc/d.json"))
    usual = "[Service]\nExecStart=dockerd --config-file /etc/docker/daemon.json\n"
    settled(engines.docker, Paper({DOCKER_UNIT: usual}), options())


def test_docker_builds():
    """BuildKit knows no runtimes: ours is the runc that it finds; that takes a restart."""
    given = options(builds=True, unit="docker.service")
    found = engines.docker(Paper(), given)
    assert found.then == ("systemctl daemon-reload", "systemctl restart docker")
    after = settled(engines.docker, Paper(), given)
    assert "/etc/systemd/system/docker.service.d/50-nri-nvidia.conf" in after.files
    with pytest.raises(errors.ConfigError, match="--builds"):
        engines.docker(Paper(), options(builds=True, user="/home/u/.config"))


@pytest.mark.parametrize("text", ['{"runtimes": []}', '{"runtimes": {"nri-nvidia": 3}}'])
def test_docker_refuses_another_shape(text):
    """It would not start with that either."""
    with pytest.raises(errors.ConfigError, match="is no object"):
        engines.docker(Paper({engines.DOCKER: text}), options())


def test_a_users_own_docker_and_podman():
    """Their files are in the user's configuration directory."""
    docker = engines.docker(Paper(), options(user="/home/u/.config"))
    assert docker.needed[0].path == "/home/u/.config/docker/daemon.json"
    assert docker.then == ("systemctl --user reload docker",)
    assert "systemctl --user restart docker" in docker.notes[-1]
    podman = engines.podman(Paper(), options(user="/home/u/.config"))
    assert podman.needed[0].path.startswith("/home/u/.config/containers/containers.conf.d/")


def test_podman():
    """By a drop-in; as the default one by one key more."""
    after = settled(engines.podman, Paper(), options())
    assert tomllib.loads(after.files[PODMAN]) == {
        "engine": {"runtimes": {"nri-nvidia": [RUNTIME]}}
    }
    after = settled(engines.podman, after, options(default=True))
    assert tomllib.loads(after.files[PODMAN])["engine"]["runtime"] == "nri-nvidia"


@pytest.mark.parametrize(
    ("later", "given", "told"),
    [
        ('[engine]\nruntime = "crun"\n', {"default": True}, "has runtime = 'crun'"),
        ('[engine.runtimes]\nnri-nvidia = ["/old"]\n', {}, "has another program for nri-nvidia"),
        ('[engine]\nruntime = "crun"\n', {}, ""),
        ('[engine]\nruntime = "nri-nvidia"\n', {"default": True}, ""),
        ("[containers]\n", {"default": True}, ""),
    ],
)
def test_podman_with_a_later_file(later, given, told):
    """Where that decides ours would not count, which is told; an earlier one does not matter."""
    place = "/etc/containers/containers.conf.d"
    settled(engines.podman, Paper({f"{place}/10-a.conf": later}), options(**given))
    settled(engines.podman, Paper({f"{place}/99-z.conf.old": later}), options(**given))
    tree = Paper({f"{place}/99-z.conf": later})
    if not told:
        settled(engines.podman, tree, options(**given))
        return
    with pytest.raises(errors.ConfigError, match=rf"99-z\.conf: {told}"):
        engines.podman(tree, options(**given))


@pytest.mark.parametrize(
    ("files", "release", "needed"),
    [
        ({}, "1.30.2", False),
        ({}, "1.28.0", True),
        ({}, "", True),
        ({"/etc/crio/crio.conf": "[crio.nri]\nenable_nri = true\n"}, "1.28.0", False),
        ({"/etc/crio/crio.conf.d/10-a.conf": "[crio.nri]\nenable_nri = false\n"}, "1.30.0", True),
    ],
)
def test_crio(files, release, needed):
    """On by default from 1.30; the last file that names it decides."""
    assert bool(engines.crio(Paper(files), options(release=release)).needed) is needed
    after = settled(engines.crio, Paper(files), options(release=release))
    if needed:
        assert tomllib.loads(after.files[CRIO])["crio"]["nri"] == {"enable_nri": True}


def test_crio_with_a_later_file_that_switches_it_off():
    """Ours would not count: that file is named."""
    files = {"/etc/crio/crio.conf.d/99-z.conf": "[crio.nri]\nenable_nri = false\n"}
    with pytest.raises(errors.ConfigError, match=r"99-z\.conf: switches NRI off"):
        engines.crio(Paper(files), options(release="1.30.0"))


def test_crio_wants_a_directory():
    """Its main file is not changed."""
    with pytest.raises(errors.ConfigError, match="is a file; what is wanted") as caught:
        engines.crio(Paper({"/etc/crio/crio.conf": ""}), options(config="/etc/crio/crio.conf"))
    assert caught.value.hint == "--config /etc/crio/crio.conf.d"


def test_crio_reads_the_directories_in_its_directory():
    """By name, whatever the files' names are: the last one decides there too."""
    off = "[crio.nri]\nenable_nri = false\n"
    place = "/etc/crio/crio.conf.d"
    settled(engines.crio, Paper({f"{place}/10-own/a.txt": off}), options(release="1.30.0"))
    assert engines.crio(Paper({f"{place}/10-own/a": off}), options(release="1.30.0")).needed
    with pytest.raises(errors.ConfigError, match=r"60-own/a: switches NRI off"):
        engines.crio(Paper({f"{place}/60-own/a": off}), options(release="1.30.0"))


def test_crio_required_where_a_later_file_has_the_list():
    """Ours would not count: that file is named."""
    table = "[crio.nri.default_validator]\nnri_validator_required_plugins = ['x']\n"
    tree = Paper({"/etc/crio/crio.conf.d/99-z.conf": table})
    with pytest.raises(errors.ConfigError, match=r"99-z\.conf: has nri_validator_required_plug"):
        engines.crio(tree, options(release="1.34.0", require=True))


@pytest.mark.parametrize("value", ["3", "'x'", "{}"])
def test_a_list_of_required_plugins_that_is_none(value):
    """CRI-O and containerd would not start with it; ours is a list again."""
    files = {
        "/etc/crio/crio.conf.d/10-a.conf": "[crio.nri.default_validator]\n"
        f"nri_validator_required_plugins = {value}\n"
    }
    after = settled(engines.crio, Paper(files), options(release="1.34.0", require=True))
    found = tomllib.loads(after.files[CRIO])["crio"]["nri"]["default_validator"]
    assert found["nri_validator_required_plugins"] == ["nri-nvidia"]


def test_crio_required_and_not_enabled():
    """A list that nobody looks at is no protection."""
    table = "crio.nri.default_validator"
    files = {CRIO: f"[{table}]\nnri_validator_required_plugins = ['nri-nvidia']\n"}
    after = settled(engines.crio, Paper(files), options(release="1.34.0", require=True))
    found = tomllib.loads(after.files[CRIO])["crio"]["nri"]["default_validator"]
    assert found["nri_enable_default_validator"] is True


def test_crio_required():
    """From 1.34 on, beside those that are required already."""
    table = "crio.nri.default_validator"
    files = {
        "/etc/crio/crio.conf.d/10-a.conf": f"[{table}]\nnri_validator_required_plugins = ['x']\n"
    }
    after = settled(engines.crio, Paper(files), options(release="1.34.0", require=True))
    found = tomllib.loads(after.files[CRIO])["crio"]["nri"]["default_validator"]
    assert found["nri_validator_required_plugins"] == ["x", "nri-nvidia"]
    with pytest.raises(errors.ConfigError, match=r"1\.34 and later"):
        engines.crio(Paper(files), options(release="1.30.0", require=True))


def test_nerdctl():
    """Its own file has no key for a runtime, which is said."""
    found = engines.nerdctl(Paper(), options())
    assert found.changes == transparent.propose(Paper(), options()).changes
    assert "nerdctl.toml has no key" in found.notes[-1]
