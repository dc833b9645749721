# SPDX-License-Identifier: Apache-2.0
"""What an answer to the runtime does not wait for."""

import asyncio
import logging

import pytest

from nri_nvidia import errors
from nri_nvidia.config import model
from nri_nvidia.daemon import decider, hookplace, hookreports, hostwatch, recorder, volumekeeper
from nri_nvidia.request import container as containers


async def test_the_log_line_comes_after_the_answer(caplog):
    """The decision is known with the answer, and said in the loop's next round."""
    config = model.Config()
    watch = hostwatch.HostWatch(config.host_options())
    deciding = decider.Decider(
        watch,
        config,
        place=hookplace.HookPlace(),
        keeper=volumekeeper.VolumeKeeper(),
        reports=hookreports.Receiver(),
        records=recorder.Recorder(),
        on_config=lambda _: pytest.fail("no settings come"),
        on_registered=lambda: pytest.fail("nothing registers"),
    )
    deciding.fault = errors.ConfigError("the settings are wrong")
    asking = containers.Container(id="c", name="asks", env=("NVIDIA_VISIBLE_DEVICES=all",))
    with caplog.at_level(logging.INFO):
        with pytest.raises(errors.Error, match="the settings are wrong"):
            await deciding.create_container(asking, asyncio.get_running_loop().time() + 2)
        assert [entry.container.id for entry in deciding.ledger.decisions] == ["c"]
        assert caplog.messages == []
        await asyncio.sleep(0)
    assert "the settings are wrong" in caplog.text
