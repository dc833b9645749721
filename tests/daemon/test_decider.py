# SPDX-License-Identifier: Apache-2.0
"""What an answer to the runtime does not wait for."""

import asyncio
import logging

import pytest

from nri_nvidia import errors
from nri_nvidia.config import access, model
from nri_nvidia.daemon import decider, hookplace, hookreports, hostwatch, recorder, volumekeeper
from nri_nvidia.request import container as containers


@pytest.mark.parametrize(
    ("container_id", "exclusive", "known"),
    [("c", False, []), ("c", True, ["c"]), ("c/runtime", False, ["c/runtime"])],
)
async def test_what_is_kept_and_said_comes_after_the_answer(
    container_id, exclusive, known, caplog
):
    """It is in the loop's next round; where the next decision depends on it, it is known at once."""
    config = model.Config(policy=access.Policy(exclusive=exclusive))
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
    asking = containers.Container(
        id=container_id, name="asks", env=("NVIDIA_VISIBLE_DEVICES=all",)
    )
    with caplog.at_level(logging.INFO):
        with pytest.raises(errors.Error, match="the settings are wrong"):
            await deciding.create_container(asking, asyncio.get_running_loop().time() + 2)
        assert [entry.container.id for entry in deciding.ledger.decisions] == known
        assert caplog.messages == []
        await asyncio.sleep(0)
    assert [entry.container.id for entry in deciding.ledger.decisions] == [container_id]
    assert "the settings are wrong" in caplog.text
