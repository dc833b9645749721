# SPDX-License-Identifier: Apache-2.0
"""Real containerd reads what `nri-nvidia configure containerd` makes of its configuration."""

import subprocess
import tomllib

import pytest

from nri_nvidia import cli
from nri_nvidia.check import containerd as known
from nri_nvidia.configure import transparent
from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import conftest, daemons, doors, settings
from .test_gpu import nodes

NRI = f'[plugins."{known.NRI}"]\n'
CONFIGURATIONS = {
    "none of NRI": "version = 2\n",
    "off": f"version = 2\n{NRI}  disable = true # off\n",
    "without connections": f"version = 2\n{NRI}  disable = true\n  disable_connections = true\n",
    "tables out of order": (
        'version = 2\n[plugins."io.containerd.gc.v1.scheduler"]\n  pause_threshold = 0.03\n'
        f'[grpc]\n{NRI}  disable = true\n[plugins."io.containerd.internal.v1.opt"]\n  path = "/o"\n'
    ),
    "among the disabled": f'version = 2\ndisabled_plugins = ["io.containerd.snapshotter.v1.zfs", "{known.NRI}"]\n',
    "comments alone": "# mine\n\n",
    "version 1": "[plugins.nri]\n  disable = true\n",
    "version 1, whole name": f"{NRI}  disable = true\n",
    "version 1, disabled": 'disabled_plugins = ["nri"]\n',
    "CR LF and tabs": f"version = 2\r\n\r\n[plugins]\r\n\t{NRI.strip()}\t# off\r\n\t\tdisable\t=\ttrue\r\n",
    "inline table": f'version = 2\nplugins = {{"{known.NRI}" = {{disable = true}}}} # x\n',
    "inline in a table": f'version = 2\n[plugins]\n"{known.NRI}" = {{ plugin_path = "/p" }}\n',
    "dotted keys": f'version = 2\nplugins."{known.NRI}".disable = true\n',
    "dotted, of another": 'version = 2\nplugins."io.containerd.gc.v1.scheduler".pause_threshold = 0.03',
    "a table within first": f"version = 2\n[plugins.'{known.NRI}'.x]\n",
    "imports itself": 'version = 2\nimports = ["config.toml"]\n',
    "drop-ins": 'version = 2\nimports = ["conf.d/*.toml"]\n',
}


@pytest.fixture(scope="session")
def gpu_host(tmp_path_factory):
    """A simulated host with two GPUs."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 2))
    return directory


@pytest.fixture(params=conftest.ENGINES)
def program(request, programs):
    """Each containerd's program; it is not started here."""
    return programs[request.param]


def configure(*words):
    """Apply a configuration, which has to be enough to find nothing to do the second time."""
    assert cli.main(["configure", *map(str, words), "--apply"]) == 0


def default(program):
    return subprocess.run(
        [program.path, "config", "default"], check=True, capture_output=True, text=True
    ).stdout


def merged(program, path):
    """Give the configuration as containerd itself has it, imports and all."""
    done = subprocess.run(
        [program.path, "-c", path, "config", "dump"], check=True, capture_output=True, text=True
    )
    return tomllib.loads(done.stdout)


@pytest.mark.parametrize("name", [*CONFIGURATIONS, "its own default"])
def test_containerd_reads_the_result(program, tmp_path, name, capsys):
    """NRI is on with connections, and all else is as before; a second time changes nothing."""
    place = tmp_path / "config.toml"
    (tmp_path / "conf.d").mkdir()
    text = CONFIGURATIONS.get(name) or default(program)
    place.write_text(text)
    words = ["containerd", "--root", tmp_path, "--config", "/config.toml",
             "--engine-version", program.version]  # fmt: skip
    before = merged(program, place)
    configure(*words)
    after = merged(program, place)
    nri = after["plugins"].pop(known.NRI)
    assert (nri["disable"], nri["disable_connections"]) == (False, False)
    assert known.NRI not in after["disabled_plugins"]
    before["plugins"].pop(known.NRI, None)
    for each in (before, after):
        each.pop("disabled_plugins")
        each.pop("imports")
    assert after == before
    left = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    configure(*words)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == left
    assert "nothing to do" in capsys.readouterr().err


async def test_a_container_gets_its_gpu_afterwards(fresh, gpu_host):
    """containerd with NRI off, configured, started: the daemon registers and is asked."""

    def prepare(engine):
        configure(
            "containerd", "--root", engine.directory, "--config", "/config.toml",
            "--engine-version", engine.version,
        )  # fmt: skip

    engine = fresh(settings.Options(nri=False), prepare)
    with daemons.running(engine.nri_socket, gpu_host):
        async with doors.cri(engine, {"NVIDIA_VISIBLE_DEVICES": "1"}) as container:
            assert "nvidia1" in await nodes(container)


async def test_transparent_mode(fresh, gpu_host):
    """A client that names no runtime gets GPUs, and CRI's containers are as they were.

    Without the daemon's package the real runc is found, and containers run.
    """

    def prepare(engine):
        configure(
            "containerd", "--root", engine.directory, "--config", "/config.toml",
            "--engine-version", engine.version, "--transparent", "--runtime-path", doors.FRONT,
        )  # fmt: skip
        unit = engine.directory / "etc/systemd/system/containerd.service.d/50-nri-nvidia.conf"
        (setting,) = [line for line in unit.read_text().splitlines() if "PATH=" in line]
        first = setting.partition("PATH=")[2].split(":")[0]
        # What systemd would do, with the directory below the engine's own root.
        engine._path = f"{engine.directory}{first}:{engine._path}"

    engine = fresh(None, prepare)
    env = {"NVIDIA_VISIBLE_DEVICES": "1"}
    with daemons.running(engine.nri_socket, gpu_host) as daemon:
        engine.inside("/run/nri-nvidia").symlink_to(daemon.directory)
        async with doors.ctr(engine, None, env) as container:
            assert await nodes(container) == {
                "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools",
            }  # fmt: skip
            assert (await container.exec(["/probe-dlopen", "libcuda.so.1"])).code == 0
        async with doors.ctr(engine, None, {}) as container:
            assert await nodes(container) == set()
        with pytest.raises(doors.RefusedError, match="no such GPU"):
            async with doors.ctr(engine, None, {"NVIDIA_VISIBLE_DEVICES": "9"}):
                pass
        async with doors.cri(engine, env) as container:
            assert "nvidia1" in await nodes(container)
    link = engine.directory / transparent.DIRECTORY.lstrip("/") / "containerd/runc"
    link.unlink()
    link.symlink_to("/gone/with/the/package")
    async with doors.ctr(engine, None, env) as container:
        assert await nodes(container) == set()
