# SPDX-License-Identifier: Apache-2.0
"""A real daemon beside an NVML that fails in each of its ways, by the test's own library."""

import asyncio

import pytest

from nri_nvidia.testing import host, runtime

from . import pairs

UUIDS = [host.host_spec.uuid_of(gpu, at) for at, gpu in enumerate(pairs.EIGHT.gpus)]


@pytest.fixture
def faulty(tmp_path):
    """Give a function that builds a host with eight GPUs and a fault of NVML's."""

    def make(fault, spec=pairs.EIGHT):
        directory = tmp_path / "host"
        host.build(directory, spec)
        (directory / "nvml.fault").write_text(fault)
        return directory

    return make


async def settled(pair, *, answers):
    """Wait until NVML has answered, or is known not to."""
    state = "answered" if answers else "gives no answer"

    def known():
        if answers:
            return pair.daemon.status()["driver"]["nvml"] != "absent"
        return "NVML gives no answer" in pair.daemon.logged()

    await asyncio.to_thread(pair.daemon.until, known, f"that NVML {state}")


async def refused(pair, number, *env):
    with pytest.raises(runtime.CreationFailed) as caught:
        await pair.create(number, *env)
    return str(caught.value)


def gpus(adjusted):
    paths = [device.path.removeprefix("/dev/nvidia") for device in adjusted.linux.devices]
    return sorted(int(path) for path in paths if path.isdigit())


@pytest.mark.parametrize("lost", [0, 3, 7])
def test_a_lost_gpu_is_refused_and_the_others_given(together, faulty, lost):
    """NVML fails at one of eight: the seven are given, by index, UUID and `all`; it is named."""

    async def body(pair):
        await pair.create(0, "NVIDIA_VISIBLE_DEVICES=none")
        await settled(pair, answers=True)
        others = [index for index in range(8) if index != lost]
        adjusted = await pair.create(1, "NVIDIA_VISIBLE_DEVICES=all")
        assert gpus(adjusted) == others
        for number, asked in enumerate((str(others[2]), UUIDS[others[2]]), 2):
            adjusted = await pair.create(number, f"NVIDIA_VISIBLE_DEVICES={asked}")
            assert gpus(adjusted) == [others[2]]
        for number, asked in enumerate((str(lost), UUIDS[lost], f"{others[0]},{lost}"), 4):
            said = await refused(pair, number, f"NVIDIA_VISIBLE_DEVICES={asked}")
            assert f"GPU {lost}" in said
            assert "GPU is lost" in said
        found = await pairs.status(pair)
        assert [f["code"] for f in found["findings"]] == ["gpu-not-answering"]
        everything = next(d for d in found["decisions"] if d["asked"] == ["all"])
        assert [reason["code"] for reason in everything["reasons"]] == ["gpu-left-out"]

    together(body, gpus=faulty(f"lost={lost}"))


def test_a_gpu_that_nvml_leaves_out(together, faulty):
    """NVML lists seven of eight and counts them anew: no index is guessed, UUIDs work."""

    async def body(pair):
        await pair.create(0, "NVIDIA_VISIBLE_DEVICES=none")
        await settled(pair, answers=True)
        assert gpus(await pair.create(1, "NVIDIA_VISIBLE_DEVICES=all")) == [0, 1, 2, 4, 5, 6, 7]
        assert gpus(await pair.create(2, f"NVIDIA_VISIBLE_DEVICES={UUIDS[5]}")) == [5]
        said = await refused(pair, 3, f"NVIDIA_VISIBLE_DEVICES={UUIDS[3]}")
        assert "NVML does not list it" in said
        assert "UUID" in await refused(pair, 4, "NVIDIA_VISIBLE_DEVICES=5")

    together(body, gpus=faulty("drop=3"))


def test_a_gpu_that_is_lost_while_the_daemon_runs(together, faulty, tmp_path):
    """Nothing in /proc tells: NVML is asked again after a while, and once more when it is back."""
    directory = faulty("")
    config = tmp_path / "config.toml"
    config.write_text("host.nvml_refresh = 0.05\n")

    async def body(pair):
        async def until(problem):
            def reached():
                return pair.daemon.status()["gpus"][2]["problem"] == problem

            await asyncio.to_thread(pair.daemon.until, reached, f"the problem {problem}")

        await pair.create(0, "NVIDIA_VISIBLE_DEVICES=2")
        (directory / "nvml.fault").write_text("lost=2")
        await until("NVML cannot describe it: GPU is lost")
        assert "GPU is lost" in await refused(pair, 1, "NVIDIA_VISIBLE_DEVICES=2")
        assert gpus(await pair.create(2, "NVIDIA_VISIBLE_DEVICES=all")) == [0, 1, 3, 4, 5, 6, 7]
        (directory / "nvml.fault").unlink()
        await until(None)
        assert gpus(await pair.create(3, "NVIDIA_VISIBLE_DEVICES=2")) == [2]

    together(body, "--config", str(config), gpus=directory)


def test_mig_devices_stay_known_when_nvml_fails_later(together, faulty, tmp_path):
    """An answer for GPUs that are as they were is kept over a crash."""
    spec = host.HostSpec(gpus=(host.GpuSpec(mig_enabled=True, mig=(host.MigSpec(gi=1),)),))
    directory = faulty("", spec)
    config = tmp_path / "config.toml"
    config.write_text("host.nvml_refresh = 0.05\n")

    async def body(pair):
        await pair.create(0, "NVIDIA_VISIBLE_DEVICES=none")
        await settled(pair, answers=True)
        (directory / "nvml.fault").write_text("crash")

        def failed():
            return pair.daemon.status() and "NVML gives no answer" in pair.daemon.logged()

        await asyncio.to_thread(pair.daemon.until, failed, "that NVML crashed")
        assert gpus(await pair.create(1, "NVIDIA_VISIBLE_DEVICES=0:0")) == [0]

    together(body, "--config", str(config), gpus=directory)


@pytest.mark.parametrize("fault", ["crash", "init=18", "noisy", "flood"])
def test_whole_gpus_are_given_without_nvml(together, faulty, fault):
    """NVML crashes, fails or talks nonsense: /proc is enough for all eight."""

    async def body(pair):
        await pair.create(0, "NVIDIA_VISIBLE_DEVICES=none")
        await settled(pair, answers=False)
        assert gpus(await pair.create(1, "NVIDIA_VISIBLE_DEVICES=all")) == list(range(8))
        assert gpus(await pair.create(2, "NVIDIA_VISIBLE_DEVICES=6")) == [6]
        assert (await pairs.status(pair))["counts"] == {"inject": 3}

    together(body, gpus=faulty(fault))


@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_what_nvml_alone_knows_is_refused_at_once(together, faulty, fault):
    """A MIG device while NVML hangs or crashes: it is refused, and says why."""
    migs = (host.MigSpec(gi=1), host.MigSpec(gi=2))
    spec = host.HostSpec(gpus=(host.GpuSpec(mig_enabled=True, mig=migs), host.GpuSpec()))
    uuid = host.host_spec.mig_uuid_of(spec.gpus[0], 0, migs[0])

    async def body(pair):
        for number, asked in enumerate((uuid, "0:0", f"MIG-{UUIDS[0]}/1/0", "all")):
            said = await refused(pair, number, f"NVIDIA_VISIBLE_DEVICES={asked}")
            assert "NVML has not answered" in said
        assert gpus(await pair.create(9, "NVIDIA_VISIBLE_DEVICES=1")) == [1]
        assert len(pair.runtime.plugins) == 1

    together(body, gpus=faulty(fault, spec))
