# SPDX-License-Identifier: Apache-2.0
"""Every door gives the same: a container cannot tell by which it came to its GPUs."""

import json

import pytest

from nri_nvidia.testing import host as simulated
from nri_nvidia.testing import host_spec

from . import daemons, doors, settings, test_same

ASKED = {"NVIDIA_VISIBLE_DEVICES": "0,2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
BY_NAME = ["nvidia.com/gpu=0", "nvidia.com/gpu=2"]


@pytest.fixture(scope="session")
def gpu_host(tmp_path_factory):
    """A simulated host with eight GPUs."""
    directory = tmp_path_factory.mktemp("host")
    simulated.build(directory, host_spec.HostSpec(gpus=(host_spec.GpuSpec(),) * 8))
    return directory


@pytest.fixture
def world(fresh, gpu_host, tmp_path, programs):
    """An engine whose handler `wrapped` is nri-nvidia-runtime, and a daemon that keeps CDI files.

    CDI files are where CRI looks, and where ctr does.
    """
    late = tmp_path / "wrapped"
    engine = fresh(settings.Options(wrappers={"wrapped": late}))
    config = tmp_path / "config.toml"
    config.write_text(f'cdi.keep = true\ncdi.directory = "{engine.cdi_specs}"\n')
    with daemons.running(engine.nri_socket, gpu_host, ["--config", str(config)]) as daemon:
        late.symlink_to(doors.wrapper(daemon, programs["runc"].path))
        kept = engine.cdi_specs / "nri-nvidia-gpu.json"
        daemon.until(kept.exists, "the CDI specification")
        clients = engine.inside("/run/cdi")
        clients.mkdir()
        (clients / kept.name).write_bytes(kept.read_bytes())
        yield engine, daemon


def door(world, name, env=ASKED, names=BY_NAME):
    """Give a container by one door."""
    engine, daemon = world
    runtime = daemon.directory / "wrapped-runc"
    devices = [word for each in names for word in ("--device", each)]
    match name:
        case "CRI, NRI":
            return doors.cri(engine, env)
        case "CRI, NRI and runtime":
            return doors.cri(engine, env, runtime="wrapped")
        case "CRI, CDI":
            return doors.cri(engine, {}, cdi=names)
        case "ctr, runtime":
            return doors.ctr(engine, runtime, env)
        case "ctr, CDI":
            return doors.ctr(engine, runtime, {}, options=devices)
        case _:
            raise LookupError(name)


def others(world):
    """Give the names of the doors beside NRI's: ctr 1.7 knows no CDI."""
    names = ["CRI, NRI and runtime", "CRI, CDI", "ctr, runtime"]
    return names if world[0].version.startswith("1.") else [*names, "ctr, CDI"]


async def test_every_door_gives_the_same(world):
    """Nodes, numbers, modes, what the device cgroup allows, files, loader cache, links."""
    async with door(world, "CRI, NRI") as container:
        expected = await doors.facts(container)
    assert sorted(expected["nodes"])[:2] == ["nvidia-modeset", "nvidia-uvm"]
    assert (expected["opened"], expected["made"]) == ({"ENXIO"}, "OK EPERM")
    for name in others(world):
        async with door(world, name) as container:
            assert await doors.facts(container) == expected, name


async def everything(container):
    """Give all that can be seen of the driver inside, the same whether it came by NRI or CDI.

    That is without the variables that ask for it and the profile that names a container's own GPUs
    to EGL: a static specification has none.
    """
    look = test_same.LOOK.replace(" /etc/nvidia/*/*", "")
    assert look != test_same.LOOK
    done = await container.exec(["/bin/sh", "-c", look])
    assert done.code == 0, done
    before, _, rest = done.stdout.partition("== variables\n")
    return [*before.splitlines(), *rest.partition("== written\n")[2].splitlines()]


async def test_cdi_gives_all_that_nri_gives(fresh, tmp_path):
    """Of a GPU and of a MIG device with every capability: content, modes, nodes, links, texts."""
    simulated.build(tmp_path / "host", test_same.HOST)
    engine = fresh()
    config = tmp_path / "config.toml"
    config.write_text(f'cdi.keep = true\ncdi.directory = "{engine.cdi_specs}"\n')
    words = ["--config", str(config)]
    with daemons.running(engine.nri_socket, tmp_path / "host", words) as daemon:
        daemon.nvml_answered()
        kept = engine.cdi_specs / "nri-nvidia-gpu.json"
        daemon.until(lambda: kept.exists() and '"0:0"' in kept.read_text(), "the specification")
        for device in ("1", "0:0"):
            env = {"NVIDIA_VISIBLE_DEVICES": device, "NVIDIA_DRIVER_CAPABILITIES": "all"}
            async with doors.cri(engine, env) as container:
                expected = await everything(container)
            assert "/usr/local/nvidia/lib64/libcuda.so.1" in expected
            async with doors.cri(engine, {}, cdi=[f"nvidia.com/gpu={device}"]) as container:
                found = await everything(container)
            assert sorted({*found} ^ {*expected}) == []
            assert found == expected


async def test_what_came_by_one_door_is_left_alone_by_the_next(world):
    """One hook, each mount once, and no second decision."""
    engine, daemon = world
    async with door(world, "CRI, NRI and runtime") as container:
        config = engine.config_json(container.id)
    assert json.dumps(config).count('/nri-nvidia-hook"') == 1
    places = [each["destination"] for each in config["mounts"]]
    assert len(places) == len(set(places))
    assert daemon.status()["counts"] == {"inject": 1}
    # Here the variable asks for all, and the device of CDI is what it gets.
    async with doors.cri(engine, {"NVIDIA_VISIBLE_DEVICES": "all"}, cdi=BY_NAME[:1]) as container:
        nodes = (await doors.facts(container))["nodes"]
    assert [name for name in nodes if name[6:].isdigit()] == ["nvidia0"]


async def test_every_door_refuses_what_is_not_there(world):
    """With the daemon's sentence; a static specification's devices the engine does not know."""
    sentence = "NVIDIA_VISIBLE_DEVICES=9: no such GPU; this node has 0-7"
    unknown = "unresolvable CDI devices nvidia.com/gpu=9"
    env = {"NVIDIA_VISIBLE_DEVICES": "9"}
    for name in ("CRI, NRI", *others(world)):
        with pytest.raises(doors.RefusedError) as caught:
            async with door(world, name, env, ["nvidia.com/gpu=9"]):
                pass
        assert (unknown if "CDI" in name else sentence) in str(caught.value), name


async def test_cri_by_the_runtime_alone(fresh, gpu_host, tmp_path, programs):
    """Where NRI is off the runtime serves pods too, and tells their names."""
    late = tmp_path / "wrapped"
    engine = fresh(settings.Options(nri=False, wrappers={"wrapped": late}))
    with daemons.alone(gpu_host) as daemon:
        late.symlink_to(doors.wrapper(daemon, programs["runc"].path))
        async with doors.cri(engine, ASKED, runtime="wrapped") as container:
            assert "nvidia2" in (await doors.facts(container))["nodes"]
            (entry,) = daemon.status()["containers"]
            assert (entry["name"], entry["namespace"]) == ("container-1", "default")
            # Its shim is the pod's and goes on.
            await container.remove()
            daemon.until(lambda: not daemon.status()["containers"], "the container's end")
